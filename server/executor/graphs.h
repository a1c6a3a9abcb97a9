#pragma once

// Commands that come again and again, as graphs of the device: one launch in place of many. What a
// command does is all in its steps, so they are what it is known by.

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "executor/backend.h"

enum { GRAPHS_MOST = 64 };

struct graphs_entry {
    struct buf steps;
    struct backend_graph *graph; // NULL: not made, or it cannot be
    bool tried;
    size_t used; // when it was last
};

// Zeroed but for `ops` and `be`, it is empty.
struct graphs {
    const struct backend_ops *ops;
    struct backend *be;
    struct graphs_entry list[GRAPHS_MOST];
    size_t n, n_used;
};

// The entry of these steps. NULL: they have not come before, and are kept from now on, in place of
// those that have not come for longest. Steps that come once make no graph, and when they come
// again all that a first run does late has been done.
struct graphs_entry *graphs_find(struct graphs *g, const void *steps, size_t size);

// Forgets all: programs or addresses go, that other steps may name by the same numbers. The device
// is at rest.
void graphs_clear(struct graphs *g);
