#include "opctl/text.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "c/opd.h"

#include "opctl/json.h"
#include "opctl/term.h"
#include "opctl/utf8.h"

struct text text_rate(double bytes)
{
    static const char *const units[] = { "B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s" };
    struct text t;
    size_t unit = 0;
    for (; bytes >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++)
        bytes /= 1000;
    snprintf(t.s, sizeof t.s, "%.*f %s", bytes < 9.95 && unit ? 1 : 0, bytes, units[unit]);
    return t;
}

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

struct text text_field_dtypes(const msgpack_object *map, const char *key)
{
    static const char *const kinds[][2] = {
        { "bfloat", "bf" }, { "float", "f" }, { "uint", "u" }, { "int", "i" }
    };
#define DTYPE(...) +1
    static const uint32_t n_dtypes = 0
#include "base/dtype.def"
        ;
#undef DTYPE
    const msgpack_object *list = opd_map_get(map, key);
    struct text from = text_field(map, key), to = { "" };
    char *rest, *word = strtok_r(from.s, " ", &rest);
    if (!term_columns())
        return text_field(map, key);
    if (list && list->type == MSGPACK_OBJECT_ARRAY && list->via.array.size == n_dtypes)
        return (struct text){ "any" };
    for (size_t n = 0; word; word = strtok_r(NULL, " ", &rest)) {
        const char *kind = "", *bits = word;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds && bits == word; i++)
            if (strncmp(word, kinds[i][0], strlen(kinds[i][0])) == 0) {
                kind = kinds[i][1];
                bits = word + strlen(kinds[i][0]);
            }
        n += (size_t)snprintf(to.s + n, sizeof to.s - n, "%s%s%s", n ? " " : "", kind, bits);
    }
    return to;
}

struct text text_field_bytes(const msgpack_object *map, const char *key)
{
    int64_t bytes;
    if (opd_map_int(map, key, &bytes) && bytes >= 0)
        return text_bytes((uint64_t)bytes);
    return (struct text){ "-" };
}

struct text text_field_count(const msgpack_object *map, const char *key, const char *noun)
{
    struct text t = text_field(map, key);
    size_t n = strlen(t.s);
    snprintf(t.s + n, sizeof t.s - n, " %s%s", noun, strcmp(t.s, "1") == 0 ? "" : "s");
    return t;
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

// Also what turns the order of a line's characters round.
static bool steers(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069);
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

// How many columns the next character takes, as it is printed, and how many bytes.
static int measure_one(const char *s, size_t left, size_t *bytes)
{
    uint32_t c;
    *bytes = utf8_decode(s, left, &c);
    int columns = *bytes > 0 && !steers(c) ? wcwidth((wchar_t)c) : 1;
    *bytes += *bytes == 0;
    return columns < 0 ? 1 : columns;
}

static int measure_all(const char *s, size_t size)
{
    int width = 0;
    for (size_t at = 0, n; at < size; at += n)
        width += measure_one(s + at, size - at, &n);
    return width;
}

int text_width(const char *s)
{
    return measure_all(s, strlen(s));
}

void text_print_cut(FILE *out, const char *s, int width)
{
    size_t size = strlen(s), end = 0, n;
    int used = 0;
    if (measure_all(s, size) <= width) {
        text_print_bytes(out, s, size, false);
        return;
    }
    for (int w; end < size && used + (w = measure_one(s + end, size - end, &n)) < width; used += w)
        end += n;
    text_print_bytes(out, s, end, false);
    if (width > 0)
        fprintf(out, "%s%*s", term_cut, width - used - 1, ""); // half of a wide character is left
}

static bool ends_word(char c)
{
    return c == ' ' || c == '\n';
}

void text_wrap_to(FILE *out, const char *s, size_t size, int indent, int columns)
{
    int used = indent;
    for (size_t at = 0; at < size;) {
        size_t word = at, end;
        while (word < size && s[word] == ' ')
            word++;
        for (end = word; end < size && !ends_word(s[end]);)
            end++;
        int width = measure_all(s + at, end - at);
        bool turns = columns && used > indent && used + width > columns;
        if (turns) {
            width -= (int)(word - at);
            at = word;
        }
        if (turns || (at > 0 && s[at - 1] == '\n')) {
            fprintf(out, "\n%*s", end > at ? indent : 0, "");
            used = indent;
        }
        text_print_bytes(out, s + at, end - at, false);
        used += width;
        at = end < size && s[end] == '\n' ? end + 1 : end;
    }
}

void text_wrap(FILE *out, const char *s, int indent)
{
    text_wrap_to(out, s, strlen(s), indent, term_columns());
}
