#pragma once

// Derivatives of formulas, as formulas. Of op/ alone.
//
// The formulas become a graph in which equal terms are one node. A gradient goes through it from
// the outputs to the inputs, a tangent the other way; both by the same table of rules
// (derive_rules.c). A choice (?:) passes on to each branch what is of it, under its condition: what
// a branch that is not taken would give, which may be infinite, is chosen away and never multiplied
// by 0. What comes out is a list of formulas: terms that are used twice, then one for each
// derivative.

#include "op/formula.h"
#include "op/tree.h"

// Appends to the set a formula for the gradient of each of these inputs (bits) that an output
// depends on. False: they would be too many, or a function has no derivative; then the set is as it
// was, and `why` says which.
bool derive_gradients(const struct op *op, struct formula_set *set, uint32_t inputs,
                      const char **why);

// The tangents of the outputs, made from the gradients. Their targets are TENSOR_OUTPUT + k, and
// what they read of TENSOR_GRAD_INPUT + i is the tangent of input i; it is 0 where present[i], a
// value, is not true (-1: it is always there). False: they would be too many.
// Where there are sums it goes through the formulas of the outputs instead, and `why` says what
// cannot be differentiated.
bool derive_tangents(const struct op *op, struct formula_set *set, const int *present,
                     const char **why);

// Holds gradients that are written against the derived ones, at some points, once all is read, and
// warns where they differ.
struct reader;
void derive_check(struct reader *r);

// derive_text.c: sets `used_backward` of what the backward of its backward reads, too.
void derive_note_uses(struct op *op);

// derive_graph.c: nodes that are equal are one.
struct graph {
    struct arena *arena;
    const struct formula_set *set;
    int n, capacity;
    struct node **nodes; // in an order in which arguments come first; n->size is the place
    int table_size;      // a power of two
    int *table;          // hash to place + 1
    struct node *roots[FORMULA_MAX]; // of the formulas that have been added
};

enum { GRAPH_MAX_NODES = 1 << 14 };

void graph_finish(struct graph *g);
// A formula's tree, and those that it is made of.
struct node *graph_add_formula(struct graph *g, int index);
// A rule's tree, with nodes for its letters.
struct node *graph_add_rule(struct graph *g, const struct node *rule, struct node *const *letters);
struct node *graph_leaf(struct graph *g, int kind, enum expr_type type, int a);
struct node *graph_number(struct graph *g, double value);
// A node like `n`, of other arguments.
struct node *graph_again(struct graph *g, const struct node *n, struct node *const *args);
struct node *graph_sum(struct graph *g, int kind, int over, struct node *of);
struct node *graph_node(struct graph *g, int kind, struct node *a, struct node *b, struct node *c);
struct node *graph_resolve(const struct graph *g,
                           struct node *n); // what a formula's name stands for
// Appends formulas: `roots` with their targets, and before them what they share.
bool graph_emit(struct graph *g, const struct op *op, struct formula_set *set, int n,
                struct node *const *roots, const int *targets);

// derive_rules.c: what a node hands on. `rule` is what g, the gradient of the node, or the tangent
// of `child`, becomes; NULL: it stays as it is.
struct derive_part {
    struct node *child;
    const char *rule;
    struct node *letters[sizeof FORMULA_LETTERS];
};

enum { DERIVE_MAX_PARTS = 3 };
// Not of a choice, nor of the step from a row's number to its elements. -1: the function has no
// derivative.
int derive_parts(struct graph *g, struct node *n, struct derive_part parts[DERIVE_MAX_PARTS]);

// derive.c: the formulas of the outputs as a graph, which gradients and tangents go through.
struct derive {
    const struct op *op;
    struct formula_set *set;
    uint32_t inputs;
    struct graph graph;
    int n;             // nodes of the formulas
    uint32_t *depends; // on which of the inputs; by node
    int16_t *over;     // by node: of one number for each row, what it is summed over; else -1
    uint32_t reached;  // inputs that an output depends on
    struct arrivals *arrivals;
    bool *is_whole; // by node: it is all of an output, by choices that are known
    const struct path *paths;
    const char *why; // it cannot be done
};

bool derive_makes_float(const struct op *op,
                        const struct formula *f); // an output that has derivatives
// The graph, from `op`, `set` and `inputs`.
void derive_start(struct derive *d);
void derive_finish(struct derive *d);
// What a node hands on, to those that depend on the inputs; how many they are.
int derive_find_parts(struct derive *d, struct node *n, struct derive_part *parts);
struct node *derive_apply(struct derive *d, struct derive_part *part, struct node *g); // its rule
// condition ? a : b and a + b; NULL is 0.
struct node *derive_choose(struct derive *d, const struct node *condition, struct node *a,
                           struct node *b);
struct node *derive_add(struct derive *d, struct node *a, struct node *b);
