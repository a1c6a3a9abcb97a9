#pragma once

// A request held against an operator's rules: dtypes, shapes, lets and requires, in the order of
// the file.

#include "op/body.h"

// Fills `env` from a request. Errors do not name the operator: the caller puts that before.
bool check_request(const struct plan_request *request, struct env *env, struct opd_err *err);

// A message with its values. CHECK_INDEX_MARK stands for what a kernel reports.
enum { CHECK_INDEX_MARK = PLAN_INDEX_MARK };
void check_format_message(const struct message *message, const struct env *env, char *out,
                          size_t size);

// The same message for everything that has a shape: "[2, 3]".
void check_format_shape(const int64_t *shape, int rank, char *out, size_t size);
