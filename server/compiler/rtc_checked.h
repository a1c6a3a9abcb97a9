#pragma once

// The checked build of a kernel, where the prelude asks for one (PLAN_CHECKED in op/plan.h).

#include "compiler/compile.h"

bool rtc_is_checked(const struct compile_input *in);

// Takes the PTX over, and sets `image` (for the driver, terminated), `log` and `symbol`; of
// COMPILE_PTX, `text`.
bool rtc_check(const struct compile_input *in, char *ptx, const char *symbol,
               struct compile_output *out, struct opd_err *err);
