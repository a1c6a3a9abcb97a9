// The part of the state that is storages: what is where in the memory of devices and of clients,
// who made it, and what of it is suspect. Nothing is in flight when it is written for good, so
// every request's fate is settled.

#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "request/request.h"

// --- who holds memory

// Each thing once. Storages are sorted before they are written, so that the map of a chunk is
// filled from its start to its end; the others are in the order in which they were met.
struct met {
    struct state_numbers seen;
    struct state_table holders, imports, storages, tensors;
};

static void meet(struct met *m, struct state_table *table, void *thing)
{
    if (thing && state_add(&m->seen, thing))
        state_keep(table, thing);
}

static void meet_storage(struct met *m, struct storage *s)
{
    if (!s)
        return;
    meet(m, &m->storages, s);
    meet(m, &m->holders, s->holder);
    meet(m, &m->imports, s->import);
}

static void meet_tensor(struct met *m, struct tensor *t)
{
    if (!t)
        return;
    meet(m, &m->tensors, t);
    meet_storage(m, t->storage);
}

static void meet_context(struct met *m, const struct context *ctx)
{
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        meet_tensor(m, ctx->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        meet_tensor(m, ctx->outputs[i]);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        meet_storage(m, ctx->saved[i]);
}

static void meet_conn(struct met *m, const struct conn *c)
{
    size_t cursor = 0;
    meet(m, &m->holders, c->holder);
    for (struct tensor *t; (t = map_next(&c->tensors, &cursor)) != NULL;)
        meet_tensor(m, t);
    cursor = 0;
    for (const struct context *ctx; (ctx = map_next(&c->contexts, &cursor)) != NULL;)
        meet_context(m, ctx);
    cursor = 0;
    for (struct storage *s; (s = map_next(&c->exports, &cursor)) != NULL;)
        meet_storage(m, s);
    cursor = 0;
    for (struct import *i; (i = map_next(&c->imports, &cursor)) != NULL;)
        meet(m, &m->imports, i);
}

static void meet_all(struct met *m, const struct broker *b)
{
    size_t cursor = 0;
    for (struct tensor *t; (t = map_next(&b->names, &cursor)) != NULL;)
        for (; t; t = t->next_named)
            meet_tensor(m, t);
    for (const struct conn *c = b->conns; c; c = c->next)
        meet_conn(m, c);
}

static bool is_lost(const struct fate *f)
{
    return f && f->state == FATE_FAILED;
}

static struct fate *make_fate(enum fate_state state)
{
    struct fate *f = mem_zalloc(1, sizeof *f);
    *f = (struct fate){ .refs = 1, .state = state };
    return f;
}

// --- holders

static void write_holder(struct state_out *out, const struct holder *h)
{
    state_add(&out->holders, h);
    state_begin(out, "holder", 2);
    pack_key_int(&out->bytes, "pid", h->pid);
    state_put_str(out, "client", h->client);
}

bool state_read_holder(struct state_in *in)
{
    struct holder *h = holder_new((int)state_int(in, "pid", 0, INT32_MAX));
    state_keep(&in->holders, h);
    state_copy_str(in, "client", h->client, sizeof h->client);
    return true;
}

// --- imports

static void write_import(struct state_out *out, const struct import *m)
{
    struct buf *bytes = &out->bytes;
    state_add(&out->imports, m);
    state_begin(out, "import", 4);
    pack_key_int(bytes, "device", m->space->index);
    pack_key_uint(bytes, "region", m->region);
    pack_key_uint(bytes, "size", m->size);
    pack_key_bool(bytes, "lost", is_lost(m->fate));
}

static bool is_in_region(const struct import *m)
{
    const struct device *d = m->space->device;
    const struct device_region *r = m->region < d->n_regions ? &d->regions[m->region] : NULL;
    return r && r->used && (r->host || r->ipc) && m->size <= r->size;
}

bool state_read_import(struct state_in *in)
{
    struct broker *b = in->broker;
    int index = (int)state_int(in, "device", 0, b->devices.n - 1);
    uint32_t region = (uint32_t)state_int(in, "region", 0, IMPORT_UNMAPPED);
    uint64_t size = (uint64_t)state_int(in, "size", 0, STATE_MAX_SIZE);
    bool lost = state_bool(in, "lost");
    if (!state_good(in))
        return false;
    struct import *m = mem_zalloc(1, sizeof *m);
    *m = (struct import){ .refs = 1,
                          .fate = make_fate(lost ? FATE_FAILED : FATE_DONE),
                          .space = &b->devices.at[index]->space,
                          .region = region,
                          .size = size };
    if ((region == IMPORT_UNMAPPED && lost) || is_in_region(m)) {
        state_keep(&in->imports, m);
        return true;
    }
    m->region = IMPORT_UNMAPPED; // it is another's
    import_unref(m);
    return state_fail(in, "its region is not that of a client's memory, or too small");
}

// --- storages

struct sorted {
    const struct storage *s;
    size_t met;
};

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_places(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    const struct suballoc_block *p = x->s->block, *q = y->s->block;
    int order = compare_u64((uint64_t)x->s->space->index, (uint64_t)y->s->space->index);
    if (order == 0)
        order = (p != NULL) - (q != NULL);
    if (order == 0 && p && q)
        order = compare_u64(p->chunk->region, q->chunk->region);
    if (order == 0 && p && q)
        order = compare_u64(p->offset, q->offset);
    return order ? order : compare_u64(x->met, y->met);
}

// Of those that failed: none is under way.
static void write_writes(struct state_out *out, const struct storage *s)
{
    for (const struct write *w = s->writes; w; w = w->next) {
        if (!is_lost(w->fate))
            continue;
        uint64_t why = state_text(out, w->fate->why);
        state_begin(out, "write", 3);
        pack_key_uint(&out->bytes, "begin", w->begin);
        pack_key_uint(&out->bytes, "end", w->end);
        pack_key_uint(&out->bytes, "why", why);
    }
}

static void write_storage(struct state_out *out, const struct storage *s)
{
    struct buf *bytes = &out->bytes;
    state_add(&out->storages, s);
    state_begin(out, "storage", 10);
    pack_key_int(bytes, "device", s->space->index);
    pack_key_uint(bytes, "region", s->block ? s->block->chunk->region : 0);
    pack_key_uint(bytes, "offset", s->block ? s->block->offset : 0);
    pack_key_uint(bytes, "room", s->block ? s->block->size : 0);
    pack_key_uint(bytes, "import", state_number(&out->imports, s->import));
    pack_key_uint(bytes, "import_offset", s->import_offset);
    pack_key_uint(bytes, "size", s->size);
    pack_key_uint(bytes, "version", s->version);
    pack_key_uint(bytes, "holder", state_number(&out->holders, s->holder));
    pack_key_bool(bytes, "lost", is_lost(s->fate));
    write_writes(out, s);
}

static void write_storages(struct state_out *out, const struct state_table *table)
{
    struct sorted *list = mem_zalloc(table->n ? table->n : 1, sizeof *list);
    for (size_t i = 0; i < table->n; i++)
        list[i] = (struct sorted){ table->items[i], i };
    qsort(list, table->n, sizeof *list, compare_places);
    for (size_t i = 0; i < table->n; i++) {
        const struct storage *s = list[i].s;
        write_storage(out, s);
        out->unknown_memory -= s->block ? s->block->size : 0;
    }
    free(list);
}

static struct suballoc_block *take_piece(struct state_in *in, struct device *d, uint32_t region,
                                         uint64_t offset, uint64_t size)
{
    struct suballoc_block *from = in->cursor;
    if (!from || in->cursor_device != d || from->chunk->region != region) {
        const struct suballoc_chunk *chunk = d->space.map.chunks;
        while (chunk && chunk->region != region)
            chunk = chunk->next;
        from = chunk ? chunk->first : NULL;
    }
    in->cursor_device = d;
    return in->cursor = suballoc_take(&d->space.map, from, offset, size);
}

static bool has_memory(struct state_in *in, struct storage *s)
{
    uint32_t region = (uint32_t)state_int(in, "region", 0, DEV_MAX_REGIONS - 1);
    uint64_t offset = (uint64_t)state_int(in, "offset", 0, STATE_MAX_SIZE);
    uint64_t room = (uint64_t)state_int(in, "room", 0, STATE_MAX_SIZE);
    const struct import *m = s->import;
    if (!state_good(in))
        return false;
    if (m)
        return room == 0 && s->size > 0 && m->space->device == s->space->device &&
               s->import_offset <= m->size && s->size <= m->size - s->import_offset;
    if (s->size == 0 || room < s->size || room % SUBALLOC_ALIGN)
        return s->size == 0 && room == 0;
    s->block = take_piece(in, s->space->device, region, offset, room);
    return s->block != NULL;
}

bool state_read_storage(struct state_in *in)
{
    struct broker *b = in->broker;
    int index = (int)state_int(in, "device", 0, b->devices.n - 1);
    struct import *m = state_thing(in, "import", &in->imports);
    struct holder *holder = state_thing(in, "holder", &in->holders);
    bool lost = state_bool(in, "lost");
    uint64_t size = (uint64_t)state_int(in, "size", 0, STATE_MAX_SIZE);
    if (!state_good(in))
        return false;
    struct storage *s = mem_zalloc(1, sizeof *s);
    *s = (struct storage){ .refs = 1,
                           .space = &b->devices.at[index]->space,
                           .import = m ? import_ref(m) : NULL,
                           .import_offset = state_uint(in, "import_offset"),
                           .size = size,
                           .version = state_uint(in, "version"),
                           .fate = lost ? make_fate(FATE_FAILED) : NULL };
    state_keep(&in->storages, s);
    if (!has_memory(in, s))
        return state_fail(in, "its memory is not there, or something else's too");
    s->holder = holder ? holder_ref(holder) : NULL;
    holder_count(s, 1);
    return true;
}

bool state_read_write(struct state_in *in)
{
    struct storage *s = in->storages.n ? in->storages.items[in->storages.n - 1] : NULL;
    uint64_t begin = state_uint(in, "begin"), end = state_uint(in, "end");
    const char *why = state_text_of(in, "why");
    if (!state_good(in) || !s || begin >= end || end > s->size)
        return state_fail(in, "it is of no storage, or ends behind it");
    struct write **last = &s->writes;
    while (*last) // in the order in which they were
        last = &(*last)->next;
    *last = mem_alloc(sizeof **last);
    **last = (struct write){ .begin = begin, .end = end, .fate = make_fate(FATE_FAILED) };
    (*last)->fate->why = why ? mem_strdup(why) : NULL;
    return true;
}

// --- all of it

void state_write_storages(struct state_out *out, const struct broker *b,
                          struct state_table *out_tensors)
{
    struct met m = { 0 };
    meet_all(&m, b);
    for (size_t i = 0; i < m.holders.n; i++)
        write_holder(out, m.holders.items[i]);
    for (size_t i = 0; i < m.imports.n; i++)
        write_import(out, m.imports.items[i]);
    write_storages(out, &m.storages);
    *out_tensors = m.tensors;
    map_finish(&m.seen.of);
    free(m.holders.items);
    free(m.imports.items);
    free(m.storages.items);
}
