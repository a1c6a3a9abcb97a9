// Requests that share memory: for the bytes of tensors, or in place, where a client maps a tensor's
// chunk, or gives its own memory for tensors.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/word.h"
#include "device/keep.h"
#include "request/parts.h"

// --- memory for bytes

static bool may_share(const struct request *req, const char *what, uint64_t size,
                      struct opd_err *err)
{
    const struct conn *c = req->conn;
    uint64_t sum = 0;
    size_t cursor = 0;
    char asked[32], has[32], may[32];
    for (const struct shm *shm; (shm = map_next(&c->shms, &cursor)) != NULL;)
        sum += shm->size;
    cursor = 0;
    for (const struct import *m; (m = map_next(&c->imports, &cursor)) != NULL;)
        sum += m->size;
    return (sum <= SHM_MOST && size <= SHM_MOST - sum) ||
           opd_err_set(err, OPD_E_out_of_memory,
                       "%s: %s asked for, and this connection shares %s and may share %s in all; "
                       "free some (shm, import)",
                       what, holder_size(size, asked), holder_size(sum, has),
                       holder_size(SHM_MOST, may));
}

enum request_status request_shm_open(struct request *req, const value *params, struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0)), size = value_int(value_at(params, 1));
    bool ok = shm_check("shm_open", *req->fd, size, err) &&
              may_share(req, "shm_open", (uint64_t)size, err);
    if (ok && req->conn->shms.count >= REQUEST_MAX_SHMS)
        opd_err_set(err, OPD_E_out_of_memory, "shm_open: this connection has %d; close some",
                    REQUEST_MAX_SHMS);
    else if (ok && map_get(&req->conn->shms, (uint64_t)id))
        opd_err_set(err, OPD_E_invalid_argument, "shm_open: id %" PRId64 " is in use", id);
    if (err->code)
        return REQUEST_ERROR;
    struct shm *shm = mem_zalloc(1, sizeof *shm);
    *shm = (struct shm){ .fd = *req->fd, .size = (uint64_t)size };
    *req->fd = -1;
    map_put(&req->conn->shms, (uint64_t)id, shm);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

static struct shm *find_shm(const struct request *req, int64_t id, int64_t at, uint64_t size,
                            struct opd_err *err)
{
    struct shm *shm = map_get(&req->conn->shms, (uint64_t)id);
    if (!shm)
        opd_err_set(err, OPD_E_not_found, "this connection has no shared memory %" PRId64, id);
    else if (at < 0 || (uint64_t)at > shm->size || size > shm->size - (uint64_t)at)
        opd_err_set(err, OPD_E_invalid_argument,
                    "%" PRIu64 " bytes at %" PRId64 " do not lie in shared memory of %" PRIu64
                    " bytes",
                    size, at, shm->size);
    return err->code ? NULL : shm;
}

bool request_shm(const struct request *req, int64_t id, int64_t at, uint64_t size, struct device *d,
                 struct dev_ref *out, struct opd_err *err)
{
    struct shm *shm = find_shm(req, id, at, size, err);
    if (!shm || (!shm->spaces[d->space.index] &&
                 !device_map_host(d, shm->fd, shm->size, &shm->regions[d->space.index], NULL, err)))
        return false;
    shm->spaces[d->space.index] = &d->space;
    *out = (struct dev_ref){ .region = shm->regions[d->space.index], .offset = (uint64_t)at };
    return true;
}

// --- the word of a client that waits

enum request_status request_done_word(struct request *req, const value *params, struct opd_err *err)
{
    struct conn *c = req->conn;
    int64_t at = value_int(value_at(params, 1));
    bool none = value_is_nil(value_at(params, 0));
    int64_t id = none ? 0 : value_int(value_at(params, 0));
    if (!none && !find_shm(req, id, at, sizeof(struct word), err))
        return REQUEST_ERROR;
    if (!none && at % (int64_t)sizeof(struct word) != 0)
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "done_word: offset %" PRId64 ", expected a multiple of %zu", at,
                            sizeof(struct word));
    c->word.shm = (uint64_t)id;
    c->word.offset = none ? 0 : (uint64_t)at;
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

// A client that waits has nothing else in flight; what other requests decide, and whom else it is
// told to, is for the broker.
void request_tell(const struct request *req, struct device *d, struct command *cmd, int version)
{
    struct conn *c = req->conn;
    struct dev_word word;
    if (!c->word.shm || c->n_flight > 0 || req->notification || req->n_needs > 0 || c->capture ||
        req->broker->clients.n_tracers > 0 || cmd->bytes.size + sizeof word > DEV_MAX_COMMAND)
        return;
    struct opd_err err;
    opd_err_init(&err);
    word = (struct dev_word){ .step = { DEV_STEP_WORD, sizeof word },
                              .version = (uint32_t)version };
    if (request_shm(req, (int64_t)c->word.shm, (int64_t)c->word.offset, sizeof(struct word), d,
                    &word.at, &err)) {
        buf_append(&cmd->bytes, &word, sizeof word);
        ((struct dev_command *)(void *)cmd->bytes.bytes)->size++;
        c->word.device = d;
    }
    opd_err_clear(&err);
}

// --- export

const struct device_region *request_chunk(const struct storage *s)
{
    return s->block ? &s->space->device->regions.list[s->block->chunk->region] : NULL;
}

void request_drop_export(struct conn *c, uint64_t id)
{
    storage_unref(map_remove(&c->exports, id));
}

static bool check_export(struct request *req, const struct tensor *t, int64_t id,
                         struct opd_err *err)
{
    const struct conn *c = req->conn;
    if (id <= 0 || map_get(&c->exports, (uint64_t)id))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "tensor_export: export id %" PRId64 " is in use, or not above 0", id);
    if (c->exports.count >= REQUEST_MAX_EXPORTS)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "tensor_export: this connection has %d; free some", REQUEST_MAX_EXPORTS);
    return !t->storage->import ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "tensor_export: the tensor is in memory that a client shared; there is no "
                       "chunk of the daemon to map");
}

static void pack_export(struct buf *out, const struct tensor *t)
{
    const struct device_region *chunk = request_chunk(t->storage);
    struct dev_ref at = { 0 };
    tensor_address(t, 0, &at);
    size_t map = pack_map_begin(out);
    pack_key_str(out, "device", t->storage->space->device->name);
    pack_str(out, "chunk");
    if (chunk)
        pack_uint(out, chunk->serial);
    else
        pack_nil(out);
    pack_key_uint(out, "chunk_size", chunk ? chunk->size : 0);
    pack_key_uint(out, "offset", at.offset);
    pack_key_uint(out, "size", t->size);
    pack_map_end(out, map);
}

enum request_status request_tensor_export(struct request *req, const value *params,
                                          struct opd_err *err)
{
    struct tensor *t = request_tensor(req, value_at(params, 0), "tensor_export", err);
    int64_t id = value_int(value_at(params, 1));
    if (!t || !check_export(req, t, id, err) ||
        !request_may_read(t, "tensor_export: the tensor", err))
        return REQUEST_ERROR;
    map_put(&req->conn->exports, (uint64_t)id, storage_ref(t->storage));
    pack_export(&req->reply, t);
    if (!t->storage->block)
        return REQUEST_ANSWERED;
    req->made_export = (uint64_t)id;
    req->exported = t->storage;
    keep_exported(t->storage->space->device, t->storage->block->chunk->region);
    request_needs_tensor(req, t);
    // A command of no steps: it is done when all before it is.
    return request_submit(req, t->storage->space->device, command_new(DEV_RUN, 0, 0));
}

// --- import

// An import_open on its way to the device.
struct opening {
    struct request *req;
    uint64_t id;
    struct import *import; // a reference
};

static void opened(void *data, const struct opd_err *err)
{
    struct opening *o = data;
    struct conn *c = o->req->conn;
    o->import->fate->state = err->code ? FATE_FAILED : FATE_DONE;
    if (err->code && !c->closed && map_get(&c->imports, o->id) == o->import)
        import_unref(map_remove(&c->imports, o->id));
    request_finish(o->req, err);
    import_unref(o->import);
    free(o);
}

static bool read_kind(const value *kind, const struct device *d, bool *out_ipc, struct opd_err *err)
{
    char text[16] = "";
    value_copy_str(kind, text, sizeof text);
    *out_ipc = strcmp(text, "cuda_ipc") == 0;
    if (!*out_ipc && strcmp(text, "memfd") != 0)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "import_open: kind '%s', expected 'cuda_ipc' or 'memfd'", text);
    if (*out_ipc && d->is_cpu)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "import_open: %s cannot open memory of CUDA; share a memfd, or name a "
                           "CUDA device",
                           d->name);
    return *out_ipc || d->is_cpu ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "import_open: kernels on %s cannot use a memfd; use shm_open and copy, or "
                       "the device cpu",
                       d->name);
}

static bool check_import(struct request *req, int64_t id, bool ipc, const value *handle,
                         int64_t size, struct opd_err *err)
{
    const struct conn *c = req->conn;
    size_t handle_size;
    value_bytes(handle, &handle_size);
    if (id <= 0 || map_get(&c->imports, (uint64_t)id))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "import_open: id %" PRId64 " is in use, or not above 0", id);
    if (c->imports.count >= REQUEST_MAX_IMPORTS)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "import_open: this connection has %d; close some", REQUEST_MAX_IMPORTS);
    if (ipc && (handle_size != DEV_IPC_HANDLE || size <= 0))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "import_open: a handle of %zu bytes for %" PRId64
                           " bytes of memory, expected the %d bytes of cuIpcGetMemHandle and the "
                           "size of the allocation",
                           handle_size, size, DEV_IPC_HANDLE);
    return (ipc || shm_check("import_open", *req->fd, size, err)) &&
           may_share(req, "import_open", (uint64_t)size, err);
}

enum request_status request_import_open(struct request *req, const value *params,
                                        struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0)), size = value_int(value_at(params, 4));
    const value *handle = value_at(params, 3);
    bool ipc;
    struct device *d = request_device(req, value_at(params, 1), err);
    if (!d || !read_kind(value_at(params, 2), d, &ipc, err) ||
        !check_import(req, id, ipc, handle, size, err))
        return REQUEST_ERROR;
    struct import *m = import_new(&d->space, (uint64_t)size);
    struct opening *o = mem_alloc(sizeof *o);
    pack_nil(&req->reply);
    map_put(&req->conn->imports, (uint64_t)id, m);
    *o = (struct opening){ request_defer(req), (uint64_t)id, import_ref(m) };
    struct device_mapping mapping = { opened, o };
    size_t handle_size;
    bool asked = ipc ? device_map_ipc(d, (const uint8_t *)value_bytes(handle, &handle_size),
                                      m->size, &m->region, &mapping, err)
                     : device_map_host(d, *req->fd, m->size, &m->region, &mapping, err);
    if (!asked)
        opened(o, err);
    return REQUEST_SUBMITTED;
}

static struct import *find_import(struct request *req, const value *id, struct opd_err *err)
{
    struct import *m = value_type(id) == VALUE_INT
                           ? map_get(&req->conn->imports, (uint64_t)value_int(id))
                           : NULL;
    if (!m)
        opd_err_set(err, OPD_E_not_found, "this connection has no import %" PRId64,
                    value_type(id) == VALUE_INT ? value_int(id) : 0);
    return m;
}

enum request_status request_import_tensor(struct request *req, const value *params,
                                          struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0)), offset = value_int(value_at(params, 2));
    struct import *m = find_import(req, value_at(params, 1), err);
    struct tensor_desc desc = { 0 };
    if (!m || !request_new_id(req, id, err) ||
        !request_dtype(value_at(params, 3), &desc.dtype, err) ||
        !request_shape(value_at(params, 4), &desc, err) ||
        !request_strides(value_at(params, 5), &desc, err))
        return REQUEST_ERROR;
    uint64_t size = tensor_desc_size(&desc);
    if (offset < 0 || (uint64_t)offset > m->size || size > m->size - (uint64_t)offset ||
        (uint64_t)offset % dtype_size(desc.dtype) != 0)
        return REQUEST_FAIL(
            err, OPD_E_invalid_argument,
            "import_tensor: %" PRIu64 " bytes at %" PRId64
            ", expected a multiple of %zu, and all of them in the import's %" PRIu64,
            size, offset, (size_t)dtype_size(desc.dtype), m->size);
    struct storage *s = storage_import(m, (uint64_t)offset, size);
    s->holder = holder_ref(req->conn->holder);
    struct tensor *t = tensor_new(s, 0, &desc);
    storage_unref(s);
    request_make(req, (uint64_t)id, t);
    tensor_pack(&req->reply, (uint64_t)id, t);
    return REQUEST_ANSWERED;
}
