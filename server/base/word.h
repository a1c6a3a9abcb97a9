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

static inline bool word_is_awaited(const struct word *w)
{
    return atomic_load(&w->state) == WORD_AWAITED;
}

// A client's waits. After one that a reply has ended some are left to replies, and twice as many
// after the next in a row; and so is one of many, since what else the daemon tells comes with
// these.
struct word_waits {
    unsigned n, n_missed, n_passed;
};

enum { WORD_PASSED = 64, WORD_MOST_MISSED = 10, WORD_EACH = 64 };

// Nanoseconds that what comes by a reply is kept waiting at most. Beyond the kernel's next tick, as
// a rule: a timer before that is set for each wait, which takes a virtual machine longer than all
// the rest of the call.
enum { WORD_MOST = 5000000 };

// Before a request is sent. False: the reply is all there will be.
static inline bool word_begin(struct word *w, struct word_waits *waits)
{
    bool passed = waits->n_passed > 0 || ++waits->n % WORD_EACH == 0;
    waits->n_passed -= waits->n_passed > 0;
    if (!passed)
        atomic_store(&w->state, WORD_AWAITED);
    return !passed;
}

// Nobody waits from now on. True: it was told before.
static inline bool word_leave(struct word *w)
{
    return atomic_exchange(&w->state, WORD_IDLE) == WORD_DONE;
}

// Once it is sent. True: it is done, and no reply comes.
static inline bool word_wait(struct word *w, struct word_waits *waits)
{
    const struct timespec most = { .tv_nsec = WORD_MOST };
    uint32_t awaited = WORD_AWAITED;
    // A signal ends the sleep, too: the reply is waited for then.
    if (atomic_compare_exchange_strong(&w->state, &awaited, WORD_SLEPT_ON))
        syscall(SYS_futex, &w->state, FUTEX_WAIT, WORD_SLEPT_ON, &most, NULL, 0);
    bool told = word_leave(w);
    if (told) {
        waits->n_missed = 0;
    } else {
        waits->n_passed = WORD_PASSED << waits->n_missed;
        waits->n_missed += waits->n_missed < WORD_MOST_MISSED;
    }
    return told;
}
