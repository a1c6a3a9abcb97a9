#include "opctl/perfetto.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "c/opd.h"

#include "opctl/json.h"
#include "opctl/text.h"

// Processes of the timeline, in its order; then one for each connection.
enum group { GROUP_DEVICES = 1, GROUP_COMPILES, GROUP_EDITS, GROUP_CLIENTS };

// One bar. Times are nanoseconds, of the Unix clock.
struct span {
    int64_t start, end;
    size_t order; // in which it was added
    uint64_t group;
    const char *track; // whose it is: of others no bar overlaps one; owned by the texts
    const char *name;
    const char *args; // JSON, without braces
    const char *process;
};

struct spans {
    struct span *list;
    size_t n;
};

struct perfetto {
    struct spans spans;
    size_t n_runs;
    char **texts; // each once: an open-addressed table
    size_t n_texts, n_places;
};

// --- texts

static size_t hash(const char *s)
{
    size_t h = 14695981039346656037u;
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}

static char **find_place(char **texts, size_t n, const char *s)
{
    size_t i = hash(s) & (n - 1);
    while (texts[i] && strcmp(texts[i], s) != 0)
        i = (i + 1) & (n - 1);
    return &texts[i];
}

static void *check(void *p)
{
    if (!p)
        abort(); // as everywhere: no memory of the host ends the program
    return p;
}

static const char *keep(struct perfetto *p, const char *s)
{
    if (2 * p->n_texts >= p->n_places) {
        size_t n = p->n_places ? 2 * p->n_places : 64;
        char **texts = check(calloc(n, sizeof *texts));
        for (size_t i = 0; i < p->n_places; i++)
            if (p->texts[i])
                *find_place(texts, n, p->texts[i]) = p->texts[i];
        free(p->texts);
        p->texts = texts;
        p->n_places = n;
    }
    char **place = find_place(p->texts, p->n_places, s);
    if (!*place) {
        *place = check(strdup(s));
        p->n_texts++;
    }
    return *place;
}

// --- what is added

static int64_t to_ns(double seconds)
{
    return fabs(seconds) < 9e9 ? (int64_t)llround(seconds * 1e9) : 0;
}

static double get_number(const msgpack_object *map, const char *key)
{
    double n = 0;
    text_number(map, key, &n);
    return n;
}

static bool add(struct perfetto *p, const struct span *span)
{
    struct spans *s = &p->spans;
    if ((s->n & (s->n - 1)) == 0) // full at 0, 1, 2, 4, ...
        s->list = check(realloc(s->list, (s->n ? 2 * s->n : 1) * sizeof *s->list));
    s->list[s->n] = *span;
    s->list[s->n].order = s->n;
    s->n++;
    return true;
}

// The keys of a map that are there, as JSON.
static const char *pack_args(struct perfetto *p, const msgpack_object *map, const char *const *keys,
                             size_t n)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = check(open_memstream(&text, &size));
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        const msgpack_object *value = opd_map_get(map, keys[i]);
        if (!value || (value->type == MSGPACK_OBJECT_STR && value->via.str.size == 0))
            continue;
        fprintf(out, "%s\"%s\": ", any ? ", " : "", keys[i]);
        json_write(out, value);
        any = true;
    }
    fclose(out);
    const char *kept = keep(p, check(text));
    free(text);
    return kept;
}

bool perfetto_add_run(struct perfetto *p, const msgpack_object *run)
{
    static const char *const keys[] = { "version", "direction", "kernels",
                                        "device",  "client",    "error" };
    int64_t end = to_ns(get_number(run, "time"));
    int64_t ran = to_ns(get_number(run, "seconds")), waited = to_ns(get_number(run, "queued"));
    int64_t connection = 0;
    char name[2048];
    if (p->spans.n + 2 > PERFETTO_MOST || ran < 0 || waited < 0)
        return p->spans.n + 2 <= PERFETTO_MOST;
    opd_map_int(run, "connection", &connection);
    struct text op = text_field(run, "op"), direction = text_field(run, "direction");
    bool forward = strcmp(direction.s, "forward") == 0;
    snprintf(name, sizeof name, "%s%s%s", op.s, op.s[0] && !forward ? " " : "",
             forward ? "" : direction.s);
    struct span span = { .start = end - ran,
                         .end = end,
                         .group = GROUP_DEVICES,
                         .track = keep(p, text_field(run, "device").s),
                         .name = keep(p, name),
                         .args = pack_args(p, run, keys, sizeof keys / sizeof *keys) };
    add(p, &span);
    snprintf(name, sizeof name, "%.900s (pid %s), connection %" PRId64,
             text_field_or_dash(run, "client").s, text_field(run, "pid").s, connection);
    span.start -= waited;
    span.group = GROUP_CLIENTS + (uint64_t)connection;
    span.track = keep(p, "in flight");
    span.process = keep(p, name);
    p->n_runs++;
    return add(p, &span);
}

bool perfetto_add_event(struct perfetto *p, const msgpack_object *event)
{
    static const char *const keys[] = { "version", "file",   "message", "dtype",
                                        "kernels", "device", "ms",      "log" };
    struct text kind = text_field(event, "kind"), op = text_field_op(event, "op");
    bool compile = strcmp(kind.s, "compiled") == 0;
    char name[2048];
    if (p->spans.n + 1 > PERFETTO_MOST)
        return false;
    snprintf(name, sizeof name, "%s%s%s", strcmp(op.s, "-") == 0 ? "" : op.s,
             strcmp(op.s, "-") == 0 ? "" : " ", kind.s);
    int64_t end = to_ns(get_number(event, "time"));
    double ms = get_number(event, "ms");
    return add(p, &(struct span){ .start = end - to_ns(ms > 0 ? ms / 1e3 : 0),
                                  .end = end,
                                  .group = compile ? GROUP_COMPILES : GROUP_EDITS,
                                  .track = keep(p, compile ? "compiles" : "edits"),
                                  .name = keep(p, compile ? op.s : name),
                                  .args = pack_args(p, event, keys, sizeof keys / sizeof *keys) });
}

// --- their places

// A device runs one after the other, but tells late: where bars overlap, the one before is moved to
// where it ended at the latest, and no bar begins before its request.
static void place_runs(struct perfetto *p)
{
    struct span *list = p->spans.list;
    for (size_t i = p->spans.n; i-- > 0;) {
        struct span *s = &list[i];
        if (s->group != GROUP_DEVICES)
            continue;
        int64_t ran = s->end - s->start, sent = list[i + 1].start; // its request's bar
        const struct span *next = NULL;
        for (size_t j = i + 2; !next && j < p->spans.n; j++)
            if (list[j].group == GROUP_DEVICES && list[j].track == s->track)
                next = &list[j];
        if (next && next->start < s->end)
            s->end = next->start;
        s->start = s->end - ran > sent ? s->end - ran : sent;
        s->end = s->end > s->start ? s->end : s->start;
    }
}

static int compare_starts(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

// A row of bars of which none overlaps another.
struct lane {
    uint64_t group;
    const char *track;
    int64_t end;
    int number; // among those of its track, from 1
};

struct lanes {
    struct lane *list;
    size_t n;
};

// The lane in which there is room from the span's start on.
static size_t find_lane(struct lanes *lanes, const struct span *s)
{
    int number = 1;
    for (size_t i = 0; i < lanes->n; i++) {
        struct lane *lane = &lanes->list[i];
        if (lane->group != s->group || lane->track != s->track)
            continue;
        if (lane->end <= s->start) {
            lane->end = s->end;
            return i;
        }
        number++;
    }
    if ((lanes->n & (lanes->n - 1)) == 0)
        lanes->list = check(
            realloc(lanes->list, (lanes->n ? 2 * lanes->n : 1) * sizeof *lanes->list));
    lanes->list[lanes->n] = (struct lane){ s->group, s->track, s->end, number };
    return lanes->n++;
}

// --- the file

static void write_string(FILE *out, const char *s)
{
    json_write(out, &(msgpack_object){ .type = MSGPACK_OBJECT_STR,
                                       .via.str = { (uint32_t)strlen(s), s } });
}

static void write_name(FILE *out, const char *what, uint64_t process, size_t thread,
                       const char *name)
{
    fprintf(out,
            ",\n{\"ph\": \"M\", \"name\": \"%s\", \"pid\": %" PRIu64 ", \"tid\": %zu, \"args\": "
            "{\"name\": ",
            what, process, thread);
    write_string(out, name);
    fputs("}}", out);
}

static void write_process(FILE *out, uint64_t group, const char *name)
{
    write_name(out, "process_name", group, 0, name);
    fprintf(out,
            ",\n{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %" PRIu64
            ", \"tid\": 0, \"args\": {\"sort_index\": %" PRIu64 "}}",
            group, group);
}

static void write_lane(FILE *out, const struct lanes *lanes, size_t i)
{
    const struct lane *lane = &lanes->list[i];
    char name[1200];
    snprintf(name, sizeof name, lane->number > 1 ? "%.1000s (%d)" : "%.1000s", lane->track,
             lane->number);
    write_name(out, "thread_name", lane->group, i + 1, name);
}

static void write_span(FILE *out, const struct span *s, size_t lane, int64_t base)
{
    // Microseconds, to the nanosecond.
    fputs(",\n{\"ph\": \"X\", \"name\": ", out);
    write_string(out, s->name);
    fprintf(out, ", \"cat\": \"%s\"",
            s->group == GROUP_DEVICES    ? "device"
            : s->group == GROUP_COMPILES ? "compile"
            : s->group == GROUP_EDITS    ? "edit"
                                         : "request");
    int64_t at = s->start - base, took = s->end - s->start;
    fprintf(out,
            ", \"pid\": %" PRIu64 ", \"tid\": %zu, \"ts\": %" PRId64 ".%03d, \"dur\": %" PRId64
            ".%03d, \"args\": {%s}}",
            s->group, lane + 1, at / 1000, (int)(at % 1000), took / 1000, (int)(took % 1000),
            s->args);
}

void perfetto_write(struct perfetto *p, FILE *out)
{
    struct lanes lanes = { 0 };
    struct span *list = p->spans.list;
    place_runs(p);
    if (p->spans.n > 0)
        qsort(list, p->spans.n, sizeof *list, compare_starts);
    int64_t base = p->spans.n > 0 ? list[0].start : 0;
    fprintf(out,
            "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"program\": \"opctl trace\", "
            "\"begins\": %.6f}, \"traceEvents\": [\n"
            "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": 0, \"tid\": 0, \"args\": "
            "{\"name\": \"opd\"}}",
            (double)base / 1e9);
    write_process(out, GROUP_DEVICES, "device time");
    write_process(out, GROUP_COMPILES, "compiles");
    write_process(out, GROUP_EDITS, "edits");
    for (size_t i = 0; i < p->spans.n; i++) {
        size_t n = lanes.n, lane = find_lane(&lanes, &list[i]);
        if (lane == n && lanes.list[lane].number == 1 && list[i].process)
            write_process(out, list[i].group, list[i].process);
        if (lane == n)
            write_lane(out, &lanes, lane);
        write_span(out, &list[i], lane, base);
    }
    fputs("\n]}\n", out);
    free(lanes.list);
}

size_t perfetto_runs(const struct perfetto *p)
{
    return p->n_runs;
}

struct perfetto *perfetto_new(void)
{
    return check(calloc(1, sizeof(struct perfetto)));
}

void perfetto_free(struct perfetto *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_places; i++)
        free(p->texts[i]);
    free(p->texts);
    free(p->spans.list);
    free(p);
}
