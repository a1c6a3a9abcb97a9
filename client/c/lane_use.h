#pragma once

// What libopd and opd_native do alike where calls go by a lane (base/lane.h): when one is worth
// it, when it is left to requests instead, and which requests leave alone what is armed. The
// results that each keeps for it are its own matter (lane_call.h, native_lane.h).

#include "base/lane.h"

// STEADY: calls on the same inputs, after which there may be many more.
enum { LANE_CALLS = 16, LANE_STEADY = 4, LANE_MOST_FAILED = 10 };

// Requests by which nothing comes to hold a tensor's memory that there is; of a `call`, it is
// looked at where it is made.
// clang-format off
#define LANE_HARMLESS(X)                                                                           \
    X(call) X(done_word) X(free) X(lane_call) X(lane_open) X(lane_wait) X(prepare) X(replay)       \
    X(shm_open) X(sync) X(tensor_info) X(tensor_new) X(tensor_read) X(tensor_write)
// clang-format on

// A call that may come again.
struct lane_use {
    struct lane_entry entry;
    unsigned armed;            // epoch of the lane in which it is; 0: it is not
    unsigned n_failed, n_left; // calls that are left to requests
};

// It was refused, or could not be armed, which costs a request.
static inline void lane_use_leave(struct lane_use *use, bool refused)
{
    use->armed = 0;
    use->n_left = (refused ? 1u : 16u) << use->n_failed;
    use->n_failed += use->n_failed < LANE_MOST_FAILED;
}

// Whether the next one is left to a request. Not to be armed before: a call by a request ends what
// its result is armed for.
static inline bool lane_use_passes(struct lane_use *use, struct word_waits *waits)
{
    unsigned *left = use->n_left > 0 ? &use->n_left : &waits->n_passed;
    bool passes = *left > 0;
    *left -= passes;
    return passes;
}
