#pragma once

// PTX as it is run: a module of functions, each a list of instructions whose operands are all
// slots of one array of 64-bit words. Registers, immediates, addresses of variables and special
// registers are slots alike: what does not change is filled in when a frame is made.
//
// Addresses: those of .global and .const are the process's. Shared, local and parameter memory are
// offsets, and their generic addresses are these plus a window (run.h). What is declared within a
// function is in its frame, which is in local memory.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptx_kind { K_NONE, K_PRED, K_BITS, K_UNSIGNED, K_SIGNED, K_FLOAT, K_BFLOAT };
struct ptx_type {
    uint8_t kind, size; // of an element, in bytes
    bool two;           // .f16x2, .bf16x2: `size` is a half's
};

// Words behind the instruction's name, by what they are (PTX_WORD in ptx_words.def).
enum ptx_space { S_GENERIC, S_GLOBAL, S_CONST, S_SHARED, S_LOCAL, S_PARAM };
enum ptx_round { R_NONE, R_NEAREST, R_ZERO, R_DOWN, R_UP };
enum ptx_part { P_WHOLE, P_LO, P_HI, P_WIDE };
enum ptx_compare {
    C_NONE, C_EQ, C_NE, C_LT, C_LE, C_GT, C_GE, C_NUM, C_NAN,
    C_EQU, C_NEU, C_LTU, C_LEU, C_GTU, C_GEU,
};
enum ptx_sub {
    B_NONE, B_AND, B_OR, B_XOR, B_ADD, B_MIN, B_MAX, B_INC, B_DEC, B_EXCH, B_CAS, B_POPC,
    B_ALL, B_ANY, B_UNI, B_BALLOT, B_UP, B_DOWN, B_BFLY, B_IDX, B_WARP, B_ARRIVE, B_RED,
    B_L, B_R, B_WRAP, B_CLAMP, B_ASYNC, B_TRANS, B_TO,
};

struct thread;
struct ins;
typedef void ptx_run(struct thread *t, const struct ins *i);

#define PTX_OP(name, ints, floats, flags) OP_##name,
enum ptx_op {
#include "ptx_ops.def"
    OP_COUNT
};
#undef PTX_OP

enum { PTX_MAX_OPERANDS = 20 };

struct ins {
    ptx_run *run;
    uint8_t op, sub, shift, part, compare, round, integral, space; // integral: how, or R_NONE
    uint8_t first, second; // how many slots the first and second operand in braces have, or 0
    uint8_t n;             // of slots, or of elements of a load or store
    bool ftz, sat, approx, carry, negated, nan, framed;
    struct ptx_type type, from;
    int guard;        // slot of a predicate, or -1
    int64_t offset;   // of an address
    int64_t source_offset; // of cp.async's other one
    uint32_t target;  // of a branch
    uint32_t o[PTX_MAX_OPERANDS];
    struct ptx_call *call;
    uint32_t *table; // of brx.idx: targets
    uint32_t n_table;
};

struct ptx_variable { // a parameter
    uint32_t offset, size;
};

struct ptx_call {
    const struct ptx_function *function; // NULL: one of ours, or by address
    int builtin;                         // of enum ptx_builtin, or -1
    uint32_t slot;                       // that has the address
    bool indirect;
    int n_args, n_results;
    struct ptx_variable args[16], result; // in the caller's frame
};

struct ptx_fill { // a slot that is set when a frame is made
    uint32_t slot;
    uint64_t value; // or of enum ptx_special
};

enum ptx_builtin { BUILTIN_VPRINTF, BUILTIN_ASSERTFAIL, BUILTIN_MALLOC, BUILTIN_FREE };
enum ptx_special {
    SP_TID, SP_NTID = 3, SP_CTAID = 6, SP_NCTAID = 9, // .x .y .z
    SP_LANE = 12, SP_WARP, SP_NWARP, SP_LANEMASK_EQ, SP_LANEMASK_LE, SP_LANEMASK_LT,
    SP_LANEMASK_GE, SP_LANEMASK_GT, SP_DYNAMIC, SP_TOTAL, SP_SHARED_END, SP_ZERO, SP_CLOCK,
};

struct ptx_function {
    char *name;
    bool is_entry, is_declared;
    struct ptx_variable *params; // of an entry: in its arguments; else in the frame
    size_t n_params;
    struct ptx_variable result;
    bool has_result;
    uint32_t args_size, frame_size, n_slots, shared_size;
    unsigned max_threads;
    struct ptx_fill *fills, *specials;
    size_t n_fills, n_specials;
    struct ins *code;
    size_t n_code;
    const struct ptx_module *module;
};

struct ptx_global {
    char *name;
    uint8_t *at;
    size_t size;
};

struct ptx_module {
    struct ptx_function **functions;
    size_t n_functions;
    struct ptx_global *globals;
    size_t n_globals;
    uint32_t **tables; // of brx.idx, wherever they are used
    size_t n_tables;
    uint32_t shared_size; // of its variables; dynamic memory comes behind
};

// NULL where the text is not understood; `message` tells why, with the instruction.
struct ptx_module *ptx_parse(const char *text, char *message, size_t message_size);
void ptx_free(struct ptx_module *m);
