#pragma once

// From files to served versions. The kernel folders are watched; a burst of changes is looked at
// once. What has changed is read, parsed, and compiled for every dtype and specialisation that is
// in use of the version being served; when all of it is loaded, one pointer changes. An edit that
// fails anywhere changes nothing and is told.
//
// A header (.cuh) that changes makes new versions of all its users together: all of them are
// served, or none.

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/err.h"
#include "kernels/prove.h"
#include "kernels/sources.h"

struct devices;
struct edit;
struct events;
struct pool;
struct registry;
struct turn;

enum { RELOAD_MAX_WATCHES = 128 };

struct watch {
    uv_fs_event_t handle;
    char *folder; // NULL: free
    dev_t device; // of the folder that is watched: another may take its name
    ino_t inode;
    bool active;
};

struct reload {
    // What it works on, set by whoever has it; the folders are those of `sources`.
    struct turn *turn;
    struct devices *devices;
    struct registry *registry;
    struct events *events;
    struct pool *pool;

    bool checks_first; // of an edit, what runs first: version_first()
    struct prove prove;
    struct sources sources;
    char *common;       // the text of opd.cuh
    struct edit *edits; // under way, oldest first
    struct watch watches[RELOAD_MAX_WATCHES];
    bool watches_are_out; // which is told once
    uv_timer_t timer;
    bool started;
    bool held;            // nothing is looked at: an upgrade is under way
    bool doubt;           // an operator may no longer have the file that it is served from
    bool unsettled;       // a file is gone, or empty, and may come back at once
    uint64_t burst_since; // clock_ns() of the first change that was not looked at; 0: none
};

// Reads all folders and serves what parses, uncompiled: requests compile what they need. A file
// that does not parse is logged. Errors: invalid_argument, where the common header cannot be read.
bool reload_first(struct reload *r, struct opd_err *err);

void reload_start(struct reload *r); // watches from now on
void reload_stop(struct reload *r);
void reload_finish(struct reload *r);

// "; badg.cu is not served: MESSAGE" where a file that failed may have been meant for that
// operator, else "". Returns out.
const char *reload_explain(const struct reload *r, const char *op, char *out, size_t size);

void reload_look(struct reload *r); // now, without waiting for a change to be noticed
void reload_poll(struct reload *r); // goes on with the edits under way; before the loop sleeps
// Is something of the files not decided yet? turn_retry() comes when it is.
bool reload_busy(const struct reload *r);
