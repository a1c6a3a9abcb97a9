#pragma once

// How much of the machine's memory the CPU device may take: the control groups that the process is
// in (a container, a service of systemd) may allow less than there is, and end a process that takes
// more.

#include <stdbool.h>
#include <stdint.h>

struct cpu_memory {
    uint64_t total, free; // bytes; of `free` some is kept back where a group is the bound
    bool limited;         // by a group: more than `free` costs a process its life
};

void cpu_memory_read(struct cpu_memory *out);
uint64_t cpu_memory_own(void); // bytes of this process, of what it shares its part

// The same by files that tell what /proc/self/cgroup and /proc/self/mountinfo do.
void cpu_memory_read_groups(const char *groups, const char *mounts, struct cpu_memory *out);
