#include "wire/value.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { ZONE_CHUNK = 4096 };

struct decoder {
    char *bytes;
    size_t size, position;
    msgpack_object root;
    msgpack_zone *zone;        // of messages decoded at once; stays for the next
    msgpack_unpacker unpacker; // of one that is decoded in steps, else zeroed
};

// --- decoding

struct decoder *value_begin(struct decoder *again, const void *bytes, size_t size)
{
    struct decoder *d = again;
    if (!d) {
        d = mem_alloc(sizeof *d);
        *d = (struct decoder){ .zone = NULL };
    }
    d->bytes = (char *)(uintptr_t)bytes;
    d->size = size;
    d->position = 0;
    return d;
}

static int decode_some(struct decoder *d, size_t most)
{
    if (!d->unpacker.ctx && !msgpack_unpacker_init(&d->unpacker, 0))
        return -1;
    // The unpacker's own buffer would be a copy of the message; it reads from the message itself.
    msgpack_unpacker in_place = d->unpacker;
    in_place.buffer = d->bytes;
    in_place.off = in_place.used = d->position;
    int done = 0;
    while (done == 0 && in_place.off == d->position && in_place.used < d->size) {
        size_t left = d->size - in_place.used;
        in_place.used += most < left ? most : left;
        done = msgpack_unpacker_execute(&in_place);
    }
    d->position = in_place.off;
    d->root = msgpack_unpacker_data(&d->unpacker);
    return done;
}

static int decode_all(struct decoder *d)
{
    if (!d->zone && !(d->zone = msgpack_zone_new(ZONE_CHUNK)))
        return -1;
    return msgpack_unpack(d->bytes, d->size, &d->position, d->zone, &d->root);
}

bool value_decode(struct decoder *d, size_t most)
{
    if (d->position == d->size)
        return true;
    bool whole = !d->unpacker.ctx && d->size <= most;
    int done = whole ? decode_all(d) : decode_some(d, most);
    if (done < 0) // no other failure is left in bytes that have passed mpscan()
        mem_exhausted(d->size);
    return d->position == d->size;
}

const value *value_root(const struct decoder *d)
{
    return &d->root;
}

void value_end(struct decoder *d)
{
    if (d->unpacker.ctx)
        msgpack_unpacker_destroy(&d->unpacker);
    d->unpacker.ctx = NULL;
    if (d->zone)
        msgpack_zone_clear(d->zone);
}

void value_finish(struct decoder *d)
{
    if (!d)
        return;
    value_end(d);
    if (d->zone)
        msgpack_zone_free(d->zone);
    free(d);
}

// --- reading

enum value_type value_type(const value *v)
{
    static const enum value_type types[] = {
        [MSGPACK_OBJECT_NIL] = VALUE_NIL,
        [MSGPACK_OBJECT_BOOLEAN] = VALUE_BOOL,
        [MSGPACK_OBJECT_POSITIVE_INTEGER] = VALUE_INT,
        [MSGPACK_OBJECT_NEGATIVE_INTEGER] = VALUE_INT,
        [MSGPACK_OBJECT_FLOAT32] = VALUE_FLOAT,
        [MSGPACK_OBJECT_FLOAT64] = VALUE_FLOAT,
        [MSGPACK_OBJECT_STR] = VALUE_STR,
        [MSGPACK_OBJECT_BIN] = VALUE_BIN,
        [MSGPACK_OBJECT_ARRAY] = VALUE_ARRAY,
        [MSGPACK_OBJECT_MAP] = VALUE_MAP,
        [MSGPACK_OBJECT_EXT] = VALUE_OTHER,
    };
    bool big = v->type == MSGPACK_OBJECT_POSITIVE_INTEGER && v->via.u64 > INT64_MAX;
    return big ? VALUE_BIG : types[v->type];
}

bool value_is_text(const value *v)
{
    return v->type == MSGPACK_OBJECT_STR || v->type == MSGPACK_OBJECT_BIN;
}

const char *value_type_name(const value *v)
{
    static const char *const names[] = { "nil",
                                         "a boolean",
                                         "an integer",
                                         "a float",
                                         "a string",
                                         "binary",
                                         "an array",
                                         "a map",
                                         "an integer above 2^63-1",
                                         "an extension type" };
    return v ? names[value_type(v)] : "missing";
}

bool value_bool(const value *v)
{
    return v->via.boolean;
}

int64_t value_int(const value *v)
{
    return v->via.i64;
}

double value_float(const value *v)
{
    if (v->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        return (double)v->via.u64;
    return v->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ? (double)v->via.i64 : v->via.f64;
}

// msgpack-c has a string and a binary alike in its union.
const char *value_bytes(const value *v, size_t *out_size)
{
    msgpack_object_str text = { 0 };
    if (v->type == MSGPACK_OBJECT_EXT)
        text = (msgpack_object_str){ v->via.ext.size, v->via.ext.ptr };
    else if (value_is_text(v))
        text = v->via.str;
    *out_size = text.size;
    return text.size > 0 ? text.ptr : "";
}

size_t value_count(const value *v)
{
    if (v && v->type == MSGPACK_OBJECT_ARRAY)
        return v->via.array.size;
    return v && v->type == MSGPACK_OBJECT_MAP ? v->via.map.size : 0;
}

const value *value_at(const value *array, size_t i)
{
    bool there = array && array->type == MSGPACK_OBJECT_ARRAY && i < array->via.array.size;
    return there ? &array->via.array.ptr[i] : NULL;
}

const value *value_key_at(const value *map, size_t i)
{
    return &map->via.map.ptr[i].key;
}

const value *value_value_at(const value *map, size_t i)
{
    return &map->via.map.ptr[i].val;
}

const value *value_get(const value *map, const char *key)
{
    size_t length = strlen(key), size;
    for (size_t i = 0; map && map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const char *k = value_bytes(value_key_at(map, i), &size);
        if (value_is_text(value_key_at(map, i)) && size == length && memcmp(k, key, length) == 0)
            return value_value_at(map, i);
    }
    return NULL;
}

bool value_is_nil(const value *v)
{
    return !v || v->type == MSGPACK_OBJECT_NIL;
}

size_t value_utf8_length(const uint8_t *s)
{
    // The least and the greatest second byte keep out overlong forms, surrogates and what is past
    // U+10FFFF.
    uint8_t least = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t greatest = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;
    if (n > 1 && (s[1] < least || s[1] > greatest))
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

size_t value_ascii_length(const char *s, size_t size)
{
    size_t at = 0;
    for (uint64_t word; at + sizeof word <= size; at += sizeof word) {
        memcpy(&word, s + at, sizeof word);
        if (word & 0x8080808080808080u)
            break;
    }
    while (at < size && !(s[at] & 0x80))
        at++;
    return at;
}

bool value_copy_str(const value *v, char *out, size_t size)
{
    size_t length = 0;
    const char *s = value_is_text(v) ? value_bytes(v, &length) : NULL;
    if (!s || length >= size || memchr(s, '\0', length))
        return false;
    memcpy(out, s, length);
    out[length] = '\0';
    const uint8_t *p = (const uint8_t *)out + value_ascii_length(out, length);
    for (size_t n; *p && (n = value_utf8_length(p)) > 0;)
        p += n;
    return !*p;
}
