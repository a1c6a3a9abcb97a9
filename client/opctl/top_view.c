#include "opctl/top_view.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "c/opd.h"

#include "opctl/table.h"

#define N(array) (sizeof(array) / sizeof *(array))

static const msgpack_object *get(const msgpack_object *map, const char *key)
{
    return map ? opd_map_get(map, key) : NULL;
}

// The map of an array whose key has the same text, looked for from `at` on, since two replies have
// their maps in the same order; then `at` is behind it. NULL: there is none.
static const msgpack_object *find_same(const msgpack_object *list, const char *key,
                                       const msgpack_object *like, uint32_t *at)
{
    const msgpack_object *wanted = get(like, key);
    uint32_t n = list && list->type == MSGPACK_OBJECT_ARRAY ? list->via.array.size : 0;
    for (uint32_t i = 0; wanted && i < n; i++) {
        uint32_t k = (*at + i) % n;
        const msgpack_object *found = get(&list->via.array.ptr[k], key);
        if (found && msgpack_object_equal(*found, *wanted)) {
            *at = k + 1;
            return &list->via.array.ptr[k];
        }
    }
    return NULL;
}

static double number(const msgpack_object *map, const char *key)
{
    double n = 0;
    if (map)
        text_number(map, key, &n);
    return n;
}

static double difference(const msgpack_object *now, const msgpack_object *before, const char *key)
{
    return number(now, key) - number(before, key);
}

static msgpack_object_array get_list(const msgpack_object *map, const char *key)
{
    const msgpack_object *list = get(map, key);
    return list && list->type == MSGPACK_OBJECT_ARRAY ? list->via.array
                                                      : (msgpack_object_array){ 0, NULL };
}

__attribute__((format(printf, 1, 2))) static struct text print(const char *fmt, ...)
{
    struct text t;
    va_list args;
    va_start(args, fmt);
    vsnprintf(t.s, sizeof t.s, fmt, args);
    va_end(args);
    return t;
}

// --- devices

struct device_row {
    const msgpack_object *map;
    double busy; // share of the time
};

static struct text show_busy(const void *row)
{
    return print("%.0f%%", fmin(((const struct device_row *)row)->busy, 1) * 100);
}

static struct text show_copy(const void *row)
{
    double copy = number(((const struct device_row *)row)->map, "copy");
    return copy > 0 ? text_rate(copy) : (struct text){ "-" };
}

static const struct column devices[] = {
    { .title = "DEVICE", .key = "name" },
    { .title = "STATE", .key = "state", .state = true },
    { .title = "BUSY", .show = show_busy, .right = true },
    { .title = "QUEUED", .key = "queued", .right = true, .drop = 3 },
    { .title = "USED", .key = "memory_used", .read = text_field_bytes, .right = true },
    { .title = "LIMIT", .key = "memory_limit", .read = text_field_bytes, .right = true, .drop = 4 },
    { .title = "SPARE", .key = "spare_memory", .read = text_field_bytes, .right = true, .drop = 5 },
    { .title = "RESTARTS", .key = "restarts", .right = true, .drop = 2 },
    { .title = "COPIES", .show = show_copy, .right = true, .drop = 1 },
};

// Returns how many lines.
static int print_devices(FILE *out, const struct top_view *v, double seconds)
{
    msgpack_object_array list = get_list(v->now, "devices");
    const msgpack_object *old = get(v->before, "devices");
    struct device_row rows[64];
    uint32_t at = 0;
    size_t n = 0;
    for (uint32_t i = 0; i < list.size && n < N(rows); i++, n++) {
        const msgpack_object *before = find_same(old, "name", &list.ptr[i], &at);
        rows[n] = (struct device_row){ &list.ptr[i],
                                       difference(&list.ptr[i], before, "busy") / seconds };
    }
    table_show(out, &(struct table){ .columns = devices,
                                     .n_columns = N(devices),
                                     .rows = rows,
                                     .n_rows = n,
                                     .row_size = sizeof *rows,
                                     .by_map = true,
                                     .width = v->width });
    return (int)n + 1;
}

// --- operators

struct op_row {
    const msgpack_object *map;
    bool idle;                                  // its figures are of all its runs
    double forward, backward, failed, compiles; // the first two in a second
    double mean, p99;                           // milliseconds; NAN: unknown
    double share;                               // of the time
    double rate, of_copy; // bytes in a second of its own; of what a copy moves
};

static struct text show_forward(const void *row)
{
    return print("%.1f", ((const struct op_row *)row)->forward);
}

static struct text show_backward(const void *row)
{
    return print("%.1f", ((const struct op_row *)row)->backward);
}

static struct text show_failed(const void *row)
{
    return print("%.0f", ((const struct op_row *)row)->failed);
}

static struct text show_ms(double ms)
{
    return isnan(ms) ? (struct text){ "-" } : print("%.*f", ms < 100 ? 3 : 1, ms);
}

static struct text show_mean(const void *row)
{
    return show_ms(((const struct op_row *)row)->mean);
}

static struct text show_p99(const void *row)
{
    return show_ms(((const struct op_row *)row)->p99);
}

static struct text show_share(const void *row)
{
    const struct op_row *r = row;
    return r->idle ? (struct text){ "-" } : print("%.0f%%", r->share * 100);
}

static struct text show_rate(const void *row)
{
    const struct op_row *r = row;
    return r->rate > 0 ? text_rate(r->rate) : (struct text){ "-" };
}

static struct text show_of_copy(const void *row)
{
    const struct op_row *r = row;
    return r->of_copy > 0 ? print("%.0f%%", r->of_copy * 100) : (struct text){ "-" };
}

static struct text show_compiles(const void *row)
{
    return print("%.0f", ((const struct op_row *)row)->compiles);
}

static struct text show_compile_ms(const void *row)
{
    const struct op_row *r = row;
    return r->compiles > 0 ? print("%.0f", number(r->map, "compile_seconds") / r->compiles * 1e3)
                           : (struct text){ "-" };
}

static const struct column operators[] = {
    { .title = "OPERATOR", .key = "op", .least = 16 },
    { .title = "FWD/S", .show = show_forward, .right = true },
    { .title = "BWD/S", .show = show_backward, .right = true, .drop = 4 },
    { .title = "FAILED", .show = show_failed, .right = true, .drop = 3 },
    { .title = "MEAN MS", .show = show_mean, .right = true },
    { .title = "P99 MS", .show = show_p99, .right = true, .drop = 6 },
    { .title = "TIME", .show = show_share, .right = true, .drop = 2 },
    { .title = "BYTES/S", .show = show_rate, .right = true, .drop = 7 },
    { .title = "COPY", .show = show_of_copy, .right = true, .drop = 8 },
    { .title = "COMPILED", .show = show_compiles, .right = true, .drop = 5 },
    { .title = "EACH MS", .show = show_compile_ms, .right = true, .drop = 1 },
};

const struct top_sort top_sorts[] = { { 't', "time" },     { 'n', "name" },   { 'f', "forward" },
                                      { 'b', "backward" }, { 'e', "failed" }, { 'm', "mean" },
                                      { 'p', "p99" },      { 'd', "data" },   { 'c', "compiled" } };
const size_t top_n_sorts = N(top_sorts);

// A bucket of "times", [from, below, how many].
static bool read_bucket(const msgpack_object *o, double *from, double *below, double *n)
{
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size < 3)
        return false;
    const msgpack_object *v = o->via.array.ptr;
    *from = v[0].type == MSGPACK_OBJECT_FLOAT64 ? v[0].via.f64 : 0;
    *below = v[1].type == MSGPACK_OBJECT_FLOAT64 ? v[1].via.f64 : *from;
    *n = v[2].type == MSGPACK_OBJECT_POSITIVE_INTEGER ? (double)v[2].via.u64 : 0;
    return true;
}

// How many came to the bucket of `now` that begins there since `before`.
static double count_new(const msgpack_object_array *before, double from, double n)
{
    double at, below, old;
    for (uint32_t i = 0; i < before->size; i++)
        if (read_bucket(&before->ptr[i], &at, &below, &old) && at == from)
            return n - old;
    return n;
}

// In seconds, as exact as its bucket is narrow; NAN where there are none.
static double find_percentile(const msgpack_object *now, const msgpack_object *before, double p)
{
    msgpack_object_array list = get_list(now, "times"), old = { 0 };
    double from, below, n, sum = 0;
    if (before)
        old = get_list(before, "times");
    for (uint32_t i = 0; i < list.size; i++)
        if (read_bucket(&list.ptr[i], &from, &below, &n))
            sum += count_new(&old, from, n);
    double wanted = p * sum;
    for (uint32_t i = 0; i < list.size; i++) {
        if (!read_bucket(&list.ptr[i], &from, &below, &n))
            continue;
        n = count_new(&old, from, n);
        if (n > 0 && n >= wanted)
            return from + (below - from) * wanted / n;
        wanted -= n;
    }
    return NAN;
}

// `at`: of find_same(). False: it has nothing to tell.
static bool read_op(const struct top_view *v, const msgpack_object *r, uint32_t *at, double seconds,
                    struct op_row *row)
{
    const msgpack_object *before = find_same(get(v->before, "runs"), "op", r, at);
    double forward = difference(r, before, "forward"), backward = difference(r, before, "backward");
    double failed = difference(r, before, "failed"), runs = forward + backward;
    *row = (struct op_row){ .map = r,
                            .idle = runs + failed <= 0,
                            .forward = forward / seconds,
                            .backward = backward / seconds,
                            .failed = failed,
                            .compiles = number(r, "compiles"),
                            .share = difference(r, before, "seconds") / seconds };
    if (row->idle && !v->all)
        return false;
    const msgpack_object *since = row->idle ? NULL : before;
    double took = difference(r, since, "seconds");
    runs = difference(r, since, "forward") + difference(r, since, "backward");
    row->mean = runs > 0 ? took / runs * 1e3 : NAN;
    row->p99 = runs == 1 ? row->mean : find_percentile(r, since, 0.99) * 1e3;
    row->rate = took > 0 ? difference(r, since, "bytes") / took : 0;
    // Of all its runs, some were before the copy's speed was known.
    row->of_copy = took > 0 && since ? difference(r, since, "copy_seconds") / took : 0;
    return true;
}

static double sort_value(const struct op_row *r, char key)
{
    switch (key) {
    case 'f':
        return r->forward;
    case 'b':
        return r->backward;
    case 'e':
        return number(r->map, "failed");
    case 'm':
        return r->mean;
    case 'p':
        return r->p99;
    case 'd':
        return r->rate;
    case 'c':
        return r->compiles;
    default:
        return r->share;
    }
}

// The largest first, names from a on; those that do not run are last.
static int compare(const void *a, const void *b, void *view)
{
    const struct op_row *x = a, *y = b;
    const struct top_view *v = view;
    int sign = v->reversed ? -1 : 1;
    if (x->idle != y->idle)
        return x->idle ? 1 : -1;
    double p = sort_value(x, v->sort), q = sort_value(y, v->sort);
    if (v->sort != 'n' && !(p == q) && !(isnan(p) && isnan(q)))
        return sign * (isnan(q) || p > q ? -1 : 1);
    return (v->sort == 'n' ? sign : 1) *
           strcmp(text_field(x->map, "op").s, text_field(y->map, "op").s);
}

static enum style style_of_op(const void *row)
{
    const struct op_row *r = row;
    return r->idle ? STYLE_DIM : r->failed > 0 ? STYLE_BAD : STYLE_PLAIN;
}

// A part of a table in at most `room` lines with its head, where room is not 0. Returns how many.
static int print_part(FILE *out, struct table t, size_t skip, int room)
{
    size_t most = room > 2 ? (size_t)room - 2 : room ? 1 : t.n_rows;
    if (room && t.n_rows <= most + 1)
        most = t.n_rows;
    size_t n = t.n_rows;
    skip = skip + most > n ? n - (n < most ? n : most) : skip;
    t.rows = (const char *)t.rows + skip * t.row_size;
    t.n_rows = n - skip < most ? n - skip : most;
    table_show(out, &t);
    if (t.n_rows == n)
        return (int)n + 1;
    term_style(out, STYLE_DIM);
    fprintf(out, "%zu to %zu of %zu", skip + 1, skip + t.n_rows, n);
    term_style(out, STYLE_PLAIN);
    putc('\n', out);
    return (int)t.n_rows + 2;
}

static void print_operators(FILE *out, const struct top_view *v, double seconds, int room)
{
    msgpack_object_array list = get_list(v->now, "runs");
    struct op_row *rows = calloc(list.size + 1, sizeof *rows);
    uint32_t at = 0;
    size_t n = 0;
    for (uint32_t i = 0; rows && i < list.size; i++)
        n += read_op(v, &list.ptr[i], &at, seconds, &rows[n]);
    if (n > 0)
        qsort_r(rows, n, sizeof *rows, compare, (void *)(uintptr_t)v);
    print_part(out,
               (struct table){ .columns = operators,
                               .n_columns = N(operators),
                               .rows = rows,
                               .n_rows = n,
                               .row_size = sizeof *rows,
                               .by_map = true,
                               .width = v->width,
                               .style = style_of_op },
               (size_t)v->skip, room);
    free(rows);
}

// --- who holds memory

struct owner_row {
    const msgpack_object *map; // NULL: named tensors, nobody's
    uint64_t bytes;
};

static struct text show_owner(const void *row)
{
    const struct owner_row *r = row;
    return r->map ? text_field_or_dash(r->map, "client") : (struct text){ "named tensors" };
}

static struct text show_memory(const void *row)
{
    return text_bytes(((const struct owner_row *)row)->bytes);
}

static const struct column owners[] = {
    { .title = "CLIENT", .show = show_owner, .least = 12 },
    { .title = "PID", .key = "pid", .right = true },
    { .title = "IN FLIGHT", .key = "in_flight", .right = true, .drop = 1 },
    { .title = "TENSORS", .key = "tensors", .right = true, .drop = 2 },
    { .title = "MEMORY", .show = show_memory, .right = true },
};

static int compare_owners(const void *a, const void *b)
{
    uint64_t x = ((const struct owner_row *)a)->bytes, y = ((const struct owner_row *)b)->bytes;
    return x < y ? 1 : x > y ? -1 : 0;
}

static uint64_t sum_values(const msgpack_object *map)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; map && map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++)
        if (map->via.map.ptr[i].val.type == MSGPACK_OBJECT_POSITIVE_INTEGER)
            sum += map->via.map.ptr[i].val.via.u64;
    return sum;
}

// All but this program itself. The caller frees them.
static struct owner_row *read_owners(const struct top_view *v, size_t *out_n)
{
    msgpack_object_array list = get_list(v->now, "clients"), all = get_list(v->now, "devices");
    struct owner_row *rows = calloc(list.size + 1, sizeof *rows);
    uint64_t named = 0;
    size_t n = 0;
    for (uint32_t i = 0; rows && i < list.size; i++)
        if (number(&list.ptr[i], "pid") != getpid())
            rows[n++] = (struct owner_row){ &list.ptr[i],
                                            sum_values(opd_map_get(&list.ptr[i], "memory")) };
    for (uint32_t i = 0; i < all.size; i++)
        named += (uint64_t)number(&all.ptr[i], "memory_named");
    if (rows && named > 0)
        rows[n++] = (struct owner_row){ NULL, named };
    if (n > 0)
        qsort(rows, n, sizeof *rows, compare_owners);
    *out_n = n;
    return rows;
}

// Clients that run operators in their own process: how often, they alone know.
static void print_in_process(FILE *out, const struct top_view *v)
{
    msgpack_object_array list = get_list(v->now, "clients");
    for (uint32_t i = 0; i < list.size; i++) {
        struct text operators_of = text_field_or_dash(&list.ptr[i], "in_process");
        if (strcmp(operators_of.s, "-") == 0)
            continue;
        struct text line = print("in process: %.700s by %.200s, pid %s", operators_of.s,
                                 text_field_or_dash(&list.ptr[i], "client").s,
                                 text_field(&list.ptr[i], "pid").s);
        text_print_cut(out, line.s, v->width ? v->width : INT32_MAX);
        putc('\n', out);
    }
}

// --- all of it

static void print_head(FILE *out, const struct top_view *v, double seconds)
{
    const msgpack_object *compilers = opd_map_get(v->now, "compilers");
    struct text line = print("%s, %.1f requests a second, %s compiled, up %s",
                             text_field_count(v->now, "connections", "connection").s,
                             difference(v->now, v->before, "requests_total") / seconds,
                             text_field_count(compilers, "compiled", "kernel").s,
                             text_duration(number(v->now, "uptime")).s);
    text_print_cut(out, line.s, v->width ? v->width : INT32_MAX);
    fputs("\n\n", out);
}

void top_show(FILE *out, const struct top_view *v)
{
    double seconds = difference(v->now, v->before, "uptime");
    size_t n;
    struct owner_row *rows = read_owners(v, &n);
    seconds = seconds > 0 ? seconds : 1;
    print_head(out, v, seconds);
    int left = v->height - 2 - print_devices(out, v, seconds) - 1;
    int clients = v->height / 4 > 4 ? v->height / 4 : 4;
    clients = n == 0 ? 0 : (int)n + 1 < clients ? (int)n + 1 : clients;
    putc('\n', out);
    print_operators(out, v, seconds,
                    !v->height               ? 0
                    : left - clients - 1 > 3 ? left - clients - 1
                                             : 3);
    if (n > 0) {
        putc('\n', out);
        print_part(out,
                   (struct table){ .columns = owners,
                                   .n_columns = N(owners),
                                   .rows = rows,
                                   .n_rows = n,
                                   .row_size = sizeof *rows,
                                   .by_map = true,
                                   .width = v->width },
                   0, v->height ? clients : 0);
    }
    free(rows);
    print_in_process(out, v);
}
