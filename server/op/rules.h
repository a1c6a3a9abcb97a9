#pragma once

// A request held against an operator's rules: dtypes, shapes, lets and requires, in the order of
// the file.

#include "op/body.h"

// Fills `env` from a request. Errors do not name the operator: the caller puts that before.
bool rules_apply(const struct plan_request *request, struct env *env, struct opd_err *err);

// A message with its values. PLAN_INDEX_MARK stands for what a kernel reports.
void rules_format_message(const struct message *message, const struct env *env, char *out,
                          size_t size);
