#pragma once

// The operators that are served, by name, each with its versions. A version is one state of one
// file: it is counted, because requests, contexts and programs hold on to what they started with.
// What makes new versions is reload.h.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "wire/map.h"
#include "device/device.h"
#include "op/op.h"
#include "op/plan.h"
#include "kernels/published.h"

struct buf;
struct program;

enum { REGISTRY_MAX_VERSIONS = 16 }; // kept of each operator, for rollback

enum version_state { VERSION_COMPILING, VERSION_SERVING, VERSION_RETIRED, VERSION_FAILED };

struct version {
    int refs;
    struct op *op;
    int number;
    uint32_t mark; // what the page of versions has while it serves: its number; of one that was
                   // loaded, what no other version of the daemon has
    enum version_state state;
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
    struct version *derived;  // its derivatives, a reference each; see version_derive()
    struct version *next_derived;
    struct opd_err refused[2]; // why there is no "backward", no "tangent"; code 0: nobody has asked
    struct opd_operator *of;   // the operator, a reference; NULL: a file's, and not in its list yet
    struct compile_stats compiles; // until it is
    struct version *older;         // in the operator's list; that holds a reference
};

// A plan with the programs that it launches, on one device. Kept by the version; commands on their
// way hold it too, but not what it points to of the version's.
struct bound_plan {
    int refs;
    struct bound_plan *next; // of the same hash
    struct device *device;
    uint8_t *signature;
    size_t signature_size;
    struct plan_request
        *request; // what it was made for, so that a new version can be made ready for the same
    bool used;    // by a request, or by those of the version before; not only warmed
    struct plan *plan;
    struct program **programs; // plan->n_kernels
};

// Who sees an operator: everybody one that a file of the folders gives, and one that a connection
// has loaded for all; only the connection of that number one that it has loaded for itself. Of
// those of one name that a connection sees, its own goes before a shared one, that before a file's.
#define SCOPE_FILES UINT64_C(0)
#define SCOPE_SHARED UINT64_MAX

// An operator by its name and scope, with all its versions that are kept. Counted: one that was
// loaded ends, and what still needs one of its versions goes on.
struct opd_operator { // `operator` alone is a keyword to clang-format
    int refs;
    struct run_stats *runs; // of all operators of that name; a reference
    char name[OP_MAX_NAME];
    uint64_t scope;
    uint64_t owner;           // the connection that has loaded it; 0: a file gives it
    uint64_t changes;         // grows with what is served, and where plans of a version go
    struct version *current;  // NULL: withdrawn; one of the list
    struct version *versions; // newest first; a reference each
    int last_version;         // the number that was given last
    int pinned;               // the version that stays, or 0
    uint64_t failure;         // event that told of the last edit's failure; 0: it did not fail
    char *failure_text;
    uint32_t slot; // in the page of versions; 0: nobody has asked for one
};

struct registry {
    struct opd_operator **operators; // by name, then by scope: those of files that were ever heard
                                     // of, and those that are loaded
    size_t n_operators, n_loaded;
    int count;           // of those that are served
    uint64_t generation; // changes with every change of what is served
    uint32_t n_marks;    // given to versions that were loaded
    struct published published;
};

// The operator of that name and scope. registry_operator(): NULL where none was ever heard of;
// registry_make_operator() makes it then.
struct opd_operator *registry_operator(const struct registry *r, const char *name, uint64_t scope);
struct opd_operator *registry_make_operator(struct registry *r, const char *name, uint64_t scope);
// The version of a file that is served; NULL: none is.
struct version *registry_find(const struct registry *r, const char *name);
// The one that a connection sees, and that is served; NULL: none is.
struct opd_operator *registry_see(const struct registry *r, const char *name, uint64_t conn);
bool registry_is_first(const struct registry *r, size_t i); // of those of its name
// One that was loaded is withdrawn, and is no more in the registry. What needs its versions goes
// on.
void registry_remove(struct registry *r, struct opd_operator *o);
// An operator in no registry, for a version that has survived its own.
struct opd_operator *operator_new(const char *name, uint64_t scope);
struct opd_operator *operator_ref(struct opd_operator *o);
void operator_unref(struct opd_operator *o); // NULL is fine
// The version of that number, and the newest that did not fail. NULL: none is kept.
struct version *operator_version(const struct opd_operator *o, int number);
struct version *operator_newest(const struct opd_operator *o);
// "; did you mean 'gelu'?", or "" where no name that the connection sees is near; lives in `near`.
struct suggest;
const char *registry_suggest(const struct registry *r, const char *name, uint64_t conn,
                             struct suggest *near);
void registry_finish(struct registry *r);

// A version of an operator that is not served yet; one reference is the caller's. Takes over the
// reference of op. `of`: the operator that it is loaded for; NULL: it is a file's.
struct source;
struct version *version_new(struct op *op, const struct source *source, const char *common,
                            struct opd_operator *of);
bool version_is_loaded(const struct version *v); // not from a file of the folders
// The version of a derivative, "backward" or "backward.tangent" (op_derive()): it has no place in
// any list, and its number, state and hash are those of `v`, which keeps it. Made when first asked
// for. NULL with an error: there is none.
struct version *version_derive(struct version *v, const char *what, struct opd_err *err);
// For a context: a reference, and its kernels stay.
struct version *version_keep(struct version *v);
void version_drop(struct version *v);
struct version *version_ref(struct version *v);
void version_unref(struct version *v); // NULL is fine

// Gives the version its number and its place in the operator's list, and serves it (unless another
// is pinned). The version that was served retires: its kernels are unloaded once what was sent has
// run. registry_fail() keeps it in the list as failed instead.
void registry_publish(struct registry *r, struct version *v);
void registry_fail(struct registry *r, struct version *v, const struct opd_err *err);
// Serves a version of the operator's list; NULL withdraws the operator.
void registry_serve(struct registry *r, struct opd_operator *o, struct version *v);

// The operator's slot in the page of versions, given to it where it has none; 0 with an error.
uint32_t registry_slot(struct registry *r, struct opd_operator *o, struct opd_err *err);
// Writes what is served, and the last edit's failure, into that slot, where there is one.
void registry_tell(struct registry *r, const struct opd_operator *o);

// The plan for a request on a device: from the version's cache, or built. NULL with an error. Valid
// until the next call for the same version: the cache may be emptied when it is full.
struct bound_plan *version_plan(struct version *v, struct device *d,
                                const struct plan_request *request, struct opd_err *err);
void version_drop_plans(struct version *v);
struct bound_plan *bound_plan_ref(struct bound_plan *bp);
void bound_plan_unref(struct bound_plan *bp); // NULL is fine

// A request for one version of an operator, for another. False: it has no meaning there.
bool version_carry(const struct plan_request *request, const struct op *to,
                   struct plan_request *out);
// Makes the plans that `old` has in use for the new version too, as far as they fit it; returns how
// many.
int version_inherit(struct version *v, const struct version *old);
const char *version_state_name(enum version_state state);
