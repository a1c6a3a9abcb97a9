// The part of the state that is memory: devices, the descriptors of their chunks, what is where in
// them, tensors and their names. Nothing is in flight when it is written, so every request's fate
// is settled.

#include "state.h"

#include <stdlib.h>
#include <string.h>

#include "broker.h"
#include "request.h"

// What fits into no address space is wrong.
static const int64_t MAX_SIZE = (int64_t)1 << 47;

// --- devices

static void write_device(struct state_out *out, const struct device *d)
{
    struct buf *bytes = &out->bytes;
    state_begin(out, "device", 10);
    state_put_str(out, "name", d->name);
    state_put_str(out, "model", d->info.name);
    state_put_str(out, "target", d->info.target);
    pack_key_uint(bytes, "memory_total", d->info.memory_total);
    pack_key_uint(bytes, "memory_free", d->info.memory_free);
    pack_key_uint(bytes, "granularity", d->info.chunk_granularity);
    pack_key_int(bytes, "driver", d->info.driver_version);
    pack_key_int(bytes, "processors", d->info.processors);
    state_put_str(out, "message", d->message);
    pack_key_int(bytes, "restarts", d->n_restarts);
}

bool state_read_device(struct state_in *in)
{
    struct broker *b = in->broker;
    char name[sizeof((struct device *)0)->name];
    state_copy_str(in, "name", name, sizeof name);
    if (b->n_devices == OPTIONS_MAX_DEVICES || broker_device(b, name) ||
        (strcmp(name, "cpu") != 0 && strncmp(name, "cuda:", 5) != 0))
        return state_fail(in, "it has no name of a device, or is one too many");
    struct device *d = b->devices[b->n_devices] = device_new(b, name, b->n_devices);
    b->n_devices++;
    d->state = DEVICE_RESTARTING; // what is asked of it waits for its executor
    state_copy_str(in, "model", d->info.name, sizeof d->info.name);
    state_copy_str(in, "target", d->info.target, sizeof d->info.target);
    d->info.memory_total = state_uint(in, "memory_total");
    d->info.memory_free = state_uint(in, "memory_free");
    d->info.chunk_granularity = (uint64_t)state_int(in, "granularity", 0, MAX_SIZE);
    d->info.driver_version = (int)state_int(in, "driver", 0, INT32_MAX);
    d->info.processors = (int)state_int(in, "processors", 0, INT32_MAX);
    state_copy_str(in, "message", d->message, sizeof d->message);
    d->n_restarts = (int)state_int(in, "restarts", 0, INT32_MAX);
    return true;
}

// --- regions: of the last device

// Staging memory is made anew.
static bool is_kept(const struct device *d, uint32_t id)
{
    const struct device_region *r = &d->regions[id];
    return r->used && r->fd >= 0 && !(d->staging && id == d->staging_region);
}

static void write_regions(struct state_out *out, const struct device *d)
{
    for (uint32_t id = 0; id < d->n_regions; id++) {
        const struct device_region *r = &d->regions[id];
        if (!is_kept(d, id))
            continue;
        state_begin(out, "region", 5);
        pack_key_uint(&out->bytes, "id", id);
        state_put_fd(out, "fd", r->fd);
        pack_key_uint(&out->bytes, "size", r->size);
        pack_key_bool(&out->bytes, "host", r->host);
        pack_key_bool(&out->bytes, "ready", r->ready);
    }
}

bool state_read_region(struct state_in *in)
{
    struct broker *b = in->broker;
    uint32_t id = (uint32_t)state_int(in, "id", 0, DEV_MAX_REGIONS - 1);
    uint64_t size = (uint64_t)state_int(in, "size", 1, MAX_SIZE);
    bool host = state_bool(in, "host"), ready = state_bool(in, "ready");
    struct device *d = b->n_devices > 0 ? b->devices[b->n_devices - 1] : NULL;
    if (!state_good(in) || !d || (id < d->n_regions && d->regions[id].used) ||
        (!host && (size % SUBALLOC_ALIGN || !ready)))
        return state_fail(in, "it is of no device, there twice, or of a wrong size");
    if (id >= d->n_regions)
        d->regions = mem_realloc(d->regions, id + 1, sizeof *d->regions);
    while (d->n_regions <= id)
        d->regions[d->n_regions++] = (struct device_region){ .fd = -1 };
    d->regions[id] = (struct device_region){
        .used = true, .host = host, .ready = ready, .fd = state_fd(in, "fd"), .size = size
    };
    if (!host)
        suballoc_add_chunk(&d->memory, id, size);
    return true;
}

// --- storages

// Everything that holds memory: storages, in the order in which they lie, so that the map of a
// chunk is filled from its start to its end. Tensors, in the order in which they were met.
struct holders {
    struct state_numbers seen;
    struct state_table storages, tensors;
};

static void meet_storage(struct holders *h, struct storage *s)
{
    if (s && state_add(&h->seen, s))
        state_keep(&h->storages, s);
}

static void meet_tensor(struct holders *h, struct tensor *t)
{
    if (!t || !state_add(&h->seen, t))
        return;
    state_keep(&h->tensors, t);
    meet_storage(h, t->storage);
}

static void meet_context(struct holders *h, const struct context *ctx)
{
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        meet_tensor(h, ctx->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        meet_tensor(h, ctx->outputs[i]);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        meet_storage(h, ctx->saved[i]);
}

static void meet_all(struct holders *h, const struct broker *b)
{
    size_t cursor = 0;
    for (struct tensor *t; (t = map_next(&b->names, &cursor)) != NULL;)
        for (; t; t = t->next_named)
            meet_tensor(h, t);
    for (const struct conn *c = b->conns; c; c = c->next) {
        cursor = 0;
        for (struct tensor *t; (t = map_next(&c->tensors, &cursor)) != NULL;)
            meet_tensor(h, t);
        cursor = 0;
        for (const struct context *ctx; (ctx = map_next(&c->contexts, &cursor)) != NULL;)
            meet_context(h, ctx);
    }
}

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
    int order = compare_u64((uint64_t)x->s->device->index, (uint64_t)y->s->device->index);
    if (order == 0)
        order = (p != NULL) - (q != NULL);
    if (order == 0 && p && q)
        order = compare_u64(p->chunk->region, q->chunk->region);
    if (order == 0 && p && q)
        order = compare_u64(p->offset, q->offset);
    return order ? order : compare_u64(x->met, y->met);
}

static void write_storage(struct state_out *out, const struct storage *s)
{
    struct buf *bytes = &out->bytes;
    state_add(&out->storages, s);
    state_begin(out, "storage", 5);
    pack_key_int(bytes, "device", s->device->index);
    pack_key_uint(bytes, "region", s->block ? s->block->chunk->region : 0);
    pack_key_uint(bytes, "offset", s->block ? s->block->offset : 0);
    pack_key_uint(bytes, "size", s->size);
    pack_key_uint(bytes, "version", s->version);
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
        const struct suballoc_chunk *chunk = d->memory.chunks;
        while (chunk && chunk->region != region)
            chunk = chunk->next;
        from = chunk ? chunk->first : NULL;
    }
    in->cursor_device = d;
    return in->cursor = suballoc_take(&d->memory, from, offset, size);
}

bool state_read_storage(struct state_in *in)
{
    struct broker *b = in->broker;
    int index = (int)state_int(in, "device", 0, b->n_devices - 1);
    uint32_t region = (uint32_t)state_int(in, "region", 0, DEV_MAX_REGIONS - 1);
    uint64_t offset = (uint64_t)state_int(in, "offset", 0, MAX_SIZE);
    uint64_t size = (uint64_t)state_int(in, "size", 0, MAX_SIZE);
    uint64_t version = state_uint(in, "version");
    if (!state_good(in))
        return false;
    struct suballoc_block *block = NULL;
    if (size > 0 && !(block = take_piece(in, b->devices[index], region, offset, size)))
        return state_fail(in, "its memory is not there, or something else's too");
    struct storage *s = mem_zalloc(1, sizeof *s);
    *s = (struct storage){
        .refs = 1, .device = b->devices[index], .block = block, .size = size, .version = version
    };
    state_keep(&in->storages, s);
    return true;
}

// --- tensors

void state_put_desc(struct state_out *out, const struct tensor_desc *desc)
{
    if (desc->dtype == OPD_DTYPE_NONE) {
        pack_nil(&out->bytes);
        return;
    }
    pack_array(&out->bytes, 1 + (size_t)desc->rank);
    pack_int(&out->bytes, desc->dtype);
    for (int i = 0; i < desc->rank; i++)
        pack_int(&out->bytes, desc->shape[i]);
}

void state_desc_of(struct state_in *in, const value *v, struct tensor_desc *out)
{
    *out = (struct tensor_desc){ 0 };
    if (value_is_nil(v))
        return;
    size_t n = value_count(v);
    if (n < 1 || n > 1 + OP_MAX_RANK) {
        state_fail(in, "that is no shape");
        return;
    }
    out->dtype = (enum opd_dtype)state_int_of(in, value_at(v, 0), 1, OPD_DTYPE_COUNT - 1);
    out->rank = (int)n - 1;
    for (size_t i = 1; i < n; i++)
        out->shape[i - 1] = state_int_of(in, value_at(v, i), 0, INT64_MAX);
    if (state_good(in) && !tensor_desc_check(out, in->err))
        opd_err_prefix(in->err, "the state's record '%s'", in->record);
}

static void write_tensor(struct state_out *out, const struct tensor *t)
{
    struct buf *bytes = &out->bytes;
    state_add(&out->tensors, t);
    state_begin(out, "tensor", 4);
    pack_key_uint(bytes, "storage", state_number(&out->storages, t->storage));
    pack_key_uint(bytes, "offset", t->offset);
    pack_str(bytes, "desc");
    state_put_desc(out, &t->desc);
    state_put_str(out, "name", t->name);
}

bool state_read_tensor(struct state_in *in)
{
    struct storage *s = state_thing(in, "storage", &in->storages);
    uint64_t offset = state_uint(in, "offset");
    struct tensor_desc desc;
    state_desc_of(in, state_get(in, "desc"), &desc);
    char *name = state_str(in, "name");
    bool ok = state_good(in) && s && desc.dtype != OPD_DTYPE_NONE &&
              offset % dtype_size(desc.dtype) == 0 && offset <= s->size &&
              tensor_desc_size(&desc) <= s->size - offset &&
              !(name && (!name[0] || tensor_find(in->broker, name)));
    if (ok) {
        struct tensor *t = tensor_new(s, offset, &desc);
        state_keep(&in->tensors, t);
        if (name)
            tensor_set_name(in->broker, t, name);
    }
    free(name);
    return ok || state_fail(in, "it does not lie in its storage, or its name is in use");
}

// --- all of it

void state_write_memory(struct state_out *out, struct broker *b)
{
    struct holders h = { 0 };
    for (int i = 0; i < b->n_devices; i++) {
        write_device(out, b->devices[i]);
        write_regions(out, b->devices[i]);
        out->unknown_memory += b->devices[i]->memory.used;
    }
    meet_all(&h, b);
    write_storages(out, &h.storages);
    for (size_t i = 0; i < h.tensors.n; i++)
        write_tensor(out, h.tensors.items[i]);
    map_finish(&h.seen.of);
    free(h.storages.items);
    free(h.tensors.items);
}
