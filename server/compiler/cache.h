#pragma once

// Images that were compiled before, on disk, by the hash of everything that can change them. A folder that several daemons
// share: entries are written under a name of their own and renamed, so that a reader sees all of one or nothing. Whatever
// does not read back whole is a miss; whatever cannot be written is not kept.

#include <stdbool.h>

#include "compile.h"

struct cache_key {
    char hex[33];
};

struct buf;

// The key of a compile. `identity` is the compiler's (compile.h). Reads the headers that the source includes by quotes.
void cache_make_key(struct cache_key *key, const struct compile_input *in, const char *identity);

// A descriptor with the image, which the caller owns; -1: a miss.
int cache_get(const char *folder, const struct cache_key *key);

// Keeps an image. Failure costs a line in the log and nothing else.
void cache_put(const char *folder, const struct cache_key *key, const struct buf *image);
