#pragma once

// A plan while it is worked out: plan.c and the other plan_*.c, which alone use it, append to it.
// What they give is copied to the plan's arena; the steps stay the builder's until the plan is
// complete. What fails fills b->err, and the plan is given up.

#include "op/arena.h"
#include "op/expr.h"
#include "op/params.h"

enum {
    PLAN_MAX_STEPS = 65536,
    PLAN_MAX_REPEATED = 4 * PLAN_MAX_STEPS, // steps of repeats, launched or not
    PLAN_MAX_KERNELS = 1024,
};

struct builder {
    struct plan *plan;
    struct arena *arena; // the plan's
    struct opd_err *err;
    struct env env;
    struct reads reads; // the env's
    struct packed packed;
    int operand_of[TENSOR_COUNT]; // -1: not listed yet
    bool pending[TENSOR_COUNT];   // to be filled with zeros before its next use
    bool covered[TENSOR_COUNT];   // written by a launch, or by one that had nothing to do
    bool touched[TENSOR_COUNT];   // written in part, by a matmul
    int64_t n_repeated;           // steps of repeats so far
    const char *prelude;          // of the kernels that are added; NULL: the plan's
    struct plan_step *steps;      // become the plan's at the end
    size_t steps_capacity;
    size_t kernels_capacity;
    struct buf values; // of struct plan_value

    // Of lists (plan_lists.c): the tensors at one place of all lists at a time.
    const struct plan_request *whole; // what env.request says is of that place
    int n_members, member;            // -1: there is no list; of none yet
    struct plan_request *at_member;
    struct member_marks *marks; // what is above of tensors, by place
    struct launch_group *group; // launches that become one; NULL: none
    bool parted; // by formulas: a gradient of a tensor that all share has a part of each place,
    int totals[OP_MAX_INPUTS]; // and is this operand
    struct {
        const struct step *launch; // of `chunks`, of the chain at hand; NULL: none yet
        struct plan_step step;
        const char *kernel;
        int n_places; // that it is chosen at
    } chunked;
    size_t operands_capacity;
};

// An argument that only attributes say; where it stands in those of its step is in it.
struct plan_value {
    int step;
    struct packed_value in_step;
};

// The plan lives in its own arena.
struct owned_plan {
    struct plan plan;
    struct arena arena;
    int n_values;
    struct plan_value *values;
};

// Of the step that is added next.
void builder_note_values(struct builder *b, const struct packed *packed);
// Gradients that are asked for and can be made.
uint32_t builder_wanted(const struct plan_request *request);

// Appends to the plan. Error: it has too many.
bool builder_add_step(struct builder *b, const struct plan_step *step);
// A launch of the kernel of that expression, with those arguments, whose slots name tensors.
bool builder_add_launch(struct builder *b, struct plan_step *step, const struct packed *packed,
                        const char *expr, int line);

// The kernel of that expression and the builder's prelude; error: there are too many.
bool builder_add_kernel(struct builder *b, const struct plan_param *params, int n_params,
                        const char *expr, int line, uint32_t *out);

uint32_t builder_operand(struct builder *b, int tensor); // listed now, if it was not
bool builder_zero(struct builder *b, int tensor);
bool builder_is_result(const struct builder *b, int tensor); // the caller gets it
bool builder_is_fresh(const struct builder *b,
                      int tensor); // memory that this direction makes and nobody has filled before

// What is read of this tensor begins with zeros, where nothing has written it yet.
void builder_clear_read(struct builder *b, int tensor);

// plan_lists.c. Checks that the lists go together; from then on some place of theirs is at hand.
bool builder_start_lists(struct builder *b, const struct plan_request *request);
void builder_finish_lists(struct builder *b);
bool builder_set_member(struct builder *b, int member); // the request and env are of that place
bool builder_is_member(const struct builder *b,
                       int tensor); // a list, or what there is one for each
bool builder_is_listed(const struct builder *b, const struct step *steps, int n); // any of these
// All launches of the formulas at each place: those of one kernel become few.
bool builder_map_formulas(struct builder *b);
// What each place says of the gradient of a tensor that all share becomes that. Behind all else.
bool builder_join_parts(struct builder *b);

// plan_inner.c: a step of elements, and one whose inner operator is asked otherwise.
bool builder_inner(struct builder *b, const struct step *step);
bool builder_inner_with(struct builder *b, const struct inner *in, struct plan_request *request);

// plan_launch.c: a step that is a launch; and one that is not made, in a loop that is not entered.
struct section;
bool builder_launch(struct builder *b, const struct section *section, const struct step *launch);
void builder_drop_launch(struct builder *b, const struct step *launch);

// plan_chunks.c: a launch of `chunks`, for all places at once; the builder's `packed` has its
// arguments at the first. What it needs of the step but grid and arguments is set. At each other
// place it is held against that; and at the end of a chain, whether it was chosen at all of them.
bool builder_add_chunks(struct builder *b, const struct step *launch, struct plan_step *step,
                        const char *expr);
bool builder_end_chunks(struct builder *b);

// plan_matmul.c
bool builder_matmul(struct builder *b, const struct step *step);
void builder_drop(struct builder *b, int tensor); // nothing makes it here: zero
