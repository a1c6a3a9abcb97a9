// The part of the state that is memory: devices, the descriptors of their chunks, tensors and their
// names. What is where in the chunks: state_storage.c.

#include "upgrade/archive.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"

// --- devices

void state_device_ref(struct archive *a, const char *key, struct device **d)
{
    int index = a->reading ? 0 : (*d)->space.index;
    archive_int(a, key, &index, 0, a->broker->devices.n - 1);
    *d = a->broker->devices.at[index];
}

static struct device *add_device(struct devices *devices, const char *name)
{
    if (devices->n == DEV_MAX_DEVICES || devices_find(devices, name) ||
        (strcmp(name, "cpu") != 0 && strncmp(name, "cuda:", 5) != 0))
        return NULL;
    struct device *d = devices_add(devices, name);
    d->state = DEVICE_RESTARTING; // what is asked of it waits for its executor
    return d;
}

bool state_device(struct archive *a, void *thing)
{
    struct device *d = thing;
    char name[sizeof d->name] = "";
    if (d)
        memcpy(name, d->name, sizeof name);
    archive_chars(a, "name", name, sizeof name);
    if (!d && !(d = add_device(&a->broker->devices, name)))
        return archive_fail(a, "it has no name of a device, or is one too many");
    a->device = d;
    archive_chars(a, "model", d->info.name, sizeof d->info.name);
    archive_chars(a, "uuid", d->info.uuid, sizeof d->info.uuid);
    archive_chars(a, "target", d->info.target, sizeof d->info.target);
    archive_chars(a, "blas", d->info.blas, sizeof d->info.blas);
    archive_count(a, "memory_total", &d->info.memory_total);
    archive_int(a, "granularity", &d->info.chunk_granularity, 0, ARCHIVE_MAX_SIZE);
    archive_int(a, "driver", &d->info.driver_version, 0, INT32_MAX);
    archive_int(a, "processors", &d->info.processors, 0, INT32_MAX);
    archive_chars(a, "message", d->message, sizeof d->message);
    archive_int(a, "restarts", &d->restart.count, 0, INT32_MAX);
    if (archive_has(a, "reruns")) // absent in programs from before a command was run again
        archive_int(a, "reruns", &d->queue.n_reruns, 0, INT32_MAX);
    if (archive_has(a, "long_args")) // before the compiler is asked anew: plans are as they were
        archive_bool(a, "long_args", &a->broker->devices.long_args);
    archive_int(a, "start_failures", &d->restart.n_failures, 0, INT32_MAX - 1);
    return true;
}

// --- regions: of the last device

// Clients know a chunk by its serial.
static bool is_serial_new(const struct broker *b, uint64_t serial)
{
    for (int i = 0; i < b->devices.n; i++)
        for (uint32_t id = 0; id < b->devices.at[i]->regions.n; id++)
            if (b->devices.at[i]->regions.list[id].used &&
                b->devices.at[i]->regions.list[id].serial == serial)
                return false;
    return serial <= b->devices.n_regions;
}

static bool makes_sense(const struct device_region *r, size_t handle_size)
{
    if (handle_size > 0)
        return handle_size == DEV_IPC_HANDLE && !r->host;
    return r->host || (r->size % SUBALLOC_ALIGN == 0 && r->ready);
}

bool state_region(struct archive *a, void *thing)
{
    struct device *d = a->device;
    struct device_region r = { .used = true, .fd = -1 };
    struct buf handle = { 0 };
    uint32_t id = 0;
    if (thing) {
        r = *(const struct device_region *)thing;
        id = (uint32_t)((const struct device_region *)thing - d->regions.list);
    }
    if (r.ipc)
        buf_append(&handle, r.handle, sizeof r.handle);
    archive_int(a, "id", &id, 0, DEV_MAX_REGIONS - 1);
    archive_int(a, "serial", &r.serial, 1, INT64_MAX);
    archive_fd(a, "fd", &r.fd);
    archive_int(a, "size", &r.size, 1, ARCHIVE_MAX_SIZE);
    archive_bool(a, "host", &r.host);
    archive_bool(a, "ready", &r.ready);
    archive_buf(a, "handle", &handle);
    if (archive_has(a, "kept")) // absent in programs from before there was a keeper
        archive_bool(a, "kept", &r.kept);
    if (archive_has(a, "exported")) // as before: who knows
        archive_bool(a, "exported", &r.exported);
    else
        r.exported = true;
    if (archive_has(a, "closed")) // as before
        archive_bool(a, "closed", &r.closed);
    bool ok = archive_good(a) && makes_sense(&r, handle.size);
    if (ok && handle.size > 0) {
        r.ipc = true;
        memcpy(r.handle, handle.bytes, sizeof r.handle);
    }
    buf_finish(&handle);
    if (thing)
        return true;
    if (!ok || (id < d->regions.n && d->regions.list[id].used) ||
        !is_serial_new(a->broker, r.serial))
        return archive_fail(a, "it is there twice, or of a wrong size");
    device_restore_region(d, id, &r);
    return true;
}

// --- tensors

void state_desc(struct archive *a, const char *key, struct tensor_desc *desc)
{
    enum { STRIDED = 256 }; // beside the dtype: as many strides as sizes follow
    size_t rank = desc->dtype == OPD_DTYPE_NONE ? 0 : (size_t)desc->rank;
    size_t n = desc->dtype == OPD_DTYPE_NONE ? 0 : 1 + rank * (desc->strided ? 2 : 1);
    int kind = (int)desc->dtype + (desc->strided ? STRIDED : 0);
    n = archive_open(a, key, n, 0, 1 + 2 * OP_MAX_RANK);
    if (n > 0)
        archive_int(a, NULL, &kind, 1, STRIDED + OPD_DTYPE_COUNT - 1);
    if (a->reading) {
        bool strided = n > 0 && kind >= STRIDED;
        rank = n == 0 ? 0 : (n - 1) / (strided ? 2 : 1);
        *desc = (struct tensor_desc){ .rank = (int)rank, .strided = strided };
        desc->dtype = n > 0 ? (enum opd_dtype)(kind % STRIDED) : OPD_DTYPE_NONE;
        if (strided && n % 2 == 0)
            archive_fail(a, "a shape has not as many strides as sizes");
    }
    for (size_t i = 0; i < rank && i < OP_MAX_RANK; i++)
        archive_count(a, NULL, &desc->shape[i]);
    for (size_t i = 0; i < rank && i < OP_MAX_RANK && desc->strided; i++)
        archive_count(a, NULL, &desc->strides[i]);
    archive_close(a);
    if (a->reading && n > 0 && archive_good(a) && !tensor_desc_check(desc, a->err))
        opd_err_prefix(a->err, "the state's record '%s'", a->record);
}

static bool lies_in_storage(const struct tensor *t)
{
    return t->storage && t->desc.dtype != OPD_DTYPE_NONE &&
           t->offset % dtype_size(t->desc.dtype) == 0 && t->offset <= t->storage->size &&
           tensor_desc_size(&t->desc) <= t->storage->size - t->offset;
}

bool state_tensor(struct archive *a, void *thing)
{
    struct broker *b = a->broker;
    struct tensor t = thing ? *(const struct tensor *)thing : (struct tensor){ 0 };
    t.storage = state_storage_ref(a, "storage", t.storage);
    archive_count(a, "offset", &t.offset);
    state_desc(a, "desc", &t.desc);
    archive_str(a, "name", &t.name);
    if (thing)
        return true;
    bool ok = archive_good(a) && lies_in_storage(&t) &&
              !(t.name && (!t.name[0] || tensor_find(&b->names, t.name)));
    if (ok) {
        struct tensor *made = tensor_new(t.storage, t.offset, &t.desc);
        archive_made(a, RECORD_tensor, made);
        if (t.name)
            tensor_set_name(&b->names, made, t.name);
    }
    free(t.name);
    return ok || archive_fail(a, "it does not lie in its storage, or its name is in use");
}

// --- all of it

// Staging memory is made anew. A chunk that the device has not made yet has no descriptor.
static bool is_kept(const struct device *d, uint32_t id)
{
    const struct device_region *r = &d->regions.list[id];
    return r->used && (r->fd >= 0 || r->ipc) && !(d->staging.memory && id == d->staging.region);
}

void state_write_memory(struct archive *a)
{
    struct broker *b = a->broker;
    for (int i = 0; i < b->devices.n; i++) {
        struct device *d = b->devices.at[i];
        archive_put(a, RECORD_device, d);
        for (uint32_t id = 0; id < d->regions.n; id++)
            if (is_kept(d, id))
                archive_put(a, RECORD_region, &d->regions.list[id]);
        state_write_chunks(a, d);
    }
    size_t cursor = 0;
    for (struct tensor *t; (t = map_next(&b->names, &cursor)) != NULL;)
        for (; t; t = t->next_named)
            archive_need(a, RECORD_tensor, t);
}
