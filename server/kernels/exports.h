#pragma once

// Plans that leave the daemon: what base/exported.h lays down, with the images of their kernels.

#include "kernels/registry.h"

// A sealed memfd with the plan and its kernels, all of which are compiled; the caller's. -1 with an
// error.
int exports_write(const struct version *v, const struct bound_plan *bound, struct opd_err *err);
