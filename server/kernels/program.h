#pragma once

// Programs: one kernel of one operator version, instantiated for one set of dtypes and template
// arguments, on one device. Compiled when first wanted, loaded into the executor, and loaded again
// into its successor. The version owns them; one that is dropped while it is loaded goes when that
// has ended.

#include "device/device.h"
#include "op/plan.h"
#include "kernels/registry.h"

enum program_state {
    PROGRAM_NEW,
    PROGRAM_COMPILING,
    PROGRAM_LOADING,
    PROGRAM_READY,
    PROGRAM_FAILED
};

struct program {
    struct device *device;
    struct version *version; // whose it is; NULL: dropped
    struct program *next_of_hash, *next_of_version;
    uint64_t key;
    uint32_t id; // the executor's number for it
    char *file;  // for messages
    char *prelude, *expr;
    bool checked; // a checked build (base/checked.h)
    int n_params;
    struct plan_param *params;
    enum program_state state;
    struct pool_job *job; // COMPILING
    struct opd_err err;   // FAILED
    uint64_t failed_at;   // clock_ns()
    uint64_t since;       // COMPILING: clock_ns()
    int image_fd;         // -1 until compiled
    bool compiled, told;  // here, and not taken from the cache; an event has told of that
    int n_loads;          // commands under way that load it
    int n_deaths;         // of executors, one after the other, while they loaded it
    bool leaving;         // one under way unloads it; what was sent before that may need it
    struct program *next_leaving;
    char *log; // the compiler's warnings, or NULL
};

// The program for a kernel of a plan; made where there is none yet.
struct program *program_get(struct device *d, struct version *version, const struct plan *plan,
                            int kernel);

// Brings the program towards READY. True: it is. False with err empty: wait for turn_retry().
// False with err: it cannot be. `owner` waits for it (pool.h; NULL: nobody). `since` is when the
// request came: a failure that is not the source's fault and is older is tried again.
struct pool;
bool program_ensure(struct program *p, struct pool *pool, const void *owner, uint64_t since,
                    struct opd_err *err);

// A new executor loads all that the one before had loaded, also what is about to go.
void program_restore_all(struct device *d, struct device_link *link);

void program_drop_all(struct version *v); // all of a version; its plans are dropped before
void program_free_all(struct device *d);  // all of a device that is no more
