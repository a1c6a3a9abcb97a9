#pragma once

// Children whose end nobody waits for: those of the program before an upgrade, and executors that
// are on their way out while their successor already starts.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct turn;

// Successors that come faster than they end inherit all of them.
enum { ORPHANS_MAX = 1024 };

struct orphan {
    int pid;
    bool kill; // it does not end by itself
};

struct orphans {
    struct orphan list[ORPHANS_MAX];
    int n;
    uint64_t since; // the last one came
    uv_timer_t timer;
};

void orphans_init(struct orphans *o, struct turn *turn);
void orphans_close(struct orphans *o);
void orphans_start(struct orphans *o); // reaps those that are in the list
