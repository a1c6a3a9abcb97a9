#include "c/pack.h"

#include <string.h>

#include "c/client.h"
#include "c/error.h"

static int write_bytes(void *data, const char *bytes, size_t size)
{
    struct pack *p = data;
    if (msgpack_sbuffer_write(&p->bytes, bytes, size) != 0)
        p->failed = true;
    return 0;
}

void pack_init(struct pack *p, size_t count)
{
    *p = (struct pack){ 0 };
    msgpack_packer_init(&p->mp, p, write_bytes);
    msgpack_pack_array(&p->mp, count);
}

bool pack_call_with(struct pack *p, struct opd_client *client, const char *method,
                    struct iovec tail, double more, struct opd_reply *reply, struct opd_error *err)
{
    bool good;
    if (p->failed)
        good = error_set(err, OPD_OUT_OF_MEMORY, "%s: no host memory for the message", method);
    else
        good = client_call(client, method,
                           (struct iovec[2]){ { p->bytes.data, p->bytes.size }, tail }, more, reply,
                           err);
    msgpack_sbuffer_destroy(&p->bytes);
    return good;
}

bool pack_call(struct pack *p, struct opd_client *client, const char *method,
               struct opd_reply *reply, struct opd_error *err)
{
    return pack_call_with(p, client, method, (struct iovec){ 0 }, 0, reply, err);
}

void pack_int(struct pack *p, int64_t value)
{
    msgpack_pack_int64(&p->mp, value);
}

void pack_key(struct pack *p, const char *text)
{
    size_t n = strlen(text);
    msgpack_pack_str(&p->mp, n);
    msgpack_pack_str_body(&p->mp, text, n);
}

void pack_str(struct pack *p, const char *text)
{
    if (text && *text)
        pack_key(p, text);
    else
        msgpack_pack_nil(&p->mp);
}

void pack_ids(struct pack *p, const int64_t *ids, size_t n)
{
    msgpack_pack_array(&p->mp, n);
    for (size_t i = 0; i < n; i++) {
        if (ids[i])
            pack_int(p, ids[i]);
        else
            msgpack_pack_nil(&p->mp);
    }
}

void pack_shape(struct pack *p, const struct opd_tensor *tensor)
{
    msgpack_pack_array(&p->mp, (size_t)tensor->rank);
    for (int i = 0; i < tensor->rank; i++)
        pack_int(p, tensor->shape[i]);
}
