#pragma once

// An executor's process and what leads there: the rings, their bells and the socket beside them,
// and the commands that it has or must have before it serves. A device has one that serves, or is
// the next to serve; a spare, where that is wanted; and those that end.
//
// A link is over once: when its process has died, or was given up, whichever came first. Where it
// was given up in the middle of its work, the process may write for a few milliseconds more, until
// it is gone. The link frees itself then.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/ring.h"
#include "executor/devwire.h"

struct command;
struct device;

// How an executor ended.
struct device_exit {
    char reason[DEV_MAX_MESSAGE];
    enum opd_err_code code; // of the command that was running
    bool killed;            // by SIGKILL, and not by us
};

struct device_link {
    struct device *device;
    struct device_link *next; // of all the device's
    uv_process_t process;
    uv_poll_t socket_poll, done_poll;
    uv_timer_t timer; // until it has said hello
    int n_handles;    // of them, on the loop
    bool alive;       // until it is over
    bool polled;      // the two are on the loop
    bool ready;       // it has said hello
    bool gone;        // its process
    bool left;        // others have taken its place
    bool quiet;       // it has said itself that its device does nothing more
    bool writes;      // it was left in the middle of its work, and is not gone
    bool broken;      // the ring, by the executor, which is being killed
    bool by_edge;     // the loop is woken by each ring of the bell, not while it is readable
    bool worked;      // it has done something
    bool tries;       // it was given a trial: device_try()
    int sock, rings_fd, command_bell, done_bell;
    uint64_t started; // clock_ns()
    uint64_t memory;  // that its context takes of the device, once it has said hello
    void *rings_memory;
    struct ring commands, done;
    struct dev_progress *progress; // of the executor
    struct dev_lanes *lanes;
    struct dev_prints *prints;
    struct device_exit exit;
    struct command *pending, **pending_end; // what it must know, before all others
    struct command *flight, **flight_end;   // sent, oldest first
    uint64_t oldest; // number of the first of these, or of the next to be: see devwire.h
};

// Starts a process. Never NULL: where that fails it is over a moment later.
struct device_link *device_link_start(struct device *d, bool spare);
// Gives it up, for that reason unless it has one of its own.
void device_link_kill(struct device_link *link, enum opd_err_code code, const char *reason);
// The same where its device is beyond use and does nothing more.
void device_link_leave(struct device_link *link);

// What device.c does of each, on the loop.
void device_link_said_hello(struct device_link *link, const struct dev_hello *hello);
void device_link_take_done(struct device_link *link);
bool device_link_is_over(struct device_link *link); // false: not yet, again when it is gone
void device_link_is_gone(struct device_link *link); // before it is freed
