#pragma once

// The broker process: everything that must last. It owns the loop, the connections, the operators,
// the tensors, and the descriptors of all device memory; it contains no CUDA, no kernel and no user
// code. Single-threaded.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "kernels/events.h"
#include "wire/map.h"
#include "base/turn.h"
#include "device/devices.h"
#include "options.h"
#include "kernels/registry.h"
#include "kernels/reload.h"

struct conn;
struct device;
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
    int n_starting, n_stopping;
    struct map names; // named tensors, by hash of the name; see tensor.h

    uv_poll_t listener;
    int listen_fd, lock_fd;
    int spare_fd;       // given up for a moment to refuse a connection when there is no other
    struct conn *conns; // all of them
    int n_conns;
    int n_tracers;     // of them: those that follow runs
    uint64_t n_traced; // runs that these were told of
    uint64_t next_conn_id;

    uv_prepare_t prepare; // before the loop sleeps: retries and flushes
    uv_idle_t idle;       // keeps it from sleeping while there is more to do
    uv_signal_t signals[TURN_N_SIGNALS];
    uv_timer_t stop_timer;
    bool stopping, stop_read_over, devices_stopping, serving;
    int exit_status;

    uint64_t started_ns;
    double started_time; // Unix time
    uint64_t n_requests, n_contexts;
    int n_checks; // under way

    const char *program; // see broker_main()
    char **args;
    struct upgrade *upgrade; // under way, or NULL
    uint64_t n_upgrades, held_since;

    char host_compiler[1024], nvrtc[1024]; // who they are, or why they are not there
};

// The process's exit status; takes the options over. `program`: the path that this was started
// from, `args`: what it was started with, behind its name, to the end: both for a successor.
int broker_main(const struct options *options, const char *program, char **args);

// The parts of it. A broker has a loop and nothing else; is served when its devices are there; is
// run to its end; or goes without having been served.
struct broker *broker_new(const struct options *options);
void broker_serve(struct broker *b);
int broker_run(struct broker *b); // the process's exit status; frees it
void broker_discard(struct broker *b);

void broker_stop(struct broker *b); // finishes what is in flight, then ends the loop
