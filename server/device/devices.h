#pragma once

// The devices of a daemon, and what they have in common: the loop, the limits that the user has
// set, the numbers of regions, children on their way out, and whom they tell.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/err.h"
#include "base/turn.h"
#include "device/keep.h"
#include "device/orphans.h"
#include "executor/devwire.h"
#include "memory/holder.h"

struct command;
struct dev_begun;
struct device;
struct device_link;

// Hooks by which a device tells, and asks, whoever has it. Called on the loop.
struct device_hooks {
    void (*ready)(struct device *d);  // its first executor is there
    void (*failed)(struct device *d); // its first executor did not start: it is not served
    // Its executor has died, and another starts.
    void (*died)(struct device *d, const struct opd_err *why);
    // Another executor is there, to serve or as a spare: loads into it what others have loaded, by
    // device_prepare().
    void (*restored)(struct device *d, struct device_link *link);
    // Its executor has begun what a client has put into a lane: as a command, which is in flight.
    struct command *(*begun)(struct device *d, const struct dev_begun *begun);
    // It has nothing to do, and had something within the last second.
    void (*rests)(struct device *d);
    // No chunk can be had for what waits for memory of it.
    void (*no_memory)(struct device *d, const struct opd_err *err);
    // Does something wait for memory of it? Then what is empty is not given back.
    bool (*wanted)(const struct device *d);
};

struct devices {
    struct turn *turn;
    const struct device_hooks *hooks;
    void *owner;                        // whose hooks they are
    struct device *at[DEV_MAX_DEVICES]; // the first is the default one
    int n;
    double deadline;        // seconds that a command may run, unless it says otherwise
    uint64_t memory_limit;  // bytes on each device; 0: what the device has
    uint64_t client_memory; // bytes on each device that one client may hold; 0: all
    bool long_args;         // NVRTC compiles kernels that take more than 4 KB of them
    bool own_blas;          // products of matrices by opd's kernels, not by a library
    bool spare;             // executors that wait to take over, where they cost little
    uint64_t n_regions;     // numbers given to regions, of all devices
    struct holders holders; // of the connections that are there
    struct orphans orphans;
    struct keep keep;
    uv_timer_t trim_timer; // of device_memory.c
};

// The loop's turn, and the hooks with their owner; the limits are set by the caller.
void devices_init(struct devices *all, struct turn *turn, const struct device_hooks *hooks,
                  void *owner);
void devices_close(struct devices *all); // the handles that it has on the loop

struct device *devices_find(const struct devices *all, const char *name); // NULL: none of that name
struct device *devices_add(struct devices *all, const char *name);        // at the end; not started
void devices_remove(struct devices *all, struct device *d);               // from the list alone
