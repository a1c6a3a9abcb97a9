#pragma once

// The files that a source was put together from, for the compiler to show lines of: it looks for
// them by the names in #line directives. Part of the host compiler (host.c).

#include "base/mem.h"

struct host_shown {
    char *name;
    struct buf text; // each line under its own number; lines that are not known are empty
};

// Returns their number, at most `limit`; the source's own file is the first. The caller frees each
// by host_shown_finish().
int host_shown_split(const char *file, const char *source, struct host_shown *out, int limit);
void host_shown_finish(struct host_shown *files, int n);
