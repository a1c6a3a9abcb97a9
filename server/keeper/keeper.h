#pragma once

// The keeper: a process beside the broker that holds descriptors and nothing else. They are of the
// device memory in which named tensors lie, of the list that says which tensor is where
// (memory/kept.h), and of the versions of operators that are pinned. Where the broker goes without
// a word, by SIGKILL say, the keeper holds them for so many seconds, and gives them to the next
// broker of the same user that connects to its socket.
//
// It reads no memory and no list. The messages are struct keeper_message, one a packet; who sends
// them has checked nothing that the other side relies on.

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

// "opd keeper SECONDS": 3 is the broker's end of a SOCK_SEQPACKET, 4 the socket to listen on.
int keeper_main(double seconds);
