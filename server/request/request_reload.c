// Requests about edits and versions: reload, events, rollback, pin.

#include <limits.h>

#include "request/parts.h"
#include "kernels/events.h"
#include "kernels/reload.h"
#include "request/request.h"
#include "kernels/source.h"
#include "wire/trust.h"

// The failures that still stand, but those that the events after `seen` tell of.
static size_t pack_standing(const struct broker *b, uint64_t seen, struct buf *out)
{
    size_t n = 0;
    uint64_t oldest = events_oldest(&b->events);
    for (size_t i = 0; i < b->reload.sources.n; i++) {
        const struct source *s = b->reload.sources.at[i];
        const struct source_failure *f = &s->failure;
        if (!f->seq || (f->seq > seen && f->seq >= oldest) || s->missing_since)
            continue;
        events_pack_outcome(&(struct event){ .kind = f->shadowed ? "shadowed" : "failed",
                                             .op = f->op,
                                             .version = f->version,
                                             .file = s->path,
                                             .err = &f->err,
                                             .ms = f->ms },
                            out);
        n++;
    }
    return n;
}

enum request_status request_reload(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    struct conn *c = req->conn;
    struct broker *b = req->broker;
    if (b->handover.upgrade)
        return REQUEST_WAIT; // what it finds is for the successor to compile
    if (!c->reload_pending)
        reload_look(&b->reload);
    c->reload_pending = true;
    if (reload_busy(&b->reload))
        return REQUEST_WAIT;
    c->reload_pending = false;
    struct buf list = { 0 };
    size_t n = pack_standing(b, c->last_event, &list);
    n += events_pack_outcomes(&b->events, c->last_event, &list);
    pack_array(&req->reply, n);
    buf_append(&req->reply, list.bytes, list.size);
    buf_finish(&list);
    c->last_event = b->events.next - 1;
    return REQUEST_ANSWERED;
}

enum request_status request_kernels_add(struct request *req, const value *params,
                                        struct opd_err *err)
{
    struct broker *b = req->broker;
    char folder[PATH_MAX];
    if (b->handover.upgrade)
        return REQUEST_WAIT;
    bool ok = value_copy_str(value_at(params, 0), folder, sizeof folder) && folder[0] == '/';
    if (!ok)
        opd_err_set(err, OPD_E_invalid_argument, "expected a folder's path, from / on");
    if (!ok || !trust_folder(folder, err) || !options_add_kernels(&b->options, folder, err)) {
        opd_err_prefix(err, "kernels_add");
        return REQUEST_ERROR;
    }
    b->reload.sources.n_folders = b->options.n_kernels;
    return request_reload(req, params, err);
}

enum request_status request_events(struct request *req, const value *params, struct opd_err *err)
{
    const value *since = value_at(params, 0), *options = value_at(params, 1);
    bool follow = false;
    if (since && value_int(since) < 0)
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "events: since is negative; expected an event's number, or 0");
    if (!request_flag(options, "events", "follow", &follow, err))
        return REQUEST_ERROR;
    if (!value_is_nil(value_get(options, "follow")))
        events_follow(&req->broker->events, &req->conn->follower, follow);
    const struct events *ev = &req->broker->events;
    size_t map = pack_map_begin(&req->reply);
    pack_str(&req->reply, "events");
    events_pack_since(ev, since ? (uint64_t)value_int(since) : 0, &req->reply);
    pack_key_uint(&req->reply, "next", ev->next - 1);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}

static void serve_version(struct request *req, struct opd_operator *o, struct version *v,
                          const char *kind)
{
    struct broker *b = req->broker;
    registry_serve(&b->registry, o, v);
    b->pins_moved = true;
    events_add(
        &b->events,
        &(struct event){ .kind = kind, .op = o->name, .version = v->number, .file = v->path });
}

enum request_status request_rollback(struct request *req, const value *params, struct opd_err *err)
{
    struct opd_operator *o = request_operator(req, value_at(params, 0), err);
    if (!o)
        return REQUEST_ERROR;
    struct version *v = o->current->older;
    while (v && v->state == VERSION_FAILED)
        v = v->older;
    if (!v)
        return REQUEST_FAIL(err, OPD_E_not_found, "%s: no version before %d is kept", o->name,
                            o->current->number);
    if (o->pinned)
        o->pinned = v->number;
    serve_version(req, o, v, "rolled back");
    size_t map = pack_map_begin(&req->reply);
    pack_key_int(&req->reply, "version", v->number);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}

enum request_status request_pin(struct request *req, const value *params, struct opd_err *err)
{
    struct opd_operator *o = request_operator(req, value_at(params, 0), err);
    const value *version = value_at(params, 1);
    if (!o)
        return REQUEST_ERROR;
    bool unpin = value_is_nil(version);
    struct version *v = unpin ? operator_newest(o) : request_version(o, version, err);
    if (!v)
        return REQUEST_ERROR;
    o->pinned = unpin ? 0 : v->number;
    serve_version(req, o, v, unpin ? "unpinned" : "pinned");
    size_t map = pack_map_begin(&req->reply);
    pack_key_int(&req->reply, "version", v->number);
    pack_key_bool(&req->reply, "pinned", !unpin);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}
