#pragma once

// Flights: the commands that were given to the device, in order, and how the end of each is told:
// to its client by a word in shared memory, to the broker by the ring `done`, which it is woken for
// as seldom as can be.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/ring.h"
#include "executor/backend.h"
#include "executor/devwire.h"
#include "executor/lanes.h"
#include "executor/steps.h"

enum { FLIGHTS_TIMED = BACKEND_STAMPS / 2 }; // at a time

struct executor {
    const struct backend_ops *ops;
    struct backend *be;
    struct ring commands, done;
    struct dev_progress *progress;
    struct steps steps;
    struct lanes lanes;
    uint64_t seq;       // of the last that was taken
    struct buf flights; // those before the first have been reported
    size_t first_flight, n_flights;
    unsigned stamp;    // of the command that is being run
    size_t n_timed;    // commands, ever
    unsigned n_quiet;  // completions that the broker need not be woken for,
    unsigned n_untold; // others for which it was not,
    unsigned n_urgent; // of them: those that no client has heard of,
    uint64_t untold_since;
    const char *device;
    bool stopping;
};

// The command that was begun last, with the error that it had. `lane`: of an entry of a lane, its
// slot, from 1; else 0.
void flights_add(struct executor *ex, uint32_t lane, const struct opd_err *err);
// Reports what the stream has passed. False: the device has failed.
bool flights_report(struct executor *ex, struct opd_err *err);
// Waits until the device has nothing left to do. Nothing is launched meanwhile: each end is told.
bool flights_drain(struct executor *ex, struct opd_err *err);

// Wakes the broker if it sleeps.
void flights_tell(struct executor *ex);
// Whether to wake it before the next command; `idle`: there is none.
bool flights_must_tell(const struct executor *ex, bool idle);
// A device that does not work on its own: the next command may hold this process up for long.
bool flights_hold_up(const struct executor *ex);
// Tells the broker of an entry of a lane; it may look at its leisure: what it has not heard of is
// there when this process is dead.
void flights_tell_begun(struct executor *ex, struct dev_begun *begun);

// The device is beyond use: reports what it did before, names the failure for the oldest command
// that is left, and leaves the rest to the broker.
void flights_fail(struct executor *ex, const struct opd_err *err);
void flights_finish(struct executor *ex);
