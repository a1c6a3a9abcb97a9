#pragma once

// Kernels of the CPU device in this process. Blocks run on the calling thread; where that takes
// longer than waking others, on torch's threads, too (torch.set_num_threads()).

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct image;
struct opd_cpu_job;

bool cpu_load(struct image *image, const void *payload, size_t size, struct opd_err *err);
void cpu_unload(struct image *image);

// Runs all blocks, and returns when they have ended. `small` is kept for the next launch of the
// same. Error: kernel_fault.
bool cpu_launch(const struct image *image, const struct opd_cpu_job *job, atomic_bool *small,
                struct opd_err *err);

// In a forked child: torch's threads are the parent's, and the calling one is all there is.
void cpu_forked(void);
