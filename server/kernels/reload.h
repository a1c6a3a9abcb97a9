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

struct broker;
struct edit;
struct source;

enum { RELOAD_MAX_WATCHES = 128 };

struct watch {
    uv_fs_event_t handle;
    char *folder; // NULL: free
    dev_t device; // of the folder that is watched: another may take its name
    ino_t inode;
    bool active;
};

struct reload {
    struct source *sources; // of all folders
    char *common;           // the text of opd.cuh
    char *common_path;
    struct edit *edits; // under way, oldest first
    struct watch watches[RELOAD_MAX_WATCHES];
    bool watches_are_out; // which is told once
    uv_timer_t timer;
    bool started, folder_missing;
    uint64_t burst_since; // clock_ns() of the first change that was not looked at; 0: none
};

// Reads all folders and serves what parses, uncompiled: requests compile what they need. A file
// that does not parse is logged. Errors: invalid_argument, where the common header cannot be read.
bool reload_first(struct broker *b, struct opd_err *err);

void reload_start(struct broker *b); // watches from now on
void reload_stop(struct broker *b);
void reload_finish(struct reload *r);

// The file of that path, as it was last read; NULL: there is none.
struct source *reload_source(const struct reload *r, const char *path);

// "; badg.cu is not served: MESSAGE" where a file that failed may have been meant for that
// operator, else "". Returns out.
const char *reload_explain(const struct reload *r, const char *op, char *out, size_t size);

void reload_look(struct broker *b); // now, without waiting for a change to be noticed
void reload_poll(struct broker *b); // goes on with the edits under way; before the loop sleeps
bool reload_busy(const struct broker *b);
