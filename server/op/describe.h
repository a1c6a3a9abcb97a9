#pragma once

// What clients are told of an operator's rules (op.h, struct op_rule): enough to work out the
// shapes of results without a request. Of op/ alone.

#include "op/reader.h"

// Fills op->rules, once all has been read: shapes of inputs, outputs and saved tensors, what the
// file requires, and the lets and scratch tensors that these need.
void describe_rules(struct reader *r);
