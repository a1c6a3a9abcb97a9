#pragma once

// What a trial runs: each example of an operator with each dtype, forward and backward. Both the
// process that compiles and those that run make the list from the file, and number kernels alike.

#include "op/plan.h"

struct trial_kernel {
    const char *prelude, *expr; // a plan's
    int image, place;           // which image, and which kernel of it
};

struct trial_part {
    uint32_t wanted;
    struct plan *plan;
};

struct trial_case {
    enum opd_dtype dtype;
    int example;                     // from 1; 0: a fault that is run again
    struct plan *forward, *backward; // backward: NULL if there is none
    int n_parts;
    struct trial_part *parts; // backward for some of the gradients, where those are to be proved
};

struct trial_cases {
    struct op *op;
    int n, n_kernels, n_images; // an image has all kernels of one prelude
    struct trial_case *cases;
    struct trial_kernel *kernels;
};

// What they are for: their kernels are the CPU's, or a GPU's in checked builds.
enum trial_aim { TRIAL_RUNS, TRIAL_PROOFS, TRIAL_ON_GPU };

// `dtypes`: names with commas between; "": all that the operator has, or, of proofs, the widest
// one. Takes no reference of op.
bool trial_cases_init(struct trial_cases *t, struct op *op, const char *dtypes, enum trial_aim aim,
                      struct opd_err *err);
// One more case, whose plans are the list's from now on.
void trial_cases_add(struct trial_cases *t, const struct trial_case *c);
void trial_cases_finish(struct trial_cases *t); // zeroed is fine

const struct trial_kernel *trial_cases_find(const struct trial_cases *t, const struct plan *plan,
                                            uint32_t kernel);
