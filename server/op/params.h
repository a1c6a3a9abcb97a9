#pragma once

// The argument bytes of one launch: a layout as that of a C struct, values in place, slots where
// addresses go.

#include "op/body.h"

struct packed {
    int n_params, n_slots;
    uint32_t size;
    struct plan_param params[SIGNATURE_MAX_PARAMS];
    struct plan_slot slots[SIGNATURE_MAX_PARAMS]; // operand: the tensor's id
    _Alignas(16) uint8_t bytes[OP_MAX_ARGS_SIZE];
};

bool params_pack(const struct step *launch, const struct env *env, struct packed *out,
                 struct opd_err *err);
