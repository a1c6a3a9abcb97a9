#include "c/pack.h"

#include <string.h>

static int write_bytes(void *data, const char *bytes, size_t size)
{
    struct pack *p = data;
    if (msgpack_sbuffer_write(&p->bytes, bytes, size) != 0)
        p->failed = true;
    return 0;
}

void pack_begin(struct pack *p)
{
    *p = (struct pack){ 0 };
    msgpack_packer_init(&p->mp, p, write_bytes);
}

void pack_init(struct pack *p, size_t count)
{
    pack_begin(p);
    msgpack_pack_array(&p->mp, count);
}

void pack_finish(struct pack *p)
{
    msgpack_sbuffer_destroy(&p->bytes);
}

void pack_int(struct pack *p, int64_t value)
{
    msgpack_pack_int64(&p->mp, value);
}

void pack_bool(struct pack *p, bool value)
{
    if (value)
        msgpack_pack_true(&p->mp);
    else
        msgpack_pack_false(&p->mp);
}

void pack_nil(struct pack *p)
{
    msgpack_pack_nil(&p->mp);
}

void pack_text(struct pack *p, const char *text, size_t size)
{
    msgpack_pack_str(&p->mp, size);
    msgpack_pack_str_body(&p->mp, text, size);
}

void pack_str(struct pack *p, const char *text)
{
    pack_text(p, text, strlen(text));
}

void pack_str_or_nil(struct pack *p, const char *text)
{
    if (text && *text)
        pack_str(p, text);
    else
        pack_nil(p);
}

void pack_ints(struct pack *p, const int64_t *values, size_t n)
{
    msgpack_pack_array(&p->mp, n);
    for (size_t i = 0; i < n; i++)
        pack_int(p, values[i]);
}

static void pack_elements(struct pack *p, const int64_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i])
            pack_int(p, ids[i]);
        else
            pack_nil(p);
    }
}

void pack_ids(struct pack *p, const int64_t *ids, size_t n)
{
    msgpack_pack_array(&p->mp, n);
    pack_elements(p, ids, n);
}

size_t id_lists_arguments(const struct id_lists *l)
{
    return l->lengths ? l->length_count : l->count;
}

bool id_lists_is_list(const struct id_lists *l, size_t argument)
{
    return l->lengths && l->lengths[argument] >= 0;
}

size_t id_lists_length(const struct id_lists *l, size_t argument)
{
    return id_lists_is_list(l, argument) ? (size_t)l->lengths[argument] : 1;
}

void pack_arguments(struct pack *p, const struct id_lists *l)
{
    const int64_t *ids = l->ids;
    for (size_t i = 0; i < id_lists_arguments(l); i++) {
        size_t n = id_lists_length(l, i);
        if (id_lists_is_list(l, i))
            pack_ids(p, ids, n);
        else
            pack_elements(p, ids, 1);
        ids += n;
    }
}

void pack_list(struct pack *p, const char *list)
{
    size_t count = 1;
    for (const char *c = list; *c; c++)
        count += *c == ',';
    msgpack_pack_array(&p->mp, count);
    for (;;) {
        size_t n = strcspn(list, ",");
        pack_text(p, list, n);
        if (!list[n])
            return;
        list += n + 1;
    }
}

void pack_map(struct pack *p, size_t count)
{
    msgpack_pack_map(&p->mp, count);
}
