#pragma once

// A device's staging memory: what comes and goes in messages passes through it. The device maps it;
// here is who has which piece of it. Two pools: for pieces of up to STAGING_SMALL bytes there is
// some that larger ones cannot take.

#include <stdint.h>

#include "memory/suballoc.h"

struct turn;

enum { STAGING_SMALL = 64 << 10, STAGING_POOLS = 2 };
enum { STAGING_LARGE_SIZE = 64 << 20, STAGING_SMALL_SIZE = 8 << 20 };
enum { STAGING_SIZE = STAGING_LARGE_SIZE + STAGING_SMALL_SIZE };

// A pool, and the connections that wait for it, the longest first: nobody who came later goes
// before.
struct staging_pool {
    struct suballoc map;
    uint64_t *queue; // connections
    int n_queue;
};

// Zeroed: none yet.
struct staging {
    struct turn *turn;
    uint8_t *memory;                          // STAGING_SIZE bytes, mapped here; NULL: none yet
    uint32_t region;                          // the same for the device
    struct staging_pool pools[STAGING_POOLS]; // large, small
};

// Takes the memory over: all of it is free.
void staging_open(struct staging *s, struct turn *turn, uint8_t *memory, uint32_t region);
void staging_finish(struct staging *s);

// A piece for data of a connection. NULL: all of it is in use, or others have waited longer;
// turn_retry() comes, and who does not want it any more has to leave.
struct suballoc_block *staging_take(struct staging *s, uint64_t conn, uint64_t size);
void staging_leave(struct staging *s, uint64_t conn);
void staging_give(struct staging *s, struct suballoc_block *block);
uint64_t staging_offset(const struct suballoc_block *block); // in memory, and in the region
