#pragma once

// What happens to the text of a .cu before the host compiler sees it. Part of the host compiler
// (host.c).

#include "base/err.h"
#include "base/mem.h"

// Refuses what the CPU device cannot run: inline PTX, tensor cores, textures, grid sync and the
// like, and host functions of a PyTorch extension. Text that the preprocessor leaves out there is
// not looked at: `#ifdef __CUDA_ARCH__`, `#ifndef OPD_CPU`. Error: compile_error, "gelu.cu:12:
// what; what to do".
bool host_source_check(const char *file, const char *source, struct opd_err *err);

// Looks for a launch outside of kernels, bindings or dispatch macros of a PyTorch extension, which
// no device compiles. True with err: there is one, "gelu.cu:12: what; what to do".
bool host_source_find_host_code(const char *file, const char *source, struct opd_err *err);

bool host_source_is_extension_header(const char *name); // "torch/extension.h>..."

// Appends the source to `out`, where `extern __shared__ T name[];` becomes a pointer to the block's
// memory, and PyTorch's headers are not included. Lines keep their numbers.
void host_source_rewrite(const char *source, struct buf *out);
