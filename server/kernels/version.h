#pragma once

// A version of an operator: one state of one file, with its derivatives and the plans that requests
// have asked of it. Counted, because requests, contexts and programs hold on to what they started
// with.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "device/device.h"
#include "op/op.h"
#include "op/plan.h"
#include "wire/map.h"

struct opd_operator;
struct program;
struct source;

enum version_state { VERSION_COMPILING, VERSION_SERVING, VERSION_RETIRED, VERSION_FAILED };

struct version {
    int refs;
    struct op *op;
    int number;
    uint32_t mark; // what the page of versions has while it serves: its number; of one that was
                   // loaded, what no other version of the daemon has
    enum version_state state;
    double time;        // when it was read; Unix time
    char *path;         // of the file
    char *folder;       // of its #include "..."
    char *text;         // of the file, with what it includes by quotes in place
    char *common;       // the text of opd.cuh that it is compiled under
    uint64_t hash;      // of both
    int n_contexts;     // of clients, for which a retired version keeps its kernels
    struct opd_err err; // FAILED: why
    bool checks_first;  // what runs first is checked: version_first()
    struct map plans;   // struct bound_plan by hash of signature and device
    int n_plans;        // large ones count as several
    uint32_t fixed;     // attributes whose numbers some plan was seen to depend on: of others a
                        // signature has none
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
    struct bound_plan *last; // the same with other numbers of attributes, as asked for last; a
                             // reference, of the plan that the version keeps
    struct bound_plan *of; // what this one is the same as: it has the signature, programs and lists
                           // of both; a reference, or NULL
    struct device *device;
    uint8_t *signature;
    size_t signature_size;
    struct plan_request
        *request; // what it was made for, so that a new version can be made ready for the same
    bool used;    // by a request, or by those of the version before; not only warmed
    bool settled; // its first run is over, or is none: version_first()
    struct plan *plan;
    struct program **programs; // plan->n_kernels
};

// A version of an operator that is not served yet; one reference is the caller's. Takes over the
// reference of op. `of`: the operator that it is loaded for; NULL: it is a file's.
struct version *version_new(struct op *op, const struct source *source, const char *common,
                            struct opd_operator *of);
bool version_is_loaded(const struct version *v); // not from a file of the folders
// The version of a derivative, "backward" or "backward.tangent" (op_derive()): it has no place in
// any list, and its number, state and hash are those of `v`, which keeps it. Made when first asked
// for. NULL with an error: there is none.
struct version *version_derive(struct version *v, const char *what, struct opd_err *err);
// What its derivatives have from it, once that has changed.
void version_tell_derived(struct version *v);
void version_set_operator(struct version *v, struct opd_operator *o); // NULL: none
// It is served no more; its kernels stay for as long as some context needs them.
void version_retire(struct version *v);
// For a context: a reference, and its kernels stay.
struct version *version_keep(struct version *v);
void version_drop(struct version *v);
struct version *version_ref(struct version *v);
void version_unref(struct version *v); // NULL is fine

// The plan for a request on a device: from the version's cache, or built. NULL with an error. Valid
// until the next call for the same version: the cache may be emptied when it is full.
struct bound_plan *version_plan(struct version *v, struct device *d,
                                const struct plan_request *request, struct opd_err *err);
// On a GPU the first run of each signature of a version that was edited may be of checked builds
// (version.checks_first). The plan of these; NULL: `bp` itself is to run. Frees no plan.
struct bound_plan *version_first(struct version *v, struct bound_plan *bp);
void version_first_over(struct bound_plan *first); // it has run, or cannot
struct bound_plan *bound_plan_ref(struct bound_plan *bp);
void bound_plan_unref(struct bound_plan *bp); // NULL is fine

// A request for one version of an operator, for another. False: it has no meaning there.
bool version_carry(const struct plan_request *request, const struct op *to,
                   struct plan_request *out);
// Makes the plans that `old` has in use for the new version too, as far as they fit it; returns how
// many.
int version_inherit(struct version *v, const struct version *old);
const char *version_state_name(enum version_state state);
