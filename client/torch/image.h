#pragma once

// Kernels that are loaded, each once for a device: the plans that launch it share it.

#include <stdint.h>

#include "base/err.h"
#include "base/exported.h"

struct opd_cpu_kernel;

struct image {
    struct image *next;
    unsigned refs;
    uint64_t id;
    char *symbol, *name;
    int device_index; // -1: the CPU
    // On the CPU: a shared object in a memory file, which stays open: its path must not be given to
    // another.
    int fd;
    void *object;
    const struct opd_cpu_kernel *kernel;
    // On CUDA.
    void *module, *function;
    uint32_t shared_limit;
};

// The i-th kernel of a plan that is mapped, counted. Errors: unavailable, malformed_message.
struct image *image_load(const struct exported *x, uint32_t i, int device_index,
                         struct opd_err *err);
void image_unref(struct image *image); // NULL is fine

// Held while the process forks.
void image_lock(void);
void image_unlock(void);
