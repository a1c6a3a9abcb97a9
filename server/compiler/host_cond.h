#pragma once

// Which text the preprocessor leaves out on the CPU device, as far as that can be told without
// running it.

#include <stdbool.h>

#include "compiler/host_lex.h"

enum host_truth { HOST_NO, HOST_MAYBE, HOST_YES };

enum { HOST_COND_DEPTH = 64 };

// The #if's that are open. Zeroed is the start of a file.
struct host_cond {
    int depth; // may exceed HOST_COND_DEPTH: what is nested deeper counts as MAYBE
    struct {
        enum host_truth taken;  // whether a branch before this one was
        enum host_truth active; // whether this one is
    } level[HOST_COND_DEPTH];
};

void host_cond_step(struct host_cond *c, const struct host_token *directive);
bool host_cond_active(const struct host_cond *c); // compiled for certain
