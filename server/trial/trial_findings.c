#include "trial/trial_findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/cpu_line.h"
#include "base/dtype.h"
#include "base/mem.h"

struct range {
    unsigned long long addr, size;
    char dtype[16], name[80];
};

// Where the stage was. Both texts tell of it; the sanitizer's reports come between its lines, but
// in another file, so that a report belongs to the last launch unless the process went on.
struct scene {
    const char *file; // the operator's: what a program has loaded may be named by that, "train.py"
    struct range *ranges, stacks[2];
    int n_ranges, n_stacks;
    char kernel[300], context[100];
};

static void set(char *out, size_t size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(out, size, fmt, args);
    va_end(args);
}

// NULL: there are too many.
static struct trial_finding *add_finding(struct trial_findings *f, const struct scene *s)
{
    struct trial_finding *t = f->n < TRIAL_MAX_FINDINGS ? &f->list[f->n++] : NULL;
    if (t) {
        set(t->kernel, sizeof t->kernel, "%s", s->kernel);
        set(t->context, sizeof t->context, "%s", s->context);
    }
    return t;
}

static void add_range(struct scene *s, const char *line)
{
    struct range r = { 0 };
    if (sscanf(line, "tensor\t%llx\t%llu\t%15[^\t]\t%79[^\n]", &r.addr, &r.size, r.dtype, r.name) !=
        4)
        return;
    s->ranges = mem_realloc(s->ranges, (size_t)s->n_ranges + 1, sizeof *s->ranges);
    s->ranges[s->n_ranges++] = r;
}

// ", f.cu:22 in KERNEL" at the end of a message of cpu_fault.c.
static void read_place(const char *message, char *out, size_t size)
{
    const char *in = NULL;
    for (const char *at = message; (at = strstr(at, " in ")) != NULL; at += 4)
        in = at;
    const char *comma = in;
    while (comma && comma > message && *comma != ',')
        comma--;
    if (in && *comma == ',' && in > comma + 2)
        set(out, size, "%.*s", (int)(in - comma - 2), comma + 2);
}

static void add_fault(struct trial_findings *f, const struct scene *s, const char *message)
{
    struct trial_finding *t = add_finding(f, s);
    if (!t)
        return;
    set(t->what, sizeof t->what, "%s", message);
    read_place(message, t->where, sizeof t->where);
}

// "f.cu:7", a tab, and what differs.
static void add_difference(struct trial_findings *f, const struct scene *s, const char *line)
{
    struct trial_finding *t = add_finding(f, s);
    const char *tab = strchr(line, '\t');
    if (!t || !tab)
        return;
    set(t->where, sizeof t->where, "%.*s", (int)(tab - line), line);
    set(t->what, sizeof t->what, "%s", tab + 1);
}

// A fault that is run again is no example.
static void set_context(struct scene *s, const char *dtype, int example, const char *direction)
{
    if (example)
        set(s->context, sizeof s->context, "%s, example %d, %s", dtype, example, direction);
    else
        set(s->context, sizeof s->context, "%s, %s", dtype, direction);
}

static void read_line(struct trial_findings *f, struct scene *s, const char *line)
{
    char dtype[32], direction[16];
    int example;
    if (strncmp(line, "tensor\t", 7) == 0)
        add_range(s, line);
    else if (s->n_stacks < 2 && sscanf(line, "stacks\t%llx\t%llu", &s->stacks[s->n_stacks].addr,
                                       &s->stacks[s->n_stacks].size) == 2)
        s->n_stacks++;
    else if (sscanf(line, "run\t%31s %d %15s", dtype, &example, direction) == 3)
        set_context(s, dtype, example, direction);
    else if (strncmp(line, "run", 3) == 0)
        s->n_ranges = 0;
    else if (strncmp(line, "kernel\t", 7) == 0)
        set(s->kernel, sizeof s->kernel, "%s", line + 7);
    else if (strncmp(line, "fault\t", 6) == 0)
        add_fault(f, s, line + 6);
    else if (strncmp(line, "differs\t", 8) == 0)
        add_difference(f, s, line + 8);
    else if (strncmp(line, "error\t", 6) == 0)
        set(f->error, sizeof f->error, "%s", line + 6);
    else if (sscanf(line, "done\t%d", &f->n_launches) == 1)
        f->n_done++;
    else if (sscanf(line, "cases\t%d", &f->n_cases) != 1 && strcmp(line, "end") == 0)
        f->ended = true;
}

// --- the sanitizers' reports

// "gelu.cu:58" in a line of a stack, or at its beginning: a file of the user's. False: none.
static bool find_file(const struct scene *s, const char *line, char *out, size_t size)
{
    size_t n = strlen(s->file);
    for (const char *at = line; n && (at = strstr(at, s->file)) != NULL; at += n)
        if (at[n] == ':' && at[n + 1] >= '0' && at[n + 1] <= '9') {
            set(out, size, "%s:%.*s", s->file, (int)strspn(at + n + 1, "0123456789"), at + n + 1);
            return true;
        }
    for (const char *at = line; (at = strstr(at, ".cu")) != NULL; at += 3) {
        const char *colon = at + 3 + (at[3] == 'h'), *begin = at;
        if (*colon != ':' || colon[1] < '0' || colon[1] > '9')
            continue;
        while (begin > line && begin[-1] != '/' && begin[-1] != ' ')
            begin--;
        char name[128];
        set(name, sizeof name, "%.*s", (int)(colon - begin), begin);
        if (cpu_line_is_internal(name))
            return false;
        set(out, size, "%s:%.*s", name, (int)strspn(colon + 1, "0123456789"), colon + 1);
        return true;
    }
    return false;
}

static void name_address(const struct scene *s, unsigned long long addr, char *out, size_t size)
{
    const struct range *best = NULL;
    unsigned long long least = 4096;
    for (int i = 0; i < s->n_ranges; i++) {
        const struct range *r = &s->ranges[i];
        unsigned long long end = r->addr + r->size;
        unsigned long long away = addr < r->addr ? r->addr - addr : addr >= end ? addr - end : 0;
        if (away <= least) { // the latest that was there
            least = away;
            best = r;
        }
    }
    if (!best) {
        set(out, size, "of shared or local memory");
        return;
    }
    long long each = (long long)dtype_size(dtype_parse(best->dtype));
    long long bytes = (long long)(addr - best->addr);
    set(out, size, "of '%s': element %lld of %lld (%s)", best->name,
        (bytes - (bytes < 0 ? each - 1 : 0)) / each, (long long)best->size / each, best->dtype);
}

// A report that is being read: up to two accesses, each with its stack.
struct report {
    char kind[64];
    int n;
    bool local; // of what is on a thread's stack, which the next one has taken over
    char access[2][32], target[2][200], where[2][200];
};

// The same two lines race for many elements, and either may be seen first.
static bool is_known(const struct trial_findings *f, const struct report *r)
{
    for (int i = 0; i < f->n; i++)
        if ((strcmp(f->list[i].where, r->where[0]) == 0 &&
             strcmp(f->list[i].other, r->where[1]) == 0) ||
            (strcmp(f->list[i].where, r->where[1]) == 0 &&
             strcmp(f->list[i].other, r->where[0]) == 0))
            return true;
    return false;
}

static void end_report(struct trial_findings *f, const struct scene *s, struct report *r)
{
    bool race = strcmp(r->kind, "data-race") == 0;
    // One without places is the rest of a log that was too long.
    bool cut = f->n > 0 && !r->where[0][0] && !r->where[1][0];
    bool known = race && (cut || r->local || is_known(f, r));
    struct trial_finding *t = r->kind[0] && !known ? add_finding(f, s) : NULL;
    if (t) {
        set(t->where, sizeof t->where, "%s", r->where[0]);
        set(t->other, sizeof t->other, "%s", r->where[1]);
        if (race)
            set(t->what, sizeof t->what,
                "data race: %s %s at %s, and %s by another thread at %s: a __syncthreads(), "
                "__syncwarp() or atomic is missing between them",
                r->access[0], r->target[0], r->where[0], r->access[1], r->where[1]);
        else
            set(t->what, sizeof t->what, "%s: %s %s at %s", r->kind, r->access[0], r->target[0],
                r->where[0]);
    }
    *r = (struct report){ 0 };
}

static void read_access(const struct scene *s, struct report *r, const char *line)
{
    unsigned long long addr = 0;
    const char *at = strstr(line, " at 0x");
    if (!at || r->n == 2)
        return;
    sscanf(at, " at 0x%llx", &addr);
    for (int i = 0; i < s->n_stacks; i++)
        r->local = r->local || addr - s->stacks[i].addr < s->stacks[i].size;
    bool atomic = strstr(line, "tomic") != NULL;
    bool write = strstr(line, "rite of") || strstr(line, "RITE of");
    set(r->access[r->n], sizeof r->access[0], "%s%s", atomic ? "atomic " : "",
        write ? "write" : "read");
    name_address(s, addr, r->target[r->n], sizeof r->target[0]);
    r->n++;
}

// "over.cu:11:23: runtime error: index 64 out of bounds"
static void read_undefined(struct trial_findings *f, const struct scene *s, const char *line,
                           const char *error)
{
    struct trial_finding *t = add_finding(f, s);
    if (!t)
        return;
    if (!find_file(s, line, t->where, sizeof t->where))
        set(t->where, sizeof t->where, "%.*s", (int)(error - line), line);
    set(t->what, sizeof t->what, "undefined behaviour: %s, at %s", error + 16, t->where);
}

static void read_log_line(struct trial_findings *f, const struct scene *s, struct report *r,
                          const char *line)
{
    const char *error = strstr(line, ": runtime error: ");
    const char *asan = strstr(line, "ERROR: AddressSanitizer: ");
    char where[200];
    if (error) {
        read_undefined(f, s, line, error);
    } else if (asan) {
        end_report(f, s, r);
        set(r->kind, sizeof r->kind, "%.*s", (int)strcspn(asan + 25, " "), asan + 25);
    } else if (strstr(line, "WARNING: ThreadSanitizer: data race")) {
        end_report(f, s, r);
        set(r->kind, sizeof r->kind, "data-race");
    } else if (r->kind[0] && strstr(line, " of size ") && strstr(line, " at 0x")) {
        read_access(s, r, line);
    } else if (r->n > 0 && !r->where[r->n - 1][0] && strstr(line, "    #") &&
               find_file(s, line, where, sizeof where)) {
        set(r->where[r->n - 1], sizeof r->where[0], "%s", where);
    } else if (strstr(line, "SUMMARY: ") || strstr(line, "is located") ||
               strncmp(line, "  Location is", 13) == 0) {
        if (r->n > 0)
            end_report(f, s, r);
    }
}

void trial_findings_read(struct trial_findings *out, const char *file, char *said, char *log)
{
    struct scene scene = { .file = file };
    struct report report = { 0 };
    char *save = NULL;
    *out = (struct trial_findings){ 0 };
    for (char *line = strtok_r(said, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        read_line(out, &scene, line);
    for (char *line = strtok_r(log, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        read_log_line(out, &scene, &report, line);
    end_report(out, &scene, &report);
    free(scene.ranges);
}
