#pragma once

// What only the life of a broker needs: of broker.c, which makes the parts and turns the loop, and
// of stop.c, which ends it.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/spin.h"
#include "base/turn.h"
#include "request/parts.h"

struct roof {
    struct broker broker;
    uv_prepare_t prepare; // before the loop sleeps: retries and flushes
    uv_idle_t idle;       // keeps it from sleeping while there is more to do
    uv_signal_t signals[TURN_N_SIGNALS];
    uv_timer_t stop_timer;
    struct spin spin;
    uint64_t n_requests;        // when the loop last looked
    int n_starting, n_stopping; // devices
    bool read_over;             // what clients have not read by now is given up
    bool devices_stopping;
    int exit_status;
};

static inline struct roof *roof(struct broker *b)
{
    return (struct roof *)(void *)b;
}

void roof_stay_awake(struct broker *b); // the next turn of the loop comes at once

// The end: no client comes any more, what is in flight ends or is ended, then the devices and the
// compilers do, then the loop. Each turn of that goes on with it.
void stop_begin(struct broker *b);
void stop_go_on(struct broker *b);
void stop_close_loop(struct broker *b); // all that it still has to turn for
