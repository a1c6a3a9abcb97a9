#pragma once

// The compiler processes: jobs wait in one queue, each process has one at a time. A process that
// crashes or exceeds its time is replaced; its job fails.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "compiler/job.h"

struct broker;
struct pool;

struct pool_result {
    int fd; // the image; the callback takes it over by setting it to -1
    bool cached;
    const char *log;      // warnings; "" if none
    const char *compiler; // who compiled
    const char *text;     // RESULT_TEXT; "" if none
    uint64_t cache_bytes; // what the cache takes; 0: unknown
};

// err->code is 0 when there is a result.
typedef void (*pool_done)(void *data, struct pool_result *result, const struct opd_err *err);

struct pool_stats {
    int processes;
    uint64_t compiled, cached, failed;
    double seconds;       // that compilers have worked
    int waiting;          // jobs that none has yet
    uint64_t cache_bytes; // as the last result that knew it told
};

struct pool *pool_new(struct broker *broker, int n_processes);
// Jobs of the kind "syntax", which somebody waits for and which are short, go before all that
// waits, in their own order.
void pool_submit(struct pool *pool, const char *const strings[JOB_MAX_STRINGS], pool_done done,
                 void *data);
void pool_count_on(struct pool *pool, const struct pool_stats *from); // what jobs came to
void pool_stats(const struct pool *pool, struct pool_stats *out);
int pool_pids(const struct pool *pool, int *out, int most); // of the processes; how many
void pool_stop(struct pool *pool,
               void (*stopped)(struct broker *broker)); // kills them; the queue's jobs fail
void pool_free(struct pool *pool);
