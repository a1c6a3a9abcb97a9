#include "c/map.h"

#include <string.h>

const msgpack_object *opd_map_get(const msgpack_object *map, const char *key)
{
    if (map->type != MSGPACK_OBJECT_MAP)
        return NULL;
    size_t n = strlen(key);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];
        if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == n &&
            memcmp(kv->key.via.str.ptr, key, n) == 0)
            return &kv->val;
    }
    return NULL;
}

bool map_as_int(const msgpack_object *value, int64_t *out)
{
    if (value->type == MSGPACK_OBJECT_POSITIVE_INTEGER && value->via.u64 <= INT64_MAX)
        *out = (int64_t)value->via.u64;
    else if (value->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        *out = value->via.i64;
    else
        return false;
    return true;
}

bool opd_map_int(const msgpack_object *map, const char *key, int64_t *out)
{
    const msgpack_object *value = opd_map_get(map, key);
    return value && map_as_int(value, out);
}

bool opd_map_str(const msgpack_object *map, const char *key, char *out, size_t size)
{
    const msgpack_object *value = opd_map_get(map, key);
    if (!value || value->type != MSGPACK_OBJECT_STR)
        return false;
    const char *text = value->via.str.ptr;
    size_t n = value->via.str.size;
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(out, text, n);
    out[n] = '\0';
    return true;
}
