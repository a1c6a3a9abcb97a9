#pragma once

// What an operator's header says beyond its signature, resolved: no names are left to look up, but
// for messages. Of op/ alone.
//
// Everything is in the operator's arena, which body->arena is, and immutable once parsed. Lists
// hold what the file says in its order: rules are applied, and steps run, from first to last.

#include "op/cnumber.h"
#include "op/expr.h"
#include "op/op.h"
#include "op/signature.h"

enum {
    OP_MAX_TEXT = 1 << 20,
    OP_MAX_DIRECTIVES = 1024,
    OP_MAX_LINE = 16384, // of a directive, continuations included
    OP_MAX_TEMPLATE_ARGS = 32,
    OP_MAX_ARGS_SIZE = 4096,
    OP_LONG_ARGS_SIZE = 32764, // where a device takes more, as GPUs since CUDA 12.1
    OP_MAX_SHARED_SIZE = 227 * 1024,
    OP_MAX_EXAMPLES = 64,
    OP_MAX_CHECKS = 32,
    OP_BLOCK_SIZE = 256,                                   // threads, where a launch says nothing
    OP_MAX_RULES = OP_MAX_DIRECTIVES + ENV_MAX_SLOTS + 64, // `let` and `shape` may be several
};

enum dim_kind {
    DIM_DEFINE, // slot takes what the input has
    DIM_VALUE,  // an expression: a check for inputs
    DIM_PACK,   // ...S
};

struct shape_dim {
    enum dim_kind kind;
    int slot;         // DIM_DEFINE: slot; DIM_PACK: which pack
    bool defines;     // DIM_PACK: takes what the input has
    const char *text; // as written
    const struct expr *expr;
};

struct shape {
    const char *text; // "[N, C]"
    int n;
    int pack; // where the pack stands; -1: there is none
    struct shape_dim *dims;
};

// "weight has {CM} channels": texts and values in turn.
struct message_piece {
    const char *text;        // before the value
    const struct expr *expr; // or
    int attr;                // an attribute; or
    int tensor;              // a tensor, shown as dtype and shape; -1, -1, NULL: no value
    bool index;              // of a check: what the kernel reported
};

struct message {
    int n;
    struct message_piece *pieces;
};

// Done for each request, in the order of the file.
struct rule {
    enum rule_kind kind;
    int line;
    int tensor;              // RULE_SHAPE
    struct shape shape;      // RULE_SHAPE
    int slot;                // RULE_LET
    const char *name;        // RULE_LET
    const struct expr *expr; // RULE_LET, RULE_REQUIRE
    struct message message;  // RULE_REQUIRE
};

// What kernels may find wrong; see report.h.
struct report_check {
    char name[OP_MAX_NAME];
    int line;
    struct message message;
};

struct temp {
    char name[OP_MAX_NAME];
    bool saved;
    int type;             // type id; -1: fixed
    enum opd_dtype dtype; // fixed
};

// What an array holds that `chunks` fills: of the tensors of one launch, or of its blocks.
enum chunk_role { CHUNK_ADDRESSES, CHUNK_SIZES, CHUNK_TENSORS, CHUNK_NUMBERS, CHUNK_START };

// A parameter of a launch, and what is passed there.
struct argument {
    const struct signature_param *param;
    int tensor;              // pointers and accessors
    const struct expr *expr; // values
    struct cnumber type;     // values, elements of arrays
    enum chunk_role role;    // arrays
    int list, n_lists;       // CHUNK_ADDRESSES: which of the step's lists
    uint32_t n;              // arrays: elements, or of CHUNK_ADDRESSES for each list
};

struct template_arg {
    const char *text;        // passed on as it is, or
    const struct expr *expr; // a number
};

// A tensor as a matrix: as it is, or matrix(tensor, rows, cols, stride, offset).
struct matrix {
    const char *text; // as written, ".T" included
    int tensor;
    bool transposed;
    const struct expr *rows, *cols;     // NULL: the tensor's own
    const struct expr *stride, *offset; // NULL: cols and 0
};

// A step of elements: `formula`, `sum` or `fill`. It is an operator of formulas of its own, whose
// inputs are, in this order, what it makes; a scalar that says which dtype scalar_t is; and what it
// reads. It changes its first input in place; of a `sum` it has that input's gradient.
struct inner {
    struct inner *next; // of the body's
    int line;
    const char *text; // "formula grad_x = grad_x * grad_y"
    struct op *op;
    int target, n_inputs;
    int inputs[OP_MAX_INPUTS]; // tensor ids
    bool reads_target;
    int n_lets;
    const struct expr *lets[OP_MAX_ATTRS]; // attributes behind the operator's own
    int n_over;
    const struct expr *over[OP_MAX_RANK]; // dimensions of a sum
};

// d = a @ b, or d += a @ b, or d = a @ b + bias.
struct matmul {
    const char *text; // "gates = x @ weights.T"
    struct matrix d, a, b;
    const struct inner *bias; // d = bias; or NULL
    bool accumulate;
    bool tf32;
    const struct expr *tf32_when; // NULL: always
};

enum step_kind { STEP_LAUNCH, STEP_ZERO, STEP_MATMUL, STEP_REPEAT, STEP_INNER };

struct step {
    enum step_kind kind;
    int line;
    int tensor;                // STEP_ZERO, STEP_INNER
    const struct expr *repeat; // STEP_REPEAT: how often; the n_body steps that follow are its own
    int slot, n_body;          // STEP_REPEAT: slot of its counter
    struct matmul *matmul;     // STEP_MATMUL
    struct inner *inner;       // STEP_INNER

    // STEP_LAUNCH
    const char *name; // "depthwise_forward"
    const struct signature *signature;
    const char *types; // of the parameters, where the name does not tell which kernel; or NULL
    bool is_template;
    int n_template_args;
    struct template_arg *template_args;
    bool otherwise;
    const struct expr *when; // NULL: always
    int n_grid, n_block;     // 0: the default
    const struct expr *grid[3], *block[3], *shared;
    const struct expr *threads; // where there is no grid; NULL: the default
    const struct expr *chunk;   // elements for each block, of lists; NULL: one tensor of each list
    int n_lists;
    const int *lists;
    int n_args;
    struct argument *args;
};

// Where a section's steps run: bit sets.
enum { ON_CPU = 1, ON_CUDA = 2, ON_BOTH = 3 };

struct section {
    int line;
    bool backward;
    uint8_t devices;
    uint32_t grads; // inputs whose gradients are made here
    uint32_t reads; // outputs whose gradients are read here
    int n_steps;
    struct step *steps;
};

// What an input of an example holds: values from low to high, or those of a list in turn, or of an
// expression for each element.
struct example_data {
    double low, high;
    int n;
    const double *list;
    const struct expr *value;
    int slot; // of the element's index
};

struct example {
    int line;
    const struct example_data *data[OP_MAX_INPUTS]; // NULL: nothing is said
    struct tensor_desc inputs[OP_MAX_INPUTS];       // dtype: NONE where absent; filled in later
    struct plan_lists *lists;                       // NULL: it has none
    struct op_value attrs[OP_MAX_ATTRS];
};

struct op_body {
    struct arena arena;
    int n_rules, n_temps, n_sections, n_examples, n_steps, n_checks;
    bool empty[TENSOR_COUNT]; // results that begin with what was in memory: `empty`
    int report;               // the tensor that kernels report to, where there are checks
    struct report_check *checks;
    struct rule *rules;
    struct temp *temps;
    struct section *sections;
    struct example *examples;
    struct inner *inners;                       // all of them, wherever they stand
    bool opaque;                                // a formula calls what has no derivative
    const struct formula_set *formulas;         // instead of sections; or NULL
    const struct expr *reduced[OP_MAX_OUTPUTS]; // of formulas: formula_reduced()
    const struct expr *channels_last_when;      // NULL: always
    const char *grad_names[OP_MAX_INPUTS + OP_MAX_OUTPUTS]; // "grad_x": of inputs, then of outputs
};

// The input or output that a tensor id names, or of which it is the gradient; not for saved and
// scratch tensors.
struct op_tensor *body_tensor(const struct op *op, int tensor);
bool body_is_list(const struct op *op, int tensor); // or a gradient of one
// The name of a tensor by its id.
const char *body_tensor_name(const struct op *op, int tensor);

// The tree of the let that has that slot, of the first n rules; NULL: a dimension has it.
const struct node *body_find_let(const struct rule *rules, int n, int slot);
