#pragma once

// Eight bytes of a GPU's memory into the host's, by a kernel: what kernels have reported is looked
// at after each call that has checks, and a copy takes 11 us behind kernels, this 6.

#include "executor/cuda_memory.h"

// host: in memory that host_register() has had. In stream order; where no such kernel can be had,
// by a copy.
bool cuda_report_copy(struct backend *be, uint64_t *host, device_addr src, struct opd_err *err);
