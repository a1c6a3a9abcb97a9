#include "kernels/events.h"

#include <string.h>

#include "base/clock.h"
#include "wire/msg.h"

void events_pack(struct buf *out, uint64_t seq, const struct event *e)
{
    bool failed = e->err && e->err->code;
    size_t map = pack_map_begin(out);
    pack_key_uint(out, "seq", seq);
    pack_key_float(out, "time", clock_unix());
    pack_key_str(out, "kind", e->kind);
    if (e->op)
        pack_key_str(out, "op", e->op);
    if (e->version)
        pack_key_int(out, "version", e->version);
    if (e->file)
        pack_key_str(out, "file", e->file);
    if (failed)
        pack_key_str(out, "message", e->err->msg);
    if (failed && e->err->log)
        pack_key_str(out, "log", e->err->log);
    if (e->dtype)
        pack_key_str(out, "dtype", e->dtype);
    if (e->kernels)
        pack_key_int(out, "kernels", e->kernels);
    if (e->ms > 0)
        pack_key_float(out, "ms", e->ms);
    pack_map_end(out, map);
}

void events_pack_outcome(const struct event *e, struct buf *out)
{
    static const char *const states[][2] = { { "reloaded", "serving" },
                                             { "failed", "failed" },
                                             { "shadowed", "shadowed" },
                                             { "withdrawn", "withdrawn" } };
    const char *state = NULL;
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(e->kind, states[i][0]) == 0)
            state = states[i][1];
    if (!state)
        return;
    size_t map = pack_map_begin(out);
    pack_key_str(out, "op", e->op ? e->op : "");
    pack_key_str(out, "file", e->file ? e->file : "");
    pack_key_int(out, "version", e->version);
    pack_key_str(out, "state", state);
    pack_key_str(out, "message", e->err ? e->err->msg : "");
    pack_key_str(out, "log", e->err && e->err->log ? e->err->log : "");
    pack_key_float(out, "ms", e->ms);
    pack_map_end(out, map);
}

uint64_t events_add(struct events *ev, const struct event *event)
{
    uint64_t seq = ev->next++;
    struct kept_event *kept = &ev->kept[seq % EVENTS_KEPT];
    kept->packed.size = kept->outcome.size = 0;
    events_pack(&kept->packed, seq, event);
    events_pack_outcome(event, &kept->outcome);
    for (struct event_listener *l = ev->listeners; l; l = l->next)
        l->told(l->owner, &kept->packed);
    return seq;
}

void events_follow(struct events *ev, struct event_listener *listener, bool follows)
{
    struct event_listener **at = &ev->listeners;
    while (*at && *at != listener)
        at = &(*at)->next;
    if (listener->follows)
        *at = listener->next;
    listener->follows = follows;
    if (!follows)
        return;
    listener->next = ev->listeners;
    ev->listeners = listener;
}

// The first kept one after `since`.
static uint64_t first_after(const struct events *ev, uint64_t since)
{
    uint64_t first = ev->next > EVENTS_KEPT ? ev->next - EVENTS_KEPT : 1;
    return since >= first ? since + 1 : first;
}

uint64_t events_oldest(const struct events *ev)
{
    return first_after(ev, 0);
}

size_t events_pack_outcomes(const struct events *ev, uint64_t since, struct buf *out)
{
    size_t n = 0;
    for (uint64_t seq = first_after(ev, since); seq < ev->next; seq++) {
        const struct buf *outcome = &ev->kept[seq % EVENTS_KEPT].outcome;
        buf_append(out, outcome->bytes, outcome->size);
        n += outcome->size > 0;
    }
    return n;
}

void events_pack_since(const struct events *ev, uint64_t since, struct buf *out)
{
    uint64_t first = first_after(ev, since);
    pack_array(out, first < ev->next ? ev->next - first : 0);
    for (uint64_t seq = first; seq < ev->next; seq++) {
        const struct kept_event *kept = &ev->kept[seq % EVENTS_KEPT];
        buf_append(out, kept->packed.bytes, kept->packed.size);
    }
}

void events_finish(struct events *ev)
{
    for (int i = 0; i < EVENTS_KEPT; i++) {
        buf_finish(&ev->kept[i].packed);
        buf_finish(&ev->kept[i].outcome);
    }
}
