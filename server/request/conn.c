#include "request/conn.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "request/graph.h"
#include "request/parts.h"
#include "base/clock.h"
#include "base/log.h"
#include "kernels/pool.h"
#include "request/parted.h"
#include "request/prepared.h"
#include "request/trace.h"

// How much a connection may have going before it must wait: descriptors that it does not take,
// bytes sent ahead of a request that waits, requests started before others get their turn (one for
// each so many bytes).
enum { MAX_UNSENT_FDS = 64, MAX_AHEAD = 1 << 20, TURN = 16, TURN_BYTES = 64 << 10 };

// The share of its requests on devices that a connection has while others send requests too:
// what is sent to a device runs in the order in which it was sent, so that it is the others' wait.
enum { SHARE = 64, SHARE_LEAST = 4 };

// A connection is at work for so long after its last request to a device: who only asks how things
// are takes nothing from others.
static const uint64_t AT_WORK_NS = 1000000000;

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

// --- who has a part in a turn

void conn_touch(struct conn *c)
{
    if (c->touched)
        return;
    struct clients *clients = &c->broker->clients;
    c->touched = true;
    c->refs++;
    c->next_touched = clients->touched;
    clients->touched = c;
}

static void unqueue(struct conn *c)
{
    struct clients *clients = &c->broker->clients;
    *(c->prev_queued ? &c->prev_queued->next_queued : &clients->queued) = c->next_queued;
    *(c->next_queued ? &c->next_queued->prev_queued : &clients->last_queued) = c->prev_queued;
    clients->n_queued--;
    c->queued = false;
}

static void enqueue(struct conn *c)
{
    struct clients *clients = &c->broker->clients;
    c->next_queued = NULL;
    c->prev_queued = clients->last_queued;
    *(c->prev_queued ? &c->prev_queued->next_queued : &clients->queued) = c;
    clients->last_queued = c;
    clients->n_queued++;
    c->queued = true;
}

void conn_queue(struct conn *c)
{
    bool queued = !c->closed && (c->waiting || c->packing);
    if (queued && !c->queued)
        enqueue(c);
    else if (!queued && c->queued)
        unqueue(c);
}

// --- its end

static void end_begun(struct conn *c)
{
    c->begun = NULL;
    c->n_flight--;
}

static void drop_begun(struct conn *c)
{
    struct request *begun = c->begun;
    if (begun) {
        end_begun(c);
        request_discard(begun);
        request_release(begun);
    }
    msg_finish(&c->msg);
    for (struct request *req; (req = c->packing) != NULL;) {
        c->packing = req->next_packing;
        request_end(req);
    }
}

static void leave(struct conn *c)
{
    conn_leave_staging(c);
    if (c->capture) // it will not be ended
        graph_drop_name(c->broker, c->capture);
    c->capture = NULL;
    trace_follow(c, false);
    struct broker *b = c->broker;
    events_follow(&b->events, &c->follower, false);
    c->closed = true;
    c->waiting = false;
    conn_queue(c);
    if (b->clients.worker == c)
        b->clients.worker = NULL;
    if (b->clients.other_worker == c)
        b->clients.other_worker = NULL;
    pool_leave(b->pool, POOL_FRONT, c);
    pool_leave(b->pool, POOL_BACK, c);
    drop_begun(c);
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

// Whoever waits may send some ahead, not without bound, and nothing while the buffer must not move.
static void update_reading(struct conn *c)
{
    bool more = !c->msg.decoder && stream_size(&c->stream) < MAX_AHEAD;
    if (!c->closed)
        stream_set_reading(&c->stream, !c->waiting || more);
}

static void process(struct conn *c);

static void readable(struct stream *s)
{
    struct conn *c = s->owner;
    if (!c->waiting)
        process(c);
    update_reading(c);
}

// What it has sent is answered to its end.
static void ended(struct stream *s)
{
    struct conn *c = s->owner;
    readable(s);
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
    conn_notify(owner, "event", event);
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

void conn_notify(struct conn *c, const char *method, const struct buf *param)
{
    if (stream_unsent(&c->stream) >= CONN_MAX_UNSENT)
        return; // it does not read; the numbers show the gap
    struct buf *out = &c->stream.out;
    pack_array(out, 3);
    pack_uint(out, 2);
    pack_str(out, method);
    pack_array(out, 1);
    buf_append(out, param->bytes, param->size);
    conn_touch(c);
}

bool conn_idle(const struct conn *c)
{
    return c->n_flight == 0 && !c->waiting && stream_unsent(&c->stream) == 0;
}

// Bytes that break the framing cannot be answered in order; the reason is sent, then the connection
// ends.
static void give_up(struct conn *c, struct opd_err *err)
{
    log_info("connection %llu (%s): %s", (unsigned long long)c->id, c->holder->client, err->msg);
    turn_count_error(&c->broker->turn, err);
    pack_reply_error(&c->stream.out, 0, err, NULL);
    opd_err_clear(err);
    stream_flush(&c->stream);
    conn_close(c);
}

static void attach_fd(struct request *req)
{
    if (req->reply_fd >= 0)
        stream_attach_fd(&req->conn->stream, req->reply_fd);
    req->reply_fd = -1;
}

static void reply(struct request *req, enum request_status status, struct opd_err *err)
{
    struct conn *c = req->conn;
    if (status == REQUEST_ERROR)
        turn_count_error(&c->broker->turn, err);
    if (!req->notification) {
        struct buf *out = &c->stream.out;
        if (status == REQUEST_ERROR) {
            pack_reply_error(out, req->id, err, req->op[0] ? req->op : NULL);
        } else if (req->reply_start) {
            parted_send(req);
        } else {
            attach_fd(req);
            pack_reply_ok(out, req->id);
            buf_append(out, req->reply.bytes, req->reply.size);
        }
        conn_touch(c);
    }
    request_discard(req);
    request_release(req);
    opd_err_clear(err);
}

// The first message of the buffer, `size` bytes. False: it is not decoded to its end yet, or the
// connection is over.
static bool decode(struct conn *c)
{
    struct opd_err err;
    opd_err_init(&err);
    if (!c->msg.decoder)
        msg_begin(&c->msg, stream_bytes(&c->stream), c->scan.position);
    if (!msg_step(&c->msg, PARTED_DECODED)) {
        turn_retry(&c->broker->turn);
        return false;
    }
    if (msg_check(&c->msg, &err))
        return true;
    msg_finish(&c->msg);
    give_up(c, &err);
    return false;
}

// A request that was begun goes on in the next turn, and counts as in flight until then.
static void keep_begun(struct conn *c, struct request *req)
{
    if (!c->begun) {
        c->begun = req;
        c->n_flight++;
    }
    turn_retry(&c->broker->turn);
}

// The request of the message that is decoded.
static struct request *make_request(struct conn *c)
{
    if (c->begun)
        return c->begun;
    struct request *req = request_new(c);
    req->id = c->msg.id;
    req->notification = c->msg.notification;
    req->since = c->waiting_since;
    return req;
}

static void note_work(struct conn *c, uint64_t since)
{
    struct clients *clients = &c->broker->clients;
    c->last_work = since;
    if (clients->worker == c)
        return;
    clients->other_worker = clients->worker;
    clients->worker = c;
}

// Starts the first request in the buffer, or goes on with it. False: it waits, is not done to its
// end, or the connection is over.
static bool start_one(struct conn *c)
{
    struct opd_err err;
    if (!decode(c))
        return false;
    opd_err_init(&err);
    bool again = c->waiting_since != 0;
    if (!again)
        c->waiting_since = clock_ns();
    struct request *req = make_request(c);
    c->memory_device = NULL;
    enum request_status status = c->broker->dispatch(req, &c->msg, again, &err);
    if (status == REQUEST_AGAIN) {
        keep_begun(c, req);
        return false;
    }
    if (c->begun)
        end_begun(c);
    msg_end(&c->msg);
    if (status == REQUEST_WAIT) {
        request_discard(req);
        request_release(req);
        return false;
    }
    uint64_t since = c->waiting_since;
    c->waiting_since = 0;
    conn_leave_staging(c);
    if (again || status == REQUEST_ERROR) // one kernel that fails ends the wait for the others
        pool_leave(c->broker->pool, POOL_FRONT, c);
    opd_err_clear(&c->wait_err);
    if (status == REQUEST_SUBMITTED)
        note_work(c, again ? clock_ns() : since);
    else
        reply(req, status, &err);
    return true;
}

// The size of the first whole message; 0: it is not there yet, or the connection is over.
static size_t next_message(struct conn *c)
{
    if (stream_size(&c->stream) == 0)
        return 0;
    switch (mpscan_scan(&c->scan, stream_bytes(&c->stream), stream_size(&c->stream),
                        &(struct mpscan_limits){ .message = c->broker->options.max_message })) {
    case MPSCAN_DONE:
        return c->scan.position;
    case MPSCAN_MORE:
        return 0;
    default:
        break;
    }
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_malformed_message, "%s", c->scan.reason);
    give_up(c, &err);
    return 0;
}

static bool others_work(const struct conn *c)
{
    const struct clients *clients = &c->broker->clients;
    const struct conn *o = clients->worker == c ? clients->other_worker : clients->worker;
    return o && clock_ns() - o->last_work < AT_WORK_NS;
}

static bool overloaded(const struct conn *c)
{
    int most = c->broker->options.client_requests;
    int share = most / SHARE > SHARE_LEAST ? most / SHARE : SHARE_LEAST;
    if (c->n_flight >= most || stream_unsent(&c->stream) + c->reply_size >= CONN_MAX_UNSENT ||
        c->stream.n_out_fds >= MAX_UNSENT_FDS)
        return true;
    return c->n_flight >= share && others_work(c);
}

static void process(struct conn *c)
{
    size_t size;
    int turn = 0;
    c->waiting = false;
    while (!c->waiting && !c->closed && (size = next_message(c)) > 0) {
        bool over = turn >= TURN, held = c->broker->handover.held && !c->begun;
        if (over)
            turn_retry(&c->broker->turn);
        if (over || held || (!c->begun && overloaded(c)) || !start_one(c)) {
            if (overloaded(c))
                conn_leave_staging(c); // it may be so for long
            c->waiting = !c->closed;
            break;
        }
        turn += 1 + (int)(size / TURN_BYTES);
        mpscan_reset(&c->scan);
        stream_consume(&c->stream, size);
    }
    c->waiting = !c->closed && (c->waiting || c->broker->handover.held);
    conn_queue(c);
    update_reading(c);
}

// --- turns

// Each of those that wait once, in turn; the first is the last one next time.
static void go_on(struct clients *clients)
{
    for (int n = clients->n_queued; n > 0 && clients->queued; n--) {
        struct conn *c = clients->queued;
        unqueue(c);
        c->refs++; // it may close
        if (c->packing)
            parted_go_on(c);
        if (c->waiting)
            process(c);
        conn_queue(c);
        if (c->stream.over)
            conn_touch(c);
        conn_unref(c);
    }
    struct conn *first = clients->queued;
    if (first) {
        unqueue(first);
        enqueue(first);
    }
}

void conn_turn_all(struct broker *b, bool retry)
{
    if (retry)
        go_on(&b->clients);
    for (struct conn *c; (c = b->clients.touched) != NULL;) {
        b->clients.touched = c->next_touched;
        c->touched = false;
        if (!c->closed && stream_unsent(&c->stream) > 0)
            stream_flush(&c->stream);
        if (c->stream.over && !c->closed && conn_idle(c))
            conn_close(c);
        conn_unref(c);
    }
}
