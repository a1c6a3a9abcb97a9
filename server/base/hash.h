#pragma once

// A fast hash of bytes, for tables and names of cache entries. Not for secrets: collisions can be
// made on purpose, so whoever looks something up by it compares the bytes as well, or hashes twice
// with different seeds.

#include <stddef.h>
#include <stdint.h>

// The hash is the same on every machine and in every version: it names files in the cache.
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);
