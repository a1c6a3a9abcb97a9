#pragma once

// Products of matrices by cuBLASLt, found at run time where NVRTC is found too: $OPD_CUBLASLT (the
// library or its folder), CUDA's toolkit, the dynamic linker's folders, Python's wheels.

#include "executor/backend.h"
#include "executor/cuda_driver.h"

struct cuda_blas;

enum { CUDA_BLAS_WORKSPACE = 32 << 20 };

// In the current context. NULL: there is none, or it does not work here, which is logged.
// `workspace`: it has memory of its own to work in, for one stream.
struct cuda_blas *cuda_blas_new(const struct cuda_driver *cu, bool workspace);
void cuda_blas_free(struct cuda_blas *blas); // NULL is fine; once the stream has passed its work
const char *cuda_blas_name(const struct cuda_blas *blas); // "cuBLASLt 13.0.2"

// *size: bytes that a product's algorithm works in, 0 mostly, CUDA_BLAS_WORKSPACE at most.
bool cuda_blas_ask(struct cuda_blas *blas, const struct backend_matmul *m, size_t *size,
                   struct opd_err *err);

// A piece so large of its own workspace, to be put into m->workspace. Pieces are given out in turn:
// those of products that may run beside each other must not overlap.
bool cuda_blas_share(struct cuda_blas *blas, const struct backend_matmul *m, drv_addr *out,
                     size_t *out_size, struct opd_err *err);

// `workspace`: `size` bytes, aligned to 256, that nobody else has before this is done; where they
// are too few another algorithm makes do with them. What has memory of its own works there, in
// m->workspace if that is one.
bool cuda_blas_matmul(struct cuda_blas *blas, const struct backend_matmul *m, drv_addr workspace,
                      size_t size, void *stream, struct opd_err *err);
