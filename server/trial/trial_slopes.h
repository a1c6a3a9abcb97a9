#pragma once

// Gradients held against central differences.

#include "trial/trial_proof.h"

// Proves the gradient of an input in about that time. False: something is wrong, and has been told.
bool slopes_prove(struct proof *p, int input, double seconds);
