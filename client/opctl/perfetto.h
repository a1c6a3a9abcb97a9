#pragma once

// A timeline for ui.perfetto.dev, in Chrome's JSON: what requests, devices, compilers and edits
// did, each on tracks of their own. Kept in memory until it is written.

#include <stdbool.h>
#include <stdio.h>

#include <msgpack.h>

enum { PERFETTO_MOST = 1000000 }; // runs and events

struct perfetto;

struct perfetto *perfetto_new(void);
void perfetto_free(struct perfetto *p);

// A run of `trace`, an event of `events`. False: there are as many as may be.
bool perfetto_add_run(struct perfetto *p, const msgpack_object *run);
bool perfetto_add_event(struct perfetto *p, const msgpack_object *event);

size_t perfetto_runs(const struct perfetto *p);
void perfetto_write(struct perfetto *p, FILE *out);
