#pragma once

// Other processes, as /proc tells of them.

#include <stdint.h>
#include <sys/types.h>

// When the kernel's clock said that it had begun, which tells it from a later one of its number. 0:
// there is none.
uint64_t process_started(pid_t pid);

// Kills whatever still runs in the session that a process had made. How many that were.
int process_kill_session(pid_t session);
