#pragma once

// What a step of a command reads and writes, as ranges for order.h: the tensors that are its
// arguments, where a product works, what a kernel keeps from launch to launch. Memory that may be
// mapped a second time, since a client has shared it, is all memory.

#include "base/mem.h"
#include "executor/steps.h"

// Puts ranges into `out`, in place of what is in it. For a product it also chooses s->workspace,
// with which the step is to be run. Errors: as of the step.
bool touches_of(struct steps *s, const struct dev_step *step, struct buf *out,
                struct opd_err *err);
