#pragma once

// Expressions of plans: sizes, lets, conditions, grids, arguments. Parsed once, with all names
// resolved and all types known, to a tree (tree.h); evaluated for each request, without strings or
// allocation. Integers are int64, and overflow is an error; an expression with a float in it is
// float64. Trees live in the arena of their operator, and are immutable.

#include <stdbool.h>
#include <stdint.h>

#include "op/arena.h"
#include "base/dtype.h"
#include "op/lex.h"
#include "op/plan.h"

enum {
    EXPR_MAX_TERMS = 512,
    EXPR_MAX_OPEN = 64,  // operands that wait for another
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

// The last three are of parts of an expression, while it is read.
enum expr_type { EXPR_INT, EXPR_FLOAT, EXPR_TRUTH, EXPR_WORD, EXPR_STRING };

union expr_value {
    int64_t i;
    double f;
};

struct expr {
    const char *text; // as written
    const char *file;
    int line;
    enum expr_type type;
    const struct node *root;
};

// Which attributes the values of expressions come from: bit i is attribute i. READS_PLACE: also
// from what one place in the plan has otherwise than the next, which is the tensors of lists at
// hand and the count of a repeat.
#define READS_PLACE (UINT64_C(1) << 63)
struct reads {
    uint64_t of_tensors; // what a size is said to come from: nothing, or READS_PLACE
    uint64_t now;        // of the evaluation at hand
    uint64_t fixed;      // of those that have decided on more than the values of arguments
    uint64_t slots[ENV_MAX_SLOTS];
};

// What an expression is evaluated in: a request, and what has been worked out of it.
struct env {
    const struct plan_request *request;
    struct reads *reads; // NULL: nobody asks
    uint32_t wanted;     // gradients of inputs that will really be made
    uint32_t unasked;    // others, which the launch writes without asking whether they are null
    enum opd_dtype types[OP_MAX_TYPES];
    union expr_value slots[ENV_MAX_SLOTS];
    int pack_rank[ENV_MAX_PACKS];
    int64_t pack[ENV_MAX_PACKS][OP_MAX_RANK];
    struct tensor_desc outputs[OP_MAX_OUTPUTS];
    struct tensor_desc temps[OP_MAX_TEMPS];
};

const struct tensor_desc *env_tensor(const struct env *env,
                                     int tensor); // a gradient: of what it is the gradient
int64_t env_stride(const struct env *env, int tensor, int dim); // a gradient is contiguous
enum opd_dtype env_dtype(const struct env *env, int type);
bool env_has_tensor(const struct env *env,
                    int tensor); // present, and wanted where it is a gradient to be made
bool env_has_memory(const struct env *env, int tensor); // the same, or unasked

struct scope;

// Where an expression stands.
struct expr_place {
    struct scope *scope;
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
// For what can be evaluated again where no more than attributes have changed: they are not fixed by
// it, unless READS_PLACE is among what it reads.
bool expr_eval_again(const struct expr *e, const struct env *env, union expr_value *out,
                     uint64_t *reads, struct opd_err *err);

// For formulas. What a tree that has been read is the value of; `text` stays. And the attribute of
// that index whose name was taken, with its [element].
struct parser;
const struct expr *expr_new(const struct parser *p, const struct node *root, const char *text);
struct node *expr_attr(struct parser *p, const struct token *name, int index);
// present(INPUT) or present(ATTRIBUTE), behind its '(': up to the ')'.
struct node *expr_present(struct parser *p, const struct token *name);
