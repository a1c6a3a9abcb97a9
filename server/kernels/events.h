#pragma once

// What happened, for whoever follows it: reloads, failures, withdrawals, restarts of devices. The
// last ones are kept.

#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

struct broker;

enum { EVENTS_KEPT = 1000 };

// Fields that do not apply are NULL or 0.
struct event {
    const char *kind; // "reloaded"
    const char *op;
    int version;
    const char *file;
    const struct opd_err *err;
    double ms;
};

struct kept_event {
    struct buf packed;  // the map that clients get
    struct buf outcome; // of an edit: what reload() tells; else empty
};

struct events {
    uint64_t next;                       // number of the next one; the first is 1
    struct kept_event kept[EVENTS_KEPT]; // seq % EVENTS_KEPT
};

uint64_t events_add(struct broker *b,
                    const struct event *event); // its number; tells those who follow
void events_pack_since(const struct events *ev, uint64_t since,
                       struct buf *out);         // an array of those after `since`
uint64_t events_oldest(const struct events *ev); // the number of the first that is still kept
// Of edits alone, as reload() tells of them: op, file, version, state, message, log, ms. Appends
// those after `since`, and returns how many they are.
size_t events_pack_outcomes(const struct events *ev, uint64_t since, struct buf *out);
void events_pack_outcome(const struct event *event, struct buf *out); // nothing, if it is no edit's
void events_finish(struct events *ev);
