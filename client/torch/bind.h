#pragma once

// Where each operand of a loaded plan has its memory, worked out once.

#include <stdbool.h>

#include "base/err.h"

struct loaded;

enum { BIND_MAX_ARGS_SIZE = 16384 }; // of a launch

// `first`, of an operator with lists: the tensor that each argument of such a call begins with.
// Error: unavailable, for what cannot run here.
bool bind_plan(struct loaded *p, const int *first, struct opd_err *err);
