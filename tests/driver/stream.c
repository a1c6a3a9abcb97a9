#include "standin.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Streams: a thread each, that does what was asked of it in order. One lock for all that is here;
// it is not held while a kernel runs or bytes move. A graph is a list of what was asked meanwhile,
// and what each of that waits for. When it is launched all goes to the stream in some order that
// this allows: at first as unlike that of the calls as may be, then any. A missing edge shows so.

enum what { KERNEL, COPY, FILL, WRITE, RECORD };

struct event {
    uint64_t time_ns;
    unsigned pending;
    bool destroyed; // the last that is pending frees it
};

struct work {
    struct work *next;
    enum what what;
    struct launch launch; // KERNEL; `args` is its own
    uint64_t dst, src;    // COPY, FILL, WRITE (src is the value)
    size_t size;          // of an element, for FILL
    size_t count;
    uint8_t *staged; // the bytes of a COPY from memory that is not the device's
    struct event *event;
    // Of a graph: its place there, and the places of what it waits for.
    size_t place, n_after, n_left;
    size_t *after;
};

struct list {
    struct work *first, **end;
    size_t n;
    struct work **next; // of what is captured: what will be asked next waits for these
    size_t n_next;
    uint64_t chance;
};

struct stream {
    struct list queue;
    bool busy, ending;
    struct list *captured; // or NULL
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void *need(void *p)
{
    if (!p)
        abort();
    return p;
}

static void append(struct list *list, struct work *w)
{
    w->next = NULL;
    *(list->first ? list->end : &list->first) = w;
    list->end = &w->next;
    w->place = list->n++;
}

static struct work *copy_work(const struct work *from)
{
    struct work *w = need(malloc(sizeof *w));
    *w = *from;
    if (from->launch.args_size) {
        w->launch.args = need(malloc(from->launch.args_size));
        memcpy(w->launch.args, from->launch.args, from->launch.args_size);
    }
    w->after = need(malloc((from->n_after + 1) * sizeof *w->after));
    for (size_t i = 0; i < from->n_after; i++)
        w->after[i] = from->after[i];
    return w;
}

static void free_work(struct work *w)
{
    free(w->after);
    free(w->launch.args);
    free(w->staged);
    free(w);
}

// Under the lock.
static void pass_event(struct event *event)
{
    if (--event->pending == 0 && event->destroyed)
        free(event);
}

static void free_list(struct list *list)
{
    for (struct work *w = list->first, *next; w; w = next) {
        next = w->next;
        free_work(w);
    }
    free(list->next);
    free(list);
}

static void set_next(struct list *list, struct work *const *next, size_t n)
{
    struct work **own = need(malloc((n + 1) * sizeof *own));
    memcpy(own, next, n * sizeof *own);
    free(list->next);
    list->next = own;
    list->n_next = n;
}

static void capture(struct list *list, struct work *w)
{
    w->n_after = list->n_next;
    w->after = need(realloc(w->after, (w->n_after + 1) * sizeof *w->after));
    for (size_t i = 0; i < w->n_after; i++)
        w->after[i] = list->next[i]->place;
    append(list, w);
    set_next(list, &w, 1);
}

// --- doing it

static bool may_touch(uint64_t addr, size_t size)
{
    struct range r;
    return memory_find(addr, &r) ? size <= r.end - addr : !memory_is_reserved(addr);
}

static int move(const struct work *w)
{
    uint8_t *dst = (uint8_t *)(uintptr_t)w->dst;
    if (!may_touch(w->dst, w->size * w->count) ||
        (w->what == COPY && !w->staged && !may_touch(w->src, w->size * w->count)))
        return DRV_ERROR_ILLEGAL_ADDRESS;
    if (w->what == COPY)
        memmove(dst, w->staged ? w->staged : (uint8_t *)(uintptr_t)w->src, w->size * w->count);
    else if (w->size == 1)
        memset(dst, (int)w->src, w->count);
    else
        for (size_t i = 0; i < w->count; i++)
            memcpy(dst + 4 * i, &w->src, 4);
    return DRV_SUCCESS;
}

static int run_work(const struct work *w)
{
    struct timespec now;
    switch (w->what) {
    case KERNEL: return launch_run(&w->launch);
    case COPY:
    case FILL: return move(w);
    case WRITE: // as the GPU's, it comes after all before it
        __atomic_store_n((uint64_t *)(uintptr_t)w->dst, w->src, __ATOMIC_RELEASE);
        return DRV_SUCCESS;
    case RECORD:
        clock_gettime(CLOCK_MONOTONIC, &now);
        w->event->time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        return DRV_SUCCESS;
    }
    return DRV_SUCCESS;
}

static void *serve(void *data)
{
    struct stream *s = data;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!s->queue.first && !s->ending)
            pthread_cond_wait(&changed, &lock);
        struct work *w = s->queue.first;
        if (!w)
            break;
        s->queue.first = w->next;
        s->busy = true;
        pthread_mutex_unlock(&lock);
        int result = context_error() ? DRV_SUCCESS : run_work(w); // nothing comes after a fault
        if (result)
            context_break(result);
        pthread_mutex_lock(&lock);
        if (w->what == RECORD)
            pass_event(w->event);
        free_work(w);
        s->busy = false;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    if (s->captured)
        free_list(s->captured);
    free(s);
    return NULL;
}

// --- asking for it

static struct stream *new_stream(void)
{
    struct stream *s = need(calloc(1, sizeof *s));
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are the program's
    if (pthread_create(&thread, NULL, serve, s) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_detach(thread);
    return s;
}

static struct stream *default_stream;

static void make_default(void)
{
    default_stream = new_stream();
}

static struct stream *stream_of(void *stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (stream)
        return stream;
    pthread_once(&once, make_default);
    return default_stream;
}

static int submit(void *stream, const struct work *w)
{
    RETURN_IF_BROKEN();
    struct stream *s = stream_of(stream);
    struct work *own = copy_work(w);
    pthread_mutex_lock(&lock);
    if (w->what == RECORD)
        w->event->pending++;
    if (s->captured)
        capture(s->captured, own);
    else
        append(&s->queue, own);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return DRV_SUCCESS;
}

static bool is_idle(const struct stream *s)
{
    return !s->queue.first && !s->busy;
}

static int wait_for(struct stream *s)
{
    pthread_mutex_lock(&lock);
    bool captures = s->captured != NULL;
    while (!captures && !is_idle(s) && !context_error())
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (captures)
        return CUDA_ERROR_CAPTURE_UNSUPPORTED;
    prints_flush();
    return context_error();
}

int cuStreamCreate(void **stream, unsigned flags)
{
    RETURN_IF_BROKEN();
    (void)flags;
    *stream = new_stream();
    return DRV_SUCCESS;
}

int cuStreamDestroy_v2(void *stream)
{
    pthread_mutex_lock(&lock);
    ((struct stream *)stream)->ending = true; // what was asked is done first
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return context_error();
}

int cuStreamQuery(void *stream)
{
    RETURN_IF_BROKEN();
    pthread_mutex_lock(&lock);
    bool idle = is_idle(stream_of(stream));
    pthread_mutex_unlock(&lock);
    int broken = context_error();
    return broken ? broken : idle ? DRV_SUCCESS : DRV_ERROR_NOT_READY;
}

int cuStreamSynchronize(void *stream)
{
    return wait_for(stream_of(stream));
}

int cuCtxSynchronize(void)
{
    return wait_for(stream_of(NULL)); // opd asks for no other
}

int cuStreamWriteValue64_v2(void *stream, drv_addr addr, uint64_t value, unsigned flags)
{
    struct range r;
    if (flags || addr % 8 || !memory_find(addr, &r))
        return DRV_ERROR_INVALID_VALUE;
    return submit(stream, &(struct work){ .what = WRITE, .dst = addr, .src = value });
}

// From and to memory that is only the host's, the driver's copies are done when it returns; from
// there it has at least taken the bytes.
int cuMemcpyAsync(drv_addr dst, drv_addr src, size_t size, void *stream)
{
    struct range r;
    bool from_device = memory_find(src, &r), to_device = memory_find(dst, &r);
    struct stream *s = stream_of(stream);
    struct work w = { .what = COPY, .dst = dst, .src = src, .size = 1, .count = size };
    if (!from_device && !memory_is_reserved(src) && size && !s->captured) {
        w.staged = need(malloc(size));
        memcpy(w.staged, (void *)(uintptr_t)src, size);
    }
    int result = submit(s, &w);
    if (result)
        free(w.staged);
    return result || to_device || s->captured ? result : wait_for(s);
}

int cuMemsetD8Async(drv_addr dst, unsigned char byte, size_t count, void *stream)
{
    return submit(stream, &(struct work){
                              .what = FILL, .dst = dst, .src = byte, .size = 1, .count = count });
}

int cuMemsetD32Async(drv_addr dst, unsigned word, size_t count, void *stream)
{
    if (dst % 4)
        return DRV_ERROR_INVALID_VALUE;
    return submit(stream, &(struct work){
                              .what = FILL, .dst = dst, .src = word, .size = 4, .count = count });
}

int stream_launch(const struct launch *l, void *stream)
{
    return submit(stream, &(struct work){ .what = KERNEL, .launch = *l });
}

// --- events

int cuEventCreate(void **event, unsigned flags)
{
    RETURN_IF_BROKEN();
    (void)flags;
    *event = need(calloc(1, sizeof(struct event)));
    return DRV_SUCCESS;
}

int cuEventDestroy_v2(void *event)
{
    struct event *e = event;
    pthread_mutex_lock(&lock);
    e->pending++;
    e->destroyed = true;
    pass_event(e);
    pthread_mutex_unlock(&lock);
    return context_error();
}

int cuEventRecord(void *event, void *stream)
{
    return submit(stream, &(struct work){ .what = RECORD, .event = event });
}

int cuEventQuery(void *event)
{
    RETURN_IF_BROKEN();
    pthread_mutex_lock(&lock);
    bool passed = ((struct event *)event)->pending == 0;
    pthread_mutex_unlock(&lock);
    return passed ? context_error() : DRV_ERROR_NOT_READY;
}

int cuEventSynchronize(void *event)
{
    struct event *e = event;
    pthread_mutex_lock(&lock);
    while (e->pending > 0 && !context_error())
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    prints_flush();
    return context_error();
}

int cuEventElapsedTime(float *ms, void *start, void *end)
{
    const struct event *a = start, *b = end;
    *ms = (float)((double)(int64_t)(b->time_ns - a->time_ns) / 1e6);
    return cuEventQuery(end);
}

// --- graphs

int cuStreamIsCapturing(void *stream, int *status)
{
    *status = stream_of(stream)->captured ? 1 : DRV_CAPTURE_NONE;
    return context_error();
}

int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                              const void **nodes, size_t *n_nodes)
{
    struct list *list = stream_of(stream)->captured;
    if (!list || id || graph)
        return DRV_ERROR_INVALID_VALUE; // nobody asks so
    *status = 1;
    *nodes = list->next;
    *n_nodes = list->n_next;
    return context_error();
}

int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t n_nodes, unsigned flags)
{
    struct list *list = stream_of(stream)->captured;
    if (!list || flags != DRV_SET_CAPTURE_DEPENDENCIES)
        return DRV_ERROR_INVALID_VALUE;
    set_next(list, (struct work *const *)nodes, n_nodes);
    return DRV_SUCCESS;
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    RETURN_IF_BROKEN();
    struct stream *s = stream;
    if (!s || s->captured || mode != DRV_STREAM_CAPTURE_RELAXED)
        return DRV_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    s->captured = need(calloc(1, sizeof *s->captured));
    pthread_mutex_unlock(&lock);
    return DRV_SUCCESS;
}

int cuStreamEndCapture(void *stream, void **graph)
{
    struct stream *s = stream;
    pthread_mutex_lock(&lock);
    *graph = s->captured;
    s->captured = NULL;
    for (struct work *w = *graph ? ((struct list *)*graph)->first : NULL; w; w = w->next)
        if (w->what == RECORD)
            pass_event(w->event); // it counts when the graph runs
    pthread_mutex_unlock(&lock);
    return *graph ? context_error() : DRV_ERROR_INVALID_VALUE;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    RETURN_IF_BROKEN();
    struct list *list = need(calloc(1, sizeof *list));
    for (const struct work *w = ((struct list *)graph)->first; w; w = w->next)
        append(list, copy_work(w));
    *executable = list;
    return flags ? DRV_ERROR_INVALID_VALUE : DRV_SUCCESS;
}

// Of those that may run the last, or any; it may not again.
static struct work *choose(struct list *graph, bool last)
{
    struct work *found = NULL;
    uint64_t n = 0;
    for (struct work *w = graph->first; w; w = w->next) {
        graph->chance = graph->chance * 6364136223846793005u + 1442695040888963407u;
        if (w->n_left == 0 && (n++ == 0 || last || (graph->chance >> 33) % n == 0))
            found = w;
    }
    found->n_left = SIZE_MAX;
    for (struct work *w = graph->first; w; w = w->next)
        for (size_t i = 0; i < w->n_after; i++)
            w->n_left -= w->after[i] == found->place;
    return found;
}

int cuGraphLaunch(void *executable, void *stream)
{
    struct list *graph = executable;
    bool last = graph->chance == 0;
    int result = DRV_SUCCESS;
    for (struct work *w = graph->first; w; w = w->next)
        w->n_left = w->n_after;
    for (size_t i = 0; i < graph->n && !result; i++)
        result = submit(stream, choose(graph, last));
    return result;
}

int cuGraphExecDestroy(void *executable)
{
    free_list(executable);
    return context_error();
}

int cuGraphDestroy(void *graph)
{
    free_list(graph);
    return context_error();
}
