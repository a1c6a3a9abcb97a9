#pragma once

// Formula operators: `formula NAME = EXPR` lines instead of kernels. Of op/ alone.
//
// All inputs broadcast together, as in NumPy, and the outputs have that shape. A formula is kept as
// C++, with what it reads. For a request, formula_plan.c lays out the launches, and formula_text.c
// writes the struct with which a template of opd.cuh becomes the kernel of each.

#include "op/body.h"
#include "op/lines.h"
#include "op/params.h"

enum {
    FORMULA_MAX = 512,       // lines, and what derivatives add
    FORMULA_MAX_VALUES = 64, // attributes, lets and conditions of attributes that they use
    FORMULA_MAX_TERMS = 1000,
    FORMULA_MAX_BRACKETS = 100, // nested in the C++: compilers have a limit
};

// What a formula reads, by itself and by its intermediates: bit sets.
struct formula_uses {
    uint64_t tensors; // formula_bit() of each
    uint64_t values;
};

struct formula {
    char name[OP_MAX_NAME];
    int line;
    const struct line *from; // while the file is read: the directive, and its name in it
    const char *at;
    int target; // tensor id: an output, an input in place, a gradient of an input; -1: intermediate
    bool is_bool, derived;
    const struct node *root;
    struct formula_uses uses;
};

// What is read and is no tensor.
struct formula_value {
    const char *text; // as written
    const struct expr *expr;
    bool is_constant; // a truth value of attributes: compiled in; else passed, as acc_t
};

struct formula_set {
    int n, n_values, n_device;
    struct function_signature *device; // the file's own functions
    bool calls_device;                 // one of them
    struct formula *items;             // each reads none but those before it
    struct formula_value values[FORMULA_MAX_VALUES];
};

// formula_spell.c. known: 1 or 0 for each truth value, -1 where it is not known; NULL: none is. Of
// a choice whose condition is known only the branch that is taken counts, and is written down.
struct formula_reach {
    bool formulas[FORMULA_MAX];
    struct formula_uses uses;
};
const struct node *formula_taken(const struct formula_set *set, const struct node *n,
                                 const int8_t *known);
// Adds to `out` what a tree is made of, by itself and by formulas that it names.
void formula_reach(const struct formula_set *set, const struct node *root, const int8_t *known,
                   struct formula_reach *out);
struct buf;
// C++ of acc_t and bool, where v_NAME stands for a name.
void formula_cpp(const struct node *n, const struct op *op, const struct formula_set *set,
                 const int8_t *known, struct buf *out);
// A tree in the words of the language; tensors have the names that `name` gives.
void formula_spell(const struct node *n, const struct formula_set *set,
                   const char *(*name)(void *data, int tensor), void *data, struct buf *out);
// formula_expr.c: a formula more; fails where there are FORMULA_MAX: NULL.
struct formula *formula_add(struct formula_set *set, struct arena *arena);
int formula_find(const struct formula_set *set, int target); // -1: none has it

// Inputs, outputs and gradients of outputs, in one word.
static inline uint64_t formula_bit(int tensor)
{
    return UINT64_C(1) << (tensor < TENSOR_TEMP ? tensor : tensor - OP_MAX_TEMPS);
}

#define FORMULA_INPUTS UINT64_C(0xffffffff)           // those bits
#define FORMULA_BACKWARD UINT64_C(0xffffffff00000000) // of what backward alone can read

// formula_expr.c: reads the rest of the line into `f`, whose name and target are known.
struct reader;
bool formula_parse(struct reader *r, struct formula_set *set, struct formula *f);
// What a tree reads: for one that was not read from a line.
void formula_complete(const struct formula_set *set, struct formula *f);
// The tree of a derivative's rule, in which the letters of FORMULA_LETTERS stand for nodes: a
// NODE_TENSOR with the place of its letter.
#define FORMULA_LETTERS "gxyzrew"
const struct node *formula_rule(struct arena *arena, const char *text);
const char *formula_function(const struct formula_set *set, const struct node *call); // its name
const char *formula_function_cpp(const struct node *call); // NULL: it is the file's own

// formula_eval.c: all formulas at a point, in float64. Outputs become what theirs give; a formula
// of a gradient that stands before an output that it reads finds there what was before.
struct formula_point {
    double tensors[TENSOR_COUNT];
    double values[FORMULA_MAX_VALUES], formulas[FORMULA_MAX];
};
void formula_eval(const struct formula_set *set, struct formula_point *at);

// formula_shape.c: the outputs get their shapes.
bool formula_shapes(struct env *env, struct opd_err *err);

// Which dimensions of the common shape a tensor is repeated along, once those of size 1 are left
// out and neighbours along which each tensor does the same are taken as one.
struct formula_dims {
    int rank;
    int64_t size[OP_MAX_RANK];
    uint64_t repeated[OP_MAX_RANK]; // by tensor: its place in the list that was given
};

struct tensor_desc formula_common_shape(const struct plan_request *request);
void formula_collapse(const struct tensor_desc *common, const struct tensor_desc *const *tensors,
                      int n, struct formula_dims *out);

// How one launch is laid out: what formula_text.c writes down, and formula_plan.c packs in the same
// order.
enum {
    FORMULA_MAX_OPERANDS = 2 * (OP_MAX_INPUTS + OP_MAX_OUTPUTS) + OP_MAX_OUTPUTS,
    FORMULA_MAX_OFFSETS = OP_MAX_INPUTS + 1,
};

struct formula_operand {
    int tensor;       // id
    const char *type; // of an element, in C++
    int offset;       // which of the offsets
    bool single;      // repeated along the innermost dimension: one element serves a whole vector
    bool written;
};

struct formula_kernel {
    const struct op *op;
    const char *suffix;         // of the struct's name: "forward", "grad_x"
    const int8_t *known;        // of the request
    struct formula_reach reach; // what takes part
    int n_operands;             // those that are read come first
    struct formula_operand operands[FORMULA_MAX_OPERANDS];
    int sum;                    // the formula whose result is summed; -1: none, this is a map
    const char *sum_type;       // of what the sums are stored in
    int n_offsets;              // [0]: of what has the whole shape
    int rank;                   // of a map: dimensions to find offsets in; 0: none are needed
    int kept_rank, summed_rank; // of a sum: at least 1
    bool wide;                  // 64-bit index arithmetic
    int width;                  // elements at a time
};

// formula_text.c
void formula_name(const struct formula_kernel *k, char *out, size_t size); // of the struct
void formula_write(const struct formula_kernel *k, struct buf *out);

// formula_plan.c
struct formula_launch {
    char kernel[320]; // "opd::formula_map<add_forward, 4>"
    int line;
    uint32_t grid[2], block;
    struct packed packed;
    int n_written;
    int written[OP_MAX_INPUTS + OP_MAX_OUTPUTS]; // tensor ids
};

// Calls `add` for each launch of the request in env, in order, and appends to `text` what their
// kernels are compiled with. `env->temps` get the sizes of what is needed in between.
bool formula_plan(struct env *env, struct buf *text,
                  bool (*add)(void *data, const struct formula_launch *launch), void *data,
                  struct opd_err *err);
