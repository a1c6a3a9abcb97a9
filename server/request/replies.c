#include "request/replies.h"

#include "base/clock.h"
#include "base/log.h"
#include "request/parts.h"

// OWN: what a connection may have without asking. MOST: of all of them, beyond that.
enum { OWN = 256 << 10, MOST = 128 << 20 };
enum { TICK_MS = 1000 };
static const uint64_t PATIENCE_NS = 30000000000;

static bool is_stuck(struct conn *c, uint64_t now)
{
    if (stream_unsent(&c->stream) <= OWN || c->stream.sent != c->taken || !c->taken_at) {
        c->taken = c->stream.sent;
        c->taken_at = now;
    }
    return now - c->taken_at > PATIENCE_NS;
}

static void tick_cb(uv_timer_t *timer)
{
    struct broker *b = timer->data;
    uint64_t now = clock_ns();
    struct conn *next;
    if (!b->replies.wanted)
        uv_timer_stop(timer);
    for (struct conn *c = b->clients.first; c && b->replies.wanted; c = next) {
        next = c->next;
        if (!is_stuck(c, now))
            continue;
        log_warn("connection %llu (%s) is ended: it does not read its replies, and others wait",
                 (unsigned long long)c->id, c->holder->client);
        conn_close(c);
    }
    b->replies.wanted = false; // who still waits says so again
    turn_retry(&b->turn);
}

void replies_init(struct broker *b)
{
    uv_timer_init(&b->turn.loop, &b->replies.timer);
    b->replies.timer.data = b;
}

void replies_close(struct broker *b)
{
    uv_close((uv_handle_t *)&b->replies.timer, NULL);
}

static void want(struct broker *b)
{
    b->replies.wanted = true;
    if (uv_is_active((uv_handle_t *)&b->replies.timer))
        return;
    for (struct conn *c = b->clients.first; c; c = c->next)
        c->taken_at = 0;
    uv_timer_start(&b->replies.timer, tick_cb, TICK_MS, TICK_MS);
}

bool replies_may_begin(struct conn *c, uint64_t size)
{
    uint64_t sum = 0;
    if (size <= OWN)
        return true;
    for (const struct conn *o = c->broker->clients.first; o; o = o->next) {
        uint64_t held = stream_unsent(&o->stream) + o->reply_size;
        sum += held > OWN ? held : 0;
    }
    bool room = sum == 0 || (sum <= MOST && size <= MOST - sum);
    if (room)
        return true;
    conn_leave_staging(c); // others may have its place there
    want(c->broker);
    return false;
}

void replies_taken(struct conn *c)
{
    if (c->broker->replies.wanted)
        turn_retry(&c->broker->turn);
}
