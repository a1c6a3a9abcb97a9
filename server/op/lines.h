#pragma once

// The directives of a file: its "//!" lines before the first line of code, continuations joined.

#include "arena.h"
#include "err.h"

struct line {
    int number; // of the first one, where there are continuations
    const char *text;
    size_t size;
};

// The result lives in the arena. Errors: too large, too many, a directive after the first line of
// code.
bool lines_split(const char *file, const char *text, size_t size, struct arena *arena,
                 struct line **out, int *out_n, struct opd_err *err);
