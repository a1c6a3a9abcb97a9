#pragma once

// Precompiled headers of NVRTC: what a compile has parsed, in a file that the next one maps. They
// lie in the cache, among the images, for all compilers of all daemons; so they outlive these.
// NVRTC maps one where the process that made it had it, so that only processes without randomized
// addresses share (kernels/worker.c starts them so, where that is allowed); others, and those whose
// cache cannot be used, have their own, which go with them. Nothing but time is lost in any case.
//
// NVRTC looks neither at whether the file is whole nor at whether the headers in it have changed:
// the first is checked here, by a digest at its end; the second is the key's matter.

#include <stdbool.h>
#include <stdint.h>

#include "compiler/cache.h"

enum { PCH_HEAP = 512 << 20 }; // bytes of addresses in which NVRTC parses; CUB fills 130 MiB

// From now on, in that folder (scratch.h), which stays valid. NULL, as at first: there are none.
void pch_use(const char *scratch);

// Whether a compile may make or use one, which it can at most PCH_HEAP bytes below the folder for.
bool pch_ready(void);

// Where NVRTC's heap is going to be, or is: a part of the key. The first compile with an option of
// pch_option() has to follow.
const void *pch_heap(void);

// The option for a compile: to use what there is for that key, else to make it. NULL: neither is
// possible. Valid until pch_done(), which is to follow, with what NVRTC has said of it:
enum pch_result {
    PCH_USED,
    PCH_MADE,
    PCH_NEITHER, // it did not come to it
    PCH_FAILED,  // it cannot be used, or could not be made
};
const char *pch_option(const struct cache_key *key, const char *cache);
void pch_done(enum pch_result result);

// Puts what was made into the cache, where a PCH may take half of `limit` bytes (0: any number). To
// be called when nobody waits.
void pch_publish(const char *cache, uint64_t limit);
