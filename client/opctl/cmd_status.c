// opctl status: is the daemon well, and what has it to do.

#include <stdarg.h>
#include <string.h>

#include "opctl/command.h"
#include "opctl/table.h"

static const struct column devices[] = {
    { .title = "DEVICE", .key = "name" },
    { .title = "MODEL", .key = "model", .least = 10, .drop = 11 },
    { .title = "TARGET", .key = "target", .drop = 6 },
    { .title = "BLAS", .key = "blas", .least = 8, .drop = 1 },
    { .title = "STATE", .key = "state", .state = true },
    { .title = "TENSORS", .key = "tensors", .right = true, .drop = 8 },
    { .title = "NAMED", .key = "memory_named", .read = text_field_bytes, .right = true, .drop = 4 },
    { .title = "USED", .key = "memory_used", .read = text_field_bytes, .right = true },
    { .title = "RESERVED",
      .key = "memory_reserved",
      .read = text_field_bytes,
      .right = true,
      .drop = 2 },
    { .title = "LIMIT",
      .key = "memory_limit",
      .read = text_field_bytes,
      .right = true,
      .drop = 10 },
    { .title = "TOTAL", .key = "memory_total", .read = text_field_bytes, .right = true, .drop = 3 },
    { .title = "SPARE",
      .key = "spare_memory",
      .read = text_field_bytes,
      .right = true,
      .drop = 12 },
    { .title = "QUEUED", .key = "queued", .right = true, .drop = 9 },
    { .title = "RESTARTS", .key = "restarts", .right = true, .drop = 7 },
    { .title = "RERUNS", .key = "reruns", .right = true, .drop = 5 },
    { .title = "MESSAGE", .key = "message" }, // the last
};

// Over all devices.
static struct text read_memory(const msgpack_object *client, const char *key)
{
    const msgpack_object *memory = opd_map_get(client, key);
    uint64_t sum = 0;
    if (!memory || memory->type != MSGPACK_OBJECT_MAP)
        return (struct text){ "-" };
    for (uint32_t i = 0; i < memory->via.map.size; i++) {
        const msgpack_object *n = &memory->via.map.ptr[i].val;
        sum += n->type == MSGPACK_OBJECT_POSITIVE_INTEGER ? n->via.u64 : 0;
    }
    return text_bytes(sum);
}

static const struct column clients[] = {
    { .title = "CLIENT", .key = "client", .read = text_field_or_dash, .least = 20 },
    { .title = "PID", .key = "pid", .right = true },
    { .title = "MEMORY", .key = "memory", .read = read_memory, .right = true },
    { .title = "TENSORS", .key = "tensors", .right = true, .drop = 2 },
    { .title = "IN FLIGHT", .key = "in_flight", .right = true, .drop = 1 },
    { .title = "RUNS IN PROCESS",
      .key = "in_process",
      .read = text_field_or_dash,
      .least = 8,
      .drop = 3 },
};

static struct text uptime(const msgpack_object *status)
{
    double seconds;
    return text_number(status, "uptime", &seconds) ? text_duration(seconds) : (struct text){ "-" };
}

enum { TITLE = 12 };

// "title       what it is", in as many lines as the terminal needs.
__attribute__((format(printf, 3, 4))) static void show_text(FILE *out, const char *title,
                                                            const char *fmt, ...)
{
    struct text t;
    va_list args;
    va_start(args, fmt);
    vsnprintf(t.s, sizeof t.s, fmt, args);
    va_end(args);
    fprintf(out, "%-*s", *title ? TITLE : 0, title);
    text_wrap(out, t.s, *title ? TITLE : 0);
    putc('\n', out);
}

static void show_line(FILE *out, const char *title, const msgpack_object *map, const char *key)
{
    show_text(out, title, "%s", text_field(map, key).s);
}

static void show_compilers(FILE *out, const msgpack_object *compilers)
{
    if (!compilers)
        return;
    show_text(out, "compilers", "%s, compiled %s, from the cache %s, failed %s",
              text_field(compilers, "processes").s, text_field(compilers, "compiled").s,
              text_field(compilers, "cache_hits").s, text_field(compilers, "failed").s);
    show_line(out, "  device", compilers, "nvrtc");
    show_line(out, "  host", compilers, "host");
    if (opd_map_get(compilers, "cache_bytes"))
        show_text(out, "  cache", "%s of at most %s", text_field_bytes(compilers, "cache_bytes").s,
                  text_field_bytes(compilers, "cache_limit").s);
}

static void show_keeper(FILE *out, const msgpack_object *keeper)
{
    double seconds;
    if (keeper && text_number(keeper, "seconds", &seconds))
        show_text(out, "keeper", "pid %s holds %s, %s, for %s after a kill",
                  text_field(keeper, "pid").s,
                  text_field_count(keeper, "tensors", "named tensor").s,
                  text_field_bytes(keeper, "bytes").s, text_duration(seconds).s);
}

// On a terminal the messages stand below the table, whole.
static void show_devices(FILE *out, const msgpack_object *list)
{
    bool below = term_columns() > 0;
    table_print(out, devices, sizeof devices / sizeof *devices - below, list);
    for (uint32_t i = 0;
         below && list && list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size; i++) {
        struct text message = text_field_or_dash(&list->via.array.ptr[i], "message");
        if (strcmp(message.s, "-") != 0)
            show_text(out, text_field(&list->via.array.ptr[i], "name").s, "%s", message.s);
    }
}

static void show_status(FILE *out, const msgpack_object *s)
{
    show_text(out, "", "opd %s, protocol %s, pid %s, up %s, upgraded %s",
              text_field(s, "version").s, text_field(s, "protocol").s, text_field(s, "pid").s,
              uptime(s).s, text_field_count(s, "upgrades", "time").s);
    show_line(out, "socket", s, "socket");
    show_text(out, "operators", "%s, generation %s", text_field(s, "operators").s,
              text_field(s, "generation").s);
    show_line(out, "kernels", s, "kernels");
    show_line(out, "cache", s, "cache");
    show_line(out, "connections", s, "connections");
    show_text(out, "requests", "%s, answered with an error %s", text_field(s, "requests_total").s,
              text_field(s, "errors_total").s);
    show_compilers(out, opd_map_get(s, "compilers"));
    show_keeper(out, opd_map_get(s, "keeper"));
    putc('\n', out);
    show_devices(out, opd_map_get(s, "devices"));
    putc('\n', out);
    table_print(out, clients, sizeof clients / sizeof *clients, opd_map_get(s, "clients"));
}

int cmd_status(struct session *session, const struct args *args)
{
    (void)args;
    return session_ask(session, "status", NULL, show_status);
}
