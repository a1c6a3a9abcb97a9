#pragma once

// What a process that made a session has left behind.

#include <sys/types.h>

// Kills whatever still runs in a session. How many that were.
int session_kill(pid_t session);
