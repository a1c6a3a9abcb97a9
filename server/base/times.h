#pragma once

// How long things took, counted in buckets whose bounds grow by a quarter of a power of two: from
// below 1.3 us to over 17 s, each within an eighth of what it counts.

#include <stdint.h>

enum {
    TIMES_FIRST = 10,   // bits of the nanoseconds below which all is in the first bucket
    TIMES_OCTAVES = 24, // powers of two from there on, in four buckets each
    TIMES_BUCKETS = 4 * TIMES_OCTAVES + 1, // the last has no bound
};

static inline unsigned times_bucket(uint64_t ns)
{
    uint64_t n = ns < 1u << TIMES_FIRST ? 1u << TIMES_FIRST : ns;
    unsigned bits = 63 - (unsigned)__builtin_clzll(n);
    unsigned i = 4 * (bits - TIMES_FIRST) + (n >> (bits - 2) & 3);
    return i < TIMES_BUCKETS ? i : TIMES_BUCKETS - 1;
}

// What a bucket counts is below this many nanoseconds, and no less than that of the one before it;
// the last has no such bound.
static inline uint64_t times_bound(unsigned i)
{
    return (uint64_t)(5 + i % 4) << (TIMES_FIRST - 2 + i / 4);
}
