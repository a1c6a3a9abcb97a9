#pragma once

// Products of float32 and float64 matrices by OpenBLAS, found at run time. It is told to use one
// thread, and so starts none: the pool's threads each call it for a part of the result.

#include "executor/backend.h"
#include "executor/cpu_pool.h"

struct cpu_blas;

// Loaded once, kept for the life of the process; NULL: there is none.
const struct cpu_blas *cpu_blas_load(void);
const char *cpu_blas_name(const struct cpu_blas *blas); // "OpenBLAS 0.3.21"

bool cpu_blas_matmul(const struct cpu_blas *blas, struct cpu_pool *pool,
                     const struct backend_matmul *m, struct opd_err *err);
