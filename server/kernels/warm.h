#pragma once

// What an operator's examples use, before anyone asks for it.

#include <stdbool.h>

#include "base/dtype.h"

struct device;
struct devices;
struct pool;
struct registry;
struct version;

// Compiles every kernel of every operator's examples, in every dtype, on every device. The compiles
// go on in the background.
void warm_start(const struct registry *r, const struct devices *devices, struct pool *pool);

// Makes the plans of a version's k-th example, forward and backward, and with a pool begins to
// compile their kernels. False: there is no such example. What cannot be planned is logged.
bool warm_example(struct device *d, struct version *v, int k, enum opd_dtype dtype,
                  struct pool *pool);
