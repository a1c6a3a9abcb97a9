#pragma once

// What happens to the text of a .cu before the host compiler sees it. Part of the host compiler
// (host.c).

#include "base/err.h"
#include "base/mem.h"

// What the CPU device says of a construct that it has not.
#define HOST_NOT_HERE "cannot run on the cpu device; guard it with #ifdef __CUDA_ARCH__"

// Looks for a launch outside of kernels, bindings or dispatch macros of a PyTorch extension, which
// no device compiles; find_launch() for launches in kernels as well, which the CPU device has not.
// What stands between #if and #endif is not looked at. True with err: there is one, "gelu.cu:12:
// what; what to do". To be asked about a source that did not compile.
bool host_source_find_host_code(const char *file, const char *source, struct opd_err *err);
bool host_source_find_launch(const char *file, const char *source, struct opd_err *err);

// Appends the source to `out`, where `extern __shared__ T name[];` becomes a pointer to the block's
// memory, and a header of the field becomes ours (field.h). `folder`: where others are; NULL:
// nowhere. Lines keep their numbers.
void host_source_rewrite(const char *source, const char *folder, struct buf *out);
