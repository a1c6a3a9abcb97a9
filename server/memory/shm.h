#pragma once

// Shared memory of a client's, for the bytes of tensors: a memfd that devices map where it is used.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "executor/devwire.h"
#include "memory/space.h"

struct shm {
    int fd; // owned
    uint64_t size;
    struct space *spaces[DEV_MAX_DEVICES]; // of the devices that map it; NULL: one that does not
    uint32_t regions[DEV_MAX_DEVICES];     // there
};
void shm_free(struct shm *shm);

// Bytes that one client may share: a memfd is only a promise, and the process of a device has 2^47
// addresses for everyone.
#define SHM_MOST ((uint64_t)1 << 44)

// A descriptor that came with a message: a writable memfd of that size that cannot shrink. -1: none
// came. `what`: the request's name, for the message.
bool shm_check(const char *what, int fd, int64_t size, struct opd_err *err);
