// opctl trace: runs of operators as they end, with the time that they took on the device; or all of
// them, and what was compiled and edited meanwhile, as a timeline in a file.

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "opctl/command.h"
#include "opctl/perfetto.h"
#include "opctl/term.h"
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

// In columns, cut to the terminal's width.
static void show_columns(FILE *out, const char *op, const char *fmt, ...)
{
    struct text rest;
    va_list args;
    int columns = term_columns(), width = columns && columns < 100 ? 16 : 24;
    va_start(args, fmt);
    vsnprintf(rest.s, sizeof rest.s, fmt, args);
    va_end(args);
    int used = text_width(op), cut = columns ? width : INT32_MAX;
    text_print_cut(out, op, cut);
    fprintf(out, "%*s", used < width ? width - used : 0, "");
    text_print_cut(out, rest.s, columns > width ? columns - width : INT32_MAX);
}

static double get_us(const msgpack_object *record, const char *key)
{
    double seconds = 0;
    text_number(record, key, &seconds);
    return seconds * 1e6;
}

static void show_record(FILE *out, const msgpack_object *record)
{
    struct text op = text_field(record, "op"), error = text_field(record, "error");
    bool failed = opd_map_get(record, "error") != NULL;
    if (failed)
        term_style(out, STYLE_BAD);
    show_columns(out, op.s, " %7s %-9s %-7s %7s %9.1f %9.1f  %.400s (pid %s)%s%s",
                 text_field(record, "version").s, text_field(record, "direction").s,
                 text_field(record, "device").s, text_field(record, "kernels").s,
                 get_us(record, "queued"), get_us(record, "seconds"),
                 text_field_or_dash(record, "client").s, text_field(record, "pid").s,
                 failed ? " failed: " : "", failed ? error.s : "");
    if (failed)
        term_style(out, STYLE_PLAIN);
    putc('\n', out);
}

static void show_head(void)
{
    term_style(stdout, STYLE_HEAD);
    show_columns(stdout, "OPERATOR", " %7s %-9s %-7s %7s %9s %9s  %s", "VERSION", "DIRECTION",
                 "DEVICE", "KERNELS", "QUEUED US", "DEVICE US", "CLIENT");
    term_style(stdout, STYLE_PLAIN);
    putchar('\n');
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

// --- into a file

static const double LOOK = 0.2; // seconds, after which it looks for a signal at the latest
static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

typedef bool add_fn(struct perfetto *p, const msgpack_object *record);

// All that has come of a notification. False: the connection has ended, and err says so, or the
// timeline is full.
static bool take_all(struct session *session, const char *method, struct perfetto *timeline,
                     add_fn *add, struct opd_error *err)
{
    struct opd_reply params = { 0 };
    bool good = true;
    while (good && opd_wait_notification(session->client, method, 0, &params, err)) {
        const msgpack_object_array *list = &params.result.via.array;
        for (uint32_t i = 0; params.result.type == MSGPACK_OBJECT_ARRAY && i < list->size; i++)
            good = good && add(timeline, &list->ptr[i]);
    }
    opd_reply_clear(&params);
    if (good && err->local && err->code == OPD_DEADLINE_EXCEEDED)
        opd_error_clear(err);
    return good && !err->code;
}

static bool follow_events(struct session *session, int *code)
{
    struct pack params;
    pack_init(&params, 2);
    pack_int(&params, INT64_MAX); // none of those that were
    pack_map(&params, 1);
    pack_str(&params, "follow");
    pack_bool(&params, true);
    return session_call(session, "events", &params, NULL, code);
}

// Until a signal, or as follow(). Returns the exit code.
static int record(struct session *session, struct perfetto *timeline, double count, double seconds)
{
    struct opd_error err = { 0 };
    struct sigaction action = { .sa_handler = interrupt };
    struct pollfd fd = { .fd = opd_fd(session->client), .events = POLLIN };
    double end = now() + seconds;
    bool good = true;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    while (good && !interrupted && (double)perfetto_runs(timeline) < count && now() < end) {
        poll(&fd, 1, (int)(fmin(fmax(end - now(), 0), LOOK) * 1e3) + 1);
        good = take_all(session, "trace", timeline, perfetto_add_run, &err) &&
               take_all(session, "event", timeline, perfetto_add_event, &err);
    }
    if (!good && !err.code)
        fprintf(stderr, "opctl: more than %d runs and events are not kept: it ends here\n",
                PERFETTO_MOST / 2);
    return err.code ? session_fail(&err) : EXIT_GOOD;
}

static int write_timeline(struct session *session, const char *path, double count, double seconds)
{
    FILE *out = fopen(path, "we"); // before anything is recorded for nothing
    int code = EXIT_GOOD;
    if (!out)
        return session_refuse("%s: %s", path, strerror(errno));
    struct perfetto *timeline = perfetto_new();
    if (follow_events(session, &code) && session_call(session, "trace", NULL, NULL, &code)) {
        fprintf(stderr, "Recording into %s; ^C ends it.\n", path);
        code = record(session, timeline, count, seconds);
        perfetto_write(timeline, out);
    }
    bool written = !ferror(out);
    written = fclose(out) == 0 && written;
    size_t n = perfetto_runs(timeline);
    perfetto_free(timeline);
    if (!written) {
        session_refuse("%s: %s", path, strerror(errno));
        return EXIT_ANSWERED;
    }
    fprintf(stderr, "%zu run%s. Open it in https://ui.perfetto.dev.\n", n, n == 1 ? "" : "s");
    return code;
}

int cmd_trace(struct session *session, const struct args *args)
{
    double count = INFINITY, seconds = INFINITY;
    int code;
    if (!read_option(args, OPTION_COUNT, &count) || !read_option(args, OPTION_SECONDS, &seconds))
        return EXIT_USAGE;
    if (args->options[OPTION_PERFETTO] && session->json)
        return session_refuse("--perfetto has a format of its own: no --json");
    if (args->options[OPTION_PERFETTO])
        return write_timeline(session, args->options[OPTION_PERFETTO], count, seconds);
    if (!session_call(session, "trace", NULL, NULL, &code))
        return code;
    if (!session->json)
        show_head();
    return follow(session, count, seconds);
}
