#include "wire/msg.h"

#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

static bool refuse(struct opd_err *err, const char *what)
{
    return opd_err_set(err, OPD_E_malformed_message,
                       "%s; expected a MessagePack-RPC request [0, id, method, params]", what);
}

bool msg_decode(struct msg *msg, const void *bytes, size_t size, struct opd_err *err)
{
    msgpack_unpacked *unpacked = mem_zalloc(1, sizeof *unpacked);
    msgpack_unpacked_init(unpacked);
    *msg = (struct msg){ .zone = unpacked };
    size_t offset = 0;
    if (msgpack_unpack_next(unpacked, bytes, size, &offset) != MSGPACK_UNPACK_SUCCESS ||
        offset != size)
        return refuse(err, "the bytes are not MessagePack");
    const msgpack_object *o = &unpacked->data;
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size < 3)
        return refuse(err, "the message is not an array of 3 or 4");
    const msgpack_object *e = o->via.array.ptr;
    bool request = e[0].type == MSGPACK_OBJECT_POSITIVE_INTEGER && e[0].via.u64 == 0 &&
                   o->via.array.size == 4;
    msg->notification = e[0].type == MSGPACK_OBJECT_POSITIVE_INTEGER && e[0].via.u64 == 2 &&
                        o->via.array.size == 3;
    if (!request && !msg->notification)
        return refuse(err, "the message is neither a request nor a notification");
    if (request && (e[1].type != MSGPACK_OBJECT_POSITIVE_INTEGER || e[1].via.u64 > UINT32_MAX))
        return refuse(err, "the message's id is no 32-bit unsigned integer");
    msg->id = request ? (uint32_t)e[1].via.u64 : 0;
    e += request ? 2 : 1;
    if (!value_is_text(&e[0]))
        return refuse(err, "the method is no string");
    if (e[1].type != MSGPACK_OBJECT_ARRAY)
        return refuse(err, "the parameters are no array");
    msg->method = value_bytes(&e[0], &msg->method_size);
    msg->params = &e[1];
    return true;
}

void msg_finish(struct msg *msg)
{
    if (msg->zone) {
        msgpack_unpacked_destroy(msg->zone);
        free(msg->zone);
    }
    *msg = (struct msg){ 0 };
}

enum value_type value_type(const value *v)
{
    switch (v->type) {
    case MSGPACK_OBJECT_NIL:
        return VALUE_NIL;
    case MSGPACK_OBJECT_BOOLEAN:
        return VALUE_BOOL;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        return v->via.u64 > INT64_MAX ? VALUE_BIG : VALUE_INT;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return VALUE_INT;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return VALUE_FLOAT;
    case MSGPACK_OBJECT_STR:
        return VALUE_STR;
    case MSGPACK_OBJECT_BIN:
        return VALUE_BIN;
    case MSGPACK_OBJECT_ARRAY:
        return VALUE_ARRAY;
    case MSGPACK_OBJECT_MAP:
        return VALUE_MAP;
    default:
        return VALUE_OTHER;
    }
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

const char *value_bytes(const value *v, size_t *out_size)
{
    bool str = v->type == MSGPACK_OBJECT_STR;
    *out_size = str ? v->via.str.size : v->via.bin.size;
    const char *bytes = str ? v->via.str.ptr : v->via.bin.ptr;
    return bytes ? bytes : ""; // msgpack-c has NULL for some empty ones
}

size_t value_count(const value *v)
{
    if (!v)
        return 0;
    if (v->type == MSGPACK_OBJECT_ARRAY)
        return v->via.array.size;
    return v->type == MSGPACK_OBJECT_MAP ? v->via.map.size : 0;
}

const value *value_at(const value *array, size_t i)
{
    return array && array->type == MSGPACK_OBJECT_ARRAY && i < array->via.array.size
               ? &array->via.array.ptr[i]
               : NULL;
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
    size_t length = strlen(key);
    for (size_t i = 0; map && map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const msgpack_object *k = &map->via.map.ptr[i].key;
        size_t size;
        const char *name = value_is_text(k) ? value_bytes(k, &size) : NULL;
        if (name && size == length && memcmp(name, key, length) == 0)
            return &map->via.map.ptr[i].val;
    }
    return NULL;
}

bool value_is_nil(const value *v)
{
    return !v || v->type == MSGPACK_OBJECT_NIL;
}

// Bytes of the UTF-8 character at the start of a terminated text; 0: there is none.
static size_t utf8_length(const uint8_t *s)
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
    for (size_t n; *p && (n = utf8_length(p)) > 0;)
        p += n;
    return !*p;
}

static const char *letter_name(char letter)
{
    switch (letter) {
    case 's':
        return "a string";
    case 'S':
        return "a string or nil";
    case 'i':
        return "an integer";
    case 'b':
        return "binary";
    case 'M':
        return "a map";
    case 'h':
        return "an id (an integer from 1 to 2^63-1)";
    case 'H':
        return "an id or nil";
    case 'a':
        return "an array";
    case 'A':
        return "an array or nil";
    default:
        return "a value";
    }
}

static bool letter_fits(char letter, const value *v)
{
    enum value_type type = value_type(v);
    switch (letter) {
    case 's':
    case 'b':
        return value_is_text(v);
    case 'S':
        return value_is_text(v) || type == VALUE_NIL;
    case 'i':
        return type == VALUE_INT;
    case 'M':
        // Some languages have one type for both, and send an empty one as an array.
        return type == VALUE_MAP || (type == VALUE_ARRAY && value_count(v) == 0);
    case 'h':
        return type == VALUE_INT && value_int(v) > 0;
    case 'H':
        return type == VALUE_NIL || (type == VALUE_INT && value_int(v) > 0);
    case 'a':
        return type == VALUE_ARRAY;
    case 'A':
        return type == VALUE_ARRAY || type == VALUE_NIL;
    default:
        return true;
    }
}

bool msg_check_params(const char *method, const char *letters, const value *params,
                      struct opd_err *err)
{
    size_t n = value_count(params), i = 0;
    bool optional = false;
    for (; *letters; letters++) {
        if (*letters == '|') {
            optional = true;
            continue;
        }
        if (i == n && !optional)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: parameter %zu is missing; expected %s", method, i + 1,
                               letter_name(*letters));
        if (i < n && !letter_fits(*letters, value_at(params, i)))
            return opd_err_set(err, OPD_E_invalid_argument, "%s: parameter %zu is %s, expected %s",
                               method, i + 1, value_type_name(value_at(params, i)),
                               letter_name(*letters));
        if (i < n)
            i++;
    }
    if (i < n)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %zu parameters came, expected at most %zu", method, n, i);
    return true;
}

static int append_cb(void *data, const char *bytes, size_t size)
{
    buf_append(data, bytes, size);
    return 0;
}

// msgpack-c's packer is two pointers: making one for each value costs nothing.
#define PACKER(name, out)                                                                          \
    msgpack_packer name;                                                                           \
    msgpack_packer_init(&name, out, append_cb)

void pack_nil(struct buf *out)
{
    PACKER(pk, out);
    msgpack_pack_nil(&pk);
}

void pack_bool(struct buf *out, bool v)
{
    PACKER(pk, out);
    if (v)
        msgpack_pack_true(&pk);
    else
        msgpack_pack_false(&pk);
}

void pack_int(struct buf *out, int64_t v)
{
    PACKER(pk, out);
    msgpack_pack_int64(&pk, v);
}

void pack_uint(struct buf *out, uint64_t v)
{
    PACKER(pk, out);
    msgpack_pack_uint64(&pk, v);
}

void pack_float(struct buf *out, double v)
{
    PACKER(pk, out);
    msgpack_pack_double(&pk, v);
}

// A name or a message may hold bytes of some other client, or end within a character: no client's
// decoder shall fail for that. A wrong byte is replaced by one byte, so that the length stays.
static void append_utf8(struct buf *out, const char *s)
{
    const uint8_t *p = (const uint8_t *)s, *good = p;
    while (*p) {
        size_t n = utf8_length(p);
        if (n == 0) {
            buf_append(out, good, (size_t)(p - good));
            buf_append_str(out, "?");
            good = p + 1;
        }
        p += n ? n : 1;
    }
    buf_append(out, good, (size_t)(p - good));
}

void pack_str(struct buf *out, const char *s)
{
    if (!s) {
        pack_nil(out);
        return;
    }
    PACKER(pk, out);
    msgpack_pack_str(&pk, strlen(s));
    append_utf8(out, s);
}

void pack_bin(struct buf *out, const void *bytes, size_t size)
{
    PACKER(pk, out);
    msgpack_pack_bin(&pk, size);
    msgpack_pack_bin_body(&pk, bytes, size);
}

void pack_array(struct buf *out, size_t n)
{
    PACKER(pk, out);
    msgpack_pack_array(&pk, n);
}

void pack_map(struct buf *out, size_t n)
{
    PACKER(pk, out);
    msgpack_pack_map(&pk, n);
}

void pack_key_str(struct buf *out, const char *key, const char *s)
{
    pack_str(out, key);
    pack_str(out, s);
}

void pack_key_int(struct buf *out, const char *key, int64_t v)
{
    pack_str(out, key);
    pack_int(out, v);
}

void pack_key_uint(struct buf *out, const char *key, uint64_t v)
{
    pack_str(out, key);
    pack_uint(out, v);
}

void pack_key_bool(struct buf *out, const char *key, bool v)
{
    pack_str(out, key);
    pack_bool(out, v);
}

void pack_key_float(struct buf *out, const char *key, double v)
{
    pack_str(out, key);
    pack_float(out, v);
}

void pack_reply_ok(struct buf *out, uint32_t id)
{
    pack_array(out, 4);
    pack_uint(out, 1);
    pack_uint(out, id);
    pack_nil(out);
}

void pack_reply_error(struct buf *out, uint32_t id, const struct opd_err *err, const char *op)
{
    pack_array(out, 4);
    pack_uint(out, 1);
    pack_uint(out, id);
    pack_map(out, 3u + (op ? 1 : 0) + (err->log ? 1 : 0));
    pack_key_str(out, "code", opd_err_name(err->code));
    pack_key_int(out, "number", err->code);
    pack_key_str(out, "message", err->msg);
    if (op)
        pack_key_str(out, "op", op);
    if (err->log)
        pack_key_str(out, "log", err->log);
    pack_nil(out);
}
