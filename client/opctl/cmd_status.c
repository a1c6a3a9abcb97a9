// opctl status: is the daemon well, and what has it to do.

#include "opctl/command.h"
#include "opctl/table.h"

static const struct column devices[] = {
    { .title = "DEVICE", .key = "name" },
    { .title = "MODEL", .key = "model" },
    { .title = "TARGET", .key = "target" },
    { .title = "BLAS", .key = "blas" },
    { .title = "STATE", .key = "state" },
    { .title = "TENSORS", .key = "tensors", .right = true },
    { .title = "NAMED", .key = "memory_named", .read = text_field_bytes, .right = true },
    { .title = "USED", .key = "memory_used", .read = text_field_bytes, .right = true },
    { .title = "RESERVED", .key = "memory_reserved", .read = text_field_bytes, .right = true },
    { .title = "LIMIT", .key = "memory_limit", .read = text_field_bytes, .right = true },
    { .title = "TOTAL", .key = "memory_total", .read = text_field_bytes, .right = true },
    { .title = "QUEUED", .key = "queued", .right = true },
    { .title = "RESTARTS", .key = "restarts", .right = true },
    { .title = "RERUNS", .key = "reruns", .right = true },
    { .title = "MESSAGE", .key = "message" },
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
    { .title = "CLIENT", .key = "client", .read = text_field_or_dash },
    { .title = "PID", .key = "pid", .right = true },
    { .title = "MEMORY", .key = "memory", .read = read_memory, .right = true },
    { .title = "TENSORS", .key = "tensors", .right = true },
    { .title = "IN FLIGHT", .key = "in_flight", .right = true },
    { .title = "RUNS IN PROCESS", .key = "in_process", .read = text_field_or_dash },
};

static struct text uptime(const msgpack_object *status)
{
    double seconds;
    return text_number(status, "uptime", &seconds) ? text_duration(seconds) : (struct text){ "-" };
}

static void show_line(FILE *out, const char *title, const msgpack_object *map, const char *key)
{
    struct text value = text_field(map, key);
    fprintf(out, "%-12s", title);
    text_print(out, value.s, false);
    putc('\n', out);
}

static void show_compilers(FILE *out, const msgpack_object *compilers)
{
    if (!compilers)
        return;
    fprintf(out, "%-12s%s, compiled %s, from the cache %s, failed %s\n", "compilers",
            text_field(compilers, "processes").s, text_field(compilers, "compiled").s,
            text_field(compilers, "cache_hits").s, text_field(compilers, "failed").s);
    show_line(out, "  device", compilers, "nvrtc");
    show_line(out, "  host", compilers, "host");
    if (opd_map_get(compilers, "cache_bytes"))
        fprintf(out, "%-12s%s of at most %s\n", "  cache",
                text_field_bytes(compilers, "cache_bytes").s,
                text_field_bytes(compilers, "cache_limit").s);
}

static void show_status(FILE *out, const msgpack_object *s)
{
    fprintf(out, "opd %s, protocol %s, pid %s, up %s, upgraded %s times\n",
            text_field(s, "version").s, text_field(s, "protocol").s, text_field(s, "pid").s,
            uptime(s).s, text_field(s, "upgrades").s);
    show_line(out, "socket", s, "socket");
    fprintf(out, "%-12s%s, generation %s\n", "operators", text_field(s, "operators").s,
            text_field(s, "generation").s);
    show_line(out, "kernels", s, "kernels");
    show_line(out, "cache", s, "cache");
    show_line(out, "connections", s, "connections");
    fprintf(out, "%-12s%s, answered with an error %s\n", "requests",
            text_field(s, "requests_total").s, text_field(s, "errors_total").s);
    show_compilers(out, opd_map_get(s, "compilers"));
    putc('\n', out);
    table_print(out, devices, sizeof devices / sizeof *devices, opd_map_get(s, "devices"));
    putc('\n', out);
    table_print(out, clients, sizeof clients / sizeof *clients, opd_map_get(s, "clients"));
}

int cmd_status(struct session *session, const struct args *args)
{
    (void)args;
    return session_ask(session, "status", NULL, show_status);
}
