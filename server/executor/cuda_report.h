#pragma once

// What kernels have reported, 8 bytes of a GPU's memory, into the host's, by a kernel: it is looked
// at after each call that has checks, and a copy takes 11 us behind kernels, this 6. The kernel
// itself counts the places, so that it may be in a graph, beside what does not wait for it.

#include "executor/cuda_memory.h"

// As backend.h has it.
bool cuda_report(struct backend *be, uint64_t *places, uint32_t n, device_addr src,
                 struct opd_err *err);
