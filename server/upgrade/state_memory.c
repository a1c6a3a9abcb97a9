// The part of the state that is memory: devices, the descriptors of their chunks, tensors and their
// names. What is where in the chunks: state_storage.c.

#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "request/request.h"

// --- devices

static void write_device(struct state_out *out, const struct device *d)
{
    struct buf *bytes = &out->bytes;
    state_begin(out, "device", 13);
    state_put_str(out, "name", d->name);
    state_put_str(out, "model", d->info.name);
    state_put_str(out, "uuid", d->info.uuid);
    state_put_str(out, "target", d->info.target);
    state_put_str(out, "blas", d->info.blas);
    pack_key_uint(bytes, "memory_total", d->info.memory_total);
    pack_key_uint(bytes, "granularity", d->info.chunk_granularity);
    pack_key_int(bytes, "driver", d->info.driver_version);
    pack_key_int(bytes, "processors", d->info.processors);
    state_put_str(out, "message", d->message);
    pack_key_int(bytes, "restarts", d->n_restarts);
    pack_key_int(bytes, "reruns", d->n_reruns);
    pack_key_int(bytes, "start_failures", d->n_start_failures);
}

bool state_read_device(struct state_in *in)
{
    struct broker *b = in->broker;
    char name[sizeof((struct device *)0)->name];
    state_copy_str(in, "name", name, sizeof name);
    if (b->devices.n == DEV_MAX_DEVICES || devices_find(&b->devices, name) ||
        (strcmp(name, "cpu") != 0 && strncmp(name, "cuda:", 5) != 0))
        return state_fail(in, "it has no name of a device, or is one too many");
    struct device *d = devices_add(&b->devices, name);
    d->state = DEVICE_RESTARTING; // what is asked of it waits for its executor
    state_copy_str(in, "model", d->info.name, sizeof d->info.name);
    state_copy_str(in, "uuid", d->info.uuid, sizeof d->info.uuid);
    state_copy_str(in, "target", d->info.target, sizeof d->info.target);
    state_copy_str(in, "blas", d->info.blas, sizeof d->info.blas);
    d->info.memory_total = state_uint(in, "memory_total");
    d->info.chunk_granularity = (uint64_t)state_int(in, "granularity", 0, STATE_MAX_SIZE);
    d->info.driver_version = (int)state_int(in, "driver", 0, INT32_MAX);
    d->info.processors = (int)state_int(in, "processors", 0, INT32_MAX);
    state_copy_str(in, "message", d->message, sizeof d->message);
    d->n_restarts = (int)state_int(in, "restarts", 0, INT32_MAX);
    d->n_reruns = (int)state_int(in, "reruns", 0, INT32_MAX);
    d->n_start_failures = (int)state_int(in, "start_failures", 0, INT32_MAX - 1);
    return true;
}

// --- regions: of the last device

// Staging memory is made anew. A chunk that the device has not made yet has no descriptor.
static bool is_kept(const struct device *d, uint32_t id)
{
    const struct device_region *r = &d->regions[id];
    return r->used && (r->fd >= 0 || r->ipc) && !(d->staging.memory && id == d->staging.region);
}

static void write_regions(struct state_out *out, const struct device *d)
{
    for (uint32_t id = 0; id < d->n_regions; id++) {
        const struct device_region *r = &d->regions[id];
        if (!is_kept(d, id))
            continue;
        state_begin(out, "region", 7);
        pack_key_uint(&out->bytes, "id", id);
        pack_key_uint(&out->bytes, "serial", r->serial);
        state_put_fd(out, "fd", r->fd);
        pack_key_uint(&out->bytes, "size", r->size);
        pack_key_bool(&out->bytes, "host", r->host);
        pack_key_bool(&out->bytes, "ready", r->ready);
        state_put_bytes(out, "handle", r->handle, r->ipc ? DEV_IPC_HANDLE : 0);
    }
}

// Clients know a chunk by its serial.
static bool is_serial_new(const struct broker *b, uint64_t serial)
{
    for (int i = 0; i < b->devices.n; i++)
        for (uint32_t id = 0; id < b->devices.at[i]->n_regions; id++)
            if (b->devices.at[i]->regions[id].used &&
                b->devices.at[i]->regions[id].serial == serial)
                return false;
    return serial <= b->devices.n_regions;
}

static bool makes_sense(const struct device_region *r, size_t handle_size)
{
    if (r->ipc)
        return handle_size == DEV_IPC_HANDLE && !r->host;
    return r->host || (r->size % SUBALLOC_ALIGN == 0 && r->ready);
}

bool state_read_region(struct state_in *in)
{
    struct broker *b = in->broker;
    size_t handle_size;
    const void *handle = state_bytes(in, "handle", &handle_size);
    uint32_t id = (uint32_t)state_int(in, "id", 0, DEV_MAX_REGIONS - 1);
    struct device_region r = { .used = true,
                               .host = state_bool(in, "host"),
                               .ready = state_bool(in, "ready"),
                               .ipc = handle_size > 0,
                               .fd = -1,
                               .size = (uint64_t)state_int(in, "size", 1, STATE_MAX_SIZE),
                               .serial = (uint64_t)state_int(in, "serial", 1, INT64_MAX) };
    struct device *d = b->devices.n > 0 ? b->devices.at[b->devices.n - 1] : NULL;
    if (!state_good(in) || !d || (id < d->n_regions && d->regions[id].used) ||
        !makes_sense(&r, handle_size) || !is_serial_new(b, r.serial))
        return state_fail(in, "it is of no device, there twice, or of a wrong size");
    r.fd = state_fd(in, "fd");
    if (r.ipc)
        memcpy(r.handle, handle, DEV_IPC_HANDLE);
    if (id >= d->n_regions)
        d->regions = mem_realloc(d->regions, id + 1, sizeof *d->regions);
    while (d->n_regions <= id)
        d->regions[d->n_regions++] = (struct device_region){ .fd = -1 };
    d->regions[id] = r;
    if (!r.host && !r.ipc)
        device_restore_chunk(d, id, r.size);
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
              !(name && (!name[0] || tensor_find(&in->broker->names, name)));
    if (ok) {
        struct tensor *t = tensor_new(s, offset, &desc);
        state_keep(&in->tensors, t);
        if (name)
            tensor_set_name(&in->broker->names, t, name);
    }
    free(name);
    return ok || state_fail(in, "it does not lie in its storage, or its name is in use");
}

// --- all of it

void state_write_memory(struct state_out *out, struct broker *b)
{
    struct state_table tensors = { 0 };
    for (int i = 0; i < b->devices.n; i++) {
        write_device(out, b->devices.at[i]);
        write_regions(out, b->devices.at[i]);
        out->unknown_memory += b->devices.at[i]->space.map.used;
    }
    state_write_storages(out, b, &tensors);
    for (size_t i = 0; i < tensors.n; i++)
        write_tensor(out, tensors.items[i]);
    free(tensors.items);
}
