#pragma once

// `opd --prove`: what `opctl check --grad` finds of a version, once it serves. The same process,
// "opd trial grad", at the priority of what nobody waits for, one at a time.

#include <stdbool.h>
#include <uv.h>

#include "base/mem.h"

struct events;
struct registry;
struct turn;
struct version;

struct prove {
    // Set by whoever has it.
    struct turn *turn;
    struct events *events;
    struct registry *registry;
    bool wanted;

    struct proving *first; // the one that runs, and those that wait
    bool stopped;
};

// A version serves. One of the same operator that runs or waits is left off. What comes of it is an
// event, "proved" or "doubted"; what is wrong the operator's next reply tells each client too.
void prove_add(struct prove *p, struct version *v);
void prove_stop(struct prove *p); // nothing more is proved or told
