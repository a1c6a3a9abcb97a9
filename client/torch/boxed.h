#pragma once

// Kernels as torch calls them. It gives a kernel no argument of its own, so each takes one of a
// fixed number of functions that differ in nothing but which they are.

#include "base/err.h"
#include "torch/loaded.h"

enum { BOXED_MAX = 4096 }; // three for each operator that is registered

// Registers "opd::NAME" with torch, by its schema, with a kernel for the CPU and CUDA. Returns its
// number, for boxed_operator(); -1: all are taken, or torch refuses it, and the operator runs in
// the daemon. `op` must stay.
int boxed_register(const char *name, const char *schema, struct torch_op *op, struct opd_err *err);
struct torch_op *boxed_operator(int number); // NULL: there is none

// What Python sees of an error; valid on this thread until its next.
const char *boxed_tell(const char *kind, const char *text);
