#include "c/message.h"

#include <stdlib.h>

#include "c/error.h"

enum { RESPONSE = 1, NOTIFICATION = 2 };

void opd_reply_clear(struct opd_reply *reply)
{
    if (reply->zone)
        msgpack_zone_free(reply->zone);
    free(reply->bytes);
    *reply = (struct opd_reply){ 0 };
}

void message_clear(struct message *message)
{
    opd_reply_clear(&message->reply);
    *message = (struct message){ 0 };
}

static bool is_uint(const msgpack_object *o, uint64_t most)
{
    return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= most;
}

static bool read_notification(struct message *m, const msgpack_object_array *parts)
{
    m->method = parts->ptr[1];
    m->reply.result = parts->ptr[2];
    return parts->size == 3 && m->method.type == MSGPACK_OBJECT_STR &&
           m->reply.result.type == MSGPACK_OBJECT_ARRAY;
}

static bool read_parts(struct message *m, const msgpack_object *root)
{
    if (root->type != MSGPACK_OBJECT_ARRAY || root->via.array.size < 3)
        return false;
    const msgpack_object *part = root->via.array.ptr;
    if (!is_uint(&part[0], NOTIFICATION))
        return false;
    if (part[0].via.u64 == NOTIFICATION)
        return read_notification(m, &root->via.array);
    if (part[0].via.u64 != RESPONSE || root->via.array.size != 4)
        return false;
    m->response = true;
    m->has_id = is_uint(&part[1], UINT32_MAX);
    m->id = m->has_id ? (uint32_t)part[1].via.u64 : 0;
    m->error = part[2];
    m->reply.result = part[3];
    return m->has_id || part[1].type == MSGPACK_OBJECT_NIL;
}

bool message_is(const struct message *m, const char *method)
{
    const msgpack_object_str *name = &m->method.via.str;
    return !m->response && name->size == strlen(method) &&
           memcmp(name->ptr, method, name->size) == 0;
}

bool message_read(struct message *m, char *bytes, size_t size, struct opd_error *err)
{
    *m = (struct message){ .reply.bytes = bytes };
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t end = 0;
    bool whole = msgpack_unpack_next(&unpacked, bytes, size, &end) == MSGPACK_UNPACK_SUCCESS;
    m->reply.zone = msgpack_unpacked_release_zone(&unpacked);
    if (whole && end == size && read_parts(m, &unpacked.data))
        return true;
    message_clear(m);
    return error_set(err, OPD_MALFORMED_MESSAGE,
                     "the peer does not speak opd's protocol: no MessagePack-RPC response");
}
