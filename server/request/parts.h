#pragma once

// struct broker: the parts that requests work on. server/broker.c makes them, turns the loop and
// ends it; what it alone needs for that is not here. Single-threaded.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/turn.h"
#include "device/devices.h"
#include "kernels/events.h"
#include "kernels/registry.h"
#include "kernels/reload.h"
#include "options.h"
#include "request/conn.h"
#include "request/listen.h"
#include "request/request.h"
#include "request/method.h"
#include "request/compiling.h"
#include "request/replies.h"
#include "wire/map.h"

struct pool;
struct postmortem;
struct upgrade;

// What has happened since the daemon's start.
struct counters {
    uint64_t started_ns;
    double started_time; // Unix time
    uint64_t requests, contexts, graphs;
    uint64_t parts;               // of large requests, but the last of each
    uint64_t calls[METHOD_COUNT]; // requests that were begun, of each method
};

// From one program to the next in the same process; see upgrade.h.
struct handover {
    const char *program;     // that this was started from, for a successor
    char **args;             // and with what: behind its name, to the end
    struct upgrade *upgrade; // under way, or NULL
    bool held;               // by it: no request may be started now
    uint64_t count, held_since;
};

struct broker {
    struct turn turn;
    struct options options;
    struct registry registry;
    struct reload reload;
    struct events events;
    struct pool *pool;
    struct devices devices;
    struct map names;     // named tensors, by hash of the name; see tensor.h
    struct graph *graphs; // those that have a name; a reference each
    bool pins_moved;      // since the keeper heard of them
    bool stopping;        // what has begun ends, nothing is begun any more

    struct clients clients;
    struct lanes *lanes; // of all devices; NULL: there has been none
    struct request *spare; // requests that have ended; see request_new()
    int n_spare;
    struct listener listener;
    struct replies replies;
    struct compiling compiling;
    struct counters counters;
    struct handover handover;
    int n_checks;                   // under way
    struct postmortem *postmortems; // under way
    bool spins;                     // before it sleeps
    void (*stop)(struct broker *b); // as on a signal: ends what is in flight, then the loop
    // The function that carries requests out: request_dispatch().
    enum request_status (*dispatch)(struct request *req, const struct msg *msg, bool again,
                                    struct opd_err *err);

    char host_compiler[1024], nvrtc[1024]; // who they are, or why they are not there
};
