#pragma once

// A run of a loaded plan on a call's tensors: outputs and scratch memory are torch's, so is the
// stream.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct call;
struct loaded;

enum { RUN_MAX_RESULTS = 64 };

// Fills `out` with what the operator's kernel returns. Errors: unavailable, where nothing has been
// done yet, and the daemon is to do it; others are the call's.
bool run_plan(struct loaded *p, struct call *call, uint64_t out[RUN_MAX_RESULTS],
              struct opd_err *err);
