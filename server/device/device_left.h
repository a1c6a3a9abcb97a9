#pragma once

// What an executor that was given up may still read and write until its process is gone: the memory
// of the commands that it had begun. What changes none of that need not wait for its end.

#include <stdbool.h>

#include "base/mem.h"

struct command;
struct device;

// Zeroed: nothing.
struct device_left {
    struct buf ranges; // struct left_range, of device memory and staging
    bool all;          // it may be anything
};

void device_left_add(struct device *d, const struct command *begun);
void device_left_clear(struct device *d);

// May a command change what was left there to be read or written?
bool device_left_meets(const struct device *d, const struct command *c);
// May a piece of staging be read or written there?
bool device_left_has_staged(const struct device *d, uint64_t offset, uint64_t size);
