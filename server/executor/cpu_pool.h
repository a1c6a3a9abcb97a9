#pragma once

// Spreads the blocks of a launch over the processor's cores.

#include "executor/cpu_block.h"

struct cpu_pool;

// As many workers as the process may use cores; the caller of cpu_pool_run() is one of them.
struct cpu_pool *cpu_pool_new(struct opd_err *err);
void cpu_pool_free(struct cpu_pool *pool); // NULL is fine
int cpu_pool_size(const struct cpu_pool *pool);

// Runs all blocks, and returns when they have ended. Error: kernel_fault, of the first that failed;
// blocks that had not begun then are left out.
bool cpu_pool_run(struct cpu_pool *pool, const struct opd_cpu_kernel *kernel,
                  const struct opd_cpu_job *job, struct opd_err *err);

// Whether the run that failed last was stopped from below, and how; NULL: it was not.
const struct cpu_fault *cpu_pool_fault(const struct cpu_pool *pool);
