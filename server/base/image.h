#pragma once

// A compiled kernel as it travels from a compiler to an executor and as it lies in the cache: one
// file (or memfd) with the kernel's symbol and the image proper, under a checksum. What does not
// check is refused, never half used.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct image {
    const char *symbol;  // inside the mapping
    const void *payload; // a cubin, or a shared object
    size_t payload_size;
    void *mapping;
    size_t mapping_size;
};

struct buf;
void image_write(struct buf *out, const char *symbol, const void *payload, size_t size); // appends

// Reads the file behind the descriptor into private memory and checks it. Does not take the
// descriptor over.
bool image_open(struct image *image, int fd, struct opd_err *err);
void image_close(struct image *image); // zeroed is fine
