#include "opctl/text.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "c/opd.h"

#include "opctl/json.h"
#include "opctl/utf8.h"

struct text text_bytes(uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    struct text t;
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1023.95 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    snprintf(t.s, sizeof t.s, "%.*f %s", unit ? 1 : 0, value, units[unit]);
    return t;
}

struct text text_duration(double seconds)
{
    struct text t;
    uint64_t s = seconds > 0 && seconds < 1e15 ? (uint64_t)seconds : 0;
    if (s < 60)
        snprintf(t.s, sizeof t.s, "%.1f s", seconds > 0 ? seconds : 0.0);
    else if (s < 3600)
        snprintf(t.s, sizeof t.s, "%" PRIu64 " min %02" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(t.s, sizeof t.s, "%" PRIu64 " h %02" PRIu64 " min", s / 3600, s / 60 % 60);
    else
        snprintf(t.s, sizeof t.s, "%" PRIu64 " d %02" PRIu64 " h", s / 86400, s / 3600 % 24);
    return t;
}

static void write_value(FILE *out, const msgpack_object *o)
{
    if (o->type == MSGPACK_OBJECT_STR)
        fwrite(o->via.str.ptr, 1, o->via.str.size, out);
    else if (o->type == MSGPACK_OBJECT_NIL)
        putc('-', out);
    else
        json_write(out, o);
}

static void write_list(FILE *out, const msgpack_object_array *list)
{
    if (list->size == 0)
        fputs("[]", out);
    for (uint32_t i = 0; i < list->size; i++) {
        if (i)
            putc(' ', out);
        write_value(out, &list->ptr[i]);
    }
}

struct text text_value(const msgpack_object *value)
{
    struct text t = { "" };
    FILE *out = fmemopen(t.s, sizeof t.s - 1, "w");
    if (!out)
        return t;
    if (value->type == MSGPACK_OBJECT_ARRAY)
        write_list(out, &value->via.array);
    else
        write_value(out, value);
    fclose(out);
    t.s[sizeof t.s - 1] = '\0';
    return t;
}

struct text text_field(const msgpack_object *map, const char *key)
{
    const msgpack_object *value = opd_map_get(map, key);
    return value ? text_value(value) : (struct text){ "-" };
}

struct text text_field_bytes(const msgpack_object *map, const char *key)
{
    int64_t bytes;
    if (opd_map_int(map, key, &bytes) && bytes >= 0)
        return text_bytes((uint64_t)bytes);
    return (struct text){ "-" };
}

struct text text_field_or_dash(const msgpack_object *map, const char *key)
{
    const msgpack_object *value = opd_map_get(map, key);
    if (value && value->type == MSGPACK_OBJECT_ARRAY && value->via.array.size == 0)
        return (struct text){ "-" };
    struct text t = text_field(map, key);
    return t.s[0] ? t : (struct text){ "-" };
}

struct text text_field_op(const msgpack_object *map, const char *key)
{
    struct text t = text_field(map, key), file = text_field(map, "file");
    const char *slash = strrchr(file.s, '/');
    if (t.s[0] && strcmp(t.s, "-") != 0)
        return t;
    snprintf(t.s, sizeof t.s, "%s", slash ? slash + 1 : file.s);
    return t.s[0] ? t : (struct text){ "-" };
}

bool text_number(const msgpack_object *map, const char *key, double *out)
{
    const msgpack_object *o = opd_map_get(map, key);
    int64_t integer;
    if (o && (o->type == MSGPACK_OBJECT_FLOAT64 || o->type == MSGPACK_OBJECT_FLOAT32))
        *out = o->via.f64;
    else if (opd_map_int(map, key, &integer))
        *out = (double)integer;
    else
        return false;
    return true;
}

struct text text_field_ms(const msgpack_object *map, const char *key)
{
    double ms;
    struct text t = { "-" };
    if (!text_number(map, key, &ms) || !(ms >= 0))
        return t;
    if (ms >= 1000)
        return text_duration(ms / 1000);
    snprintf(t.s, sizeof t.s, "%.*f ms", ms < 10 ? 1 : 0, ms);
    return t;
}

struct text text_field_seconds(const msgpack_object *map, const char *key)
{
    double seconds;
    struct text t = { "-" };
    if (!text_number(map, key, &seconds) || !(seconds >= 0))
        return t;
    if (seconds >= 1)
        return text_duration(seconds);
    snprintf(t.s, sizeof t.s, "%.0f ms", seconds * 1000);
    return t;
}

struct text text_field_time(const msgpack_object *map, const char *key)
{
    double seconds;
    struct tm tm;
    struct text t = { "-" };
    if (!text_number(map, key, &seconds) || !(seconds >= 0 && seconds < 1e11))
        return t;
    time_t whole = (time_t)seconds;
    if (localtime_r(&whole, &tm))
        strftime(t.s, sizeof t.s, "%Y-%m-%d %H:%M:%S", &tm);
    return t;
}

static bool steers(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0);
}

void text_print(FILE *out, const char *s, bool lines)
{
    text_print_bytes(out, s, strlen(s), lines);
}

void text_print_bytes(FILE *out, const char *s, size_t size, bool lines)
{
    for (size_t left = size, n; left > 0; s += n, left -= n) {
        uint32_t c;
        n = utf8_decode(s, left, &c);
        bool kept = lines && (c == '\n' || c == '\t');
        if (n > 0 && (kept || !steers(c)))
            fwrite(s, 1, n, out);
        else
            putc('?', out);
        n += n == 0;
    }
}

int text_width(const char *s)
{
    int width = 0;
    for (size_t left = strlen(s), n; left > 0; s += n, left -= n, width++) {
        uint32_t c;
        n = utf8_decode(s, left, &c);
        n += n == 0;
    }
    return width;
}
