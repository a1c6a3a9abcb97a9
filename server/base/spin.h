#pragma once

// Whether to look again and again for what is awaited, or to sleep: for twice as long as it took
// the last times, and not at all where it took longer than a few sleeps and wakings three times in
// a row.

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

enum { SPIN_MOST_NS = 100000, SPIN_MISSES = 3 };

// Zeroed: never.
struct spin {
    bool wanted;
    unsigned n_missed; // in a row
    uint64_t since;    // when the wait began
    uint64_t limit;    // ns
};

// Processors that this process may use.
static inline int spin_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static inline void spin_init(struct spin *s, bool wanted)
{
    *s = (struct spin){ .wanted = wanted, .limit = SPIN_MOST_NS };
}

static inline void spin_begin(struct spin *s, uint64_t now)
{
    s->since = now;
}

// It came.
static inline void spin_end(struct spin *s, uint64_t now)
{
    uint64_t twice = 2 * (now - s->since), kept = s->limit - s->limit / 8;
    if (now - s->since > SPIN_MOST_NS) {
        s->n_missed += s->n_missed < SPIN_MISSES;
        return;
    }
    s->n_missed = 0;
    s->limit = twice > SPIN_MOST_NS ? SPIN_MOST_NS : twice > kept ? twice : kept;
}

static inline bool spin_on(const struct spin *s, uint64_t now)
{
    return s->wanted && s->n_missed < SPIN_MISSES && now - s->since < s->limit;
}
