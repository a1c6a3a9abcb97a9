#pragma once

// What the proofs of a trial share: a case that has run once, elements of its tensors, what is
// told.

#include "trial/trial_run.h"

enum { PROOF_NAME = 512 }; // the longest name of an element

struct proof {
    struct trial_run *run;
    const struct trial_case *c;
    const struct op *op;
    uint32_t all;                            // the gradients that there are
    struct trial_tensor base[TRIAL_INPUTS]; // what the inputs are; gives way to what is tried
    uint8_t *found[TRIAL_INPUTS];           // their gradients,
    struct tensor_desc made[TRIAL_INPUTS];  // which are contiguous
    double *outputs[TRIAL_OUTPUTS];         // as float64; NULL: no part of what is differentiated
    double epsilon;                          // of the narrowest type that takes part
    double seconds;                          // of a forward
    uint64_t n_jumps;                        // elements where there is no slope
};

// Fills the inputs, runs forward and backward, and keeps all that. False: what the operator makes
// of its inputs is not finite, or refused by one of its checks; that has been told.
bool proof_begin(struct proof *p, struct trial_run *run, const struct trial_case *c);
void proof_finish(struct proof *p);

// Runs forward on what the inputs are now. What is differentiated is the sum of the outputs'
// elements, each times the gradient that backward gets: how much it has grown since proof_begin().
// *out_noise: about what rounding adds to that.
double proof_run_forward(const struct proof *p, double *out_noise);
// `to` gets the gradients of the inputs, NULL where there is none; what it had is freed.
void proof_run_backward(const struct proof *p, const struct plan *plan, uint8_t **to);
void proof_free_gradients(uint8_t **g);

// Elements; of a dtype that is not is_exact(), 0. What is stored is rounded, and then returned.
bool proof_is_exact(const struct tensor_desc *d);
double proof_load(const struct tensor_desc *d, const void *bytes, uint64_t at);
double proof_store(const struct tensor_desc *d, void *bytes, uint64_t at, double value);
// "grad_x[3, 5]"
// An input, with its place in its list: "xs[1]".
const char *proof_name_input(const struct proof *p, int input, char out[PROOF_NAME]);
const char *proof_name_element(const char *prefix, const char *name, const struct tensor_desc *d,
                               uint64_t at, char out[PROOF_NAME]);

// A line for trial_findings.c; `made`: an operand of the plan, by which the kernel is found.
void proof_tell(const struct proof *p, const struct plan *plan, enum plan_operand_kind made,
                int index, const char *what);
