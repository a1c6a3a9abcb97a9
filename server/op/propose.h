#pragma once

// A header for a file of kernels that has none: from their parameters, names and bodies. What these
// do not tell is guessed, and asked in a comment.

#include <stddef.h>

#include "base/err.h"
#include "base/mem.h"

// In the question of a parameter for which there are no tensors.
#define PROPOSE_MISSING ", of which there are no tensors"

// Appends the header to `out`. `chosen`: the kernels to take, by name, with commas between; "": the
// first, and what is its backward by name. Errors: invalid_argument, where there is no kernel, or
// none of a chosen name.
bool propose_header(const char *file, const char *text, size_t size, const char *chosen,
                    struct buf *out, struct opd_err *err);
