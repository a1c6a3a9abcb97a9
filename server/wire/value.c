#include "wire/value.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

// A map's pairs are two values each.
struct value {
    enum value_type type;
    uint32_t count; // bytes, elements or pairs
    union {
        bool b;
        int64_t i;
        uint64_t u; // BIG
        double f;
        const char *bytes;
        struct value *items;
    };
};

// --- decoding

static uint64_t read_uint(const uint8_t *p, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static int64_t read_int(const uint8_t *p, unsigned n)
{
    uint64_t sign = (uint64_t)1 << (8 * n - 1);
    return (int64_t)((read_uint(p, n) ^ sign) - sign);
}

static double read_float(const uint8_t *p, unsigned n)
{
    uint64_t bits = read_uint(p, n);
    uint32_t narrow = (uint32_t)bits;
    float f;
    double v;
    memcpy(&f, &narrow, sizeof f);
    memcpy(&v, &bits, sizeof v);
    return n == 4 ? (double)f : v;
}

// Bytes behind a head, or a container, whose length is given.
static const uint8_t *take_bytes(struct value *v, enum value_type type, const uint8_t *p,
                                 uint64_t size)
{
    *v = (struct value){ .type = type, .count = (uint32_t)size, .bytes = (const char *)p };
    return p + size;
}

static const uint8_t *take_items(struct decoder *d, struct value *v, enum value_type type,
                                 const uint8_t *p, uint64_t count)
{
    size_t n = (size_t)count * (type == VALUE_MAP ? 2 : 1);
    *v = (struct value){ .type = type, .count = (uint32_t)count, .items = d->unused };
    if (n > 0)
        d->levels[d->depth++] = (struct value_level){ d->unused, d->unused + n };
    d->unused += n;
    return p;
}

static const uint8_t *take_uint(struct value *v, const uint8_t *p, unsigned n)
{
    uint64_t u = read_uint(p, n);
    *v = (struct value){ .type = u > INT64_MAX ? VALUE_BIG : VALUE_INT, .u = u };
    return p + n;
}

static const uint8_t *take_head(struct decoder *d, struct value *v, const uint8_t *p)
{
    uint8_t head = *p++;
    unsigned n = 1u << (head & 3); // bytes of most lengths and numbers
    switch (head) {
    case 0xc2:
    case 0xc3:
        *v = (struct value){ .type = VALUE_BOOL, .b = head & 1 };
        return p;
    case 0xc4 ... 0xc6:
        return take_bytes(v, VALUE_BIN, p + n, read_uint(p, n));
    case 0xc7 ... 0xc9:
        n = 1u << (head - 0xc7);
        return take_bytes(v, VALUE_OTHER, p + n + 1, read_uint(p, n));
    case 0xca:
    case 0xcb:
        n = head == 0xca ? 4 : 8;
        *v = (struct value){ .type = VALUE_FLOAT, .f = read_float(p, n) };
        return p + n;
    case 0xcc ... 0xcf:
        return take_uint(v, p, n);
    case 0xd0 ... 0xd3:
        *v = (struct value){ .type = VALUE_INT, .i = read_int(p, n) };
        return p + n;
    case 0xd4 ... 0xd8:
        return take_bytes(v, VALUE_OTHER, p + 1, 1u << (head - 0xd4));
    case 0xd9 ... 0xdb:
        n = 1u << (head - 0xd9);
        return take_bytes(v, VALUE_STR, p + n, read_uint(p, n));
    case 0xdc ... 0xdf:
        n = head & 1 ? 4 : 2;
        return take_items(d, v, head < 0xde ? VALUE_ARRAY : VALUE_MAP, p + n, read_uint(p, n));
    default:
        *v = (struct value){ .type = VALUE_NIL };
        return p;
    }
}

static void take_value(struct decoder *d, struct value *v)
{
    const uint8_t *p = d->next;
    if (*p < 0x80 || *p >= 0xe0) {
        *v = (struct value){ .type = VALUE_INT, .i = (int8_t)*p };
        d->next = p + 1;
    } else if (*p < 0x90) {
        d->next = take_items(d, v, VALUE_MAP, p + 1, *p & 0x0f);
    } else if (*p < 0xa0) {
        d->next = take_items(d, v, VALUE_ARRAY, p + 1, *p & 0x0f);
    } else if (*p < 0xc0) {
        d->next = take_bytes(v, VALUE_STR, p + 1, *p & 0x1f);
    } else {
        d->next = take_head(d, v, p);
    }
}

void value_begin(struct decoder *d, const void *bytes, size_t elements)
{
    *d = (struct decoder){ .next = bytes, .depth = 1 };
    d->values = mem_alloc((elements + 1) * sizeof *d->values);
    d->unused = d->values + 1;
    d->levels[0] = (struct value_level){ d->values, d->unused };
}

bool value_decode(struct decoder *d, size_t most)
{
    while (d->depth > 0 && most > 0) {
        struct value_level *level = &d->levels[d->depth - 1];
        if (level->next == level->end) {
            d->depth--;
            continue;
        }
        take_value(d, level->next++);
        most--;
    }
    while (d->depth > 0 && d->levels[d->depth - 1].next == d->levels[d->depth - 1].end)
        d->depth--;
    return d->depth == 0;
}

const value *value_root(const struct decoder *d)
{
    return d->values;
}

void value_finish(struct decoder *d)
{
    free(d->values);
    *d = (struct decoder){ 0 };
}

// --- reading

enum value_type value_type(const value *v)
{
    return v->type;
}

bool value_is_text(const value *v)
{
    return v->type == VALUE_STR || v->type == VALUE_BIN;
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
    return v->b;
}

int64_t value_int(const value *v)
{
    return v->i;
}

double value_float(const value *v)
{
    return v->type == VALUE_FLOAT ? v->f : v->type == VALUE_BIG ? (double)v->u : (double)v->i;
}

const char *value_bytes(const value *v, size_t *out_size)
{
    bool some = v->type == VALUE_STR || v->type == VALUE_BIN || v->type == VALUE_OTHER;
    *out_size = some ? v->count : 0;
    return some ? v->bytes : "";
}

size_t value_count(const value *v)
{
    return v && (v->type == VALUE_ARRAY || v->type == VALUE_MAP) ? v->count : 0;
}

const value *value_at(const value *array, size_t i)
{
    return array && array->type == VALUE_ARRAY && i < array->count ? &array->items[i] : NULL;
}

const value *value_key_at(const value *map, size_t i)
{
    return &map->items[2 * i];
}

const value *value_value_at(const value *map, size_t i)
{
    return &map->items[2 * i + 1];
}

const value *value_get(const value *map, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; map && map->type == VALUE_MAP && i < map->count; i++) {
        const value *k = value_key_at(map, i);
        if (value_is_text(k) && k->count == length && memcmp(k->bytes, key, length) == 0)
            return value_value_at(map, i);
    }
    return NULL;
}

bool value_is_nil(const value *v)
{
    return !v || v->type == VALUE_NIL;
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

bool value_copy_str(const value *v, char *out, size_t size)
{
    size_t length = 0;
    const char *s = value_is_text(v) ? value_bytes(v, &length) : NULL;
    if (!s || length >= size || memchr(s, '\0', length))
        return false;
    memcpy(out, s, length);
    out[length] = '\0';
    const uint8_t *p = (const uint8_t *)out;
    for (size_t n; *p && (n = value_utf8_length(p)) > 0;)
        p += n;
    return !*p;
}
