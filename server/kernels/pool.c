#include "kernels/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "kernels/worker.h"

// An owner with what is queued in its turns.
struct party {
    struct party *next;
    const void *owner;
    struct pool_job *first, **last;
    int n_running;
};

struct pool_job {
    struct pool_job *next; // of its party
    struct lane *lane;
    struct party *party;  // of the first of those who wait
    const void **waiters; // NULL among them: it is wanted though nobody waits
    int n_waiters;
    struct worker *worker; // NULL: it is queued
    struct buf frame;
    pool_done done;
    void *data;
    uint64_t begun; // clock_ns()
    char what[128]; // for messages: "gelu.cu: gelu_forward<scalar_t, 1>"
};

struct lane {
    struct pool *pool;
    struct worker *workers; // MOST_EACH for each that is started freely
    struct pool_job **jobs; // of the workers
    struct party *parties;  // the next turn's first
    int n_running, n_waiting;
};

struct pool {
    struct pool_options options;
    char cache_limit[24]; // in digits
    struct lane lanes[POOL_LANES];
    uint32_t next_id;
    struct pool_stats stats; // but for what is counted when asked for
    void (*stopped)(void *data);
    void *stopped_data;
    bool stopping;
};

enum { MOST_EACH = 2 };

static int n_workers(const struct pool *pool)
{
    return MOST_EACH * pool->options.processes;
}

// --- turns

static struct party *find_party(struct lane *lane, const void *owner)
{
    struct party **at = &lane->parties;
    for (; *at; at = &(*at)->next)
        if ((*at)->owner == owner)
            return *at;
    *at = mem_zalloc(1, sizeof **at);
    **at = (struct party){ .owner = owner, .last = &(*at)->first };
    return *at;
}

static void leave_party(struct pool_job *job)
{
    struct party *party = job->party;
    if (job->worker) {
        party->n_running--;
        job->lane->n_running--;
    } else {
        struct pool_job **at = &party->first;
        while (*at != job)
            at = &(*at)->next;
        if (!(*at = job->next))
            party->last = at;
        job->lane->n_waiting--;
    }
    job->party = NULL;
    if (party->first || party->n_running > 0)
        return;
    struct party **at = &job->lane->parties;
    while (*at != party)
        at = &(*at)->next;
    *at = party->next;
    free(party);
}

static void join_party(struct pool_job *job)
{
    struct party *party = job->party = find_party(job->lane, job->waiters[0]);
    if (job->worker) {
        party->n_running++;
        job->lane->n_running++;
        return;
    }
    job->next = NULL;
    *party->last = job;
    party->last = &job->next;
    job->lane->n_waiting++;
}

// The job whose turn it is; its party is the last from then on. NULL: none may begin.
static struct pool_job *next_job(struct lane *lane)
{
    bool full = lane->n_running >= lane->pool->options.processes;
    struct party **at = &lane->parties;
    while (*at && (!(*at)->first || (full && (*at)->n_running > 0)))
        at = &(*at)->next;
    struct party *party = *at;
    if (!party)
        return NULL;
    *at = party->next;
    party->next = NULL;
    while (*at)
        at = &(*at)->next;
    *at = party;
    return party->first;
}

// --- the life of a job

static struct pool_job **job_of(struct worker *w)
{
    struct lane *lane = w->owner;
    return &lane->jobs[w - lane->workers];
}

// From the queue, or from the process that has it.
static void take_out(struct pool_job *job)
{
    leave_party(job);
    if (!job->worker)
        return;
    *job_of(job->worker) = NULL;
    worker_cancel(job->worker);
    job->worker = NULL;
}

static void free_job(struct pool_job *job)
{
    buf_finish(&job->frame);
    free(job->waiters);
    free(job);
}

// Ends a job that was taken out of its lane.
static void finish_job(struct pool_job *job, struct pool_result *result, const struct opd_err *err)
{
    struct pool_stats *stats = &job->lane->pool->stats;
    if (err->code)
        stats->failed++;
    else if (result->cached)
        stats->cached++;
    else if (result->fd >= 0)
        stats->compiled++;
    if (job->begun)
        stats->seconds += (double)(clock_ns() - job->begun) / 1e9;
    if (result->cache_bytes)
        stats->cache_bytes = result->cache_bytes;
    job->done(job->data, result, err);
    file_close(&result->fd);
    free_job(job);
}

static void fail_job(struct pool_job *job, enum opd_err_code code, const char *why)
{
    struct opd_err err = { 0 };
    struct pool_result nothing = { .fd = -1, .log = "", .compiler = "", .text = "" };
    opd_err_set(&err, code, "%s: %s", job->what, why);
    finish_job(job, &nothing, &err);
    opd_err_clear(&err);
}

// The one that it is done with.
static struct pool_job *done_job(struct worker *w)
{
    struct pool_job **at = job_of(w), *job = *at;
    *at = NULL;
    leave_party(job);
    return job;
}

static void answered(struct worker *w, const struct job_frame *frame, int fd)
{
    struct pool_result result = {
        .fd = fd,
        .cached = frame->header.cached != 0,
        .log = frame->strings[RESULT_LOG],
        .compiler = frame->strings[RESULT_COMPILER],
        .text = frame->strings[RESULT_TEXT],
        .cache_bytes = frame->header.cache_bytes,
    };
    struct opd_err err = { .code = frame->header.code };
    if (err.code) {
        snprintf(err.msg, sizeof err.msg, "%s", frame->strings[RESULT_MESSAGE]);
        if (result.log[0])
            err.log = mem_strdup(result.log);
    }
    finish_job(done_job(w), &result, &err);
    opd_err_clear(&err);
}

static void failed(struct worker *w, const struct opd_err *err)
{
    fail_job(done_job(w), err->code, err->msg);
}

// --- work

// A worker that is idle, else one that is not started, else NULL.
static struct worker *free_worker(struct lane *lane)
{
    struct worker *none = NULL;
    for (int i = 0; i < n_workers(lane->pool); i++) {
        struct worker *w = &lane->workers[i];
        if (w->state == WORKER_IDLE)
            return w;
        if (w->state == WORKER_NONE && !none)
            none = w;
    }
    return none;
}

static void begin(struct pool_job *job, struct worker *w)
{
    struct lane *lane = job->lane;
    struct party *party = job->party;
    if (!(party->first = job->next))
        party->last = &party->first;
    party->n_running++;
    lane->n_waiting--;
    lane->n_running++;
    job->worker = w;
    job->begun = clock_ns();
    *job_of(w) = job;
    if (w->state == WORKER_NONE)
        worker_start(w);
    worker_give(w, &job->frame, lane->pool->options.deadline);
}

static void feed(struct lane *lane)
{
    struct worker *w;
    struct pool_job *job;
    while (!lane->pool->stopping && (w = free_worker(lane)) != NULL &&
           (job = next_job(lane)) != NULL)
        begin(job, w);
}

static int count_processes(const struct lane *lane)
{
    int n = 0;
    for (int i = 0; i < n_workers(lane->pool); i++)
        n += lane->workers[i].state != WORKER_NONE;
    return n;
}

static int count_all_processes(const struct pool *pool)
{
    int n = 0;
    for (int i = 0; i < POOL_LANES; i++)
        n += count_processes(&pool->lanes[i]);
    return n;
}

// Those that end are none of them any more: of two that are idle at once, one stays.
static int count_staying(const struct lane *lane)
{
    int n = count_processes(lane);
    for (int i = 0; i < n_workers(lane->pool); i++)
        n -= lane->workers[i].state == WORKER_ENDING;
    return n;
}

static void changed(struct worker *w)
{
    struct lane *lane = w->owner;
    struct pool *pool = lane->pool;
    feed(lane);
    if (w->state == WORKER_IDLE && count_staying(lane) > pool->options.processes)
        worker_end(w, "it was one more than --compilers says");
    if (pool->stopping && count_all_processes(pool) == 0)
        pool->stopped(pool->stopped_data);
}

// --- who waits

static bool waits(const struct pool_job *job, const void *owner)
{
    for (int i = 0; i < job->n_waiters; i++)
        if (job->waiters[i] == owner)
            return true;
    return false;
}

// The last that came has the turn only where nobody waited before.
static void add_waiter(struct pool_job *job, const void *owner)
{
    job->waiters = mem_realloc(job->waiters, (size_t)job->n_waiters + 1, sizeof *job->waiters);
    job->waiters[job->n_waiters] = owner;
    if (job->n_waiters > 0 && !job->waiters[0]) {
        job->waiters[0] = owner;
        job->waiters[job->n_waiters] = NULL;
    }
    job->n_waiters++;
}

// A job that is at work at a low priority begins anew: on a busy machine it might never end.
void pool_want(struct pool_job *job, const void *owner)
{
    if (!owner || waits(job, owner))
        return;
    struct lane *lane = job->lane, *front = &lane->pool->lanes[POOL_FRONT];
    if (lane != front)
        take_out(job);
    else
        leave_party(job);
    add_waiter(job, owner);
    job->lane = front;
    join_party(job);
    feed(lane);
    feed(front);
}

void pool_drop(struct pool_job *job)
{
    if (!job)
        return;
    struct lane *lane = job->lane;
    take_out(job);
    free_job(job);
    feed(lane);
}

static void remove_waiter(struct pool_job *job, const void *owner)
{
    int n = 0;
    for (int i = 0; i < job->n_waiters; i++)
        if (job->waiters[i] != owner)
            job->waiters[n++] = job->waiters[i];
    job->n_waiters = n;
}

// Adds what only the owner waited for to the list *dropped, linked by `next`.
static void forget(struct pool_job *job, const void *owner, struct pool_job **dropped)
{
    if (!waits(job, owner))
        return;
    if (job->n_waiters > 1) {
        leave_party(job);
        remove_waiter(job, owner);
        join_party(job);
        return;
    }
    take_out(job);
    job->next = *dropped;
    *dropped = job;
}

void pool_leave(struct pool *pool, enum pool_lane which, const void *owner)
{
    struct lane *lane = &pool->lanes[which];
    struct pool_job *dropped = NULL, *next_of_party;
    for (int i = 0; i < n_workers(pool); i++)
        if (lane->jobs[i])
            forget(lane->jobs[i], owner, &dropped);
    for (struct party *p = lane->parties, *next; p; p = next) {
        next = p->next; // where the last of its jobs goes, it goes
        for (struct pool_job *job = p->owner ? p->first : NULL; job; job = next_of_party) {
            next_of_party = job->next;
            forget(job, owner, &dropped);
        }
    }
    while (dropped) {
        struct pool_job *job = dropped;
        dropped = job->next;
        job->done(job->data, NULL, NULL);
        free_job(job);
    }
    feed(lane);
}

struct pool_job *pool_submit(struct pool *pool, enum pool_lane lane, const void *owner,
                             const char *const strings[JOB_MAX_STRINGS], pool_done done, void *data)
{
    struct pool_job *job = mem_zalloc(1, sizeof *job);
    *job = (struct pool_job){ .lane = &pool->lanes[lane], .done = done, .data = data };
    snprintf(job->what, sizeof job->what, "%s: %s", strings[JOB_FILE], strings[JOB_EXPR]);
    struct job_header header = { .id = pool->next_id++ };
    const char *all[JOB_MAX_STRINGS];
    memcpy(all, strings, sizeof all);
    all[JOB_CACHE] = pool->options.cache;
    all[JOB_CACHE_LIMIT] = pool->cache_limit;
    job_pack(&job->frame, &header, all, JOB_MAX_STRINGS);
    add_waiter(job, owner);
    join_party(job);
    feed(job->lane);
    return job;
}

// --- the whole

struct pool *pool_new(struct turn *turn, const struct pool_options *options)
{
    static const struct worker_events events = { answered, failed, changed };
    struct pool *pool = mem_zalloc(1, sizeof *pool);
    pool->options = *options;
    snprintf(pool->cache_limit, sizeof pool->cache_limit, "%" PRIu64, options->cache_limit);
    for (int i = 0; i < POOL_LANES; i++) {
        struct lane *lane = &pool->lanes[i];
        lane->pool = pool;
        lane->workers = mem_zalloc((size_t)n_workers(pool), sizeof *lane->workers);
        lane->jobs = mem_zalloc((size_t)n_workers(pool), sizeof(struct pool_job *));
        for (int k = 0; k < n_workers(pool); k++)
            lane->workers[k] = (struct worker){
                .turn = turn, .events = &events, .owner = lane, .low = i == POOL_BACK
            };
    }
    return pool;
}

int pool_width(const struct pool *pool)
{
    return pool->options.processes;
}

void pool_count_on(struct pool *pool, const struct pool_stats *from)
{
    pool->stats = *from;
}

void pool_stats(const struct pool *pool, struct pool_stats *out)
{
    *out = pool->stats;
    out->processes = count_all_processes(pool);
    out->waiting = 0;
    for (int i = 0; i < POOL_LANES; i++)
        out->waiting += pool->lanes[i].n_waiting;
}

int pool_pids(const struct pool *pool, int out[POOL_MAX_PIDS])
{
    int n = 0;
    for (int i = 0; i < POOL_LANES; i++)
        for (int k = 0; k < n_workers(pool); k++) {
            const struct worker *w = &pool->lanes[i].workers[k];
            if (w->alive)
                out[n++] = w->process.pid;
        }
    return n;
}

static void stop_lane(struct lane *lane)
{
    for (int i = 0; i < n_workers(lane->pool); i++) {
        struct pool_job *job = lane->jobs[i];
        if (job) {
            take_out(job);
            fail_job(job, OPD_E_unavailable, "the daemon is stopping");
        }
        worker_end(&lane->workers[i], "the daemon is stopping");
    }
    while (lane->parties) {
        struct pool_job *job = lane->parties->first;
        take_out(job);
        fail_job(job, OPD_E_unavailable, "the daemon is stopping");
    }
}

void pool_stop(struct pool *pool, void (*stopped)(void *data), void *data)
{
    pool->stopping = true;
    pool->stopped = stopped;
    pool->stopped_data = data;
    for (int i = 0; i < POOL_LANES; i++)
        stop_lane(&pool->lanes[i]);
    if (count_all_processes(pool) == 0)
        stopped(data);
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    for (int i = 0; i < POOL_LANES; i++) {
        free(pool->lanes[i].workers);
        free(pool->lanes[i].jobs);
    }
    free(pool);
}
