#pragma once

// Which memory the steps of a RUN read and write, as they stand in the command (devwire.h).

#include <stdbool.h>
#include <stddef.h>

#include "executor/devwire.h"

// Where its region and its offset stand, and how many bytes: never 0.
struct dev_use {
    uint32_t *region;
    uint64_t *offset, size;
    bool written;          // it may be; else it is read
    struct dev_slot *slot; // of a launch; or NULL
};

typedef bool dev_use_fn(void *data, const struct dev_use *use);

// Of one step, until fn() is false, which it then is. Words have none.
bool dev_each_use(struct dev_step *step, dev_use_fn *fn, void *data);

// Of `n` steps in so many bytes; also false where the bytes end before.
bool dev_each_use_of(uint8_t *steps, size_t size, uint64_t n, dev_use_fn *fn, void *data);
