#pragma once

// A kernel starts no processes: one that it forked would outlive the executor, and the daemon too,
// with every tensor mapped.

#include <stdbool.h>

#include "base/err.h"

// For the calling thread, and those that it starts from then on, as long as the process lives: what
// forks or runs a program ends the process by SIGSYS. Threads go on being started. What looks up
// lines (cpu_line.h) keeps a thread that may. Error: the kernel of the system has no such filters.
bool cpu_confine(struct opd_err *err);
