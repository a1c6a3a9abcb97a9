#pragma once

// The operators that are served, by name, each with its versions; who sees which, and the page that
// tells clients of it. What makes new versions is reload.h.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/published.h"
#include "kernels/version.h"

enum { REGISTRY_MAX_VERSIONS = 16 }; // kept of each operator, for rollback

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
    void (*told)(void *owner); // what is served, or the last edit's failure, may be another
    void *owner;
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
