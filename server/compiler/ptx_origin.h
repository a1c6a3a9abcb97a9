#pragma once

// Where the addresses in a function's registers come from: a pass over all definitions of all
// registers, again until nothing changes, as what NVVM writes is almost in single assignment.

#include "compiler/ptx.h"
#include "wire/map.h"

enum origin_kind {
    ORIGIN_NUMBER, // no pointer
    ORIGIN_LOADED, // from memory that others write: a pointer to anywhere, or an index
    ORIGIN_GIVEN,  // what this thread has put there: a function's argument or result, a local array
    ORIGIN_SLOT,   // a tensor: index says which
    ORIGIN_SYMBOL, // a variable of the module: index says which
    ORIGIN_MIXED,  // one of several tensors, or of what is not global memory
    ORIGIN_FOREIGN, // perhaps none of these
};

struct origin {
    enum origin_kind kind;
    uint32_t index;
};

// Variables in shared and global memory.
struct ptx_symbol {
    struct slice name;
    bool shared;
    int64_t size; // -1: as large as the launch says
};

struct ptx_symbols {
    struct map ids;   // of a name's hash: 1 + its place
    struct buf items; // struct ptx_symbol
};

// Notes what a declaration declares, if that is such a variable.
void ptx_symbols_add(struct ptx_symbols *symbols, struct slice declaration);
const struct ptx_symbol *ptx_symbol_find(const struct ptx_symbols *symbols, struct slice name);
const struct ptx_symbol *ptx_symbol_at(const struct ptx_symbols *symbols, uint32_t index);
void ptx_symbols_finish(struct ptx_symbols *symbols);

struct origins {
    const struct ptx_symbols *symbols;
    const uint32_t *slots; // offsets of tensors' addresses among the arguments
    size_t n_slots;
    struct map params; // of an entry: of a name's hash: 1 + its offset
    struct map ids;    // of a register's: 1 + its place
    struct buf values; // struct origin, of registers
    struct buf defs;   // what says so
};

// First the header of an entry, then each instruction, then the passes.
void origins_read_params(struct origins *o, struct slice header);
void origins_add(struct origins *o, const struct ptx_instr *instr);
void origins_work_out(struct origins *o);
// Once they are worked out: may an instruction give what is perhaps no tensor's address to where it
// is GIVEN again: a function, or an array of a thread's or block's own?
bool origins_leak(const struct origins *o, const struct ptx_instr *instr);
struct origin origins_of(const struct origins *o, struct slice name); // of a register or symbol
void origins_finish(struct origins *o);
