#pragma once

// What happened, for whoever follows it: reloads, failures, withdrawals, restarts of devices. The
// last ones are kept.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum { EVENTS_KEPT = 1000 };

// Fields that do not apply are NULL or 0.
struct event {
    const char *kind; // "reloaded"
    const char *op;
    int version;
    const char *file;
    const struct opd_err *err;
    double ms;
    const char *dtype;
    int kernels;
};

struct kept_event {
    struct buf packed;  // the map that clients get
    struct buf outcome; // of an edit: what reload() tells; else empty
};

// Whoever follows what happens has one of these.
struct event_listener {
    struct event_listener *next;
    void (*told)(void *owner, const struct buf *packed);
    void *owner;
    bool follows; // events_follow() says so
};

struct events {
    struct event_listener *listeners;
    uint64_t next;                       // number of the next one; the first is 1
    struct kept_event kept[EVENTS_KEPT]; // seq % EVENTS_KEPT
};

// Adds an event, tells those who follow, and returns its number.
uint64_t events_add(struct events *ev, const struct event *event);
void events_pack(struct buf *out, uint64_t seq, const struct event *event); // the map
// Follows from now on, or no more; either may be so already.
void events_follow(struct events *ev, struct event_listener *listener, bool follows);
void events_pack_since(const struct events *ev, uint64_t since,
                       struct buf *out);         // an array of those after `since`
uint64_t events_oldest(const struct events *ev); // the number of the first that is still kept
// The outcomes of edits alone, as reload() tells of them: op, file, version, state, message, log,
// ms. Appends those after `since`, and returns how many they are.
size_t events_pack_outcomes(const struct events *ev, uint64_t since, struct buf *out);
void events_pack_outcome(const struct event *event, struct buf *out); // nothing, if it is no edit's
void events_finish(struct events *ev);
