#pragma once

// torch's functions, found in the torch that is loaded already: this library is built without any
// file of torch, and one build serves every torch from 2.10 on.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct torch_functions {
#define T(name, need, result, parameters) result(*name) parameters;
#include "torch/functions.def"
#undef T
    void (*free_value)(
        void *value);  // what C++'s delete is, for a torch that has no function for it
    int32_t cpu, cuda; // device types
    int32_t dtypes[OPD_DTYPE_COUNT]; // torch's number of each of ours
    bool has_cuda;                   // libtorch_cuda is there, with all of its functions
    // Of no stable interface, and NULL where this torch has them no more: a tensor as Python's
    // object, and the address of what the calling thread has changed about dispatch.
    void *(*wrap)(const void *tensor);
    const uint64_t *(*find_dispatch)(void);
    // Of the calling thread: how many modes of torch functions are at work, and do calls count for
    // autograd?
    int64_t (*count_modes)(void);
    bool (*is_grad_enabled)(void);
};

// Filled by torch_find(), and read by all.
extern struct torch_functions torch;

// Once, before anything else here. Error: unavailable, naming what is missing.
bool torch_find(struct opd_err *err);

// Ours for torch's number; OPD_DTYPE_NONE: there is none.
enum opd_dtype torch_dtype(int32_t number);
