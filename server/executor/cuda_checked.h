#pragma once

// Checked builds of kernels (base/checked.h) on a GPU: their table is filled before a launch, and
// what they report is told behind it. Such a launch is waited for.

#include "executor/backend.h"
#include "executor/cuda_memory.h"

struct cuda_checked;

bool cuda_checked_is(const struct backend_image *image);

// Loads the module and finds the kernel's table in it; NULL on failure. The caller unloads
// *out_module, which is set where it was loaded.
struct cuda_checked *cuda_checked_load(struct cuda_backend *b, const struct backend_image *image,
                                       void **out_module, struct opd_err *err);
void cuda_checked_free(struct cuda_checked *c); // NULL is fine

// Before the launch, and behind it: false with kernel_fault where the kernel has missed. The device
// goes on. A failure of the device itself is told by what comes next.
bool cuda_checked_begin(struct cuda_checked *c, struct cuda_backend *b,
                        const struct backend_launch *l, struct opd_err *err);
bool cuda_checked_end(struct cuda_checked *c, struct cuda_backend *b,
                      const struct backend_launch *l, struct opd_err *err);
