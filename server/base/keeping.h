#pragma once

// What is said to the keeper (keeper/keeper.h), which holds descriptors for the next broker: one
// struct keeper_message a packet, on the socket beside the daemon's whose name ends in ".keep".
// Whoever connects there, and is the same user, when no broker does is told HELLO, then HOLD for
// each that it holds, then GIVEN, and is its broker from then on.

#include <stdint.h>

enum keeper_word {
    KEEPER_HOLD = 1, // a descriptor comes along; in place of one of the same device and region
    KEEPER_DROP,     // the descriptor is not needed any more
    KEEPER_EXPORTED, // others than executors have mapped it
    KEEPER_OVER,     // the broker ends as it was told to: nothing is to be kept
    KEEPER_HELLO,    // to the broker: this keeper's pid is in `size`
    KEEPER_GIVEN,    // to the broker: these were all
};

// The regions of what is no memory of a device: the list itself; operators that are pinned.
enum { KEEPER_LIST = UINT32_MAX, KEEPER_PINS = UINT32_MAX - 1 };

struct keeper_message {
    uint32_t word;
    uint32_t device, region;
    uint32_t exported; // of HOLD
    uint64_t size;     // of HOLD: bytes
};
