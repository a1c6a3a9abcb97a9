// Tensors: thin forms of the tensor_... requests.

#include "c/tensor.h"

#include <string.h>

#include "c/client.h"
#include "c/error.h"
#include "c/map.h"

// Bytes of data in one message: less where the daemon takes less, which is 64 KiB at least.
enum { PIECE = 8 << 20, SMALL_PIECE = 32 << 10 };

static bool read_sizes(const msgpack_object *array, int64_t sizes[OPD_MAX_RANK], int *rank)
{
    if (!array || array->type != MSGPACK_OBJECT_ARRAY || array->via.array.size > OPD_MAX_RANK)
        return false;
    *rank = (int)array->via.array.size;
    for (int i = 0; i < *rank; i++)
        if (!map_as_int(&array->via.array.ptr[i], &sizes[i]))
            return false;
    return true;
}

static bool read_shape(const msgpack_object *info, struct opd_tensor *t)
{
    const msgpack_object *strides = opd_map_get(info, "strides");
    int n;
    t->strided = strides && strides->type != MSGPACK_OBJECT_NIL;
    return read_sizes(opd_map_get(info, "shape"), t->shape, &t->rank) &&
           (!t->strided || (read_sizes(strides, t->strides, &n) && n == t->rank));
}

bool tensor_read_info(struct opd_tensor *tensor, const msgpack_object *info, struct opd_error *err)
{
    struct opd_tensor t = { 0 };
    int64_t bytes = 0;
    if (!opd_map_int(info, "id", &t.id) || !read_shape(info, &t) ||
        !opd_map_int(info, "bytes", &bytes) || bytes < 0 ||
        !opd_map_str(info, "dtype", t.dtype, sizeof t.dtype) ||
        !opd_map_str(info, "device", t.device, sizeof t.device))
        return error_set(err, OPD_MALFORMED_MESSAGE, "the reply does not describe a tensor");
    t.bytes = (uint64_t)bytes;
    opd_map_str(info, "name", t.name, sizeof t.name);
    if (tensor)
        *tensor = t;
    return true;
}

// Ends the packing of a request that returns one tensor.
static bool call_for_tensor(struct pack *p, struct opd_client *c, const char *method,
                            struct opd_tensor *tensor, struct opd_error *err)
{
    struct opd_reply reply = { 0 };
    bool good = client_call(c, method, p, &reply, err) &&
                tensor_read_info(tensor, &reply.result, err);
    if (good && tensor)
        prepared_know(c, tensor);
    opd_reply_clear(&reply);
    return good;
}

static bool check_rank(const char *method, const struct opd_tensor *t, struct opd_error *err)
{
    if (t->rank >= 0 && t->rank <= OPD_MAX_RANK)
        return true;
    return error_set(err, OPD_INVALID_ARGUMENT, "%s: rank %d, expected 0 to %d", method, t->rank,
                     OPD_MAX_RANK);
}

static int64_t choose_id(struct opd_client *c, const struct opd_tensor *t)
{
    lane_call_release(c, t->id);
    return t->id ? t->id : ++c->last_id;
}

bool opd_tensor_new(struct opd_client *c, struct opd_tensor *t, struct opd_error *err)
{
    struct pack p;
    if (!check_rank("tensor_new", t, err))
        return false;
    pack_init(&p, 5);
    pack_int(&p, choose_id(c, t));
    pack_str(&p, t->dtype);
    pack_ints(&p, t->shape, (size_t)t->rank);
    pack_str_or_nil(&p, t->name);
    pack_str_or_nil(&p, t->device);
    return call_for_tensor(&p, c, "tensor_new", t, err);
}

bool opd_tensor_view(struct opd_client *c, int64_t source, int64_t offset, struct opd_tensor *t,
                     struct opd_error *err)
{
    struct pack p;
    if (!check_rank("tensor_view", t, err))
        return false;
    pack_init(&p, t->strided ? 5 : 4);
    pack_int(&p, choose_id(c, t));
    pack_int(&p, source);
    pack_int(&p, offset);
    pack_ints(&p, t->shape, (size_t)t->rank);
    if (t->strided)
        pack_ints(&p, t->strides, (size_t)t->rank);
    return call_for_tensor(&p, c, "tensor_view", t, err);
}

bool opd_tensor_attach(struct opd_client *c, struct opd_tensor *t, struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 2);
    pack_int(&p, choose_id(c, t));
    pack_str(&p, t->name);
    return call_for_tensor(&p, c, "tensor_attach", t, err);
}

bool opd_tensor_info(struct opd_client *c, int64_t id, struct opd_tensor *t, struct opd_error *err)
{
    struct pack p;
    lane_call_release(c, id);
    pack_init(&p, 1);
    pack_int(&p, id);
    return call_for_tensor(&p, c, "tensor_info", t, err);
}

bool opd_tensor_free(struct opd_client *c, const int64_t *ids, size_t count, struct opd_error *err)
{
    bool kept = lane_call_keep(c, ids, count);
    prepared_forget(c, ids, count);
    if (kept)
        return true;
    for (size_t i = 0; i < count; i++)
        lane_call_release(c, ids[i]);
    return client_free(c, "tensor", ids, count, err);
}

bool opd_tensor_accept(struct opd_client *c, const int64_t *ids, size_t count,
                       struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 1);
    pack_ids(&p, ids, count);
    return client_call(c, "tensor_accept", &p, NULL, err);
}

static size_t piece_size(const struct opd_client *c)
{
    size_t half = c->max_message / 2;
    return half > PIECE ? PIECE : half < SMALL_PIECE ? SMALL_PIECE : half;
}

static bool write_piece(struct opd_client *c, int64_t id, uint64_t offset, struct iovec data,
                        struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 3);
    pack_int(&p, id);
    msgpack_pack_uint64(&p.mp, offset);
    msgpack_pack_bin(&p.mp, data.iov_len);
    return client_call_with(c, "tensor_write", &p, data, 0, NULL, err);
}

static bool read_piece(struct opd_client *c, int64_t id, uint64_t offset, struct iovec data,
                       struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    pack_init(&p, 3);
    pack_int(&p, id);
    msgpack_pack_uint64(&p.mp, offset);
    msgpack_pack_uint64(&p.mp, data.iov_len);
    bool good = client_call(c, "tensor_read", &p, &reply, err);
    const msgpack_object *o = &reply.result;
    if (good && o->type == MSGPACK_OBJECT_BIN && o->via.bin.size == data.iov_len)
        memcpy(data.iov_base, o->via.bin.ptr, data.iov_len);
    else if (good)
        good = error_set(err, OPD_MALFORMED_MESSAGE,
                         "tensor_read: the reply does not hold the %zu bytes asked for",
                         data.iov_len);
    opd_reply_clear(&reply);
    return good;
}

// In as many messages as it takes; in one where there is nothing to move.
static bool move_all(struct opd_client *c, int64_t id, uint64_t offset, struct iovec all,
                     bool (*move)(struct opd_client *c, int64_t id, uint64_t offset,
                                  struct iovec data, struct opd_error *err),
                     struct opd_error *err)
{
    char *at = all.iov_base;
    size_t size = all.iov_len, piece = piece_size(c);
    do {
        size_t n = size < piece ? size : piece;
        if (!move(c, id, offset, (struct iovec){ at, n }, err))
            return false;
        at += n;
        offset += n;
        size -= n;
    } while (size > 0);
    return true;
}

bool opd_tensor_write(struct opd_client *c, int64_t id, uint64_t offset, const void *bytes,
                      size_t size, struct opd_error *err)
{
    lane_call_release(c, id); // which is not there any more, then
    return move_all(c, id, offset, (struct iovec){ (void *)bytes, size }, write_piece, err);
}

bool opd_tensor_read(struct opd_client *c, int64_t id, uint64_t offset, void *bytes, size_t size,
                     struct opd_error *err)
{
    lane_call_release(c, id);
    return move_all(c, id, offset, (struct iovec){ bytes, size }, read_piece, err);
}
