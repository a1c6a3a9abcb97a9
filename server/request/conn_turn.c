#include "request/conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"
#include "kernels/pool.h"
#include "request/lane.h"
#include "request/parted.h"
#include "request/parts.h"

// How much a connection may have going before it must wait: descriptors that it does not take,
// bytes sent ahead of a request that waits, requests started before others get their turn (one for
// each so many bytes).
enum { MAX_UNSENT_FDS = 64, MAX_AHEAD = 1 << 20, TURN = 16, TURN_BYTES = 64 << 10 };

// The share of its requests on devices that a connection has while others send requests too:
// what is sent to a device runs in the order in which it was sent, so that it is the others' wait.
enum { SHARE = 64, SHARE_LEAST = 4 };

// A connection is at work while it has requests in flight, and for so long after the last that went
// to a device: who only asks how things are takes nothing from others.
static const uint64_t AT_WORK_NS = 1000000000;

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

void conn_turn_leave(struct conn *c)
{
    struct broker *b = c->broker;
    c->waiting = false;
    conn_queue(c);
    if (b->clients.worker == c)
        b->clients.worker = NULL;
    if (b->clients.other_worker == c)
        b->clients.other_worker = NULL;
    pool_leave(b->pool, POOL_FRONT, c);
    pool_leave(b->pool, POOL_BACK, c);
    drop_begun(c);
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

// The first message of the buffer. False: it is not decoded to its end yet, or the
// connection is over.
static bool decode(struct conn *c)
{
    struct opd_err err;
    opd_err_init(&err);
    if (!c->msg.decoder)
        msg_begin(&c->msg, stream_bytes(&c->stream));
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

// It may have been in flight for long; where only one is at work nobody asks.
void conn_worked(struct conn *c)
{
    if (c->broker->clients.other_worker)
        c->last_work = clock_ns();
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
    return o && (o->n_flight > 0 || clock_ns() - o->last_work < AT_WORK_NS);
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

// Whoever waits may send some ahead, not without bound, and nothing while the buffer must not move.
static void update_reading(struct conn *c)
{
    bool more = !c->msg.decoder && stream_size(&c->stream) < MAX_AHEAD;
    if (!c->closed)
        stream_set_reading(&c->stream, !c->waiting || more);
}

static void process(struct conn *c)
{
    size_t size;
    int turn = 0;
    if (c->word.device && c->n_flight > 0)
        device_look(c->word.device); // the client may know more than we do
    if (c->broker->lanes)
        lane_look(c->broker);
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

void conn_read(struct conn *c)
{
    if (!c->waiting)
        process(c);
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
