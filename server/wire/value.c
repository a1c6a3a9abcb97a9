#include "wire/value.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/mpscan.h"

enum { ZONE_CHUNK = 4096 };

// What is being filled: the root, an array, or a map, whose keys and values take turns.
struct level {
    value *next;
    size_t left;
};

struct decoder {
    const uint8_t *at;
    value root;
    msgpack_zone *zone; // of arrays and maps; stays for the next message
    unsigned depth;
    struct level levels[MPSCAN_MAX_DEPTH + 1];
};

// --- decoding

struct decoder *value_begin(struct decoder *again, const void *bytes)
{
    struct decoder *d = again;
    if (!d) {
        d = mem_alloc(sizeof *d);
        d->zone = msgpack_zone_new(ZONE_CHUNK);
        if (!d->zone)
            mem_exhausted(ZONE_CHUNK);
    }
    d->at = bytes;
    d->depth = 1;
    d->levels[0] = (struct level){ &d->root, 1 };
    return d;
}

static uint64_t take_number(struct decoder *d, unsigned n)
{
    d->at += n;
    return mpscan_big_endian(d->at - n, n);
}

static void take_text(struct decoder *d, value *v, msgpack_object_type type, size_t size)
{
    v->type = type;
    v->via.str = (msgpack_object_str){ (uint32_t)size, (const char *)d->at };
    d->at += size;
}

static void take_ext(struct decoder *d, value *v, size_t size)
{
    v->type = MSGPACK_OBJECT_EXT;
    v->via.ext = (msgpack_object_ext){ (int8_t)d->at[0], (uint32_t)size, (const char *)d->at + 1 };
    d->at += 1 + size;
}

// An array's elements, or a map's keys and values: they come next.
static void open_level(struct decoder *d, value *v, msgpack_object_type type, size_t size)
{
    size_t n = type == MSGPACK_OBJECT_MAP ? 2 * size : size;
    value *inner = n ? msgpack_zone_malloc(d->zone, n * sizeof *inner) : NULL;
    if (n && !inner)
        mem_exhausted(n * sizeof *inner);
    v->type = type;
    if (type == MSGPACK_OBJECT_MAP)
        v->via.map = (msgpack_object_map){ (uint32_t)size, (msgpack_object_kv *)(void *)inner };
    else
        v->via.array = (msgpack_object_array){ (uint32_t)size, inner };
    if (n)
        d->levels[d->depth++] = (struct level){ inner, n };
}

static void take_unsigned(value *v, uint64_t number)
{
    v->type = MSGPACK_OBJECT_POSITIVE_INTEGER;
    v->via.u64 = number;
}

static void take_signed(value *v, int64_t number)
{
    v->type = number < 0 ? MSGPACK_OBJECT_NEGATIVE_INTEGER : MSGPACK_OBJECT_POSITIVE_INTEGER;
    v->via.i64 = number;
}

static void take_float(struct decoder *d, value *v, bool is_double)
{
    uint64_t bits = take_number(d, is_double ? 8 : 4);
    uint32_t few = (uint32_t)bits;
    float narrow;
    memcpy(&narrow, &few, sizeof narrow);
    v->type = is_double ? MSGPACK_OBJECT_FLOAT64 : MSGPACK_OBJECT_FLOAT32;
    v->via.f64 = (double)narrow;
    if (is_double)
        memcpy(&v->via.f64, &bits, sizeof bits);
}

// 0xc0 to 0xdf, but for 0xc1, which mpscan() refuses.
static void take_form(struct decoder *d, value *v, uint8_t byte)
{
    switch (byte) {
    case 0xc0:
        v->type = MSGPACK_OBJECT_NIL;
        break;
    case 0xc2:
    case 0xc3:
        v->type = MSGPACK_OBJECT_BOOLEAN;
        v->via.boolean = byte & 1;
        break;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        take_text(d, v, MSGPACK_OBJECT_BIN, take_number(d, 1u << (byte - 0xc4)));
        break;
    case 0xc7:
    case 0xc8:
    case 0xc9:
        take_ext(d, v, take_number(d, 1u << (byte - 0xc7)));
        break;
    case 0xca:
    case 0xcb:
        take_float(d, v, byte == 0xcb);
        break;
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        take_unsigned(v, take_number(d, 1u << (byte - 0xcc)));
        break;
    case 0xd0:
        take_signed(v, (int8_t)take_number(d, 1));
        break;
    case 0xd1:
        take_signed(v, (int16_t)take_number(d, 2));
        break;
    case 0xd2:
        take_signed(v, (int32_t)take_number(d, 4));
        break;
    case 0xd3:
        take_signed(v, (int64_t)take_number(d, 8));
        break;
    case 0xd9:
    case 0xda:
    case 0xdb:
        take_text(d, v, MSGPACK_OBJECT_STR, take_number(d, 1u << (byte - 0xd9)));
        break;
    case 0xdc:
    case 0xdd:
        open_level(d, v, MSGPACK_OBJECT_ARRAY, take_number(d, 2u << (byte - 0xdc)));
        break;
    case 0xde:
    case 0xdf:
        open_level(d, v, MSGPACK_OBJECT_MAP, take_number(d, 2u << (byte - 0xde)));
        break;
    default: // 0xd4 to 0xd8
        take_ext(d, v, (size_t)1 << (byte - 0xd4));
    }
}

static void take_value(struct decoder *d, value *v)
{
    uint8_t byte = *d->at++;
    if (byte < 0x80)
        take_unsigned(v, byte);
    else if (byte >= 0xe0)
        take_signed(v, (int8_t)byte);
    else if (byte >= 0xc0)
        take_form(d, v, byte);
    else if (byte >= 0xa0)
        take_text(d, v, MSGPACK_OBJECT_STR, byte & 0x1f);
    else
        open_level(d, v, byte >= 0x90 ? MSGPACK_OBJECT_ARRAY : MSGPACK_OBJECT_MAP, byte & 0x0f);
}

bool value_decode(struct decoder *d, size_t most)
{
    for (; d->depth > 0 && most > 0; most--) {
        struct level *l = &d->levels[d->depth - 1];
        value *v = l->next++;
        l->left--;
        take_value(d, v);
        while (d->depth > 0 && d->levels[d->depth - 1].left == 0)
            d->depth--;
    }
    return d->depth == 0;
}

const value *value_root(const struct decoder *d)
{
    return &d->root;
}

void value_end(struct decoder *d)
{
    msgpack_zone_clear(d->zone);
}

void value_finish(struct decoder *d)
{
    if (d)
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
