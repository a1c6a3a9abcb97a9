#pragma once

// A prepared call: a forward or vjp whose operator, dtypes, shapes, attributes and options were
// checked once, so that running it takes no more than the ids of its tensors.
//
// It is kept as the message that made it, and bound to a version and its plan when it is called.
// An edit unbinds it (opd_operator.changes): the next call reads the message again, as if it came
// then. So does the program that serves after an upgrade.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "kernels/registry.h"

struct conn;

struct prepared {
    struct buf message;
    // The ids that a call takes: of inputs, outputs, saved tensors, a context; of vjp gradients,
    // too. They stay what its client was told when it was prepared.
    bool vjp, context;
    int n_inputs, n_outputs, n_saved;
    uint64_t told; // hash of the results' dtypes and shapes, as its client was told them
    // Bound; valid as long as `changes` is the operator's. NULL: to no operator yet.
    struct opd_operator *of; // a reference
    uint64_t changes;
    struct version *version;
    struct device *device;
    struct bound_plan *forward; // a reference
    bool differs;               // results are no longer as its client was told
    double deadline;            // options of every run
    bool alone, fixed;          // fixed: a version was asked for
    bool makes;                 // every result is a new tensor
    // vjp: the last plan, and what it was for.
    struct bound_plan *backward; // a reference, or NULL
    uint32_t wanted, absent;
};

// One that comes from before an upgrade: is its message that of a prepared call?
bool prepared_check(const struct buf *message, struct opd_err *err);

void prepared_free(struct prepared *p, struct conn *c); // c: whose count it leaves; NULL is fine
