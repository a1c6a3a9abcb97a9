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
#include "request/request.h"
#include "request/method.h"
#include "wire/map.h"

struct conn;
struct pool;
struct upgrade;

struct broker {
    struct turn turn;
    struct options options;
    struct registry registry;
    struct reload reload;
    struct events events;
    struct pool *pool;
    struct devices devices;
    struct map names; // named tensors, by hash of the name; see tensor.h
    bool stopping;    // what has begun ends, nothing is begun any more

    uv_poll_t listener;
    // What carries requests out: request_call().
    enum request_status (*call)(struct request *req, const struct msg *msg, bool again,
                                struct opd_err *err);
    int listen_fd, lock_fd;
    int spare_fd;       // given up for a moment to refuse a connection when there is no other
    bool listening;     // connections are taken
    struct conn *conns; // all of them
    int n_conns;
    int n_tracers;     // of them: those that follow runs
    uint64_t n_traced; // runs that these were told of
    uint64_t next_conn_id;

    uint64_t started_ns;
    double started_time; // Unix time
    uint64_t n_requests, n_contexts;
    uint64_t calls[METHOD_COUNT]; // requests that were begun, of each method
    int n_checks;                 // under way

    const char *program;     // that this was started from, for a successor
    char **args;             // and with what: behind its name, to the end
    struct upgrade *upgrade; // under way, or NULL
    bool held;               // by it: no request may be started now
    uint64_t n_upgrades, held_since;

    char host_compiler[1024], nvrtc[1024]; // who they are, or why they are not there
};
