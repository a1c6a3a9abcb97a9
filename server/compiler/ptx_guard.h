#pragma once

// The comparisons that go before an access. Each leaves in %opd_q whether it is to be refused, and
// takes the register that its address is made from.

#include "compiler/ptx_access.h"
#include "compiler/ptx_origin.h"

// Where they go, and what of the module they need.
struct ptx_guard {
    struct buf *out;
    const struct ptx_symbols *symbols;
    size_t n_slots;
    bool clusters; // the target has them
};

// One of a tensor.
void ptx_guard_slot(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                    uint32_t slot);
// As many bytes as an operand says, none allowed: the first and the last of them.
void ptx_guard_sized(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                     uint32_t slot);
// Of a variable, or of shared memory by a generic address.
void ptx_guard_variable(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                        const struct ptx_symbol *symbol);
// Of an array in shared memory. Its offset is left in %opd_l.
void ptx_guard_shared(const struct ptx_guard *g, const struct ptx_access *a,
                      const struct ptx_symbol *symbol);
// Of any tensor of the launch. `n` is a number that no other one of the function has.
void ptx_guard_any(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                   uint32_t n);
// Of who knows what, but not of a null pointer.
void ptx_guard_null(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg);

void ptx_guard_registers(const struct ptx_guard *g); // of a function's, which these use
void ptx_guard_misses(const struct ptx_guard *g);    // what a thread comes to that misses
