#pragma once

// The lines of sources that PTX speaks of: .file and .loc.

#include "compiler/ptx.h"
#include "wire/map.h"

struct ptx_place {
    uint32_t file, line, column;
};

struct ptx_lines {
    struct map files;   // by number: 1 + where its name begins in `names`
    struct buf names;   // terminated
    struct map inlined; // by a place's key: 1 + its place in `callers`
    struct buf callers; // struct ptx_place
    struct ptx_place at;
};

void ptx_lines_read(struct ptx_lines *lines, struct slice directive);
// Where the code is that comes now: the innermost place outside of opd's own headers, else the
// outermost. A file "?" and line 0 where nothing was said.
const char *ptx_lines_find(const struct ptx_lines *lines, uint32_t *out_line);
void ptx_lines_finish(struct ptx_lines *lines);
