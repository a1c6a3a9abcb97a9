#include "request/conn.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"
#include "base/log.h"
#include "request/prepared.h"
#include "request/trace.h"

static void free_tensor(void *p)
{
    ((struct tensor *)p)->n_ids--;
    tensor_unref(p);
}

// Frees what a map has, as far as *budget reaches, from c->freed on.
static void free_each(struct conn *c, struct map *m, void (*f)(void *p), int *budget)
{
    for (void *p; m->slots && *budget > 0; --*budget) {
        if ((p = map_next(m, &c->freed)) == NULL) {
            map_finish(m);
            c->freed = 0;
            return;
        }
        f(p);
    }
}

static void free_context(void *p)
{
    context_free(p);
}

static void free_shm(void *p)
{
    shm_free(p);
}

static void free_export(void *p)
{
    storage_unref(p);
}

static void free_import(void *p)
{
    import_unref(p);
}

static void free_prepared(void *p)
{
    prepared_free(p, NULL);
}

static void free_graph(void *p)
{
    graph_unref(p);
}

static void free_ids(struct conn *c, int *budget)
{
    free_each(c, &c->graphs, free_graph, budget);
    free_each(c, &c->prepared, free_prepared, budget);
    free_each(c, &c->contexts, free_context, budget);
    free_each(c, &c->shms, free_shm, budget);
    free_each(c, &c->exports, free_export, budget);
    free_each(c, &c->imports, free_import, budget);
    free_each(c, &c->tensors, free_tensor, budget);
}

void conn_free_left(struct broker *b, int budget)
{
    struct clients *clients = &b->clients;
    for (struct conn *c; (c = clients->left) != NULL && budget > 0;) {
        turn_retry(&b->turn); // somebody may wait for memory, and there may be more to free
        free_ids(c, &budget);
        if (budget > 0) {
            clients->left = c->next;
            conn_unref(c);
        } else {
            b->counters.parts++;
        }
    }
}

void conn_unref(struct conn *c)
{
    if (--c->refs > 0)
        return;
    opd_err_clear(&c->wait_err);
    holder_unref(c->holder);
    free(c);
}

static void closed(struct stream *s)
{
    conn_unref(s->owner);
}

void conn_leave_staging(struct conn *c)
{
    if (c->staging_device)
        staging_leave(&c->staging_device->staging, c->id);
    c->staging_device = NULL;
}

// --- its end

static void leave(struct conn *c)
{
    conn_leave_staging(c);
    lane_close(c);
    if (c->capture) // it will not be ended
        graph_drop_name(c->broker, c->capture);
    c->capture = NULL;
    trace_follow(c, false);
    struct broker *b = c->broker;
    events_follow(&b->events, &c->follower, false);
    c->closed = true;
    conn_turn_leave(c);
    request_unload_all(c);
    map_finish(&c->warnings);
    map_finish(&c->exported);
    if (c->prev)
        c->prev->next = c->next;
    else
        b->clients.first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    b->clients.n--;
    holder_leave(c->holder);
    c->refs++;
    c->prev = NULL;
    c->next = b->clients.left;
    b->clients.left = c;
}

void conn_close(struct conn *c)
{
    if (c->closed)
        return;
    struct broker *b = c->broker;
    leave(c);
    log_debug("connection %llu ends", (unsigned long long)c->id);
    stream_close(&c->stream);
    turn_retry(&b->turn);
}

static void failed(struct stream *s, const char *why)
{
    struct conn *c = s->owner;
    log_debug("connection %llu: %s", (unsigned long long)c->id, why);
    conn_close(c);
}

static void readable(struct stream *s)
{
    conn_read(s->owner);
}

// What it has sent is answered to its end.
static void ended(struct stream *s)
{
    struct conn *c = s->owner;
    conn_read(c);
    conn_touch(c);
    turn_retry(&c->broker->turn);
}

static void drained(struct stream *s)
{
    struct conn *c = s->owner;
    replies_taken(c);
    if (s->over)
        conn_touch(c);
    if (c->waiting)
        turn_retry(&c->broker->turn);
}

static void happened(void *owner, const struct buf *event)
{
    conn_notify(owner, "event", event); // the numbers show a gap
}

struct conn *conn_new(struct broker *b, uint64_t id)
{
    struct conn *c = mem_zalloc(1, sizeof *c);
    *c = (struct conn){ .broker = b,
                        .holder = holder_new(0),
                        .refs = 1,
                        .id = id,
                        .next = b->clients.first,
                        .follower = { .told = happened, .owner = c },
                        .last_event = b->events.next - 1 };
    c->stream.fd = -1;
    if (b->clients.first)
        b->clients.first->prev = c;
    b->clients.first = c;
    b->clients.n++;
    holder_enter(c->holder, &b->devices.holders, id);
    c->stream.owner = c;
    c->stream.readable = readable;
    c->stream.drained = drained;
    c->stream.ended = ended;
    c->stream.failed = failed;
    c->stream.closed = closed;
    return c;
}

static void begin(struct conn *c, int fd)
{
    struct ucred peer = { 0 };
    socklen_t size = sizeof peer;
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size); // 0: of another namespace
    c->holder->pid = peer.pid;
    stream_start(&c->stream, &c->broker->turn.loop, fd);
}

void conn_start(struct conn *c)
{
    begin(c, c->stream.fd);
    c->waiting = true; // what is in the buffers goes on with the next turn
    conn_queue(c);
    conn_touch(c);
    turn_retry(&c->broker->turn);
}

void conn_discard(struct conn *c)
{
    leave(c);
    stream_discard(&c->stream);
    conn_unref(c);
}

void conn_open(struct broker *b, int fd)
{
    struct conn *c = conn_new(b, ++b->clients.last_id);
    begin(c, fd);
    log_debug("connection %llu begins", (unsigned long long)c->id);
}

bool conn_notify(struct conn *c, const char *method, const struct buf *param)
{
    if (stream_unsent(&c->stream) >= CONN_MAX_UNSENT)
        return false;
    struct buf *out = &c->stream.out;
    pack_array(out, 3);
    pack_uint(out, 2);
    pack_str(out, method);
    pack_array(out, 1);
    buf_append(out, param->bytes, param->size);
    conn_touch(c);
    return true;
}

bool conn_idle(const struct conn *c)
{
    return c->n_flight == 0 && !c->waiting && stream_unsent(&c->stream) == 0;
}
