#pragma once

// Machine code as text, by the disassemblers that are installed.

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

// A cubin, by nvdisasm or cuobjdump: in $CUDA_HOME, $CUDA_PATH, beside `toolkit` (a library of the
// toolkit; "" for none), in /usr/local/cuda, on $PATH. A shared object of the host, the one
// function `symbol` and what it calls, by objdump. The caller frees *out. Errors: unavailable (what
// to install), internal.
bool disasm_cubin(const char *toolkit, const void *image, size_t size, char **out,
                  struct opd_err *err);
bool disasm_object(const void *image, size_t size, char **out, struct opd_err *err);
