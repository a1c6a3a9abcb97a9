#pragma once

// A request held against an operator's rules: its attributes, its dtypes, then shapes, lets and
// requires, in the order of the file. The first that does not hold is the error, so a rule may rely
// on those before it.

#include "op/body.h"

// Fills `env`, zeroed, from a request, which it goes on to point to: dtypes of the types, values of
// dimensions and lets, shapes of outputs, saved and scratch tensors. Errors: invalid_argument; they
// do not name the operator, the caller puts that before.
bool rules_apply(const struct plan_request *request, struct env *env, struct opd_err *err);

// A message with its values. REPORT_INDEX_MARK stands for what a kernel reports.
void rules_format_message(const struct message *message, const struct env *env, char *out,
                          size_t size);
