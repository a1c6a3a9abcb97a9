#include "wire/msg.h"

#include <msgpack.h>
#include <string.h>

#include "base/mpscan.h"

static bool refuse(struct opd_err *err, const char *what)
{
    return opd_err_set(err, OPD_E_malformed_message,
                       "%s; expected a MessagePack-RPC request [0, id, method, params]", what);
}

void msg_begin(struct msg *msg, const void *bytes)
{
    *msg = (struct msg){ .decoder = value_begin(msg->spare, bytes) };
}

bool msg_step(struct msg *msg, size_t most)
{
    return value_decode(msg->decoder, most);
}

bool msg_check(struct msg *msg, struct opd_err *err)
{
    const value *o = value_root(msg->decoder), *parts = o->via.array.ptr;
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size < 3)
        return refuse(err, "the message is not an array of 3 or 4");
    size_t n = o->via.array.size;
    bool whole = parts[0].type == MSGPACK_OBJECT_POSITIVE_INTEGER;
    bool request = whole && parts[0].via.u64 == 0 && n == 4;
    msg->notification = whole && parts[0].via.u64 == 2 && n == 3;
    if (!request && !msg->notification)
        return refuse(err, "the message is neither a request nor a notification");
    const value *id = &parts[1], *method = &parts[n - 2], *params = &parts[n - 1];
    if (request && (id->type != MSGPACK_OBJECT_POSITIVE_INTEGER || id->via.u64 > UINT32_MAX))
        return refuse(err, "the message's id is no 32-bit unsigned integer");
    msg->id = request ? (uint32_t)id->via.u64 : 0;
    if (!value_is_text(method))
        return refuse(err, "the method is no string");
    if (params->type != MSGPACK_OBJECT_ARRAY)
        return refuse(err, "the parameters are no array");
    msg->method = value_bytes(method, &msg->method_size);
    msg->params = params;
    return true;
}

bool msg_decode(struct msg *msg, const void *bytes, size_t size, struct opd_err *err)
{
    struct mpscan scan = { 0 };
    struct mpscan_limits limits = { .message = size, .elements = SIZE_MAX };
    *msg = (struct msg){ 0 };
    if (mpscan_scan(&scan, bytes, size, &limits) != MPSCAN_DONE || scan.position != size)
        return refuse(err, "the bytes are not MessagePack");
    msg_begin(msg, bytes);
    msg_step(msg, SIZE_MAX);
    return msg_check(msg, err);
}

void msg_end(struct msg *msg)
{
    value_end(msg->decoder);
    msg->spare = msg->decoder;
    msg->decoder = NULL;
}

void msg_finish(struct msg *msg)
{
    value_finish(msg->decoder);
    value_finish(msg->spare);
    *msg = (struct msg){ 0 };
}

// What the letters of protocol.def stand for: bits of types, and an integer's least value.
enum {
    NIL = 1 << VALUE_NIL,
    INT = 1 << VALUE_INT,
    TEXT = 1 << VALUE_STR | 1 << VALUE_BIN,
    ARRAY = 1 << VALUE_ARRAY,
    MAP = 1 << VALUE_MAP
};
static const struct letter {
    const char *name; // NULL: any value
    unsigned types;
    int64_t least;
} letters_of[128] = {
    ['s'] = { "a string", TEXT, 0 },
    ['m'] = { "a string", TEXT, 0 },
    ['S'] = { "a string or nil", TEXT | NIL, 0 },
    ['b'] = { "binary", TEXT, 0 },
    ['i'] = { "an integer", INT, INT64_MIN },
    ['h'] = { "an id (an integer from 1 to 2^63-1)", INT, 1 },
    ['H'] = { "an id or nil", INT | NIL, 1 },
    ['a'] = { "an array", ARRAY, 0 },
    ['A'] = { "an array or nil", ARRAY | NIL, 0 },
    ['M'] = { "a map", MAP, 0 },
};

static bool letter_fits(const struct letter *l, const value *v)
{
    enum value_type type = value_type(v);
    // Some languages have one type for maps and arrays, and send an empty one as an array.
    return !l->name || (l->types >> type & 1 && (type != VALUE_INT || value_int(v) >= l->least)) ||
           (l->types & MAP && type == VALUE_ARRAY && value_count(v) == 0);
}

bool msg_check_params(const char *method, const char *letters, const value *params,
                      struct opd_err *err)
{
    size_t n = params->via.array.size, i = 0;
    bool optional = false;
    for (; *letters; letters++) {
        if (*letters == '|' || *letters == 'f') {
            optional |= *letters == '|';
            continue;
        }
        const struct letter *l = &letters_of[*letters & 127];
        if (i == n && !optional)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: parameter %zu is missing; expected %s", method, i + 1,
                               l->name ? l->name : "a value");
        if (i < n && !letter_fits(l, &params->via.array.ptr[i]))
            return opd_err_set(err, OPD_E_invalid_argument, "%s: parameter %zu is %s, expected %s",
                               method, i + 1, value_type_name(value_at(params, i)), l->name);
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

// Most values are one byte, of these forms.
enum { FORM_MAP = 0x80, FORM_ARRAY = 0x90, FORM_STR = 0xa0, FORM_NIL = 0xc0, FORM_BOOL = 0xc2 };

static void append_byte(struct buf *out, unsigned byte)
{
    if (out->size == out->capacity)
        buf_reserve(out, 1);
    out->bytes[out->size++] = (uint8_t)byte;
}

void pack_nil(struct buf *out)
{
    append_byte(out, FORM_NIL);
}

void pack_bool(struct buf *out, bool v)
{
    append_byte(out, FORM_BOOL + v);
}

void pack_int(struct buf *out, int64_t v)
{
    if (v >= 0 && v < 0x80) {
        append_byte(out, (unsigned)v);
        return;
    }
    PACKER(pk, out);
    msgpack_pack_int64(&pk, v);
}

void pack_uint(struct buf *out, uint64_t v)
{
    if (v < 0x80) {
        append_byte(out, (unsigned)v);
        return;
    }
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
static void append_utf8(struct buf *out, const char *s, size_t size)
{
    size_t start = out->size;
    buf_append(out, s, size);
    for (size_t at = value_ascii_length(s, size), n; at < size; at += n ? n : 1) {
        n = value_utf8_length((const uint8_t *)s + at);
        if (n == 0)
            out->bytes[start + at] = '?';
    }
}

void pack_str(struct buf *out, const char *s)
{
    if (!s) {
        pack_nil(out);
        return;
    }
    size_t size = strlen(s);
    if (size < 0x20) {
        append_byte(out, FORM_STR + (unsigned)size);
    } else {
        PACKER(pk, out);
        msgpack_pack_str(&pk, size);
    }
    append_utf8(out, s, size);
}

void pack_bin(struct buf *out, const void *bytes, size_t size)
{
    PACKER(pk, out);
    msgpack_pack_bin(&pk, size);
    msgpack_pack_bin_body(&pk, bytes, size);
}

void pack_bin_head(struct buf *out, size_t size)
{
    PACKER(pk, out);
    msgpack_pack_bin(&pk, size);
}

void pack_array(struct buf *out, size_t n)
{
    if (n < 0x10) {
        append_byte(out, FORM_ARRAY + (unsigned)n);
        return;
    }
    PACKER(pk, out);
    msgpack_pack_array(&pk, n);
}

size_t pack_array_begin(struct buf *out)
{
    buf_append(out, "\xdd\0\0\0", 5); // its length takes four bytes
    return out->size;
}

void pack_array_end(struct buf *out, size_t begun, size_t n)
{
    for (size_t i = 1; i <= 4; i++, n >>= 8)
        out->bytes[begun - i] = (uint8_t)n;
}

void pack_map(struct buf *out, size_t n)
{
    if (n < 0x10) {
        append_byte(out, FORM_MAP + (unsigned)n);
        return;
    }
    PACKER(pk, out);
    msgpack_pack_map(&pk, n);
}

size_t pack_map_begin(struct buf *out)
{
    buf_append(out, "\xde\xff\xff", 3); // of so many pairs that it lacks some at its end
    return out->size;
}

void pack_map_end(struct buf *out, size_t begun)
{
    static const struct mpscan_limits none = { .message = SIZE_MAX, .elements = SIZE_MAX };
    struct mpscan map = { 0 };
    mpscan_scan(&map, out->bytes + begun - 3, out->size - begun + 3, &none);
    size_t n = UINT16_MAX - map.left[0] / 2;
    out->bytes[begun - 2] = (uint8_t)(n >> 8);
    out->bytes[begun - 1] = (uint8_t)n;
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

void pack_key_array(struct buf *out, const char *key, size_t n)
{
    pack_str(out, key);
    pack_array(out, n);
}

size_t pack_key_map_begin(struct buf *out, const char *key)
{
    pack_str(out, key);
    return pack_map_begin(out);
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
    size_t map = pack_map_begin(out);
    pack_key_str(out, "code", opd_err_name(err->code));
    pack_key_int(out, "number", err->code);
    pack_key_str(out, "message", err->msg);
    if (op)
        pack_key_str(out, "op", op);
    if (err->log)
        pack_key_str(out, "log", err->log);
    if (err->misfit) {
        pack_str(out, "misfit");
        pack_bool(out, true);
    }
    pack_map_end(out, map);
    pack_nil(out);
}
