#pragma once

// A lane: memory that a client shares with an executor, by which it replays a graph without the
// broker between them. It has room for one entry, which its client waits for. The executor runs it
// in turn with the broker's commands, and with other lanes'; what it begins it tells the broker,
// which goes on as if the client had sent that request: what becomes of it is told by the word, or
// by a reply to the request of that number.
//
// An entry names what the broker has put into the executor's table for this lane, by slot and
// serial; where that is not there any more, it is refused, and goes by the socket. The executor
// copies an entry before it looks at it, and trusts nothing of it.

#include <errno.h>

#include "base/word.h"

struct lane {
    struct word word;
    _Alignas(64) _Atomic uint32_t entry; // its number; written last
    _Atomic uint32_t request;            // of the reply, if there is to be one
    _Atomic uint32_t slot;
    _Atomic uint64_t serial;
    // The executor's.
    _Alignas(64) _Atomic uint32_t asleep; // the bell is to be rung
    _Atomic uint32_t refused;             // number of the last entry that was not begun
};

enum { LANE_ALIGNED = 64 };

struct lane_entry {
    uint32_t request, slot;
    uint64_t serial;
};

// The client, whose word is awaited: from now on the executor may begin it.
static inline uint32_t lane_enter(struct lane *l, const struct lane_entry *e, int bell)
{
    uint64_t one = 1;
    uint32_t number = atomic_load(&l->entry) + 1;
    atomic_store_explicit(&l->request, e->request, memory_order_relaxed);
    atomic_store_explicit(&l->slot, e->slot, memory_order_relaxed);
    atomic_store_explicit(&l->serial, e->serial, memory_order_relaxed);
    atomic_store(&l->entry, number);
    while (atomic_load(&l->asleep) && write(bell, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    return number;
}

// Where the word has not told of that entry. Then the executor has kept nobody waiting.
static inline bool lane_was_refused(const struct lane *l, uint32_t number,
                                    struct word_waits *waits)
{
    bool refused = atomic_load(&l->refused) == number;
    if (refused)
        waits->n_missed = waits->n_passed = 0;
    return refused;
}

// Now and then what the daemon has sent meanwhile is taken in, in place of a reply that would.
static inline bool lane_is_to_look(struct word_waits *waits)
{
    bool look = (waits->n + 1) % WORD_EACH == 0 && waits->n_passed == 0;
    waits->n += look;
    return look;
}
