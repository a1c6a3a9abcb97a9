#include "opctl/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "opctl/utf8.h"

static void write_char(FILE *out, uint32_t c, const char *bytes, size_t size)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *at = c ? strchr(plain, (int)(c < 0x80 ? c : 0)) : NULL;
    if (at && *at)
        fprintf(out, "\\%c", letters[at - plain]);
    else if (c < 0x20 || c == 0x7f)
        fprintf(out, "\\u%04x", c);
    else
        fwrite(bytes, 1, size, out);
}

static void write_text(FILE *out, const char *text, size_t size)
{
    while (size > 0) {
        uint32_t c;
        size_t n = utf8_decode(text, size, &c);
        if (n > 0)
            write_char(out, c, text, n);
        else
            fputs("\\ufffd", out);
        n += n == 0;
        text += n;
        size -= n;
    }
}

static void write_string(FILE *out, const char *text, size_t size)
{
    putc('"', out);
    write_text(out, text, size);
    putc('"', out);
}

static void write_base64(FILE *out, const char *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)data;
    putc('"', out);
    for (; size > 0; p += 3) {
        unsigned b = size > 1 ? p[1] : 0, c = size > 2 ? p[2] : 0;
        putc(digits[p[0] >> 2], out);
        putc(digits[(p[0] & 3u) << 4 | b >> 4], out);
        putc(size > 1 ? digits[(b & 15) << 2 | c >> 6] : '=', out);
        putc(size > 2 ? digits[c & 63] : '=', out);
        size -= size < 3 ? size : 3;
    }
    putc('"', out);
}

static void write_float(FILE *out, double value, bool narrow)
{
    char text[40];
    if (!isfinite(value)) {
        fputs("null", out);
        return;
    }
    for (int digits = narrow ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (narrow ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    fputs(text, out);
    if (!strpbrk(text, ".e"))
        fputs(".0", out);
}

static void write_array(FILE *out, const msgpack_object_array *array)
{
    putc('[', out);
    for (uint32_t i = 0; i < array->size; i++) {
        if (i)
            fputs(", ", out);
        json_write(out, &array->ptr[i]);
    }
    putc(']', out);
}

static void write_key(FILE *out, const msgpack_object *key)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = NULL;
    if (key->type == MSGPACK_OBJECT_STR || key->type == MSGPACK_OBJECT_BIN) {
        json_write(out, key);
    } else if ((memory = open_memstream(&text, &size))) {
        json_write(memory, key);
        fclose(memory);
        write_string(out, text, size);
        free(text);
    }
}

static void write_map(FILE *out, const msgpack_object_map *map)
{
    putc('{', out);
    for (uint32_t i = 0; i < map->size; i++) {
        if (i)
            fputs(", ", out);
        write_key(out, &map->ptr[i].key);
        fputs(": ", out);
        json_write(out, &map->ptr[i].val);
    }
    putc('}', out);
}

void json_write(FILE *out, const msgpack_object *o)
{
    switch (o->type) {
    case MSGPACK_OBJECT_BOOLEAN:
        fputs(o->via.boolean ? "true" : "false", out);
        return;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        fprintf(out, "%" PRIu64, o->via.u64);
        return;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        fprintf(out, "%" PRId64, o->via.i64);
        return;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        write_float(out, o->via.f64, o->type == MSGPACK_OBJECT_FLOAT32);
        return;
    case MSGPACK_OBJECT_STR:
        write_string(out, o->via.str.ptr, o->via.str.size);
        return;
    case MSGPACK_OBJECT_BIN:
        write_base64(out, o->via.bin.ptr, o->via.bin.size);
        return;
    case MSGPACK_OBJECT_EXT:
        write_base64(out, o->via.ext.ptr, o->via.ext.size);
        return;
    case MSGPACK_OBJECT_ARRAY:
        write_array(out, &o->via.array);
        return;
    case MSGPACK_OBJECT_MAP:
        write_map(out, &o->via.map);
        return;
    case MSGPACK_OBJECT_NIL:
        break;
    }
    fputs("null", out);
}
