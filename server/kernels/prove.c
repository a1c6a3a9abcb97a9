#include "kernels/prove.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/turn.h"
#include "kernels/events.h"
#include "kernels/registry.h"

enum { MAX_SAID = 16384 };

// A version that is proved, or waits for it. Freed when it was left off, or has ended, and its
// handles are closed.
struct proving {
    struct proving *next;
    struct prove *all;
    struct version *version; // a reference; NULL: it was left off
    uv_process_t process;
    uv_pipe_t output;
    bool started;
    int n_open; // handles, and whether its end is still to come
    int64_t status;
    uint64_t since;
    struct buf said;
    char piece[4096]; // that is read
};

static void start_next(struct prove *p);

static void free_proving(struct proving *v)
{
    version_unref(v->version);
    buf_finish(&v->said);
    free(v);
}

// The first line of what it says; the whole is the log.
static void tell(struct prove *p, struct proving *v)
{
    struct opd_err why = { 0 };
    struct opd_operator *o = v->version->of;
    const char *said = buf_str(&v->said);
    bool wrong = strncmp(said, "wrong\t", 6) == 0, failed = strncmp(said, "failed\t", 7) == 0;
    if (wrong || failed || v->status != 0) {
        const char *what = said + (wrong ? 6 : failed ? 7 : 0);
        opd_err_set(&why, OPD_E_invalid_argument, "%.*s", (int)strcspn(what, "\n"),
                    what[0] ? what : "its gradients were not proved: the process failed");
    }
    struct event event = { .kind = why.code ? "doubted" : "proved",
                           .op = v->version->op->name,
                           .version = v->version->number,
                           .file = v->version->path,
                           .err = why.code ? &why : NULL,
                           .ms = clock_ms_since(v->since) };
    uint64_t seq = events_add(p->events, &event);
    if (wrong) {
        free(o->failure_text);
        o->failure_text = mem_printf("%s: version %d: %s", o->name, v->version->number, why.msg);
        o->failure = seq;
        registry_tell(p->registry, o);
    }
    if (why.code)
        log_warn("version %d of %s: %s", v->version->number, o->name, why.msg);
    opd_err_clear(&why);
}

static void one_closed(struct proving *v)
{
    if (--v->n_open > 0)
        return;
    struct prove *p = v->all;
    bool is_current = v->version && v->version->of && v->version->of->current == v->version;
    if (is_current && !p->stopped)
        tell(p, v);
    p->first = v->next;
    free_proving(v);
    start_next(p);
}

static void closed_cb(uv_handle_t *handle)
{
    one_closed(handle->data);
}

static void exit_cb(uv_process_t *process, int64_t status, int signal)
{
    struct proving *v = process->data;
    v->status = status ? status : signal;
    uv_close((uv_handle_t *)process, closed_cb);
}

static void alloc_cb(uv_handle_t *handle, size_t size, uv_buf_t *out)
{
    (void)size;
    struct proving *v = handle->data;
    *out = uv_buf_init(v->piece, sizeof v->piece);
}

static void read_cb(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct proving *v = stream->data;
    if (n > 0)
        buf_append(&v->said, buf->base, (size_t)n);
    if (n < 0 || v->said.size > MAX_SAID)
        uv_close((uv_handle_t *)stream, closed_cb);
}

static void start(struct proving *v)
{
    char *const args[] = { (char *)"opd",    (char *)"trial", (char *)"grad",
                           v->version->path, (char *)"1",     (char *)"",
                           (char *)"",       (char *)"lines", NULL };
    uv_stdio_container_t stdio[2] = { { .flags = UV_IGNORE } };
    stdio[1] = (uv_stdio_container_t){ .flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE,
                                       .data.stream = (uv_stream_t *)&v->output };
    uv_process_options_t options = { .exit_cb = exit_cb,
                                     .file = "/proc/self/exe",
                                     .args = (char **)(uintptr_t)args,
                                     .stdio = stdio,
                                     .stdio_count = 2 };
    uv_pipe_init(&v->all->turn->loop, &v->output, 0);
    v->process.data = v->output.data = v;
    v->started = true;
    v->since = clock_ns();
    v->n_open = 2;
    int result = uv_spawn(&v->all->turn->loop, &v->process, &options);
    if (result < 0) {
        log_error("starting what proves gradients: %s", uv_strerror(result));
        v->status = result;
        uv_close((uv_handle_t *)&v->process, closed_cb);
        uv_close((uv_handle_t *)&v->output, closed_cb);
        return;
    }
    uv_read_start((uv_stream_t *)&v->output, alloc_cb, read_cb);
}

static void start_next(struct prove *p)
{
    while (p->first && !p->first->version && !p->first->started) {
        struct proving *v = p->first;
        p->first = v->next;
        free_proving(v);
    }
    if (p->first && !p->first->started && !p->stopped)
        start(p->first);
}

// It ends what it has started, and clears up, before it ends.
static void leave_off(struct proving *v)
{
    version_unref(v->version);
    v->version = NULL;
    if (v->started && uv_is_active((uv_handle_t *)&v->process))
        uv_process_kill(&v->process, SIGTERM);
}

void prove_add(struct prove *p, struct version *v)
{
    if (!p->wanted || p->stopped || v->state != VERSION_SERVING)
        return;
    struct proving **end = &p->first;
    for (; *end; end = &(*end)->next)
        if ((*end)->version && (*end)->version->of == v->of)
            leave_off(*end);
    *end = mem_zalloc(1, sizeof **end);
    **end = (struct proving){ .all = p, .version = version_ref(v) };
    start_next(p);
}

void prove_stop(struct prove *p)
{
    p->stopped = true;
    for (struct proving *v = p->first; v; v = v->next)
        if (v->version)
            leave_off(v);
    start_next(p);
}
