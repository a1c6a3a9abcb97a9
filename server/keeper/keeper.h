#pragma once

// The keeper: a process beside the broker that holds descriptors and nothing else. They are of the
// device memory in which named tensors lie, of the list that says which tensor is where
// (memory/kept.h), and of the versions of operators that are pinned. Where the broker goes without
// a word, by SIGKILL say, the keeper holds them for so many seconds, and gives them to the next
// broker of the same user that connects to its socket.
//
// It reads no memory and no list. Who sends messages has checked nothing that the other side
// relies on.

#include "base/keeping.h"

// "opd keeper SECONDS": 3 is the broker's end of a SOCK_SEQPACKET, 4 the socket to listen on.
int keeper_main(double seconds);
