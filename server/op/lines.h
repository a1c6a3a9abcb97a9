#pragma once

// The directives of a file: its "//!" lines before the first line of code, continuations joined.

#include "op/arena.h"
#include "base/err.h"

struct line {
    int number; // of the first one, where there are continuations
    const char *text;
    size_t size;
    const struct line_piece *pieces; // of the file, in order: what the text was joined from
    int n_pieces;
};

struct line_piece {
    size_t at;         // in the line's text
    const char *start; // in the file's
};

// The place in the file of a place in the line's text, which may be its end.
const char *line_place(const struct line *line, const char *at);

// The result lives in the arena, and points into `text`. Errors: invalid_argument, "file:line:
// what": too large, too many, no UTF-8, a directive after the first line of code, a continuation of
// nothing.
bool lines_split(const char *file, const char *text, size_t size, struct arena *arena,
                 struct line **out, int *out_n, struct opd_err *err);
