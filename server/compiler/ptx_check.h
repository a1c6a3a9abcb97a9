#pragma once

// PTX in, PTX out: the checked build of one kernel (base/checked.h). Each access to global memory
// whose address comes from a tensor is held against that tensor; one that comes from a variable or
// an array in shared memory, against that; one of several tensors, against all of the launch. One
// that may be of memory that is none of these (what malloc() gives, an address that stands in
// memory) is held against null alone, and listed: to tell of it would be wrong where the kernel is
// right. A thread that misses reports it and ends; so does one that comes to a trap or an assertion
// that fails. No context is lost.
//
// A pure function. What it makes is bounded by what comes: a few hundred bytes for each access.

#include "base/err.h"
#include "base/mem.h"

enum { PTX_CHECK_MAX_TEXT = 16 << 20, PTX_CHECK_MAX_SITES = 1 << 16 };

struct ptx_check_input {
    const char *text;
    size_t size;
    const char *entry;     // the kernel; others of the module are left out
    const uint32_t *slots; // offsets of tensors' addresses among its arguments
    size_t n_slots;        // CHECKED_MAX_SLOTS at most
};

// Appends the text to `out`, and to `unchecked` a line "file:line: note: what is not checked" for
// each access that it knows of and cannot check. False: it is no PTX that it understands, or too
// large.
bool ptx_check(const struct ptx_check_input *in, struct buf *out, struct buf *unchecked,
               struct opd_err *err);
