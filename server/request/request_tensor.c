// Requests that make, read, write and name tensors.

#include <inttypes.h>
#include <string.h>

#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"
#include "request/parted.h"

// The bytes of data that a message can carry beside its own few.
static uint64_t max_data(const struct broker *b)
{
    return b->options.max_message - 4096;
}

static bool read_name(struct request *req, const value *v, char *name, struct opd_err *err)
{
    if (!request_name(v, name, err))
        return false;
    if (name[0] && tensor_find(&req->broker->names, name))
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
    char name[REQUEST_MAX_NAME];
    struct tensor_desc desc = { 0 };
    struct device *d;
    if (!request_dtype(value_at(params, 1), &desc.dtype, err) || !request_new_id(req, id, err) ||
        !request_shape(value_at(params, 2), &desc, err) ||
        !read_name(req, value_at(params, 3), name, err) ||
        !(d = request_device(req, value_at(params, 4), err)))
        return REQUEST_ERROR;
    struct storage *storage;
    uint64_t size = tensor_desc_size(&desc);
    enum request_status status = request_storage(req, d, size, &storage, err);
    if (status != REQUEST_ANSWERED)
        return status;
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
    if (req->conn->capture)
        graph_record_fill(req->conn->capture, t);
    return request_submit(req, d, c);
}

// A part of a tensor, in bytes.
static bool check_range(const struct tensor *t, int64_t offset, uint64_t size, struct opd_err *err)
{
    uint64_t bytes = t->size;
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
    return request_shm(req, value_int(id), value_int(offset), size, d, out, err);
}

// Staging memory for the request. False: all of it is in use.
static bool stage(struct request *req, struct device *d, uint64_t size, struct dev_ref *out)
{
    req->device = d;
    if (!req->staged)
        req->staged = staging_take(device_staging(d), req->conn->id, size);
    if (!req->staged) {
        req->conn->staging_device = d;
        return false;
    }
    *out = (struct dev_ref){ .region = d->staging.region, .offset = staging_offset(req->staged) };
    return true;
}

// The next bytes of a message go there. True: they were the last ones.
static bool stage_part(struct request *req, const char *bytes, size_t size)
{
    size_t n = size - req->at < PARTED_BYTES ? size - req->at : PARTED_BYTES;
    uint8_t *to = req->device->staging.memory + staging_offset(req->staged);
    memcpy(to + req->at, bytes + req->at, n);
    req->at += n;
    return req->at == size;
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
    bool shared = shm_size && value_type(shm_size) == VALUE_INT && value_int(shm_size) >= 0;
    size_t size = shared ? (size_t)value_int(shm_size) : 0;
    const char *bytes = value_is_text(source) ? value_bytes(source, &size) : NULL;
    if (!bytes && !shared)
        return REQUEST_FAIL(
            err, OPD_E_invalid_argument,
            "tensor_write: the bytes are %s, expected binary or [shm id, offset, size]",
            value_type_name(source));
    struct device *d = t->storage->space->device;
    struct dev_ref dst, src;
    if (!check_range(t, offset, size, err) ||
        (req->conn->capture && !graph_may_write(req->conn->capture, t, err)) ||
        (!bytes && !shm_address(req, source, size, d, &src, err)))
        return REQUEST_ERROR;
    bool nothing = size == 0 || !tensor_address(t, (uint64_t)offset, &dst);
    if (!nothing && bytes && !stage(req, d, size, &src))
        return REQUEST_WAIT;
    if (!nothing && bytes && !stage_part(req, bytes, size))
        return REQUEST_AGAIN;
    pack_nil(&req->reply);
    if (nothing)
        return REQUEST_ANSWERED;
    if (req->conn->capture)
        graph_keep_constant(req->conn->capture, t);
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
    uint64_t bytes = t->size,
             size = offset >= 0 && (uint64_t)offset <= bytes ? bytes - (uint64_t)offset : 0;
    if (!value_is_nil(wanted)) {
        if (value_type(wanted) != VALUE_INT || value_int(wanted) < 0)
            return REQUEST_FAIL(err, OPD_E_invalid_argument,
                                "tensor_read: the size is %s, expected bytes or nil",
                                value_type_name(wanted));
        size = (uint64_t)value_int(wanted);
    }
    struct device *d = t->storage->space->device;
    struct dev_ref dst, src;
    if (!check_range(t, offset, size, err) || !may_read(t, offset, size, err) ||
        (!value_is_nil(shm) && !shm_address(req, shm, size, d, &dst, err)))
        return REQUEST_ERROR;
    if (value_is_nil(shm) && size > max_data(req->broker))
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "tensor_read: %" PRIu64
                            " bytes do not go into a message; read at most %" PRIu64 " at a time, "
                            "or through shared memory",
                            size, max_data(req->broker));
    if (size == 0 || !tensor_address(t, (uint64_t)offset, &src)) {
        if (value_is_nil(shm))
            pack_bin(&req->reply, "", 0);
        else
            pack_nil(&req->reply);
        return REQUEST_ANSWERED;
    }
    if (value_is_nil(shm)) {
        if (!replies_may_begin(req->conn, size) || !stage(req, d, size, &dst))
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
        to->desc.strided || from->desc.strided || size != tensor_desc_size(&from->desc) ||
        tensor_overlaps(to, from))
        return REQUEST_FAIL(
            err, OPD_E_invalid_argument,
            "tensor_copy: expected contiguous tensors of one device, dtype and number of "
            "elements that do not overlap");
    if (!request_may_read(from, "tensor_copy: the tensor", err))
        return REQUEST_ERROR;
    struct dev_ref dst, src;
    pack_nil(&req->reply);
    if (size == 0 || !tensor_address(to, 0, &dst) || !tensor_address(from, 0, &src))
        return REQUEST_ANSWERED;
    if (req->conn->capture)
        graph_record_copy(req->conn->capture, to, from);
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
    if (!request_new_id(req, id, err) || !request_shape(value_at(params, 3), &desc, err) ||
        !request_strides(value_at(params, 4), &desc, err))
        return REQUEST_ERROR;
    // Of memory: a view may span less than it has elements, or more.
    int64_t size = (int64_t)dtype_size(desc.dtype);
    int64_t have = (int64_t)t->size / size, want = (int64_t)tensor_desc_size(&desc) / size;
    if (offset < 0 || offset > have || want > have - offset)
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "tensor_view: %" PRId64 " elements from element %" PRId64
                            " do not lie in a tensor of %" PRId64,
                            want, offset, have);
    uint64_t bytes = (uint64_t)offset * dtype_size(desc.dtype);
    struct tensor *view = tensor_new(t->storage, t->offset + bytes, &desc);
    request_make(req, (uint64_t)id, view);
    tensor_pack(&req->reply, (uint64_t)id, view);
    return REQUEST_ANSWERED;
}

static bool check_id(struct request *req, const value *id, size_t i, const void *data,
                     struct opd_err *err)
{
    (void)data;
    char what[48];
    snprintf(what, sizeof what, "element %zu of the ids", i);
    return request_tensor(req, id, what, err) != NULL;
}

static void accept_id(struct request *req, const value *id, const void *data)
{
    (void)data;
    const struct tensor *t = map_get(&req->conn->tensors, (uint64_t)value_int(id));
    if (t)
        writes_accept(t->storage, t->offset, t->offset + t->size);
}

enum request_status request_tensor_accept(struct request *req, const value *params,
                                          struct opd_err *err)
{
    struct parted_ids each = { check_id, accept_id, NULL };
    enum request_status status = parted_each(req, value_at(params, 0), &each, err);
    if (status == REQUEST_ANSWERED)
        pack_nil(&req->reply);
    return status;
}

enum request_status request_tensor_attach(struct request *req, const value *params,
                                          struct opd_err *err)
{
    int64_t id = value_int(value_at(params, 0));
    char name[REQUEST_MAX_NAME] = "";
    struct tensor *t = NULL;
    if (value_copy_str(value_at(params, 1), name, sizeof name))
        t = tensor_find(&req->broker->names, name);
    if (!t)
        return REQUEST_FAIL(err, OPD_E_not_found,
                            "no tensor is named '%s'; opctl tensors lists those there are", name);
    if (!request_new_id(req, id, err))
        return REQUEST_ERROR;
    struct storage *s = t->storage;
    s->shared = s->shared || s->holder != req->conn->holder;
    if (s->shared && !lane_leave_shared(req->broker, s->space->device))
        return REQUEST_WAIT;
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

static void pack_listed(struct buf *out, uint64_t id, const struct tensor *t)
{
    size_t map = pack_map_begin(out);
    tensor_pack_keys(out, id, t);
    pack_key_int(out, "ids", t->n_ids);
    char owner[96];
    pack_key_str(out, "owner", holder_name(t->storage->holder, owner, sizeof owner));
    pack_map_end(out, map);
}

// What one tensor takes in a list, about.
enum { LISTED_SIZE = 160 };

// The tensors that there are when the request comes. They are listed in parts, and one that has
// gone by then is passed over.
struct listing {
    size_t n, n_names;  // keys of the names, then ids
    size_t begun, told; // of the reply's array
};

static struct listing *begin_listing(struct request *req)
{
    const struct map *maps[] = { &req->broker->names, &req->conn->tensors };
    struct listing list = { .n_names = maps[0]->count };
    buf_append(&req->rest, &list, sizeof list);
    buf_reserve(&req->rest, (maps[0]->count + maps[1]->count) * sizeof(uint64_t));
    struct listing *l = (struct listing *)(void *)req->rest.bytes;
    uint64_t *keys = (uint64_t *)(l + 1);
    for (size_t m = 0; m < 2; m++)
        for (size_t i = 0; i < maps[m]->capacity; i++)
            if (maps[m]->slots[i].value)
                keys[l->n++] = maps[m]->slots[i].key;
    req->reply_size = l->n * LISTED_SIZE;
    req->conn->reply_size += req->reply_size;
    parted_begin(req, req->reply_size);
    l->begun = pack_array_begin(&req->reply);
    return l;
}

static void tell_of(struct request *req, struct listing *l, uint64_t key, bool named)
{
    const struct tensor *t = map_get(named ? &req->broker->names : &req->conn->tensors, key);
    if (t && !named && t->name)
        return;
    for (; t; t = named ? t->next_named : NULL, l->told++)
        pack_listed(&req->reply, named ? 0 : key, t);
}

enum request_status request_tensor_list(struct request *req, const value *params,
                                        struct opd_err *err)
{
    (void)params, (void)err;
    size_t n = req->broker->names.count + req->conn->tensors.count;
    if (!req->rest.size && !replies_may_begin(req->conn, n * LISTED_SIZE))
        return REQUEST_WAIT;
    struct listing *l = req->rest.size ? (struct listing *)(void *)req->rest.bytes
                                       : begin_listing(req);
    const uint64_t *keys = (const uint64_t *)(l + 1);
    for (size_t end = req->at + PARTED_TENSORS; req->at < l->n && req->at < end; req->at++)
        tell_of(req, l, keys[req->at], req->at < l->n_names);
    if (req->at < l->n)
        return REQUEST_AGAIN;
    pack_array_end(&req->reply, l->begun, l->told);
    return REQUEST_ANSWERED;
}
