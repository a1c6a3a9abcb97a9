#pragma once

// Formula operators: `formula NAME = EXPR` lines instead of kernels. Of op/ alone.
//
// All inputs broadcast together, as in NumPy, and the outputs have that shape. A formula is kept as
// C++, with what it reads. For a request, formula_plan.c lays out the launches, and formula_text.c
// writes the struct with which a template of opd.cuh becomes the kernel of each.

#include "op/body.h"
#include "op/lines.h"
#include "op/params.h"
#include "op/tree.h"

enum {
    FORMULA_MAX = 512,       // lines, and what derivatives add
    FORMULA_MAX_VALUES = 64, // attributes, lets and conditions of attributes that they use
    FORMULA_MAX_TERMS = 1000,
    FORMULA_MAX_OVERS = 4,
    FORMULA_MAX_NESTED = 4,      // sums in each other, in one formula
    FORMULA_MAX_CONDITION = 256, // nodes of one that is known in a request
    FORMULA_MAX_SUMS = 48,       // of one direction
    FORMULA_MAX_BRACKETS = 100,  // nested in the C++: compilers have a limit
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

// What is summed over: the last dimensions.
struct formula_over {
    const char *text;        // as written: "-1", "-2:"; "": all
    const struct expr *expr; // NULL: all
    bool is_slice;
};

struct formula_set {
    int n, n_values, n_device;
    struct function_signature *device; // the file's own functions
    bool calls_device;                 // one of them
    int n_overs;
    struct formula_over overs[FORMULA_MAX_OVERS];
    struct formula *items; // each reads none but those before it
    struct formula_value values[FORMULA_MAX_VALUES];
};

// formula_spell.c. known: 1 or 0 for each truth value, -1 where it is not known; NULL: none is. Of
// a choice whose condition is known only the branch that is taken counts, and is written down.
struct formula_reach {
    bool formulas[FORMULA_MAX];
    struct formula_uses uses;
    uint8_t overs; // bits: what sums and counts are over
    bool outside;  // set before: what stands in a sum is left out
    int n_sums;    // more than FORMULA_MAX_SUMS: the rest are not listed
    const struct node *sums[FORMULA_MAX_SUMS];
};
static inline bool formula_is_sum(const struct node *n)
{
    return n->kind >= NODE_SUM && n->kind <= NODE_AMIN;
}
const char *formula_join(const struct node *sum); // "opd::formula_add"
bool formula_is_same(const struct formula_set *set, const struct node *a, const struct node *b);
// What a tree gives: a number for each element, one for a row, or one that no tensor changes.
enum formula_level { LEVEL_CONSTANT, LEVEL_ROW, LEVEL_ELEMENT };
enum formula_level formula_level(const struct op *op, const struct formula_set *set,
                                 const struct node *root, const int8_t *known);
// Adds to `out` what a tree is made of, by itself and by formulas that it names.
void formula_reach(const struct formula_set *set, const struct node *root, const int8_t *known,
                   struct formula_reach *out);
struct buf;
// C++ of acc_t and bool, where v_NAME stands for a name, and s_0 for the first of those sums.
struct formula_names {
    const struct op *op;
    const struct formula_set *set;
    const int8_t *known;
    bool counts; // there is a row_count
    int n_sums;
    const struct node *const *sums;
};
void formula_cpp(const struct node *n, const struct formula_names *names, struct buf *out);
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

#define FORMULA_BACKWARD UINT64_C(0xffffffff00000000) // the bits of what backward alone can read

// formula_expr.c: reads the rest of the line into `f`, whose name and target are known.
struct reader;
bool formula_parse(struct reader *r, struct formula_set *set, struct formula *f);
// What a tree reads: for one that was not read from a line.
void formula_complete(const struct formula_set *set, struct formula *f);
// The tree of a derivative's rule, in which the letters of FORMULA_LETTERS stand for nodes: a
// NODE_TENSOR with the place of its letter.
#define FORMULA_LETTERS "gxyzre"
const struct node *formula_rule(struct arena *arena, const char *text);
// formula_functions.c: the language's function of that name, and what a NODE_CALL or NODE_TEST of
// it has as `a`; the file's own function i has -1 - i. NULL: there is none, the lexer has the
// error.
const struct function *formula_find_function(struct parser *p, const struct token *name, int *out);
const char *formula_function(const struct formula_set *set, const struct node *call); // its name
const char *formula_function_cpp(const struct node *call); // NULL: it is the file's own

// formula_eval.c: all formulas at the points of a row, in float64. Outputs become what theirs give;
// a formula of a gradient that stands before an output that it reads finds there what was before.
enum { FORMULA_POINT_ROW = 4 };
struct formula_point {
    double tensors[TENSOR_COUNT][FORMULA_POINT_ROW];
    double values[FORMULA_MAX_VALUES], formulas[FORMULA_MAX][FORMULA_POINT_ROW];
    int8_t known[FORMULA_MAX_VALUES]; // 1, 0: what the truth values are; -1: of another type
};
void formula_eval(const struct formula_set *set, struct formula_point *at);

// formula_shape.c: the outputs get their shapes.
bool formula_shapes(struct env *env, struct opd_err *err);
// How many of the last dimensions it is. Error: the shape has fewer.
bool formula_count_over(const struct formula_over *over, const struct env *env, int rank, int *out,
                        struct opd_err *err);
struct tensor_desc formula_row_shape(const struct tensor_desc *common, int n_over); // of 1 there
// How many of the last dimensions of an output are 1, for requests; -1: it has none at all. NULL:
// of the whole shape.
const struct expr *formula_reduced(struct arena *arena, const struct op *op,
                                   const struct formula_set *set, const struct formula *f);

// Which dimensions of the common shape a tensor is repeated along, once those of size 1 are left
// out and neighbours along which each tensor does the same are taken as one.
struct formula_dims {
    int rank;
    int64_t size[OP_MAX_RANK];
    uint64_t repeated[OP_MAX_RANK]; // by tensor: its place in the list that was given
};

// The shape that tensors broadcast to; those of no dtype are absent.
struct tensor_desc formula_common_shape(const struct tensor_desc *inputs, int n);
void formula_collapse(const struct tensor_desc *common, const struct tensor_desc *const *tensors,
                      int n, struct formula_dims *out);

// How one launch is laid out: what formula_text.c writes down, and formula_plan.c packs in the same
// order.
enum {
    FORMULA_MAX_OPERANDS = 2 * (OP_MAX_INPUTS + OP_MAX_OUTPUTS) + OP_MAX_OUTPUTS + FORMULA_MAX_SUMS,
    FORMULA_MAX_OFFSETS = FORMULA_MAX_OPERANDS + 1,
};

struct formula_operand {
    int tensor;       // id
    int sum;          // of a tensor that keeps one: its place in the names; else -1
    const char *type; // of an element, in C++
    int offset;       // which of the offsets
    bool single;      // repeated along the innermost dimension: one element serves a whole vector
    bool of_row;      // written once for a row
    bool written;
};

struct formula_kernel {
    const struct op *op;
    const char *suffix; // of the struct's name: "forward", "grad_x"
    struct formula_names names;
    struct formula_reach reach; // what takes part
    int n_operands;             // those that are read come first
    struct formula_operand operands[FORMULA_MAX_OPERANDS];
    int n_sums;                 // trees whose values are summed; 0: none are
    struct {
        const struct node *root;
        const char *type; // of what its sums are stored in
    } sums[OP_MAX_INPUTS];
    const char *join;           // how, in C++
    bool rows;                  // sums are made for a row, and what is made of them
    int n_offsets;              // [0]: of what has the whole shape
    int rank;                   // of a map: dimensions to find offsets in; 0: none are needed
    int kept_rank, summed_rank; // of a sum and of rows: at least 1
    bool wide;                  // 64-bit index arithmetic
    int width;                  // elements at a time
    bool askew;                 // rows begin and end anywhere in those: a map's sizes and strides,
                                // and n_summed, count elements
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
    int copied; // all of these become that gradient of an output, as it is; -1: they do not
};

// Calls `add` for each launch of the request in env, in order, and appends to `text` what their
// kernels are compiled with. `env->temps` get the sizes of what is needed in between.
bool formula_plan(struct env *env, struct buf *text,
                  bool (*add)(void *data, const struct formula_launch *launch), void *data,
                  struct opd_err *err);
