#pragma once

// What a process's context takes of a GPU beside what it is asked for, and less of it. By far the
// most is local memory: the stack of each thread that the GPU can have at once, 1 KiB, which makes
// 200 to 300 MiB. The driver gives a kernel whose frames are known what it needs when it is
// launched, so that little will do until there is one that calls what it does not know the depth
// of. printf() and malloc() have theirs as the driver has it.

#include <stdbool.h>
#include <stddef.h>

#include "executor/cuda_memory.h"

// What it is then on an H200, for a process that has not asked; 524 MiB with the usual stack.
enum { CUDA_CONTEXT_SIZE = 326 << 20 };

// Before the first launch.
void cuda_context_lower(struct cuda_backend *b);

// Before `image` is loaded: what was lowered, where its kernels may need it, for good.
void cuda_context_raise(struct cuda_backend *b, const struct backend_image *image);

// Whether a cubin or PTX has functions that are called, so that the depth of its stack may not be
// known: those of recursion, by pointers, of the driver. A pure function of bytes from outside.
bool cuda_context_has_calls(const void *bytes, size_t size);

// Bytes that this process has on the GPU of that id, as the driver's other library tells
// (libnvidia-ml.so.1); 0 where that is not there or knows the process by another number.
uint64_t cuda_context_size(const char *uuid);
