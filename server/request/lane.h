#pragma once

// The lanes of connections (base/lane.h): each has one at most, to one device. What the executor
// may run for a lane is *armed*: the launch of a graph of that connection alone, in a slot. Armed
// is what would be replayed with nothing to decide or to say; whatever could change that disarms,
// and the next replay comes by the socket, which arms again. A prepared call on tensors that are
// there is such a graph, too, of one run, which the lane itself holds (request_lane_call()).
//
// To disarm is one word that the executor reads before it begins an entry; what it has begun by
// then comes first of all that is sent to it later. So memory can be given to others at once, and
// an edit is not overtaken. What the executor has begun, it tells (device_hooks.begun): a request
// is made of it then, as if its client had sent that, so blame, limits and upgrades know of no
// lanes.
//
// Memory that others know of is armed never: their requests would not wait for the entry, nor it
// for what they have failed to write. A name alone lets nobody know: whoever else attaches waits
// until nothing of that memory is armed, and what was begun is told; after that it never is again.
//
// Named memory outlives the broker, and what that has not heard of nobody can tell the next one. So
// what is armed and writes such memory has it marked as being written (memory/kept.h); where the
// device rests, which is seen within a second, it is disarmed and the mark goes.

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"

struct broker;
struct conn;
struct graph;
struct graph_launch;
struct request;
struct storage;

enum { LANE_ARMS = DEV_MAX_LANES * DEV_LANE_ARMS };

// It stays until the executor knows of it no more.
struct client_lane {
    struct conn *conn; // a reference
    struct device *device;
    uint32_t number;
    int bell;     // owned
    uint64_t shm; // that it is in
    bool closed;
    struct graph *calls[DEV_LANE_ARMS]; // references; until a tensor of theirs goes. NULL: none
    void (*released)(struct conn *c);
};

// The same.
struct lane_arm {
    struct lane_arm *next; // of the same graph
    const struct client_lane *lane;
    struct graph *graph;         // NULL: it has ended
    struct graph_launch *launch; // a reference
    struct device *device;
    uint32_t slot;
    uint64_t serial;
    bool live;             // else it is being disarmed
    struct storage **kept; // references: what it writes that has a name
    size_t n_kept;
    void (*released)(struct graph_launch *launch);
};

struct device_lanes {
    unsigned n;
    struct client_lane *list[DEV_MAX_LANES];
    struct lane_arm *arms[LANE_ARMS];
};
struct device_lanes *lanes_of(const struct device *d);
void lanes_free(struct broker *b);

struct client_lane *lane_add(struct conn *c, struct device *d, // that has room for it
                             void (*released)(struct conn *c));
void lane_close(struct conn *c);                   // nothing if it has none
void lane_leave_shm(struct conn *c, uint64_t shm); // the same, unless it is in another memory
void lane_close_device(struct broker *b, const struct device *d); // its executor has died
void lane_look(struct broker *b); // at what has been begun by lanes, and has ended

// Calls. Those that are not armed any more make room; NULL: there is none.
struct graph **lane_call_room(struct client_lane *lane);
void lane_drop_calls(struct conn *c);
void lane_drop_all_calls(struct broker *b); // none is armed: nothing of them is to be told
// A tensor of that memory goes: calls that name it.
void lane_leave_storage(struct conn *c, const struct storage *s);

// Its launch; NULL: the lane has no slot left.
struct lane_arm *lane_add_arm(struct client_lane *lane, struct graph *g,
                              void (*released)(struct graph_launch *launch));
const struct lane_arm *lane_find_arm(const struct device *d, uint32_t slot, uint64_t serial);
bool lane_is_armed(const struct graph *g);
bool lane_is_disarmed(const struct client_lane *lane); // and the executor knows
void lane_disarm_conn(struct conn *c);
void lane_disarm_device(struct broker *b, const struct device *d);
void lane_disarm_all(void *broker);
void lane_disarm_graph(struct graph *g);
void lane_leave_graph(struct graph *g); // it ends
void lane_rest(struct broker *b, const struct device *d); // that has nothing to do
// All memory that a launch touches is its client's alone; what others may attach to by a name is,
// until they do.
bool lane_is_private(const struct graph_launch *launch);
// Others have come to know of memory of that device: whatever touches it. False: to be asked again,
// since some of it may be begun and not told.
bool lane_leave_shared(struct broker *b, const struct device *d);

// --- request_lane.c

// A graph that is about to be replayed by a request: arms it, where it may be. True: it was not,
// and the reply is to say where it is. flags: of its command.
bool lane_arm(struct request *req, struct graph *g, uint32_t flags);
void lane_pack_arm(struct buf *out, const struct graph *g);
