#pragma once

// Expressions: parsed once, with all names resolved and all types known, to postfix code; evaluated
// without strings or allocation. Integers are int64, and overflow is an error; an expression with a
// float in it is float64.

#include <stdbool.h>
#include <stdint.h>

#include "op/arena.h"
#include "base/dtype.h"
#include "op/lex.h"
#include "op/plan.h"

enum {
    EXPR_MAX_CODE = 512,
    EXPR_MAX_STACK = 64,
    EXPR_MAX_DEPTH = 64, // of parentheses, signs and ?:
    ENV_MAX_SLOTS = 256, // dimensions and lets
    ENV_MAX_PACKS = 8,
    OP_MAX_TYPES = 8,
};

// Tensor ids: everything that a header can call a tensor, in one numbering.
enum {
    TENSOR_INPUT = 0,
    TENSOR_OUTPUT = TENSOR_INPUT + OP_MAX_INPUTS,
    TENSOR_TEMP = TENSOR_OUTPUT + OP_MAX_OUTPUTS, // saved and scratch
    TENSOR_GRAD_OUTPUT = TENSOR_TEMP + OP_MAX_TEMPS,
    TENSOR_GRAD_INPUT = TENSOR_GRAD_OUTPUT + OP_MAX_OUTPUTS,
    TENSOR_COUNT = TENSOR_GRAD_INPUT + OP_MAX_INPUTS,
};

// Type ids: an index into op->types, or the accumulator of scalar_t.
enum { TYPE_SCALAR = 0, TYPE_ACC = OP_MAX_TYPES };

enum expr_type { EXPR_INT, EXPR_FLOAT };

union expr_value {
    int64_t i;
    double f;
};

struct expr {
    const char *text; // as written
    const char *file;
    int line;
    enum expr_type type;
    int n_code;
    const struct expr_code *code;
};

// What an expression is evaluated in: a request, and what has been worked out of it.
struct env {
    const struct plan_request *request;
    uint32_t wanted; // gradients of inputs that will really be made
    enum opd_dtype types[OP_MAX_TYPES];
    union expr_value slots[ENV_MAX_SLOTS];
    int pack_rank[ENV_MAX_PACKS];
    int64_t pack[ENV_MAX_PACKS][OP_MAX_RANK];
    struct tensor_desc outputs[OP_MAX_OUTPUTS];
    struct tensor_desc temps[OP_MAX_TEMPS];
};

const struct tensor_desc *env_tensor(const struct env *env,
                                     int tensor); // a gradient: of what it is the gradient
enum opd_dtype env_dtype(const struct env *env, int type);
bool env_has_tensor(const struct env *env,
                    int tensor); // present, and wanted where it is a gradient to be made

struct scope;

// Where an expression stands.
struct expr_place {
    const struct scope *scope;
    struct arena *arena;
    bool in_section; // gradients and wanted() may be asked for
    bool in_backward;
    bool angle_closes; // '>' outside parentheses ends the expression: a template argument
};

// Reads one expression from where the lexer stands; the result lives in the arena. NULL: the lexer
// has the error.
const struct expr *expr_parse(struct lexer *lx, const struct expr_place *place);
const struct expr *expr_parse_int(struct lexer *lx, const struct expr_place *place,
                                  const char *what);

// Errors: overflow, division by zero, what is absent; "... in 'TEXT' (file:line)".
bool expr_eval(const struct expr *e, const struct env *env, union expr_value *out,
               struct opd_err *err);
bool expr_eval_int(const struct expr *e, const struct env *env, int64_t *out, struct opd_err *err);
bool expr_eval_bool(const struct expr *e, const struct env *env, bool *out, struct opd_err *err);

// One instruction. Shared by the parser and the evaluator only.
struct expr_code {
    uint8_t kind; // enum expr_kind
    uint8_t b;
    int16_t a;
    union expr_value value;
};

enum expr_kind {
    CODE_NOP,
    CODE_CONST,    // value
    CODE_SLOT,     // a: slot
    CODE_ATTR_INT, // a: attribute, b: element
    CODE_ATTR_FLOAT,
    CODE_HAS_ATTR,   // a: attribute
    CODE_HAS_TENSOR, // a: tensor
    CODE_IS_TYPE,    // a: type, b: dtype
    CODE_SIZEOF,     // a: type
    CODE_ON_CPU,     // a: 1 for cpu, 0 for cuda
    CODE_KEEP,       // the context is kept
    CODE_NUMEL,      // a: tensor
    CODE_RANK,
    CODE_SIZE, // pops the dimension
    CODE_TO_FLOAT,
    CODE_TO_FLOAT_UNDER, // the value below the topmost
    CODE_BOOL_INT,
    CODE_BOOL_FLOAT,
    CODE_NOT, // of a bool
    CODE_NEG_INT,
    CODE_NEG_FLOAT,
    CODE_FLOOR,
    CODE_POW2,
    CODE_JUMP,             // a: where to
    CODE_JUMP_IF_NOT,      // pops
    CODE_JUMP_IF_NOT_KEEP, // pops where it does not jump
    CODE_JUMP_IF_KEEP,
    CODE_FIRST_BINARY,
    CODE_ADD = CODE_FIRST_BINARY,
    CODE_SUB,
    CODE_MUL,
    CODE_DIV,
    CODE_MOD,
    CODE_CDIV,
    CODE_MIN,
    CODE_MAX,
    CODE_POW, // of floats only
    CODE_EQ,
    CODE_NE,
    CODE_LT,
    CODE_LE,
    CODE_GT,
    CODE_GE,
    CODE_BINARY_END, // of floats: the same, plus CODE_FLOAT
    CODE_FLOAT = 64,
};
