#include "kernels/worker.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/process.h"
#include "base/turn.h"
#include "compiler/compiler.h"
#include "compiler/scratch.h"

// END_LIMIT: how long a compiler may take to end what it runs and clean up. CLEAR: between looks at
// what one that was killed has left running, and how many there are.
enum { END_LIMIT_MS = 1000, CLEAR_MS = 20, CLEAR_TRIES = 100 };

static void kill_cb(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    uv_process_kill(&w->process, SIGKILL);
}

// The process sees its socket's end, and ends what it has started before itself.
void worker_end(struct worker *w, const char *why)
{
    if (!w->alive)
        return;
    w->why = why;
    shutdown(w->stream.fd, SHUT_RDWR);
    uv_timer_start(&w->timer, kill_cb, END_LIMIT_MS, 0);
    if (w->state != WORKER_BUSY) // else its job fails with the process's end
        w->state = WORKER_ENDING;
}

static void readable(struct stream *s)
{
    struct worker *w = s->owner;
    struct job_frame frame;
    long size = job_unpack(stream_bytes(s), stream_size(s), RESULT_STRINGS, &frame);
    if (size == 0)
        return;
    if (size < 0 || (w->state != WORKER_BUSY && w->state != WORKER_CANCELLED)) {
        worker_end(w, "the compiler's answer makes no sense");
        stream_set_reading(s, false);
        return;
    }
    if (!w->why)
        uv_timer_stop(&w->timer);
    int fd = stream_take_fd(s);
    bool wanted = w->state == WORKER_BUSY;
    w->state = w->why ? WORKER_ENDING : WORKER_IDLE;
    if (wanted)
        w->events->answered(w, &frame, fd);
    else if (fd >= 0)
        close(fd);
    stream_consume(s, (size_t)size);
    w->events->changed(w);
}

static void failed(struct stream *s, const char *why)
{
    (void)why; // the exit says more
    stream_set_reading(s, false);
    struct worker *w = s->owner;
    if (w->alive && !w->why)
        uv_process_kill(&w->process, SIGKILL);
    if (w->state != WORKER_BUSY)
        w->state = WORKER_ENDING;
}

static void deadline_cb(uv_timer_t *timer)
{
    worker_end(timer->data, "the compile took longer than --compile-deadline and was ended");
}

static void stuck_cb(uv_timer_t *timer)
{
    worker_end(timer->data, "the compiler did not leave what nobody waits for, and was ended");
}

static void handle_closed(struct worker *w)
{
    if (--w->n_handles > 0)
        return;
    w->state = WORKER_NONE;
    w->events->changed(w);
}

static void stream_closed(struct stream *s)
{
    handle_closed(s->owner);
}

static void handle_closed_cb(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

// The signals that a compiler causes itself.
static bool is_crash(int signal)
{
    return signal == SIGABRT || signal == SIGSEGV || signal == SIGBUS || signal == SIGILL ||
           signal == SIGFPE;
}

// The death of a process that others killed is not the source's fault: it is worth another try.
static void explain_exit(const struct worker *w, int64_t status, int signal, struct opd_err *err)
{
    enum opd_err_code code = w->why || is_crash(signal) ? OPD_E_compile_error : OPD_E_unavailable;
    if (w->why)
        opd_err_set(err, code, "%s", w->why);
    else if (is_crash(signal))
        opd_err_set(
            err, code,
            "the compiler crashed by signal %d (%s): it may need more than its %d GiB of memory",
            signal, strsignal(signal), COMPILER_MEMORY_GIB);
    else if (signal)
        opd_err_set(err, code, "the compiler was ended by signal %d (%s)", signal,
                    strsignal(signal));
    else
        opd_err_set(err, code, "the compiler ended with status %lld", (long long)status);
}

// After one that was killed: the programs that it ran, then its folder, when none writes there.
static void clear_cb(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    if (process_kill_session(w->process.pid) > 0 && ++w->n_clears < CLEAR_TRIES) {
        uv_timer_start(timer, clear_cb, CLEAR_MS, 0);
        return;
    }
    scratch_remove(w->process.pid);
    uv_close((uv_handle_t *)timer, handle_closed_cb);
}

static void exit_cb(uv_process_t *process, int64_t status, int signal)
{
    struct worker *w = process->data;
    bool busy = w->state == WORKER_BUSY;
    struct opd_err err = { 0 };
    explain_exit(w, status, signal, &err);
    if (busy || !w->why)
        log_warn("%s", err.msg);
    w->alive = false;
    w->state = WORKER_ENDING;
    w->n_clears = 0;
    stream_close(&w->stream);
    uv_close((uv_handle_t *)&w->process, handle_closed_cb);
    if (signal)
        clear_cb(&w->timer);
    else
        uv_close((uv_handle_t *)&w->timer, handle_closed_cb);
    if (busy)
        w->events->failed(w, &err);
    opd_err_clear(&err);
}

static void not_started_cb(uv_timer_t *timer)
{
    struct worker *w = timer->data;
    bool busy = w->state == WORKER_BUSY;
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_unavailable, "no compiler process could be started; see the log");
    w->state = WORKER_ENDING;
    uv_close((uv_handle_t *)timer, handle_closed_cb);
    if (busy)
        w->events->failed(w, &err);
    opd_err_clear(&err);
}

// Without randomized addresses, where that is allowed: then it shares with the others what it has
// parsed (compiler/pch.h). What a thread's personality is, what it starts inherits.
static int spawn_compiler(struct worker *w, const char *const *args, const int *fds, int n_fds)
{
    int own = personality(0xffffffff);
    bool set = own != -1 && personality((unsigned)own | ADDR_NO_RANDOMIZE) != -1;
    int result = turn_spawn(w->turn, &w->process, args, fds, n_fds, exit_cb);
    if (set)
        personality((unsigned)own);
    return result;
}

static int spawn(struct worker *w)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return uv_translate_sys_error(errno);
    const char *const args[] = { "compiler", w->low ? "low" : "normal", NULL };
    w->process.data = w;
    w->n_handles++; // of the process; libuv makes it in any case
    int result = spawn_compiler(w, args, &pair[1], 1);
    close(pair[1]);
    if (result < 0) {
        close(pair[0]);
        uv_close((uv_handle_t *)&w->process, handle_closed_cb);
        return result;
    }
    w->n_handles++;
    w->stream = (struct stream){
        .owner = w, .readable = readable, .failed = failed, .closed = stream_closed
    };
    stream_start(&w->stream, &w->turn->loop, pair[0]);
    return 0;
}

void worker_start(struct worker *w)
{
    uv_timer_init(&w->turn->loop, &w->timer);
    w->timer.data = w;
    w->n_handles = 1;
    w->why = NULL;
    w->state = WORKER_IDLE;
    int result = spawn(w);
    w->alive = result == 0;
    if (w->alive)
        return;
    log_error("starting a compiler: %s", uv_strerror(result));
    uv_timer_start(&w->timer, not_started_cb, 0, 0);
}

static void send_frame(struct worker *w, const struct buf *frame)
{
    buf_append(&w->stream.out, frame->bytes, frame->size);
    stream_flush(&w->stream);
}

void worker_give(struct worker *w, const struct buf *job, double deadline)
{
    w->state = WORKER_BUSY;
    if (!w->alive)
        return; // not_started_cb() tells
    uv_timer_start(&w->timer, deadline_cb, (uint64_t)(deadline * 1000), 0);
    send_frame(w, job);
}

void worker_cancel(struct worker *w)
{
    if (w->why || !w->alive) { // it ends already
        w->state = WORKER_ENDING;
        return;
    }
    const char *strings[JOB_MAX_STRINGS];
    for (int i = 0; i < JOB_MAX_STRINGS; i++)
        strings[i] = "";
    strings[JOB_KIND] = "cancel";
    struct job_header header = { 0 };
    struct buf frame = { 0 };
    job_pack(&frame, &header, strings, JOB_MAX_STRINGS);
    w->state = WORKER_CANCELLED;
    uv_timer_start(&w->timer, stuck_cb, END_LIMIT_MS, 0);
    send_frame(w, &frame);
    buf_finish(&frame);
}
