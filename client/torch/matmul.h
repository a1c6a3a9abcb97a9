#pragma once

// Products of matrices, by torch's own functions: they are as its settings say (TF32, threads), and
// right on its current stream, also where that captures a graph.

#include "base/err.h"
#include "base/exported.h"

struct loaded;

// Whether torch can make it: what is summed into float32 from 16 bits it cannot.
bool matmul_fits(const struct exported_matmul *m);
bool matmul_run(const struct loaded *p, const struct exported_matmul *m, const uint64_t *addresses,
                struct opd_err *err);
