#pragma once

// What kernels see of the CPU device's memory: not the chunks, but for each tensor's storage a
// mapping of its own, with much around it that may not be touched. A kernel that leaves its tensors
// is stopped at the first access outside, and what belongs to others is out of its reach.
//
// The broker places a storage so that its last byte is the last of a page; so the end is exact, and
// what may lie before the start, up to a page, is nobody's.

#include <stddef.h>
#include <stdint.h>

#include "wire/map.h"

enum { CPU_GUARD_MAX_CHUNKS = 1024 };

// Bytes on either side of a tensor that cannot be touched.
#if defined(__SANITIZE_THREAD__)
#define CPU_GUARD_ZONE ((uintptr_t)8 << 20) // the sanitizer leaves little address space
#else
#define CPU_GUARD_ZONE ((uintptr_t)128 << 20)
#endif

struct cpu_guard_chunk {
    uintptr_t addr; // of the chunk's own mapping; 0: free
    uint64_t size;
    int fd; // owned
};

// Zeroed is an empty one. Used by one thread.
struct cpu_guards {
    struct cpu_guard_chunk chunks[CPU_GUARD_MAX_CHUNKS];
    int n_chunks;     // those from here on are free
    struct map views; // what kernels see, by the hash of its bounds
    uint64_t clock, bytes;
};

// Chunks that are mapped at `addr`; the descriptor is not taken over. One that is not added is used
// without guards.
void cpu_guards_add(struct cpu_guards *g, uintptr_t addr, uint64_t size, int fd);
void cpu_guards_remove(struct cpu_guards *g, uintptr_t addr);
void cpu_guards_finish(struct cpu_guards *g);

// Bytes of the chunks that nobody has written yet, and that have no memory yet.
uint64_t cpu_guards_promised(const struct cpu_guards *g);

// A launch begins: what is mapped from here on stays until the next one.
void cpu_guards_begin(struct cpu_guards *g);

// Where kernels see [low, high) of a chunk's mapping, both at pages. The mapping is kept for the
// next time. Where none can be made, `low` itself.
uintptr_t cpu_guards_map(struct cpu_guards *g, uintptr_t low, uintptr_t high);

// A new mapping of memory with the guards around it: of `fd` at `offset`, or of nobody if fd is -1.
// 0: there is no room.
uintptr_t cpu_guard_make(int fd, uint64_t offset, uint64_t size);
void cpu_guard_drop(uintptr_t addr, uint64_t size);
