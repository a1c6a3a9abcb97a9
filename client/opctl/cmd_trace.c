// opctl trace: runs of operators as they end, with the time that they took on the device.

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "opctl/command.h"
#include "opctl/text.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// "3" of "--count 3", above 0. False: it has been refused.
static bool read_option(const struct args *args, enum option option, double *out)
{
    const char *text = args->options[option];
    char *end;
    if (!text)
        return true;
    *out = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(*out) && *out > 0)
        return true;
    session_refuse("%s wants a number above 0, not '%s'", args_options[option].name, text);
    return false;
}

static void show_time(FILE *out, const msgpack_object *record, const char *key)
{
    double seconds = 0;
    text_number(record, key, &seconds);
    fprintf(out, " %12.1f", seconds * 1e6);
}

static void show_record(FILE *out, const msgpack_object *record)
{
    struct text op = text_field(record, "op"), error = text_field(record, "error");
    text_print(out, op.s, false);
    fprintf(out, "%*s %7s %-9s %-7s %7s", 24 - text_width(op.s), "",
            text_field(record, "version").s, text_field(record, "direction").s,
            text_field(record, "device").s, text_field(record, "kernels").s);
    show_time(out, record, "queued");
    show_time(out, record, "seconds");
    fputs("  ", out);
    text_print(out, text_field_or_dash(record, "client").s, false);
    fprintf(out, " (pid %s)", text_field(record, "pid").s);
    if (opd_map_get(record, "error"))
        fprintf(out, " failed: %s", error.s);
    putc('\n', out);
}

static void show_head(void)
{
    printf("%-24s %7s %-9s %-7s %7s %12s %12s  %s\n", "OPERATOR", "VERSION", "DIRECTION", "DEVICE",
           "KERNELS", "QUEUED US", "DEVICE US", "CLIENT");
    fflush(stdout);
}

// Until so many have come, or that time is over. Returns the exit code.
static int follow(struct session *session, double count, double seconds)
{
    struct opd_reply params = { 0 };
    struct opd_error err = { 0 };
    double end = now() + seconds, n = 0;
    while (n < count && !ferror(stdout)) { // main() tells of what was not written
        double left = isinf(seconds) ? -1 : fmax(end - now(), 0);
        if (!opd_wait_notification(session->client, "trace", left, &params, &err))
            break;
        const msgpack_object_array *records = &params.result.via.array;
        if (params.result.type == MSGPACK_OBJECT_ARRAY && records->size > 0)
            session_show(session, records->ptr, show_record);
        fflush(stdout); // a line at once, for whoever reads a pipe
        n++;
    }
    opd_reply_clear(&params);
    bool over = err.local && err.code == OPD_DEADLINE_EXCEEDED;
    int code = err.code && !over ? session_fail(&err) : EXIT_GOOD;
    opd_error_clear(&err);
    return code;
}

int cmd_trace(struct session *session, const struct args *args)
{
    double count = INFINITY, seconds = INFINITY;
    int code;
    if (!read_option(args, OPTION_COUNT, &count) || !read_option(args, OPTION_SECONDS, &seconds))
        return EXIT_USAGE;
    if (!session_call(session, "trace", NULL, NULL, &code))
        return code;
    if (!session->json)
        show_head();
    return follow(session, count, seconds);
}
