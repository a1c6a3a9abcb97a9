#pragma once

// What tensors are, by their ids, as replies have told.

#include "c/opd.h"

// Dtype, shape, strides and device: one of those that are kept, so that equal ones are the same
// pointer.
struct known_desc {
    struct known_desc *next;
    char dtype[16], device[32];
    int rank;
    bool strided;
    int64_t shape[OPD_MAX_RANK], strides[OPD_MAX_RANK];
    uint64_t bytes;
};

struct known { // zeroed is empty
    struct known_tensor *tensors;
    size_t count, capacity; // 0 or a power of two
    struct known_desc *descs;
    size_t n_descs;
};

// NULL: there are too many, or no memory for it.
const struct known_desc *known_desc(struct known *k, const struct known_desc *desc);
const struct known_desc *known_find(const struct known *k, int64_t id); // NULL: it is not known
void known_put(struct known *k, int64_t id, const struct known_desc *desc);
void known_remove(struct known *k, int64_t id); // nothing if it is not there
void known_finish(struct known *k);
