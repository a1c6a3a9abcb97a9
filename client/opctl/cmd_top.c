// opctl top: what devices and operators have done in the last second, again and again.

#include <string.h>
#include <unistd.h>

#include "opctl/command.h"
#include "opctl/text.h"

enum { INTERVAL = 1 }; // seconds

// The map of an array whose key has the same text; NULL: there is none.
static const msgpack_object *find_same(const msgpack_object *list, const char *key,
                                       const msgpack_object *like)
{
    struct text wanted = text_field(like, key);
    if (!list || list->type != MSGPACK_OBJECT_ARRAY)
        return NULL;
    for (uint32_t i = 0; i < list->via.array.size; i++)
        if (strcmp(text_field(&list->via.array.ptr[i], key).s, wanted.s) == 0)
            return &list->via.array.ptr[i];
    return NULL;
}

static double difference(const msgpack_object *now, const msgpack_object *before, const char *key)
{
    double a = 0, b = 0;
    text_number(now, key, &a);
    if (before)
        text_number(before, key, &b);
    return a - b;
}

static void show_device(FILE *out, const msgpack_object *d, const msgpack_object *before,
                        double seconds)
{
    double busy = difference(d, before, "busy") / seconds * 100;
    fprintf(out, "%-8s %-10s %5.0f%% %7s %10s %10s %9s\n", text_field(d, "name").s,
            text_field(d, "state").s, busy > 100 ? 100 : busy, text_field(d, "queued").s,
            text_field_bytes(d, "memory_used").s, text_field_bytes(d, "memory_limit").s,
            text_field(d, "restarts").s);
}

static void show_run(FILE *out, const msgpack_object *r, const msgpack_object *before,
                     double seconds)
{
    double forward = difference(r, before, "forward"), backward = difference(r, before, "backward");
    double runs = forward + backward, failed = difference(r, before, "failed");
    if (runs + failed <= 0)
        return;
    text_print(out, text_field(r, "op").s, false);
    fprintf(out, "%*s %10.1f %10.1f %8.0f %10.3f\n", 24 - text_width(text_field(r, "op").s), "",
            forward / seconds, backward / seconds, failed,
            runs > 0 ? difference(r, before, "seconds") / runs * 1e3 : 0);
}

// A client that runs operators in its own process: how often, it alone knows.
static void show_client(FILE *out, const msgpack_object *c, const msgpack_object *before,
                        double seconds)
{
    (void)before, (void)seconds;
    struct text operators = text_field_or_dash(c, "in_process");
    if (strcmp(operators.s, "-") == 0)
        return;
    fprintf(out, "in process: ");
    text_print(out, operators.s, false);
    fprintf(out, " by ");
    text_print(out, text_field_or_dash(c, "client").s, false);
    fprintf(out, ", pid %s\n", text_field(c, "pid").s);
}

typedef void row_fn(FILE *out, const msgpack_object *now, const msgpack_object *before,
                    double seconds);

static void show_all(FILE *out, const msgpack_object *now, const msgpack_object *before,
                     const char *list, const char *key, row_fn *row, double seconds)
{
    const msgpack_object *rows = opd_map_get(now, list), *old = opd_map_get(before, list);
    if (!rows || rows->type != MSGPACK_OBJECT_ARRAY)
        return;
    for (uint32_t i = 0; i < rows->via.array.size; i++)
        row(out, &rows->via.array.ptr[i], find_same(old, key, &rows->via.array.ptr[i]), seconds);
}

static void show_table(FILE *out, const msgpack_object *now, const msgpack_object *before)
{
    double seconds = difference(now, before, "uptime");
    if (!(seconds > 0))
        seconds = INTERVAL;
    fprintf(out, "%s connections, %.1f requests a second\n\n", text_field(now, "connections").s,
            difference(now, before, "requests_total") / seconds);
    fprintf(out, "%-8s %-10s %6s %7s %10s %10s %9s\n", "DEVICE", "STATE", "BUSY", "QUEUED", "USED",
            "LIMIT", "RESTARTS");
    show_all(out, now, before, "devices", "name", show_device, seconds);
    fprintf(out, "\n%-24s %10s %10s %8s %10s\n", "OPERATOR", "FORWARD/S", "BACKWARD/S", "FAILED",
            "MEAN MS");
    show_all(out, now, before, "runs", "op", show_run, seconds);
    show_all(out, now, before, "clients", "connection", show_client, seconds);
}

int cmd_top(struct session *session, const struct args *args)
{
    bool follows = !args->options[OPTION_NO_FOLLOW];
    if (!follows && args->options[OPTION_FOLLOW])
        return session_refuse("--follow or --no-follow, not both");
    struct opd_reply before = { 0 }, now = { 0 };
    int code;
    bool good = session_call(session, "status", NULL, &before, &code);
    while (good) {
        sleep(INTERVAL);
        good = session_call(session, "status", NULL, &now, &code);
        if (good && session->json)
            session_show(session, &now.result, NULL);
        else if (good)
            show_table(stdout, &now.result, &before.result);
        good = good && follows && fflush(stdout) == 0;
        opd_reply_clear(&before);
        before = now;
        now = (struct opd_reply){ 0 };
        if (good)
            putchar('\n');
    }
    opd_reply_clear(&before);
    return code;
}
