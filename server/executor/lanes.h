#pragma once

// The lanes of clients (base/lane.h), as the executor sees them: where they are, and what each may
// run. That is the broker's to say, by commands; what is in a lane decides no more than when.
//
// A lane that is a client's to scribble over can be read and written at any time, and no more: its
// memory cannot shrink, and its bell is never read.

#include <stdbool.h>
#include <stdint.h>

#include "base/lane.h"
#include "base/mem.h"
#include "executor/devwire.h"
#include "executor/regions.h"

struct lanes_lane {
    struct lane *at; // NULL: none
    int bell;        // owned
    uint32_t region;
    uint32_t seen; // number of the last entry that was looked at
    bool busy;     // it has not ended: a lane has one at a time
};

struct lanes_arm {
    uint64_t serial; // 0: nothing
    struct buf run;  // a command of type DEV_RUN
};

struct lanes {
    struct dev_lanes *shared;
    int epoll; // of the bells; -1: no lane has been open yet
    unsigned n_open, turn;
    struct lanes_lane list[DEV_MAX_LANES];
    struct lanes_arm arms[DEV_MAX_LANES * DEV_LANE_ARMS];
};

void lanes_init(struct lanes *l, struct dev_lanes *shared);
void lanes_finish(struct lanes *l);

// The four commands; size: of the whole. What is not there is closed and disarmed already.
bool lanes_open(struct lanes *l, const struct dev_command *cmd, uint32_t size, int fd,
                const struct regions *regions, struct opd_err *err);
void lanes_close(struct lanes *l, uint32_t lane);
bool lanes_arm(struct lanes *l, const struct dev_command *cmd, uint32_t size, struct opd_err *err);
void lanes_disarm(struct lanes *l, uint32_t slot);
void lanes_leave(struct lanes *l, uint32_t region); // its memory goes

// The next lane's entry, in turn: what it runs, valid until the next command; NULL: none has one.
// Those that name what they may not run are refused. Sets all of *begun but seq and at.
const struct dev_command *lanes_take(struct lanes *l, struct dev_begun *begun, struct word **word);
void lanes_ended(struct lanes *l, uint32_t slot); // what was in that

// Before this process sleeps until l->epoll is readable. False: an entry has come.
bool lanes_sleep(struct lanes *l);
void lanes_wake(struct lanes *l);
