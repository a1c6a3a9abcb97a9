#pragma once

// A request of formulas while its launches are worked out: formula_plan.c, which says what they
// are, formula_launch.c, which lays each of them out, and formula_args.c, which fills its struct.

#include "op/formula.h"

struct planner {
    struct env *env;
    const struct formula_set *set;
    struct opd_err *err;
    struct tensor_desc common;
    int64_t n; // elements of it
    bool on_cpu;
    int8_t known[FORMULA_MAX_VALUES]; // truth values; -1: of another type

    // Sums over rows, those that others are made of first; and what they are summed over.
    int n_sums;
    const struct node *sums[FORMULA_MAX_SUMS];
    bool is_made[FORMULA_MAX_SUMS]; // and in memory
    int temps[FORMULA_MAX_SUMS];    // there; 0: nowhere yet
    int n_temps;                    // taken
    uint8_t overs;                  // bits: of the set's
    int n_over;
    int64_t n_row;          // elements of a row
    struct tensor_desc row; // the common shape, of 1 there

    // The launch at hand
    struct formula_kernel kernel;
    struct formula_dims dims;
    uint32_t patterns[FORMULA_MAX_OFFSETS]; // by offset: the dimensions along which it stays
    int summed;                             // the place of what is summed in `repeated` of dims
    struct formula_launch launch;

    struct buf *text;
    bool (*add)(void *data, const struct formula_launch *launch);
    void *data;
};

// The place of a sum. -1: it is not among the planner's.
int planner_find_sum(const struct planner *p, const struct node *n);

// Of what takes part, between start and the launch. Results are written in the order in which they
// are added.
void launch_start(struct planner *p, const char *suffix, bool rows);
void launch_add_formula(struct planner *p, int index);
void launch_add_written(struct planner *p, int tensor);
void launch_add_sum(struct planner *p, int sum); // of a row, to be stored

bool launch_map(struct planner *p); // element by element
// The values of trees summed to what has that shape, joined as it says.
struct sum_target {
    const struct node *root;
    int to, parts; // tensors: the sums, and those of parts of what is summed
};
int launch_max_sums(const struct planner *p); // of how many trees at a time
bool launch_sums(struct planner *p, const struct sum_target *each, int n, const char *join,
                 const struct tensor_desc *shape);
bool launch_rows(struct planner *p); // results of each row, and the sums that they are made of

// formula_args.c: the struct that a kernel of the launch takes, as C++ lays it out, from its first
// member to its last. False: it is too large, or, with an error, a value does not fit.
bool args_add_operands(struct planner *p);
bool args_add_long(struct planner *p, int64_t value);
// Dimensions of a formula_dims of opd.cuh: those of `chosen`, for the offsets from `first` on.
bool args_add_dims(struct planner *p, uint32_t chosen, int first);
bool args_end(struct planner *p); // attributes and lets, and how many elements a row has
