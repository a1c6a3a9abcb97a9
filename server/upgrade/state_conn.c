// The part of the state that is connections: what came and was not processed, replies that were not
// sent, and what is each client's own.

#include "upgrade/archive.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/version.h"
#include "request/graph.h"
#include "request/parts.h"
#include "request/prepared.h"
#include "request/request.h"
#include "request/trace.h"

enum { PIECE = 1 << 20 }; // bytes of a buffer in one record

// --- connections

static struct conn *find_conn(const struct broker *b, uint64_t id)
{
    struct conn *c = b->clients.first;
    while (c && c->id != id)
        c = c->next;
    return c;
}

bool state_conn(struct archive *a, void *thing)
{
    struct broker *b = a->broker;
    struct conn *c = thing;
    uint64_t id = c ? c->id : 0;
    archive_int(a, "id", &id, 1, INT64_MAX);
    struct holder *holder = archive_ref(a, "holder", RECORD_holder, c ? c->holder : NULL);
    if (!c) {
        if (!archive_good(a) || !holder || holder->list || id > b->clients.last_id ||
            find_conn(b, id))
            return archive_fail(a, "it has no holder, or its id is in use, or of the future");
        c = conn_new(b, id);
        holder_unref(c->holder);
        c->holder = holder_ref(holder);
        holder_enter(holder, &b->devices.holders, id);
    }
    a->conn = c;
    bool traces = c->traces, follows = c->follower.follows;
    archive_fd(a, "fd", &c->stream.fd);
    archive_bool(a, "follows", &follows);
    if (archive_has(a, "traces")) // absent in programs from before there was a trace
        archive_bool(a, "traces", &traces);
    if (archive_has(a, "printed")) { // absent in programs from before there were these
        archive_bool(a, "printed", &c->hears.printed);
        archive_bool(a, "compiling", &c->hears.compiling);
        archive_bool(a, "compiled", &c->hears.compiled);
    }
    if (archive_has(a, "word")) { // absent in programs from before there was one
        archive_count(a, "word", &c->word.shm);
        archive_count(a, "word_at", &c->word.offset);
    }
    if (archive_has(a, "lane_begun")) // absent in programs from before there were lanes
        archive_int(a, "lane_begun", &c->lane_begun, 0, UINT32_MAX);
    archive_count(a, "seen", &c->last_event);
    trace_follow(c, traces);
    events_follow(&b->events, &c->follower, follows);
    return true;
}

bool state_conn_fd(struct archive *a, void *thing)
{
    struct stream *s = &a->conn->stream;
    int fd = thing ? *(const int *)thing : -1;
    if (a->reading && s->n_fds == STREAM_MAX_FDS)
        return archive_fail(a, "it is one too many");
    archive_fd(a, "fd", &fd);
    if (a->reading && fd >= 0)
        s->fds[s->n_fds++] = fd;
    return true;
}

// Goes with the byte that comes behind it.
bool state_conn_out_fd(struct archive *a, void *thing)
{
    int fd = thing ? *(const int *)thing : -1;
    archive_fd(a, "fd", &fd);
    if (a->reading && fd >= 0)
        stream_attach_fd(&a->conn->stream, fd);
    return true;
}

// A piece of what a connection has sent, or is to be sent.
struct piece {
    bool sent;
    struct buf bytes;
};

bool state_conn_bytes(struct archive *a, void *thing)
{
    struct stream *s = &a->conn->stream;
    struct piece *piece = thing;
    bool sent = piece && piece->sent;
    archive_bool(a, "sent", &sent);
    archive_buf(a, "bytes", piece ? &piece->bytes : sent ? &s->out : &s->in);
    return true;
}

static void write_bytes(struct archive *a, bool sent, const uint8_t *bytes, size_t size)
{
    for (size_t n; size > 0; bytes += n, size -= n) {
        n = size < PIECE ? size : PIECE;
        struct piece piece = { sent, { .bytes = (uint8_t *)(uintptr_t)bytes, .size = n } };
        archive_put(a, RECORD_conn_bytes, &piece);
    }
}

static void write_unsent(struct archive *a, const struct stream *s)
{
    const uint8_t *bytes = s->out.bytes + s->out_start;
    size_t at = 0;
    for (size_t i = 0; i < s->n_out_fds; i++) {
        size_t before = (size_t)(s->out_fds[i].at - s->sent) - at;
        write_bytes(a, true, bytes + at, before);
        at += before;
        archive_put(a, RECORD_conn_out_fd, &s->out_fds[i].fd);
    }
    write_bytes(a, true, bytes + at, stream_unsent(s) - at);
}

// --- what is a client's own: each record is a slot of a map of the last connection

// A thing under its id; reading: under a new one, with the reference that the caller takes.
static bool archive_own(struct archive *a, const struct map_slot *slot, void *thing,
                        struct map *own, size_t most)
{
    uint64_t id = slot ? slot->key : 0;
    archive_int(a, "id", &id, 1, INT64_MAX);
    if (slot)
        return true;
    if (!archive_good(a) || !thing || map_get(own, id) || own->count >= most)
        return archive_fail(a, "nothing is there for its id, or that is in use");
    map_put(own, id, thing);
    return true;
}

bool state_conn_tensor(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    struct tensor *t = archive_ref(a, "tensor", RECORD_tensor, slot ? slot->value : NULL);
    if (!archive_own(a, slot, t, &a->conn->tensors, REQUEST_MAX_TENSORS))
        return false;
    if (!slot)
        tensor_ref(t)->n_ids++;
    return true;
}

bool state_conn_export(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    struct storage *s = state_storage_ref(a, "storage", slot ? slot->value : NULL);
    if (a->reading && s && s->import)
        return archive_fail(a, "its storage is a client's memory");
    if (!archive_own(a, slot, s, &a->conn->exports, REQUEST_MAX_EXPORTS))
        return false;
    if (!slot)
        storage_ref(s);
    return true;
}

bool state_conn_import(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    struct import *m = archive_ref(a, "import", RECORD_import, slot ? slot->value : NULL);
    if (!archive_own(a, slot, m, &a->conn->imports, REQUEST_MAX_IMPORTS))
        return false;
    if (!slot)
        import_ref(m);
    return true;
}

static bool is_mappable(const struct shm *shm, int index, const struct device *d, uint32_t region)
{
    return region < d->regions.n && d->regions.list[region].used && d->regions.list[region].host &&
           d->regions.list[region].size >= shm->size && !shm->spaces[index];
}

static void archive_mapped(struct archive *a, struct shm *shm)
{
    const struct broker *b = a->broker;
    size_t n = 0;
    for (int i = 0; i < DEV_MAX_DEVICES; i++)
        n += shm->spaces[i] != NULL;
    n = archive_open(a, "mapped", n, 0, DEV_MAX_DEVICES);
    int index = -1;
    for (size_t i = 0; i < n; i++) {
        while (!a->reading && !shm->spaces[++index])
            ;
        uint32_t region = a->reading ? 0 : shm->regions[index];
        archive_open(a, NULL, 2, 2, 2);
        archive_int(a, NULL, &index, 0, b->devices.n - 1);
        archive_int(a, NULL, &region, 0, DEV_MAX_REGIONS - 1);
        archive_close(a);
        if (!a->reading)
            continue;
        if (!archive_good(a) || !is_mappable(shm, index, b->devices.at[index], region)) {
            archive_fail(a, "its region is not that of shared memory, or too small");
            break;
        }
        shm->spaces[index] = &b->devices.at[index]->space;
        shm->regions[index] = region;
    }
    archive_close(a);
}

bool state_shm(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    uint64_t id = slot ? slot->key : 0;
    struct shm shm = slot ? *(const struct shm *)slot->value : (struct shm){ .fd = -1 };
    archive_int(a, "id", &id, 1, INT64_MAX);
    archive_fd(a, "fd", &shm.fd);
    archive_int(a, "size", &shm.size, 1, INT64_MAX);
    archive_mapped(a, &shm);
    if (slot)
        return true;
    if (!archive_good(a) || map_get(&a->conn->shms, id))
        return archive_fail(a, "its id is in use");
    struct shm *made = mem_alloc(sizeof *made);
    *made = shm;
    map_put(&a->conn->shms, id, made);
    return true;
}

// The number of the failure that it was told of, by the hash of the operator's name.
bool state_warning(struct archive *a, void *thing)
{
    struct map_slot slot = thing ? *(const struct map_slot *)thing : (struct map_slot){ 0 };
    uint64_t failure = (uint64_t)(uintptr_t)slot.value;
    archive_bits(a, "op", &slot.key);
    archive_int(a, "failure", &failure, 1, INT64_MAX);
    if (a->reading)
        map_put(&a->conn->warnings, slot.key, (void *)(uintptr_t)failure);
    return true;
}

bool state_prepared(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    struct prepared *p = slot ? slot->value : mem_zalloc(1, sizeof *p);
    uint64_t id = slot ? slot->key : 0;
    archive_int(a, "id", &id, 1, INT64_MAX);
    archive_buf(a, "message", &p->message);
    archive_bool(a, "vjp", &p->vjp);
    archive_bool(a, "context", &p->context);
    archive_int(a, "inputs", &p->n_inputs, 0, OP_MAX_INPUTS);
    archive_int(a, "outputs", &p->n_outputs, 0, OP_MAX_OUTPUTS);
    archive_int(a, "saved", &p->n_saved, 0, OP_MAX_TEMPS);
    archive_bits(a, "told", &p->told);
    if (slot)
        return true;
    if (!archive_good(a) || !prepared_check(&p->message, a->err) ||
        map_get(&a->conn->prepared, id)) {
        prepared_free(p, NULL);
        return archive_fail(a, "it was not prepared so, or its id is in use");
    }
    map_put(&a->conn->prepared, id, p);
    a->conn->prepared_size += p->message.size;
    return true;
}

bool state_conn_graph(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    struct graph *g = archive_ref(a, "graph", RECORD_graph, slot ? slot->value : NULL);
    bool captures = slot && a->conn->capture == slot->value;
    archive_bool(a, "captures", &captures);
    if (!archive_own(a, slot, g, &a->conn->graphs, REQUEST_MAX_GRAPHS))
        return false;
    if (slot)
        return true;
    graph_ref(g);
    if (captures && a->conn->capture)
        return archive_fail(a, "it captures another");
    if (captures)
        a->conn->capture = g;
    return true;
}

// An operator that it has plans of.
bool state_conn_exported(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    const struct opd_operator *exported = slot ? slot->value : NULL;
    char name[OP_MAX_NAME] = "";
    uint64_t scope = exported ? exported->scope : SCOPE_FILES;
    if (exported)
        snprintf(name, sizeof name, "%s", exported->name);
    archive_chars(a, "op", name, sizeof name);
    if (archive_has(a, "scope")) // absent in programs from before operators could be loaded
        archive_bits(a, "scope", &scope);
    struct opd_operator *o = registry_operator(&a->broker->registry, name, scope);
    if (slot)
        return true;
    if (!o || !o->slot)
        return archive_fail(a, "there is no such operator, or it has no slot");
    map_put(&a->conn->exported, o->slot, o);
    return true;
}

static void put_slots(struct archive *a, enum archive_record kind, const struct map *m)
{
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].value)
            archive_put(a, kind, &m->slots[i]);
}

// --- the answer to who has asked for the upgrade

bool state_reply(struct archive *a, void *thing)
{
    const struct request *asked = thing;
    const struct broker *b = a->broker;
    uint64_t conn = asked ? asked->conn->id : 0, since = asked ? asked->since : 0;
    uint32_t id = asked ? asked->id : 0;
    bool notification = asked && asked->notification;
    archive_count(a, "conn", &conn);
    archive_int(a, "request", &id, 0, UINT32_MAX);
    archive_bool(a, "notification", &notification);
    archive_count(a, "since", &since);
    struct conn *c = find_conn(b, conn);
    if (asked || !archive_good(a) || notification || !c)
        return true;
    struct buf *out = &c->stream.out;
    uint64_t now = clock_ns();
    pack_reply_ok(out, id);
    size_t map = pack_map_begin(out);
    pack_key_str(out, "version", OPD_VERSION);
    pack_key_int(out, "pid", getpid());
    pack_key_uint(out, "upgrades", b->handover.count);
    pack_key_float(out, "seconds", (double)(now - since) / 1e9);
    pack_key_float(out, "held", (double)(now - b->handover.held_since) / 1e9);
    pack_map_end(out, map);
    return true;
}

// --- all of it

void state_write_conns(struct archive *a)
{
    for (struct conn *c = a->broker->clients.first; c; c = c->next) {
        archive_put(a, RECORD_conn, c);
        for (int i = 0; i < c->stream.n_fds; i++)
            archive_put(a, RECORD_conn_fd, &c->stream.fds[i]);
        write_bytes(a, false, stream_bytes(&c->stream), stream_size(&c->stream));
        write_unsent(a, &c->stream);
        put_slots(a, RECORD_conn_tensor, &c->tensors);
        put_slots(a, RECORD_conn_export, &c->exports);
        put_slots(a, RECORD_conn_import, &c->imports);
        put_slots(a, RECORD_conn_exported, &c->exported);
        put_slots(a, RECORD_shm, &c->shms);
        put_slots(a, RECORD_warning, &c->warnings);
        put_slots(a, RECORD_context, &c->contexts);
        put_slots(a, RECORD_prepared, &c->prepared);
        put_slots(a, RECORD_conn_graph, &c->graphs);
    }
}
