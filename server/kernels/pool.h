#pragma once

// The compiler processes, and whose turn it is to have one.
//
// A job is one compile. Somebody waits for it: a client (a first call, a check) or an edit, named
// by its address, the *owner*; NULL where nobody does (--warm). Jobs wait in two lanes:
//
//   POOL_FRONT  edits and first calls; their processes have the daemon's own priority
//   POOL_BACK   checks and warming; processes of their own, at a lower priority: so a compile that
//               does not end takes neither a process nor the cores from the front
//
// In a lane the owners take turns, one job each; the jobs of one owner begin in their order. A lane
// has as many processes as --compilers says. An owner that has none of them gets one more, up to
// twice as many: who holds them all does not delay the next one.
//
// A job that nobody waits for any more is dropped, before it is begun or while it is compiled: a
// process that a job is taken from goes on with another. One that crashes or exceeds its time is
// replaced; its job fails.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "compiler/job.h"

struct turn;
struct pool;
struct pool_job;

enum pool_lane { POOL_FRONT, POOL_BACK, POOL_LANES };

struct pool_result {
    int fd; // the image; the callback takes it over by setting it to -1
    bool cached;
    const char *log;      // warnings; "" if none
    const char *compiler; // who compiled
    const char *text;     // RESULT_TEXT; "" if none
    uint64_t cache_bytes; // what the cache takes; 0: unknown
};

// The job's end, after which it is no more; err->code is 0 when there is a result. Both NULL: it
// was dropped by pool_leave().
typedef void (*pool_done)(void *data, struct pool_result *result, const struct opd_err *err);

struct pool_stats {
    int processes;
    uint64_t compiled, cached, failed;
    double seconds;       // that compilers have worked
    int waiting;          // jobs that none has yet
    uint64_t cache_bytes; // as the last result that knew it told
};

struct pool_options {
    int processes;        // of each lane
    double deadline;      // seconds that one compile may take
    const char *cache;    // folder; "": none
    uint64_t cache_limit; // bytes that it may take
};
struct pool *pool_new(struct turn *turn, const struct pool_options *options);
int pool_width(const struct pool *pool); // how many jobs of one owner are at work at a time
// The strings of the cache are the pool's to fill.
struct pool_job *pool_submit(struct pool *pool, enum pool_lane lane, const void *owner,
                             const char *const strings[JOB_MAX_STRINGS], pool_done done,
                             void *data);
// This owner waits for it too. A job that nobody waited for goes to the front.
void pool_want(struct pool_job *job, const void *owner);
// The owner waits for nothing any more in that lane: jobs that only it waited for are dropped.
void pool_leave(struct pool *pool, enum pool_lane lane, const void *owner);
void pool_drop(struct pool_job *job); // whoever waits for it; `done` is not called. NULL is fine

void pool_count_on(struct pool *pool, const struct pool_stats *from); // what jobs came to
void pool_stats(const struct pool *pool, struct pool_stats *out);
// The processes' ids; how many.
enum { POOL_MAX_PIDS = 256 };
int pool_pids(const struct pool *pool, int out[POOL_MAX_PIDS]);
// Ends the processes, all jobs fail, and then `stopped` comes.
void pool_stop(struct pool *pool, void (*stopped)(void *data), void *data);
void pool_free(struct pool *pool);
