#include "kernels/pool.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "request/parts.h"
#include "base/clock.h"
#include "compiler/compiler.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/stream.h"

// How long a compiler may take to end what it runs and clean up.
enum { END_LIMIT_MS = 1000 };

struct job {
    struct job *next;
    struct buf frame;
    pool_done done;
    void *data;
    uint64_t begun; // clock_ns(); 0: it waits
    char what[128]; // for messages: "gelu.cu: gelu_forward<scalar_t, 1>"
};

struct worker {
    struct pool *pool;
    struct stream stream;
    uv_process_t process;
    uv_timer_t timer;
    bool alive;    // the process runs
    int n_handles; // open ones; 0: the slot is free
    struct job *job;
    const char *why; // it was ended
    bool dying;      // killed, and not gone yet
};

struct pool {
    struct broker *broker;
    struct worker *workers;
    int n_workers;
    struct job *queue, **queue_end;
    int n_first; // of the queue's jobs: those that go before the others
    uint32_t next_id;
    struct pool_stats stats;
    void (*stopped)(struct broker *broker);
    bool stopping;
};

static void feed(struct pool *pool);

struct pool *pool_new(struct broker *broker, int n_processes)
{
    struct pool *pool = mem_zalloc(1, sizeof *pool);
    pool->broker = broker;
    pool->workers = mem_zalloc((size_t)n_processes, sizeof *pool->workers);
    pool->n_workers = n_processes;
    pool->queue_end = &pool->queue;
    for (int i = 0; i < n_processes; i++)
        pool->workers[i].pool = pool;
    return pool;
}

static void finish_job(struct pool *pool, struct job *job, struct pool_result *result,
                       const struct opd_err *err)
{
    if (err->code)
        pool->stats.failed++;
    else if (result->cached)
        pool->stats.cached++;
    else if (result->fd >= 0)
        pool->stats.compiled++;
    if (job->begun)
        pool->stats.seconds += (double)(clock_ns() - job->begun) / 1e9;
    if (result->cache_bytes)
        pool->stats.cache_bytes = result->cache_bytes;
    job->done(job->data, result, err);
    if (result->fd >= 0)
        close(result->fd);
    buf_finish(&job->frame);
    free(job);
}

static void fail_job(struct pool *pool, struct job *job, enum opd_err_code code, const char *why)
{
    struct opd_err err = { 0 };
    struct pool_result nothing = { .fd = -1, .log = "", .compiler = "", .text = "" };
    opd_err_set(&err, code, "%s: %s", job->what, why);
    finish_job(pool, job, &nothing, &err);
}

static void take_result(struct worker *w, const struct job_frame *frame)
{
    struct job *job = w->job;
    w->job = NULL;
    uv_timer_stop(&w->timer);
    struct pool_result result = {
        .fd = stream_take_fd(&w->stream),
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
    finish_job(w->pool, job, &result, &err);
    opd_err_clear(&err);
}

static void kill_cb(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    uv_process_kill(&w->process, SIGKILL);
}

// It sees its socket's end, and ends what it has started before itself.
static void end_worker(struct worker *w, const char *why)
{
    w->why = why;
    shutdown(w->stream.fd, SHUT_RDWR);
    uv_timer_start(&w->timer, kill_cb, END_LIMIT_MS, 0);
}

static void readable(struct stream *s)
{
    struct worker *w = s->owner;
    struct job_frame frame;
    long size = job_unpack(stream_bytes(s), stream_size(s), RESULT_STRINGS, &frame);
    if (size == 0)
        return;
    if (size < 0 || !w->job) {
        end_worker(w, "the compiler's answer makes no sense");
        stream_set_reading(s, false);
        return;
    }
    take_result(w, &frame);
    stream_consume(s, (size_t)size);
    feed(w->pool);
}

static void failed(struct stream *s, const char *why)
{
    (void)why; // the exit says more
    stream_set_reading(s, false);
    struct worker *w = s->owner;
    w->dying = true;
    if (w->alive && !w->why)
        uv_process_kill(&w->process, SIGKILL);
}

static void deadline_cb(uv_timer_t *timer)
{
    end_worker(timer->data, "the compile took longer than --compile-deadline and was ended");
}

static void handle_closed(struct worker *w)
{
    struct pool *pool = w->pool;
    if (--w->n_handles > 0)
        return;
    pool->stats.processes--;
    if (!pool->stopping) {
        feed(pool);
        return;
    }
    if (pool->stats.processes == 0)
        pool->stopped(pool->broker);
}

static void stream_closed(struct stream *s)
{
    handle_closed(s->owner);
}

static void handle_closed_cb(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

// What a compiler does to itself.
static bool is_crash(int signal)
{
    return signal == SIGABRT || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL ||
           signal == SIGFPE;
}

static void exit_cb(uv_process_t *process, int64_t status, int signal)
{
    struct worker *w = process->data;
    w->alive = false;
    char why[160];
    if (w->why)
        snprintf(why, sizeof why, "%s", w->why);
    else if (is_crash(signal))
        snprintf(
            why, sizeof why,
            "the compiler crashed by signal %d (%s): it may need more than its %d GiB of memory",
            signal, strsignal(signal), COMPILER_MEMORY_GIB);
    else if (signal)
        snprintf(why, sizeof why, "the compiler was ended by signal %d (%s)", signal,
                 strsignal(signal));
    else
        snprintf(why, sizeof why, "the compiler ended with status %lld", (long long)status);
    if (!w->pool->stopping)
        log_warn("%s", why);
    struct job *job = w->job;
    w->job = NULL;
    stream_close(&w->stream);
    uv_close((uv_handle_t *)&w->timer, handle_closed_cb);
    uv_close((uv_handle_t *)&w->process, handle_closed_cb);
    if (job)
        // One that was killed by others is not the source's fault: it is worth another try.
        fail_job(w->pool, job,
                 (w->why || is_crash(signal)) && !w->pool->stopping ? OPD_E_compile_error
                                                                    : OPD_E_unavailable,
                 why);
}

static bool start_worker(struct worker *w)
{
    struct pool *pool = w->pool;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        log_error("starting a compiler: %s", strerror(errno));
        return false;
    }
    const char *const args[] = { "compiler", NULL };
    w->process.data = w;
    int result = turn_spawn(&pool->broker->turn, &w->process, args, &pair[1], 1, exit_cb);
    close(pair[1]);
    if (result < 0) {
        log_error("starting a compiler: %s", uv_strerror(result));
        close(pair[0]);
        w->n_handles = 1; // libuv made a handle of it all the same
        pool->stats.processes++;
        uv_close((uv_handle_t *)&w->process, handle_closed_cb);
        return false;
    }
    w->alive = true;
    w->why = NULL;
    w->dying = false;
    w->n_handles = 3;
    uv_timer_init(&pool->broker->turn.loop, &w->timer);
    w->timer.data = w;
    w->stream = (struct stream){
        .owner = w, .readable = readable, .failed = failed, .closed = stream_closed
    };
    stream_start(&w->stream, &pool->broker->turn.loop, pair[0]);
    pool->stats.processes++;
    return true;
}

static void give_job(struct worker *w, struct job *job)
{
    w->job = job;
    job->begun = clock_ns();
    buf_append(&w->stream.out, job->frame.bytes, job->frame.size);
    uv_timer_start(&w->timer, deadline_cb,
                   (uint64_t)(w->pool->broker->options.compile_deadline * 1000), 0);
    stream_flush(&w->stream);
}

static struct worker *idle_worker(struct pool *pool)
{
    struct worker *unstarted = NULL;
    for (int i = 0; i < pool->n_workers; i++) {
        struct worker *w = &pool->workers[i];
        if (w->alive && !w->job && !w->why && !w->dying)
            return w;
        if (w->n_handles == 0 && !unstarted)
            unstarted = w;
    }
    return unstarted;
}

static void feed(struct pool *pool)
{
    struct worker *w;
    while (pool->queue && !pool->stopping && (w = idle_worker(pool)) != NULL) {
        struct job *job = pool->queue;
        if (!(pool->queue = job->next))
            pool->queue_end = &pool->queue;
        if (pool->n_first > 0)
            pool->n_first--;
        if (w->n_handles == 0 && !start_worker(w))
            fail_job(pool, job, OPD_E_unavailable,
                     "no compiler process could be started; see the log");
        else
            give_job(w, job);
    }
}

static void enqueue(struct pool *pool, struct job *job, bool first)
{
    struct job **at = pool->queue_end;
    if (first) {
        at = &pool->queue;
        for (int i = 0; i < pool->n_first; i++)
            at = &(*at)->next;
        pool->n_first++;
    }
    job->next = *at;
    *at = job;
    if (at == pool->queue_end)
        pool->queue_end = &job->next;
}

void pool_submit(struct pool *pool, const char *const strings[JOB_MAX_STRINGS], pool_done done,
                 void *data)
{
    struct job *job = mem_zalloc(1, sizeof *job);
    job->done = done;
    job->data = data;
    snprintf(job->what, sizeof job->what, "%s: %s", strings[JOB_FILE], strings[JOB_EXPR]);
    struct job_header header = { .id = pool->next_id++ };
    job_pack(&job->frame, &header, strings, JOB_MAX_STRINGS);
    enqueue(pool, job, strcmp(strings[JOB_KIND], "syntax") == 0);
    feed(pool);
}

void pool_count_on(struct pool *pool, const struct pool_stats *from)
{
    pool->stats.compiled = from->compiled;
    pool->stats.cached = from->cached;
    pool->stats.failed = from->failed;
    pool->stats.seconds = from->seconds;
    pool->stats.cache_bytes = from->cache_bytes;
}

void pool_stats(const struct pool *pool, struct pool_stats *out)
{
    *out = pool->stats;
    for (const struct job *job = pool->queue; job; job = job->next)
        out->waiting++;
}

int pool_pids(const struct pool *pool, int *out, int most)
{
    int n = 0;
    for (int i = 0; i < pool->n_workers && n < most; i++)
        if (pool->workers[i].alive)
            out[n++] = pool->workers[i].process.pid;
    return n;
}

void pool_stop(struct pool *pool, void (*stopped)(struct broker *broker))
{
    pool->stopping = true;
    pool->stopped = stopped;
    while (pool->queue) {
        struct job *job = pool->queue;
        pool->queue = job->next;
        fail_job(pool, job, OPD_E_unavailable, "the daemon is stopping");
    }
    pool->queue_end = &pool->queue;
    for (int i = 0; i < pool->n_workers; i++)
        if (pool->workers[i].alive)
            end_worker(&pool->workers[i], "the daemon is stopping");
    if (pool->stats.processes == 0)
        stopped(pool->broker);
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    free(pool->workers);
    free(pool);
}
