// The part of the state that is connections: what came and was not processed, replies that were not
// sent, and what is each client's own.

#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "request/parts.h"
#include "base/clock.h"
#include "request/request.h"
#include "request/trace.h"
#include "base/version.h"

enum { PIECE = 1 << 20 }; // bytes of a buffer in one record

// --- connections

static void write_bytes(struct state_out *out, bool sent, const uint8_t *bytes, size_t size)
{
    for (size_t n; size > 0; bytes += n, size -= n) {
        n = size < PIECE ? size : PIECE;
        state_begin(out, "conn_bytes", 2);
        pack_key_bool(&out->bytes, "sent", sent);
        state_put_bytes(out, "bytes", bytes, n);
    }
}

// Each descriptor stands before the byte that it goes with.
static void write_unsent(struct state_out *out, const struct stream *s)
{
    const uint8_t *bytes = s->out.bytes + s->out_start;
    size_t at = 0;
    for (size_t i = 0; i < s->n_out_fds; i++) {
        size_t before = (size_t)(s->out_fds[i].at - s->sent) - at;
        write_bytes(out, true, bytes + at, before);
        at += before;
        state_begin(out, "conn_out_fd", 1);
        state_put_fd(out, "fd", s->out_fds[i].fd);
    }
    write_bytes(out, true, bytes + at, stream_unsent(s) - at);
}

static void write_own(struct state_out *out, const struct conn *c);

static void write_conn(struct state_out *out, const struct conn *c)
{
    const struct stream *s = &c->stream;
    struct buf *bytes = &out->bytes;
    state_begin(out, "conn", 6);
    pack_key_uint(bytes, "id", c->id);
    pack_key_uint(bytes, "holder", state_number(&out->holders, c->holder));
    state_put_fd(out, "fd", s->fd);
    pack_key_bool(bytes, "follows", c->follows);
    pack_key_bool(bytes, "traces", c->traces);
    pack_key_uint(bytes, "seen", c->last_event);
    for (int i = 0; i < s->n_fds; i++) {
        state_begin(out, "conn_fd", 1);
        state_put_fd(out, "fd", s->fds[i]);
    }
    write_bytes(out, false, stream_bytes(s), stream_size(s));
    write_unsent(out, s);
    write_own(out, c);
}

static struct conn *find_conn(const struct broker *b, uint64_t id)
{
    struct conn *c = b->conns;
    while (c && c->id != id)
        c = c->next;
    return c;
}

bool state_read_conn(struct state_in *in)
{
    struct broker *b = in->broker;
    uint64_t id = (uint64_t)state_int(in, "id", 1, INT64_MAX);
    struct holder *holder = state_thing(in, "holder", &in->holders);
    if (!state_good(in) || !holder || holder->among || id > b->next_conn_id || find_conn(b, id))
        return state_fail(in, "it has no holder, or its id is in use, or of the future");
    struct conn *c = in->conn = conn_new(b, id);
    holder_unref(c->holder);
    c->holder = holder_ref(holder);
    holder_enter(holder, &b->devices.holders, id);
    c->stream.fd = state_fd(in, "fd");
    c->follows = state_bool(in, "follows");
    // Programs from before there was a trace have no such field.
    trace_follow(c, state_get(in, "traces") && state_bool(in, "traces"));
    c->last_event = state_uint(in, "seen");
    return true;
}

bool state_read_conn_fd(struct state_in *in)
{
    struct conn *c = in->conn;
    if (!c || c->stream.n_fds == STREAM_MAX_FDS)
        return state_fail(in, "there is no connection for it, or it is one too many");
    int fd = state_fd(in, "fd");
    if (fd >= 0)
        c->stream.fds[c->stream.n_fds++] = fd;
    return true;
}

bool state_read_conn_bytes(struct state_in *in)
{
    size_t size;
    const void *bytes = state_bytes(in, "bytes", &size);
    bool sent = state_bool(in, "sent");
    if (!in->conn)
        return state_fail(in, "there is no connection for it");
    buf_append(sent ? &in->conn->stream.out : &in->conn->stream.in, bytes, size);
    return true;
}

bool state_read_conn_out_fd(struct state_in *in)
{
    if (!in->conn)
        return state_fail(in, "there is no connection for it");
    int fd = state_fd(in, "fd");
    if (fd >= 0)
        stream_attach_fd(&in->conn->stream, fd);
    return true;
}

// --- what is a client's own: each record is of the last connection

static void write_shm(struct state_out *out, uint64_t id, const struct shm *shm)
{
    struct buf *bytes = &out->bytes;
    size_t n = 0;
    for (int i = 0; i < DEV_MAX_DEVICES; i++)
        n += shm->mapped[i];
    state_begin(out, "shm", 4);
    pack_key_uint(bytes, "id", id);
    state_put_fd(out, "fd", shm->fd);
    pack_key_uint(bytes, "size", shm->size);
    pack_str(bytes, "mapped");
    pack_array(bytes, n);
    for (int i = 0; i < DEV_MAX_DEVICES; i++) {
        if (!shm->mapped[i])
            continue;
        pack_array(bytes, 2);
        pack_int(bytes, i);
        pack_uint(bytes, shm->regions[i]);
    }
}

static bool read_mapped(struct state_in *in, struct shm *shm)
{
    const struct broker *b = in->broker;
    const value *list = state_get(in, "mapped");
    for (size_t i = 0; i < value_count(list); i++) {
        const value *pair = value_at(list, i);
        int index = (int)state_int_of(in, value_at(pair, 0), 0, b->devices.n - 1);
        uint32_t region = (uint32_t)state_int_of(in, value_at(pair, 1), 0, DEV_MAX_REGIONS - 1);
        if (!state_good(in))
            return false;
        const struct device *d = b->devices.at[index];
        if (region >= d->n_regions || !d->regions[region].used || !d->regions[region].host ||
            d->regions[region].size < shm->size || shm->mapped[index])
            return state_fail(in, "its region is not that of shared memory, or too small");
        shm->mapped[index] = true;
        shm->regions[index] = region;
    }
    return true;
}

bool state_read_shm(struct state_in *in)
{
    struct conn *c = in->conn;
    uint64_t id = (uint64_t)state_int(in, "id", 1, INT64_MAX);
    uint64_t size = (uint64_t)state_int(in, "size", 1, INT64_MAX);
    if (!state_good(in) || !c || map_get(&c->shms, id))
        return state_fail(in, "there is no connection for it, or its id is in use");
    struct shm *shm = mem_zalloc(1, sizeof *shm);
    *shm = (struct shm){ .size = size };
    bool ok = read_mapped(in, shm);
    shm->fd = state_fd(in, "fd");
    if (ok)
        map_put(&c->shms, id, shm);
    else
        free(shm);
    return ok;
}

bool state_read_id(struct state_in *in)
{
    struct conn *c = in->conn;
    uint64_t id = (uint64_t)state_int(in, "id", 1, INT64_MAX);
    struct tensor *t = state_thing(in, "tensor", &in->tensors);
    if (!state_good(in) || !c || !t || map_get(&c->tensors, id) ||
        c->tensors.count == REQUEST_MAX_TENSORS)
        return state_fail(in, "there is no connection or tensor for it, or it is in use");
    map_put(&c->tensors, id, tensor_ref(t));
    t->n_ids++;
    return true;
}

bool state_read_export(struct state_in *in)
{
    struct conn *c = in->conn;
    uint64_t id = (uint64_t)state_int(in, "id", 1, INT64_MAX);
    struct storage *s = state_thing(in, "storage", &in->storages);
    if (!state_good(in) || !c || !s || s->import || map_get(&c->exports, id) ||
        c->exports.count == REQUEST_MAX_EXPORTS)
        return state_fail(in, "there is no connection or storage for it, or it is in use");
    map_put(&c->exports, id, storage_ref(s));
    return true;
}

bool state_read_conn_import(struct state_in *in)
{
    struct conn *c = in->conn;
    uint64_t id = (uint64_t)state_int(in, "id", 1, INT64_MAX);
    struct import *m = state_thing(in, "import", &in->imports);
    if (!state_good(in) || !c || !m || map_get(&c->imports, id) ||
        c->imports.count == REQUEST_MAX_IMPORTS)
        return state_fail(in, "there is no connection or import for it, or it is in use");
    map_put(&c->imports, id, import_ref(m));
    return true;
}

bool state_read_told(struct state_in *in)
{
    uint64_t key = state_hash(in, "op");
    uint64_t failure = (uint64_t)state_int(in, "failure", 1, INT64_MAX);
    if (!state_good(in) || !in->conn)
        return state_fail(in, "there is no connection for it");
    map_put(&in->conn->warnings, key, (void *)(uintptr_t)failure);
    return true;
}

// Ids, and the numbers of what they stand for.
static void write_ids(struct state_out *out, const struct map *m, const char *record,
                      const char *key, const struct state_numbers *numbers)
{
    for (size_t i = 0; i < m->capacity; i++) {
        if (!m->slots[i].value)
            continue;
        state_begin(out, record, 2);
        pack_key_uint(&out->bytes, "id", m->slots[i].key);
        pack_key_uint(&out->bytes, key, state_number(numbers, m->slots[i].value));
    }
}

static void write_own(struct state_out *out, const struct conn *c)
{
    write_ids(out, &c->tensors, "id", "tensor", &out->tensors);
    write_ids(out, &c->exports, "export", "storage", &out->storages);
    write_ids(out, &c->imports, "conn_import", "import", &out->imports);
    const struct map *m = &c->shms;
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].value)
            write_shm(out, m->slots[i].key, m->slots[i].value);
    m = &c->warnings;
    for (size_t i = 0; i < m->capacity; i++) {
        if (!m->slots[i].value)
            continue;
        state_begin(out, "told", 2);
        state_put_hash(out, "op", m->slots[i].key);
        pack_key_uint(&out->bytes, "failure", (uint64_t)(uintptr_t)m->slots[i].value);
    }
    state_write_contexts(out, c);
}

// --- the answer to who has asked for the upgrade

static void write_reply(struct state_out *out, const struct request *asked)
{
    state_begin(out, "reply", 4);
    pack_key_uint(&out->bytes, "conn", asked->conn->id);
    pack_key_uint(&out->bytes, "request", asked->id);
    pack_key_bool(&out->bytes, "notification", asked->notification);
    pack_key_uint(&out->bytes, "since", asked->since);
}

bool state_read_reply(struct state_in *in)
{
    const struct broker *b = in->broker;
    struct conn *c = find_conn(b, state_uint(in, "conn"));
    uint32_t id = (uint32_t)state_int(in, "request", 0, UINT32_MAX);
    uint64_t since = state_uint(in, "since"), now = clock_ns();
    if (!state_good(in) || state_bool(in, "notification") || !c)
        return state_good(in);
    struct buf *out = &c->stream.out;
    pack_reply_ok(out, id);
    pack_map(out, 5);
    pack_key_str(out, "version", OPD_VERSION);
    pack_key_int(out, "pid", getpid());
    pack_key_uint(out, "upgrades", b->n_upgrades);
    pack_key_float(out, "seconds", (double)(now - since) / 1e9);
    pack_key_float(out, "held", (double)(now - b->held_since) / 1e9);
    return true;
}

void state_write_conns(struct state_out *out, struct broker *b, const struct request *asked)
{
    for (const struct conn *c = b->conns; c; c = c->next)
        write_conn(out, c);
    if (asked)
        write_reply(out, asked);
}
