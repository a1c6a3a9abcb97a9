#pragma once

// The memory of one device, as storages see it: a map of what is where, and the sums of who holds
// how much. It comes in chunks, which are the device's business: that is asked through `ops`.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "memory/suballoc.h"

struct device;
struct holders;
struct kept;
struct space;

// WAIT: the device is making room, and turn_retry() comes. FAILED fills err (out_of_memory).
enum alloc_result { ALLOC_OK, ALLOC_WAIT, ALLOC_FAILED };

struct space_ops {
    enum alloc_result (*alloc)(struct space *space, uint64_t size, struct suballoc_block **out,
                               struct opd_err *err);
    void (*release)(struct space *space, struct suballoc_block *block);
    void (*unmap)(struct space *space, uint32_t region); // a client's memory
};

struct space {
    const struct space_ops *ops;
    struct device *device; // whose it is
    const char *name;      // the device's
    int index;             // the device's, among all
    bool paged;            // no two storages share a page; see storage_place()
    struct suballoc map;
    int n_tensors;
    uint64_t n_made;       // storages, ever
    uint64_t named_bytes;  // of map.used: in storages with a name
    uint64_t client_limit; // bytes that one client may hold; 0: all there are
    const struct holders *holders;
    struct kept *kept; // named tensors are in it; NULL: they go with the daemon
};
