#pragma once

// The loaded images of an executor, by the numbers that the broker has given them.

#include <stdint.h>

#include "executor/backend.h"
#include "executor/devwire.h"

struct programs {
    const struct backend_ops *ops;
    struct backend *be;
    struct backend_program **items; // NULL: not loaded
    uint32_t n;
    uint32_t n_waiting; // of them: whose launches wait for their end
};

// Loads the image behind a descriptor, which stays the caller's, in place of one of that number.
bool programs_load(struct programs *p, const struct dev_command *cmd, int fd, struct opd_err *err);
struct backend_program *programs_get(const struct programs *p, uint32_t id); // NULL: not loaded
bool programs_waits(const struct programs *p, uint32_t id);
void programs_unload(struct programs *p, uint32_t id); // one that is loaded
void programs_finish(struct programs *p);
