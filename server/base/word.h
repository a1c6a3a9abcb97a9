#pragma once

// A word in memory that a client shares, by which an executor tells it that what it waits for is
// done, without the broker between them. Both sides only ever exchange its value: whoever comes
// second sees what the other has done, so that the client is told either here or by a reply. What
// it holds is worth nothing to the executor: a client may write anything there.

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum word_state {
    WORD_IDLE,     // nobody waits
    WORD_AWAITED,  // the client looks at it
    WORD_SLEPT_ON, // or sleeps, until it is another
    WORD_DONE,
};

struct word {
    _Alignas(8) _Atomic uint32_t state;
    _Atomic uint32_t version; // of a call that is done: which one has run; of a replay 0
};

// The executor: what the client may wait for has ended. `done`: and that is all there is to say.
// True: the client sees it, or will. *out_sleeps: it is to be woken.
static inline bool word_tell(struct word *w, bool done, uint32_t version, bool *out_sleeps)
{
    if (done)
        atomic_store(&w->version, version);
    uint32_t was = atomic_exchange(&w->state, done ? WORD_DONE : WORD_IDLE);
    *out_sleeps = was == WORD_SLEPT_ON;
    return done && (was == WORD_AWAITED || was == WORD_SLEPT_ON);
}

static inline void word_wake(struct word *w)
{
    syscall(SYS_futex, &w->state, FUTEX_WAKE, 1, NULL, NULL, 0);
}

// The client, before it sends a request.
static inline void word_await(struct word *w)
{
    atomic_store(&w->state, WORD_AWAITED);
}

static inline bool word_is_awaited(const struct word *w)
{
    uint32_t state = atomic_load(&w->state);
    return state == WORD_AWAITED || state == WORD_SLEPT_ON;
}

// Sleeps for so long at most, unless the executor has said something.
static inline void word_sleep(struct word *w, uint64_t ns)
{
    uint32_t expected = WORD_AWAITED;
    struct timespec most = { .tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000) };
    if (atomic_compare_exchange_strong(&w->state, &expected, WORD_SLEPT_ON) ||
        expected == WORD_SLEPT_ON)
        syscall(SYS_futex, &w->state, FUTEX_WAIT, WORD_SLEPT_ON, &most, NULL, 0);
}

// Waits for it no longer. True: it is done, and no reply comes.
static inline bool word_leave(struct word *w)
{
    return atomic_exchange(&w->state, WORD_IDLE) == WORD_DONE;
}
