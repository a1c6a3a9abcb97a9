#pragma once

// A request held against an operator's rules: dtypes, shapes, lets and requires, in the order of
// the file.

#include "body.h"

// Fills `env` from a request. Errors do not name the operator: the caller puts that before.
bool check_request(const struct plan_request *request, struct env *env, struct opd_err *err);

// The same message for everything that has a shape: "[2, 3]".
void check_format_shape(const int64_t *shape, int rank, char *out, size_t size);
