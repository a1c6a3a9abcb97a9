#pragma once

// Images that were compiled before, on disk, by the hash of everything that can change them. A
// folder that several daemons share: entries are written under a name of their own and renamed, so
// that a reader sees all of one or nothing. Whatever does not read back whole is a miss, and so is
// what others than those in wire/trust.h may have written; whatever cannot be written is not kept.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compiler/compile.h"

struct cache_key {
    char hex[33];
};

#define CACHE_IMAGE ".opd"
#define CACHE_PCH ".pch"

struct buf;

// The key of what follows from these texts alone.
void cache_make_key_of(struct cache_key *key, const char *const *parts, size_t n);
// The key of a compile. `identity` is the compiler's (compile.h). Reads the headers that the source
// includes from its folder.
void cache_make_key(struct cache_key *key, const struct compile_input *in, const char *identity);

// A descriptor with the image, which the caller owns; -1: a miss. A hit is a use, which
// cache_trim() goes by.
int cache_get(const char *folder, const struct cache_key *key);

// Keeps an image. Failure costs a line in the log and nothing else.
void cache_put(const char *folder, const struct cache_key *key, const struct buf *image);

// Other files that are found by such a key: precompiled headers (pch.h). cache_open() is a use,
// too; what is in the file, and whether all of it, is the caller's to tell: -1 where there is none
// that may be trusted. A new one is written under the name of cache_temporary() (heap; NULL: no
// folder, or one in which others can write), and takes its place by cache_rename(). False with
// errno.
int cache_open(const char *folder, const struct cache_key *key, const char *suffix);
char *cache_temporary(const char *folder, const struct cache_key *key, const char *suffix);
bool cache_rename(const char *folder, const struct cache_key *key, const char *suffix,
                  const char *temporary, uint64_t size);
void cache_remove(const char *folder, const struct cache_key *key, const char *suffix);

// Takes care that the folder takes no more than `limit` bytes (0: any number): where it does, the
// entries that were used least recently go, until a tenth of the limit is free. Looks at the folder
// only when what this process has put since makes it necessary, so other processes may exceed the
// limit for a while, by a small part of it each. Precompiled headers take no more than half of it.
// What killed writers have left goes as well.
void cache_trim(const char *folder, uint64_t limit);

// What the folder takes, as this process last knew it; 0: it has not looked yet.
uint64_t cache_bytes(void);
void cache_note_put(uint64_t bytes); // of cache.c
