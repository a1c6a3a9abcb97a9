#pragma once

// A context: what a forward has kept for its backward.

#include <stdint.h>

#include "memory/tensor.h"

struct device;
struct version;

struct context {
    uint64_t serial;                 // no other context ever has it
    struct version *version;         // that ran forward
    void (*drop)(struct version *v); // lets go of it
    struct device *device;
    struct plan_request request;            // the forward's
    struct tensor *inputs[OP_MAX_INPUTS];   // NULL: absent, or not read by backward
    struct tensor *outputs[OP_MAX_OUTPUTS]; // NULL: not read by backward
    struct tensor_desc output_descs[OP_MAX_OUTPUTS];
    struct storage *saved[OP_MAX_TEMPS];
    uint64_t input_versions[OP_MAX_INPUTS], output_versions[OP_MAX_OUTPUTS];
};
void context_free(struct context *ctx); // NULL is fine
