#pragma once

// Saved tensors of a forward that go into tensors which are there, as `into` has it for outputs.

#include "request/run.h"

// The option `saved_into`: ids, one for each saved tensor. *out_given: it is there; then backward
// may follow. They stand in run->saved.
bool run_read_saved_into(struct request *req, struct run *run, const value *options,
                         bool *out_given, struct opd_err *err);

// With the plan: do they fit, and does nothing else of the run lie there?
bool run_check_saved_into(const struct run *run, struct opd_err *err);
