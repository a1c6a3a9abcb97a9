#pragma once

// The operators that are served, each with its versions. A version (an entry) is one state of one
// file: it is counted, because requests, contexts and programs hold on to what they started with.
// What makes new versions is reload.h.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/map.h"
#include "op/op.h"
#include "op/plan.h"

struct broker;
struct buf;
struct device;
struct program;

enum { REGISTRY_MAX_VERSIONS = 16 }; // kept of each operator, for rollback

enum entry_state { ENTRY_COMPILING, ENTRY_SERVING, ENTRY_RETIRED, ENTRY_FAILED };

struct entry {
    int refs;
    struct op *op;
    int version;
    enum entry_state state;
    double time;              // when it was read; Unix time
    char *path;               // of the file
    char *folder;             // of its #include "..."
    char *text;               // of the file, with what it includes by quotes in place
    char *common;             // the text of opd.cuh that it is compiled under
    uint64_t hash;            // of both
    int n_contexts;           // of clients, for which a retired version keeps its kernels
    struct opd_err err;       // FAILED: why
    struct map plans;         // struct bound_plan by hash of signature and device
    int n_plans;              // large ones count as several
    struct program *programs; // all of them, on all devices; see program.h
    struct entry *older;      // in the operator's list; that holds a reference
};

// A plan with the programs that it launches, on one device. Kept by the entry; commands on their
// way hold it too, but not what it points to of the entry's.
struct bound_plan {
    int refs;
    struct bound_plan *next; // of the same hash
    struct device *device;
    uint8_t *signature;
    size_t signature_size;
    struct plan_request
        *request; // what it was made for, so that a new version can be made ready for the same
    bool used;    // by a request, or by those of the version before; not only warmed
    struct run_stats *stats; // of the operator; NULL: it has not run yet
    struct plan *plan;
    struct program **programs; // plan->n_kernels
};

// What an operator's runs have come to.
struct run_stats {
    uint64_t forward, backward, failed, ns; // ns: on devices
};

struct family {
    struct run_stats runs;
    char name[OP_MAX_NAME];
    struct entry *current;  // NULL: withdrawn; one of the list
    struct entry *versions; // newest first; a reference each
    int last_version;       // the number that was given last
    int pinned;             // the version that stays, or 0
    uint64_t
        failure; // number of the event that told of the last edit's failure; 0: it did not fail
    char *failure_text;
    struct family *next; // by name
};

struct registry {
    struct family *families; // sorted by name
    int count;               // of those that are served
    uint64_t generation;     // changes with every change of what is served
};

struct family *registry_family(const struct registry *r, const char *name); // NULL: never heard of
struct family *registry_make(struct registry *r,
                             const char *name); // the same, made where there is none
struct entry *registry_find(const struct registry *r,
                            const char *name);                     // what is served; NULL: nothing
struct entry *family_version(const struct family *o, int version); // NULL: not kept
struct entry *family_newest(const struct family *o); // of those that did not fail; NULL: none
// "; did you mean 'gelu'?", or "" where no name is near. Returns out.
const char *registry_suggest(const struct registry *r, const char *name, char *out, size_t size);
void registry_finish(struct registry *r);

// A version of an operator that is not served yet; one reference is the caller's. Takes over the
// reference of op.
struct source;
struct entry *entry_new(struct op *op, const struct source *source, const char *common);
void entry_add_context(struct entry *e, int n); // -1: one less
struct entry *entry_ref(struct entry *e);
void entry_unref(struct entry *e); // NULL is fine

// Gives the entry its number and its place in the operator's list, and serves it (unless another is
// pinned). The version that was served retires: its kernels are unloaded once what was sent has
// run.
void registry_publish(struct registry *r, struct entry *e);
void registry_fail(struct registry *r, struct entry *e,
                   const struct opd_err *err); // keeps it in the list as failed
void registry_serve(struct registry *r, struct family *o,
                    struct entry *e); // one of the list, or NULL: withdraws

// The plan for a request on a device: from the entry's cache, or built. NULL with an error. Valid
// until the next call for the same entry: the cache may be emptied when it is full.
struct bound_plan *entry_plan(struct entry *e, struct device *d, const struct plan_request *request,
                              struct opd_err *err);
void entry_drop_plans(struct entry *e);
struct bound_plan *bound_plan_ref(struct bound_plan *bp);
void bound_plan_unref(struct bound_plan *bp); // NULL is fine

// Makes the plans that `old` has in use for the new version too, as far as they fit it; returns how
// many.
int entry_inherit(struct entry *e, const struct entry *old);
const char *entry_state_name(enum entry_state state);
