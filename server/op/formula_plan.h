#pragma once

// A request of formulas while its launches are worked out: formula_plan.c, which says what they
// are, formula_launch.c, which lays each of them out, formula_split.c, which shares its elements
// out, and formula_args.c, which fills its struct.

#include "op/formula.h"

enum {
    BLOCK = 256,      // threads on a GPU, as in opd-formula.cuh; one on the CPU
    MAP_BLOCK = 128,  // of what has no sum
    SUM_WIDTH = 8,    // columns of a thread at most
    CPU_SHARE = 4096, // elements that are worth a block there
};

static inline bool is_temp(int tensor)
{
    return tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT;
}

static inline int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// The smallest power of two that is not below n, or `limit`, a power of two.
static inline int pow2_within(int64_t n, int limit)
{
    int p = 1;
    while (p < n && p < limit)
        p *= 2;
    return p;
}

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

// formula_split.c: how many elements a thread takes at a time, and which threads and blocks take
// them. The kernel gets its width and whether it is askew.
struct sum {
    uint32_t kept, summed;    // dimensions
    bool columns;             // the innermost dimension is kept
    int64_t n_kept, n_summed; // results; elements of each
    int64_t vectors;          // of each, or elements of columns; n_summed too, but of what is askew
    int lanes;
    int64_t blocks, share, parts, group;
};
void split_map(struct planner *p);
void split_sums(struct planner *p, struct sum *s);
// And the threads of a row, with how many vectors each holds.
void split_rows(struct planner *p, struct sum *s, int *lanes, int *items);

// formula_args.c: the struct that a kernel of the launch takes, as C++ lays it out, from its first
// member to its last. False: it is too large, or, with an error, a value does not fit.
bool args_add_operands(struct planner *p);
bool args_add_long(struct planner *p, int64_t value);
// Dimensions of a formula_dims of opd.cuh: those of `chosen`, for the offsets from `first` on.
bool args_add_dims(struct planner *p, uint32_t chosen, int first);
bool args_end(struct planner *p); // attributes and lets, and how many elements a row has
