#pragma once

// What an instruction does to memory that is checked.

#include "compiler/ptx.h"

struct ptx_access {
    const char *does; // "read", "write", "trap", "assert"
    bool shared, generic;
    struct slice name; // of the register or symbol that the address is made from; empty: none
    int64_t offset;
    unsigned width;    // bytes
    unsigned element;  // bytes: of each one, where the access is of several
    struct slice size; // where not empty: an operand says how many bytes, and `width` is 1
};

enum ptx_access_kind {
    PTX_ACCESS_NONE,
    PTX_ACCESS_FOUND,
    PTX_ACCESS_UNKNOWN, // it touches memory in a way that cannot be checked
};
enum ptx_access_kind ptx_access_read(const struct ptx_instr *instr, struct ptx_access *out);
