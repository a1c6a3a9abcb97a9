#pragma once

// Finds the end of one MessagePack object in bytes that nobody has checked yet, and refuses what
// would make a decoder allocate or recurse without bounds. It looks at lengths only: it copies and
// allocates nothing, and does not check that strings are UTF-8.
//
// Use: keep one zeroed struct mpscan beside the buffer in which a message arrives. Call
// mpscan_scan() with the whole buffer from the message's first byte each time that it has grown (it
// may move; what was scanned is not scanned again). At MPSCAN_DONE take `position` bytes, zero the
// struct, and go on with the next message.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MPSCAN_MAX_DEPTH = 32, // the most that mpscan_limits.depth can allow
    MPSCAN_DEFAULT_DEPTH = 16,
    MPSCAN_DEFAULT_ELEMENTS = 1 << 20, // a decoder takes 16 to 24 bytes for each
    MPSCAN_DEFAULT_MESSAGE = 64 << 20,
};

// A field that is 0 takes the default above.
struct mpscan_limits {
    size_t message;  // bytes of the whole object
    size_t elements; // elements of all arrays and maps together, a map's pair counting as two
    unsigned depth;  // arrays and maps inside each other: [] is 1, [[]] is 2
};

enum mpscan_result {
    MPSCAN_MORE,    // right so far; the whole object has at least `position` + `owed` bytes
    MPSCAN_DONE,    // the object is the first `position` bytes
    MPSCAN_INVALID, // `reason` says why, in one line; nothing that follows can be trusted
};

struct mpscan {
    size_t position; // where the next element begins; may lie past the bytes that have come
    size_t owed;     // elements that open arrays and maps still lack; each is a byte at least
    size_t elements; // claimed by all arrays and maps so far
    bool started;
    unsigned depth;
    uint64_t left[MPSCAN_MAX_DEPTH]; // elements that the array or map at each depth still lacks
    char reason[120];
};

// Zeroes what the next message needs zeroed.
static inline void mpscan_reset(struct mpscan *scan)
{
    scan->position = scan->owed = scan->elements = 0;
    scan->started = false;
    scan->depth = 0;
    scan->reason[0] = '\0';
}

// What lengths and numbers are written as, in n bytes.
static inline uint64_t mpscan_big_endian(const uint8_t *p, unsigned n)
{
    uint64_t number = 0;
    for (unsigned i = 0; i < n; i++)
        number = number << 8 | p[i];
    return number;
}

// Goes on from where the last call stopped. `size` does not shrink and the limits do not change
// from call to call of one message. Calling again after MPSCAN_DONE or MPSCAN_INVALID without
// zeroing gives the same answer. `limits` NULL: the defaults.
enum mpscan_result mpscan_scan(struct mpscan *scan, const void *bytes, size_t size,
                               const struct mpscan_limits *limits);
