#pragma once

// Proves the gradients of a case, and what its file says is linear.
//
// Gradients are held against central differences of what forward computes: of the sum of its
// outputs, each element times a random number that backward gets as its gradient. Then each subset
// of the gradients is made alone and held against all of them, and all of them are made again with
// blocks and threads in the opposite order: the bits must be the same.
//
// Steps go by the size of an element, and are extrapolated from two (Richardson). Where those two
// differ, other sizes are tried. Where none agree the function has a corner there: a gradient
// between the slopes on both sides is right, and what jumps is passed over.

#include "trial/trial_run.h"

// What is wrong is told in lines for trial_findings.c. About `seconds` go into the differences: of
// large tensors elements are then taken together, and only what is wrong is taken apart.
void trial_gradients_prove(struct trial_run *s, const struct trial_case *c, double seconds);
