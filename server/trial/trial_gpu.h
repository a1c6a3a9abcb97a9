#pragma once

// Runs the plans of a trial's cases on a GPU, in checked builds (base/checked.h): what a kernel
// does outside of its tensors is told with tensor, element and line. By the backend that an
// executor has, in a stage's process, with memory of its own.

#include <stdbool.h>

#include "base/err.h"
#include "executor/backend.h"

struct plan;
struct trial_gpu;
struct trial_run;

bool trial_gpu_is(const char *stage); // the stage of a GPU is called as its device is: "cuda:0"

// What a device is, asked by a process that ends behind it. Errors: unavailable, where there is
// none.
bool trial_gpu_probe(const char *device, struct backend_info *out, struct opd_err *err);

struct trial_gpu *trial_gpu_open(const char *device, struct opd_err *err); // NULL with an error

// Runs all steps of a plan on copies of s->operands, and copies them back. A kernel that faults
// ends the process, and is told.
void trial_gpu_run(struct trial_gpu *g, struct trial_run *s, const struct plan *plan);
