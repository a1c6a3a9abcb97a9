// Requests that make, read, write and name tensors, and shared memory for their bytes.

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "request/parts.h"
#include "base/fdpass.h"
#include "request/request.h"

enum { MAX_NAME = 256 };

// What a message can carry beside its own few bytes.
static uint64_t max_data(const struct broker *b)
{
    return b->options.max_message - 4096;
}

// A memfd is only a promise, and an executor has 2^47 addresses for everyone.
static const int64_t MAX_SHM = (int64_t)1 << 44;

static bool read_name(struct request *req, const value *v, char *name, struct opd_err *err)
{
    name[0] = '\0';
    if (value_is_nil(v))
        return true;
    if (!value_copy_str(v, name, MAX_NAME) || !name[0])
        return opd_err_set(err, OPD_E_invalid_argument,
                           "name: expected 1 to %d bytes of UTF-8 without zeros", MAX_NAME - 1);
    if (tensor_find(&req->broker->names, name))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "a tensor named '%s' is there already; attach to it, or free it first",
                           name);
    return true;
}

static void append_fill(struct command *c, struct dev_ref dst, uint64_t size)
{
    struct dev_fill fill = { .step = { DEV_STEP_FILL, sizeof fill }, .dst = dst, .size = size };
    buf_append(&c->bytes, &fill, sizeof fill);
}

static void append_copy(struct command *c, struct dev_ref dst, struct dev_ref src, uint64_t size)
{
    struct dev_copy copy = {
        .step = { DEV_STEP_COPY, sizeof copy }, .dst = dst, .src = src, .size = size
    };
    buf_append(&c->bytes, &copy, sizeof copy);
}

enum request_status request_tensor_new(struct request *req, const value *params,
                                       struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0));
    char name[MAX_NAME];
    struct tensor_desc desc = { 0 };
    struct device *d;
    if (!request_dtype(value_at(params, 1), &desc.dtype, err) || !request_new_id(req, id, err) ||
        !request_shape(value_at(params, 2), &desc, err) ||
        !read_name(req, value_at(params, 3), name, err) ||
        !(d = request_device(req, value_at(params, 4), err)))
        return REQUEST_ERROR;
    struct storage *storage;
    uint64_t size = tensor_desc_size(&desc);
    switch (storage_new(&d->space, size, req->conn->holder, &storage, err)) {
    case ALLOC_FAILED:
        return REQUEST_ERROR;
    case ALLOC_WAIT:
        return request_wait_memory(req, d);
    case ALLOC_OK:
        break;
    }
    struct tensor *t = tensor_new(storage, 0, &desc);
    storage_unref(storage);
    if (name[0])
        tensor_set_name(&req->broker->names, t, name);
    request_make(req, (uint64_t)id, t);
    tensor_pack(&req->reply, (uint64_t)id, t);
    struct dev_ref dst;
    if (!tensor_address(t, 0, &dst))
        return REQUEST_ANSWERED;
    struct command *c = command_new(DEV_RUN, 0, 1);
    append_fill(c, dst, size);
    return request_submit(req, d, c);
}

// A part of a tensor, in bytes.
static bool check_range(const struct tensor *t, int64_t offset, uint64_t size, struct opd_err *err)
{
    uint64_t bytes = tensor_desc_size(&t->desc);
    if (offset < 0 || (uint64_t)offset > bytes || size > bytes - (uint64_t)offset)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "bytes %" PRId64 " to %" PRId64 " + %" PRIu64
                           " do not lie in a tensor of %" PRIu64 " bytes",
                           offset, offset, size, bytes);
    return true;
}

// [shm id, offset] and a size: where that is for a device.
static bool shm_address(struct request *req, const value *array, uint64_t size, struct device *d,
                        struct dev_ref *out, struct opd_err *err)
{
    const value *id = value_at(array, 0), *offset = value_at(array, 1);
    if (!id || !offset || value_type(id) != VALUE_INT || value_type(offset) != VALUE_INT)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "shared memory is named by [shm id, offset, …] in integers");
    struct shm *shm = map_get(&req->conn->shms, (uint64_t)value_int(id));
    if (!shm)
        return opd_err_set(err, OPD_E_not_found, "this connection has no shared memory %" PRId64,
                           value_int(id));
    int64_t at = value_int(offset);
    if (at < 0 || (uint64_t)at > shm->size || size > shm->size - (uint64_t)at)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%" PRIu64 " bytes at %" PRId64
                           " do not lie in shared memory of %" PRIu64 " bytes",
                           size, at, shm->size);
    if (!shm->mapped[d->space.index] &&
        !device_map_host(d, shm->fd, shm->size, &shm->regions[d->space.index], NULL, err))
        return false;
    shm->mapped[d->space.index] = true;
    *out = (struct dev_ref){ .region = shm->regions[d->space.index], .offset = (uint64_t)at };
    return true;
}

// Stages the bytes of a message. False: all staging memory is in use.
static bool stage_bytes(struct request *req, struct device *d, const void *bytes, uint64_t size,
                        struct dev_ref *out)
{
    struct suballoc_block *block = staging_take(device_staging(d), req->conn->id, size);
    if (!block) {
        req->conn->stages_on = d;
        return false;
    }
    uint64_t at = staging_offset(block);
    if (bytes)
        memcpy(d->staging.memory + at, bytes, size);
    req->staged = block;
    *out = (struct dev_ref){ .region = d->staging.region, .offset = at };
    return true;
}

static enum request_status submit_copy(struct request *req, const char *label, struct device *d,
                                       struct dev_ref dst, struct dev_ref src, uint64_t size)
{
    struct command *c = command_new(DEV_RUN, 0, 1);
    c->label = label;
    append_copy(c, dst, src, size);
    return request_submit(req, d, c);
}

enum request_status request_tensor_write(struct request *req, const value *params,
                                         struct opd_err *err)
{
    struct tensor *t = request_tensor(req, value_at(params, 0), "tensor_write", err);
    if (!t)
        return REQUEST_ERROR;
    int64_t offset = value_int(value_at(params, 1));
    const value *source = value_at(params, 2), *shm_size = value_at(source, 2);
    const char *bytes = NULL;
    size_t size = 0;
    if (value_is_text(source)) {
        bytes = value_bytes(source, &size);
    } else if (shm_size && value_type(shm_size) == VALUE_INT && value_int(shm_size) >= 0) {
        size = (size_t)value_int(shm_size);
    } else {
        opd_err_set(err, OPD_E_invalid_argument,
                    "tensor_write: the bytes are %s, expected binary or [shm id, offset, size]",
                    value_type_name(source));
        return REQUEST_ERROR;
    }
    struct device *d = t->storage->space->device;
    struct dev_ref dst, src;
    if (!check_range(t, offset, size, err) ||
        (!bytes && !shm_address(req, source, size, d, &src, err)))
        return REQUEST_ERROR;
    pack_nil(&req->reply);
    if (size == 0 || !tensor_address(t, (uint64_t)offset, &dst))
        return REQUEST_ANSWERED;
    if (bytes && !stage_bytes(req, d, bytes, size, &src))
        return REQUEST_WAIT;
    t->storage->version++;
    uint64_t begin = t->offset + (uint64_t)offset;
    request_writes(req, t->storage, begin, begin + size);
    return submit_copy(req, "tensor_write", d, dst, src, size);
}

static bool may_read(const struct tensor *t, int64_t offset, uint64_t size, struct opd_err *err)
{
    uint64_t begin = t->offset + (uint64_t)offset;
    return !writes_suspect(t->storage, begin, begin + size) ||
           request_may_read(t, "tensor_read: the tensor", err);
}

enum request_status request_tensor_read(struct request *req, const value *params,
                                        struct opd_err *err)
{
    struct tensor *t = request_tensor(req, value_at(params, 0), "tensor_read", err);
    if (!t)
        return REQUEST_ERROR;
    int64_t offset = value_int(value_at(params, 1));
    const value *wanted = value_at(params, 2), *shm = value_at(params, 3);
    uint64_t bytes = tensor_desc_size(&t->desc),
             size = offset >= 0 && (uint64_t)offset <= bytes ? bytes - (uint64_t)offset : 0;
    if (!value_is_nil(wanted)) {
        if (value_type(wanted) != VALUE_INT || value_int(wanted) < 0) {
            opd_err_set(err, OPD_E_invalid_argument,
                        "tensor_read: the size is %s, expected bytes or nil",
                        value_type_name(wanted));
            return REQUEST_ERROR;
        }
        size = (uint64_t)value_int(wanted);
    }
    struct device *d = t->storage->space->device;
    struct dev_ref dst, src;
    if (!check_range(t, offset, size, err) || !may_read(t, offset, size, err) ||
        (!value_is_nil(shm) && !shm_address(req, shm, size, d, &dst, err)))
        return REQUEST_ERROR;
    if (value_is_nil(shm) && size > max_data(req->broker)) {
        opd_err_set(err, OPD_E_invalid_argument,
                    "tensor_read: %" PRIu64 " bytes do not go into a message; read at most %" PRIu64
                    " at a time, "
                    "or through shared memory",
                    size, max_data(req->broker));
        return REQUEST_ERROR;
    }
    if (size == 0 || !tensor_address(t, (uint64_t)offset, &src)) {
        if (value_is_nil(shm))
            pack_bin(&req->reply, "", 0);
        else
            pack_nil(&req->reply);
        return REQUEST_ANSWERED;
    }
    if (value_is_nil(shm)) {
        if (!stage_bytes(req, d, NULL, size, &dst))
            return REQUEST_WAIT;
        req->read_size = size;
    }
    pack_nil(&req->reply);
    uint64_t begin = t->offset + (uint64_t)offset;
    request_needs(req, t->storage, begin, begin + size);
    return submit_copy(req, "tensor_read", d, dst, src, size);
}

enum request_status request_tensor_copy(struct request *req, const value *params,
                                        struct opd_err *err)
{
    struct tensor *to = request_tensor(req, value_at(params, 0), "tensor_copy", err);
    struct tensor *from = to ? request_tensor(req, value_at(params, 1), "tensor_copy", err) : NULL;
    if (!from)
        return REQUEST_ERROR;
    uint64_t size = tensor_desc_size(&to->desc);
    struct device *d = to->storage->space->device;
    if (d != from->storage->space->device || to->desc.dtype != from->desc.dtype ||
        size != tensor_desc_size(&from->desc) || tensor_overlaps(to, from)) {
        opd_err_set(err, OPD_E_invalid_argument,
                    "tensor_copy: expected tensors of one device, dtype and number of elements "
                    "that do not overlap");
        return REQUEST_ERROR;
    }
    if (!request_may_read(from, "tensor_copy: the tensor", err))
        return REQUEST_ERROR;
    struct dev_ref dst, src;
    pack_nil(&req->reply);
    if (size == 0 || !tensor_address(to, 0, &dst) || !tensor_address(from, 0, &src))
        return REQUEST_ANSWERED;
    to->storage->version++;
    request_needs_tensor(req, from);
    request_needs(req, to->storage, 0, 0); // that it was made
    request_writes(req, to->storage, to->offset, to->offset + size);
    return submit_copy(req, "tensor_copy", d, dst, src, size);
}

enum request_status request_tensor_view(struct request *req, const value *params,
                                        struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0)), offset = value_int(value_at(params, 2));
    struct tensor *t = request_tensor(req, value_at(params, 1), "tensor_view", err);
    if (!t)
        return REQUEST_ERROR;
    struct tensor_desc desc = { .dtype = t->desc.dtype };
    if (!request_new_id(req, id, err) || !request_shape(value_at(params, 3), &desc, err))
        return REQUEST_ERROR;
    int64_t have = tensor_desc_numel(&t->desc), want = tensor_desc_numel(&desc);
    if (offset < 0 || offset > have || want > have - offset) {
        opd_err_set(err, OPD_E_invalid_argument,
                    "tensor_view: %" PRId64 " elements from element %" PRId64
                    " do not lie in a tensor of %" PRId64,
                    want, offset, have);
        return REQUEST_ERROR;
    }
    uint64_t bytes = (uint64_t)offset * dtype_size(desc.dtype);
    struct tensor *view = tensor_new(t->storage, t->offset + bytes, &desc);
    request_make(req, (uint64_t)id, view);
    tensor_pack(&req->reply, (uint64_t)id, view);
    return REQUEST_ANSWERED;
}

enum request_status request_tensor_free(struct request *req, const value *params,
                                        struct opd_err *err)
{
    const value *ids = value_at(params, 0);
    for (size_t i = 0; i < value_count(ids); i++)
        if (!request_tensor(req, value_at(ids, i), "tensor_free", err))
            return REQUEST_ERROR;
    for (size_t i = 0; i < value_count(ids); i++) {
        uint64_t id = (uint64_t)value_int(value_at(ids, i));
        struct tensor *t = map_get(&req->conn->tensors, id);
        if (!t)
            continue; // the same id twice
        tensor_drop_name(&req->broker->names, t);
        request_drop_id(req->conn, id);
    }
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

enum request_status request_tensor_accept(struct request *req, const value *params,
                                          struct opd_err *err)
{
    const value *ids = value_at(params, 0);
    for (size_t i = 0; i < value_count(ids); i++)
        if (!request_tensor(req, value_at(ids, i), "tensor_accept", err))
            return REQUEST_ERROR;
    for (size_t i = 0; i < value_count(ids); i++) {
        struct tensor *t = request_tensor(req, value_at(ids, i), "tensor_accept", err);
        writes_accept(t->storage, t->offset, t->offset + tensor_desc_size(&t->desc));
    }
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

enum request_status request_drop(struct request *req, const value *params, struct opd_err *err)
{
    (void)err;
    for (int list = 0; list < 2; list++) {
        const value *ids = value_at(params, (size_t)list);
        for (size_t i = 0; i < value_count(ids); i++) {
            const value *id = value_at(ids, i);
            if (value_type(id) != VALUE_INT)
                continue;
            if (list == 0)
                request_drop_id(req->conn, (uint64_t)value_int(id));
            else
                context_free(map_remove(&req->conn->contexts, (uint64_t)value_int(id)));
        }
    }
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

enum request_status request_tensor_attach(struct request *req, const value *params,
                                          struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0));
    char name[MAX_NAME] = "";
    struct tensor *t = NULL;
    if (value_copy_str(value_at(params, 1), name, sizeof name))
        t = tensor_find(&req->broker->names, name);
    if (!t) {
        opd_err_set(err, OPD_E_not_found,
                    "no tensor is named '%s'; opctl tensors lists those there are", name);
        return REQUEST_ERROR;
    }
    if (!request_new_id(req, id, err))
        return REQUEST_ERROR;
    request_make(req, (uint64_t)id, tensor_ref(t));
    tensor_pack(&req->reply, (uint64_t)id, t);
    return REQUEST_ANSWERED;
}

enum request_status request_tensor_info(struct request *req, const value *params,
                                        struct opd_err *err)
{
    struct tensor *t = request_tensor(req, value_at(params, 0), "tensor_info", err);
    if (!t)
        return REQUEST_ERROR;
    tensor_pack(&req->reply, (uint64_t)value_int(value_at(params, 0)), t);
    return REQUEST_ANSWERED;
}

bool request_check_memfd(const char *what, int fd, int64_t size, struct opd_err *err)
{
    struct stat st;
    int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    if (fd < 0)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: no file descriptor came with the message (SCM_RIGHTS)", what);
    if (fdpass_left(fd) < FDPASS_KEPT_BACK)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "%s: the daemon keeps its last %d file descriptors for itself; close "
                           "shared memory, or raise its limit (ulimit -n)",
                           what, FDPASS_KEPT_BACK);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return opd_err_set(
            err, OPD_E_invalid_argument,
            "%s: the descriptor is no memfd that is sealed against shrinking; "
            "use memfd_create(MFD_ALLOW_SEALING) and fcntl(F_ADD_SEALS, F_SEAL_SHRINK)",
            what);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR ||
        (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
        return opd_err_set(err, OPD_E_invalid_argument, "%s: the memfd is not writable", what);
    if (fstat(fd, &st) < 0 || size <= 0 || size > st.st_size)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: size %" PRId64 ", the memfd has %lld bytes", what, size,
                           (long long)st.st_size);
    return size <= MAX_SHM ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s: size %" PRId64 " is more than can be mapped; at most %" PRId64, what,
                       size, MAX_SHM);
}

enum request_status request_shm_open(struct request *req, const value *params, struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0)), size = value_int(value_at(params, 1));
    int fd = stream_take_fd(&req->conn->stream);
    bool ok = request_check_memfd("shm_open", fd, size, err);
    if (ok && req->conn->shms.count >= REQUEST_MAX_SHMS)
        opd_err_set(err, OPD_E_out_of_memory, "shm_open: this connection has %d; close some",
                    REQUEST_MAX_SHMS);
    else if (ok && map_get(&req->conn->shms, (uint64_t)id))
        opd_err_set(err, OPD_E_invalid_argument, "shm_open: id %" PRId64 " is in use", id);
    if (err->code) {
        if (fd >= 0)
            close(fd);
        return REQUEST_ERROR;
    }
    struct shm *shm = mem_zalloc(1, sizeof *shm);
    *shm = (struct shm){ .fd = fd, .size = (uint64_t)size };
    map_put(&req->conn->shms, (uint64_t)id, shm);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

enum request_status request_shm_close(struct request *req, const value *params, struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0));
    struct shm *shm = map_remove(&req->conn->shms, (uint64_t)id);
    if (!shm) {
        opd_err_set(err, OPD_E_not_found, "this connection has no shared memory %" PRId64, id);
        return REQUEST_ERROR;
    }
    shm_free(req->broker, shm);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

static void pack_listed(struct buf *out, uint64_t id, const struct tensor *t)
{
    pack_map(out, 9);
    // The info map's pairs, one more beside them: its header is skipped.
    struct buf info = { 0 };
    tensor_pack(&info, id, t);
    buf_append(out, info.bytes + 1, info.size - 1);
    buf_finish(&info);
    pack_key_int(out, "ids", t->n_ids);
    char owner[96];
    pack_key_str(out, "owner", holder_name(t->storage->holder, owner, sizeof owner));
}

enum request_status request_tensor_list(struct request *req, const value *params,
                                        struct opd_err *err)
{
    (void)params, (void)err;
    struct buf list = { 0 };
    size_t n = 0, cursor = 0;
    for (struct tensor *t; (t = map_next(&req->broker->names, &cursor)) != NULL;)
        for (; t; t = t->next_named, n++)
            pack_listed(&list, 0, t);
    const struct map *own = &req->conn->tensors;
    for (size_t i = 0; i < own->capacity; i++) {
        struct tensor *t = own->slots[i].value;
        if (!t || t->name)
            continue;
        pack_listed(&list, own->slots[i].key, t);
        n++;
    }
    pack_array(&req->reply, n);
    buf_append(&req->reply, list.bytes, list.size);
    buf_finish(&list);
    return REQUEST_ANSWERED;
}
