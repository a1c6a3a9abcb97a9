#pragma once

// Products of matrices, by torch's own functions: they are as its settings say (TF32, threads), and
// right on its current stream, also where that captures a graph. What is summed into float32 from
// 16 bits torch cannot make, nor TF32 where the operator alone allows that; on a GPU cuBLASLt does,
// in scratch memory of the call's.

#include "base/err.h"
#include "base/exported.h"

struct cuda_run;
struct loaded;

// Whether it can be made here. *workspace: bytes of scratch memory that it takes, aligned to 256,
// where tensors begin at addresses that are aligned.
bool matmul_fits(const struct loaded *p, const struct exported_matmul *m, uint64_t *workspace);
// `workspace`: the address of p->workspace_size bytes.
bool matmul_run(const struct loaded *p, const struct exported_matmul *m, const uint64_t *addresses,
                struct cuda_run *cuda, uint64_t workspace, struct opd_err *err);
