#pragma once

// Graphs: runs of operators, fills and copies that were recorded as a connection sent them, to be
// run again, all of them by one request, on the same memory, which the graph holds.
//
// A node is a run with its places; a launch is all nodes as one command, made when the graph is
// first replayed and whenever an edit has changed what a node runs.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"
#include "kernels/registry.h"
#include "request/run.h"

struct broker;
struct conn;

struct graph_place {
    enum plan_operand_kind kind;
    int index;
    bool written;
    struct storage *storage; // a reference
    uint64_t offset, size;   // bytes
};

// A run; without a version a fill of its first place with zeros or, where it has two, a copy into
// that.
struct graph_node {
    struct version *version; // version_keep()
    bool follows;            // edits
    bool alone;              // as in struct run
    bool constant;           // a fill in whose place bytes came from the client: nothing to run
    double deadline;         // seconds
    struct plan_request *request; // owned; until it is bound: one from before an upgrade
    struct bound_plan *bound;     // a reference; of version, as long as `changes` is its operator's
    uint64_t changes;
    struct graph_place *places;
    int n_places;
};

enum { GRAPH_MAX_NODES = 4096 };

// A piece of memory that was there before a replay.
struct graph_piece {
    struct storage *storage; // the nodes' reference
    uint64_t begin, end;
    size_t next; // of the same storage: its place in the list, from 1; 0: none
};
struct graph_pieces {
    struct graph_piece *list;
    size_t n;
    struct map of; // by a storage's address: the place of the first
};

// In flight it outlives a graph that is made anew.
struct graph_launch {
    int refs;
    struct buf steps;
    size_t n_steps;
    struct command_part *parts;
    struct bound_plan **bound; // references, of the parts' plans
    size_t n_parts;
    struct graph_pieces reads, writes; // reads: of what no node has written before
    double deadline;
    bool alone;
    bool repeatable; // it writes nothing that it reads
    bool reports;    // a kernel of it may say that something is wrong
    bool by_call;    // one has failed: call by call from now on, so that it is known which it is
    bool call;       // it is a prepared call, that a lane runs
};

struct graph {
    int refs;
    struct graph *next_named;
    char *name;      // NULL: none
    uint64_t serial; // no other graph ever has it
    bool capturing;
    char *failed; // why what was recorded cannot be run again; or NULL
    struct device *device;
    struct graph_node *nodes;
    size_t n_nodes;
    struct graph_launch *launch; // NULL: not made yet
    struct lane_arm *arms;       // see lane.h
    char *left;                  // nodes that an edit has left on their version, and why; or NULL
    uint64_t n_left;             // grows with each such edit
};

struct graph *graph_new(struct broker *b);
struct graph *graph_ref(struct graph *g);
void graph_unref(struct graph *g); // NULL is fine

// Of all connections.
struct graph *graph_find(const struct broker *b, const char *name);       // NULL: none of that name
void graph_set_name(struct broker *b, struct graph *g, const char *name); // takes a reference
void graph_drop_name(struct broker *b, struct graph *g);                  // nothing if it has none

void graph_drop_request(struct graph_node *node); // the one that it owns, if any

// --- recording

struct graph_node *graph_add_node(struct graph *g); // zeroed
// Takes a reference of the storage.
void graph_add_place(struct graph_node *node, const struct graph_place *place);

void graph_record_run(struct graph *g, const struct run *run); // that is about to be submitted
void graph_record_fill(struct graph *g, const struct tensor *t);
void graph_record_copy(struct graph *g, const struct tensor *to, const struct tensor *from);
// Bytes from the client stay as they are in a tensor that was made in the capture, and nothing else
// has written. Errors: invalid_argument.
bool graph_may_write(const struct graph *g, const struct tensor *t, struct opd_err *err);
void graph_keep_constant(struct graph *g, const struct tensor *t); // they have come
// Something that was recorded has failed. NULL: nothing is captured.
void graph_capture_failed(struct graph *g, const struct opd_err *err);

// --- replaying

// That what it reads is not suspect.
bool graph_may_read(const struct graph_launch *launch, struct opd_err *err);
struct replay_options {
    double deadline; // 0: the sum of all runs'
    bool debug;
};
struct command *graph_begun(struct device *d, const struct dev_begun *begun); // device_hooks
// The command of a replay, which the request, of req->device, is about to be in flight for.
struct command *graph_command(struct request *req, struct graph_launch *launch,
                              const struct replay_options *options);

// Binds what an edit has changed, sees to it that all kernels are loaded, and makes the launch.
// ANSWERED, WAIT (nothing has changed), or ERROR.
enum request_status graph_prepare(struct graph *g, struct request *req, struct opd_err *err);
void graph_launch_unref(struct graph_launch *launch); // NULL is fine
