#pragma once

// A context: what a forward has kept for its backward.

#include <stdint.h>

#include "memory/tensor.h"

struct device;
struct version;

// The tensors of a list that backward reads.
struct context_list {
    int n;
    struct tensor **of; // NULL: none
    uint64_t *versions;
};

struct context {
    uint64_t serial;                 // no other context ever has it
    struct version *version;         // that ran forward
    void (*drop)(struct version *v); // lets go of it
    struct device *device;
    struct plan_request request;            // the forward's; its lists are the context's own
    struct tensor *inputs[OP_MAX_INPUTS];   // NULL: absent, or not read by backward
    struct tensor *outputs[OP_MAX_OUTPUTS]; // NULL: not read by backward
    struct tensor_desc output_descs[OP_MAX_OUTPUTS];
    struct storage *saved[OP_MAX_TEMPS];
    uint64_t input_versions[OP_MAX_INPUTS], output_versions[OP_MAX_OUTPUTS];
    struct context_list lists[OP_MAX_INPUTS + OP_MAX_OUTPUTS]; // inputs, then outputs
};
void context_make_list(struct context_list *list, int n); // of no tensors yet
void context_free(struct context *ctx); // NULL is fine
