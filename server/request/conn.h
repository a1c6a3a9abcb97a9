#pragma once

// A client's connection: takes its bytes apart into requests, starts them in order, sends the
// replies. What the client owns (ids of tensors, contexts, shared memory) is here and goes with it.
//
// A request that must wait (for a compile, for memory) stays in the buffer and is decoded again
// when it is tried again, so nothing of it has to be kept. Later requests of the same connection
// wait behind it; other connections do not.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/map.h"
#include "base/mpscan.h"
#include "kernels/events.h"
#include "wire/msg.h"
#include "wire/stream.h"

struct broker;
struct device;
struct graph;
struct client_lane;
struct request;
struct version;

// Bytes of replies that a connection does not read, before no other request of it is begun.
enum { CONN_MAX_UNSENT = 4 << 20 };

struct conn {
    struct broker *broker;
    struct conn *next, *prev;
    struct conn *next_touched, *next_queued, *prev_queued; // see struct clients
    bool touched, queued;
    bool closed;
    int refs; // the loop's, one for each request in flight, and one while it is touched
    uint64_t id;
    uint64_t reply_size;   // bytes of tensors that replies to what is in flight will have
    struct holder *holder; // its name, and what it holds; a reference
    struct stream stream;
    uint64_t taken, taken_at; // of what it was sent, when that last grew; see replies.h
    struct mpscan scan;
    struct msg msg;          // the first in the buffer, as far as it is decoded
    struct request *begun;   // it is done in parts, and has begun; or NULL
    struct request *packing; // these are done, and large results are packed
    int last_method;         // the index of its last request's
    int n_flight;
    bool waiting; // the first request in the buffer waits, or there is more to start
    struct device *memory_device;  // device whose memory the waiting request wants
    struct device *staging_device; // in whose queue for staging memory it stands
    struct opd_err wait_err;       // that did not come
    uint64_t last_work;     // when its last request went to a device, or was done there; 0: none
    uint64_t waiting_since; // when the waiting request was first tried; 0: none waits
    struct map tensors;     // id -> struct tensor
    struct map contexts;    // id -> struct context
    struct map shms;        // id -> struct shm
    // Where it looks whether what it waits for is done: id of shared memory, or 0, and offset.
    struct {
        uint64_t shm, offset;
        struct device *device; // that was last to say so there, or NULL
    } word;
    struct client_lane *lane;       // or NULL; see lane.h
    uint32_t lane_begun;            // number of the last request that came by one
    struct map exports;             // id -> struct storage
    struct map imports;             // id -> struct import
    struct map prepared;            // id -> struct prepared
    size_t prepared_size;           // bytes of these
    struct map graphs;              // id -> struct graph
    struct graph *capture;          // one of them, that what runs is recorded in; or NULL
    struct map exported;            // slot -> struct opd_operator: it has plans of these
    struct event_listener follower; // what happens is sent as notifications
    bool traces;                    // so is each run; see trace.h
    struct {
        bool printed, compiling, compiled;
    } hears;                 // so is what its kernels print, and what is compiled for it
    uint64_t compiling;      // `since` of its last request that waited for a compile
    uint64_t told_compiling; // of the last that it was told so of
    uint64_t n_unprinted;    // bytes of that which it was not told of
    size_t freed;            // once it has ended: how far the map that is being freed is
    struct map warnings;  // hash of an operator's name -> number of the failure that it was told of
    bool reload_pending;  // its reload() waits
    struct version *load; // what its load() waits for, a reference; NULL: it does not
    uint64_t last_event;  // the last event that its reload() told of
};

// All connections. Those that a turn of the loop has to do with are in lists of their own, so that
// the others cost nothing.
struct clients {
    struct conn *first;
    int n;
    struct conn *touched;              // to be flushed, or to end
    struct conn *queued, *last_queued; // that wait, or pack replies; in the order of their turns
    int n_queued;
    struct conn *worker, *other_worker; // the two that sent requests to devices last
    int n_tracers;                      // of them: those that follow runs
    uint64_t n_traced;                  // runs that these were told of
    uint64_t last_id;
    struct conn *left; // those that have ended, and whose tensors are not freed yet
};

void conn_open(struct broker *b, int fd); // takes the socket over
// A connection from before an upgrade is made in two steps: its stream's buffers and descriptors
// are filled in between. conn_discard() instead of the second.
struct conn *conn_new(struct broker *b, uint64_t id);
void conn_start(struct conn *c);
void conn_discard(struct conn *c);
void conn_close(struct conn *c);
void conn_unref(struct conn *c);
// Of one parameter, packed. False: it does not read, and is told nothing.
bool conn_notify(struct conn *c, const char *method, const struct buf *param);
// Frees what connections that have ended leave behind, some of it in each turn of the loop: a
// client may have had a million tensors.
enum { CONN_FREED_A_TURN = 1 << 12 };
void conn_free_left(struct broker *b, int budget);
bool conn_idle(const struct conn *c);    // nothing waits, is in flight, or unsent
void conn_leave_staging(struct conn *c); // the queue for it, where it stands in one

// --- whose turn it is (conn_turn.c)

// A turn of the loop: what is under way goes on, what waits is tried again where there was
// something to wait for, and replies are sent.
void conn_turn_all(struct broker *b, bool retry);
void conn_read(struct conn *c);       // there are bytes to start requests from, or no more come
void conn_touch(struct conn *c);      // it has something to send, or nothing more to do
void conn_worked(struct conn *c);     // a device is done with a request of it
void conn_queue(struct conn *c);      // it waits, or packs a reply; or no longer
void conn_turn_leave(struct conn *c); // it is closed: what it has begun or waits for is dropped
