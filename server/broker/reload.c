#include "reload.h"

#include <dirent.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "broker.h"
#include "clock.h"
#include "device.h"
#include "events.h"
#include "log.h"
#include "mem.h"
#include "pool.h"
#include "program.h"
#include "source.h"

// A burst is over when nothing has changed for QUIET_MS, or it has lasted BURST_MS. A file that is
// gone may come back at once (editors rename), so it is missed for GONE_MS before its operator is
// withdrawn. A folder that is not there is looked for every FOLDER_MS.
enum { QUIET_MS = 2, BURST_MS = 40, GONE_MS = 300, FOLDER_MS = 250 };

// More users of one header than this are served in several lots.
enum { EDIT_MAX = 1024 };

// New versions that are served together or not at all.
struct edit {
    struct edit *next;
    struct entry *entries[EDIT_MAX]; // a reference each
    int n;
    uint64_t since;     // when the change was noticed
    struct opd_err err; // of a quick look at the syntax, or of a source that does not parse
    struct broker *broker;
    bool checking; // a look at the syntax has not answered
    bool over;     // freed when it has
};

static void look_soon(struct broker *b);

// --- what came of an edit

static double since_ms(uint64_t since)
{
    return (double)(clock_ns() - since) / 1e6;
}

// The edit of an operator's file failed: the next reply of it says so to every client once.
static void remember_failure(struct operator* o, const struct opd_err *err, uint64_t seq)
{
    time_t now = time(NULL);
    struct tm local;
    char clock[16];
    localtime_r(&now, &local);
    strftime(clock, sizeof clock, "%T", &local);
    free(o->failure_text);
    o->failure_text = mem_printf("%s: the edit of %s is not served%s: %s", o->name, clock,
                                 o->current ? ", the version before it is" : "", err->msg);
    o->failure = seq;
}

static void tell_failure(struct broker *b, const char *op, int version, const char *file,
                         const struct opd_err *err, uint64_t since)
{
    struct event event = { .kind = "failed",
                           .op = op[0] ? op : NULL,
                           .version = version,
                           .file = file,
                           .err = err,
                           .ms = since_ms(since) };
    uint64_t seq = events_add(b, &event);
    // Also for an operator that this edit would have renamed.
    for (struct operator* o = b->registry.operators; o; o = o->next)
        if (strcmp(o->name, op) == 0 || (o->current && strcmp(o->current->path, file) == 0))
            remember_failure(o, err, seq);
    log_error("not served: %s%s%s", err->msg, err->log ? "\n" : "", err->log ? err->log : "");
}

static void publish(struct broker *b, struct entry *e, uint64_t since)
{
    registry_publish(&b->registry, e);
    bool pinned = e->state != ENTRY_SERVING;
    struct event event = { .kind = "reloaded",
                           .op = e->op->name,
                           .version = e->version,
                           .file = e->path,
                           .ms = since_ms(since) };
    events_add(b, &event);
    log_info("operator %s: version %d %s, %.1f ms after the edit", e->op->name, e->version,
             pinned ? "is ready (another is pinned)" : "serves", event.ms);
}

static struct source *find_source(const struct reload *r, const char *path)
{
    struct source *s = r->sources;
    while (s && strcmp(s->path, path) != 0)
        s = s->next;
    return s;
}

// --- edits

static void free_edit(struct edit *edit)
{
    for (int i = 0; i < edit->n; i++)
        entry_unref(edit->entries[i]);
    opd_err_clear(&edit->err);
    edit->n = 0;
    edit->over = true;
    if (!edit->checking)
        free(edit);
}

static void syntax_checked(void *data, struct pool_result *result, const struct opd_err *err)
{
    (void)result;
    struct edit *edit = data;
    edit->checking = false;
    if (edit->over) {
        free(edit);
        return;
    }
    if (err->code == OPD_E_compile_error && edit->n == 1)
        opd_err_copy(&edit->err, err);
    broker_retry(edit->broker);
}

// A look at the front end alone, so that a mistake is told before any code is generated.
static void check_syntax(struct broker *b, struct edit *edit, const struct entry *e)
{
    const struct bound_plan *bp = NULL;
    size_t cursor = 0;
    while ((bp = map_next(&e->plans, &cursor)) != NULL && bp->plan->n_kernels == 0)
        ;
    if (!bp || e->n_plans < 2 || b->options.compilers < 2)
        return; // the compile itself tells as soon
    const char *strings[JOB_MAX_STRINGS] = {
        [JOB_KIND] = "syntax",    [JOB_TARGET] = bp->device->info.target,
        [JOB_COMMON] = e->common, [JOB_PRELUDE] = bp->plan->prelude,
        [JOB_FILE] = e->op->file, [JOB_FOLDER] = e->folder,
        [JOB_SOURCE] = e->text,   [JOB_EXPR] = bp->plan->kernels[0].expr,
        [JOB_CACHE] = "",         [JOB_CACHE_LIMIT] = "0",
    };
    edit->checking = true;
    pool_submit(b->pool, strings, syntax_checked, edit);
}

// Where nothing is in use yet, the first example stands for it: a mistake should show now, not with
// the first request.
static void plan_first_example(struct broker *b, struct entry *e)
{
    struct plan_request request;
    if (b->n_devices == 0 || !plan_example(e->op, 0, e->op->types[0].dtypes[0], &request))
        return;
    struct opd_err err = { 0 };
    request.on_cpu = b->devices[0]->is_cpu;
    request.keep = e->op->has_backward;
    entry_plan(e, b->devices[0], &request, &err);
    opd_err_clear(&err);
    if (!e->op->has_backward)
        return;
    request.direction = PLAN_BACKWARD;
    for (int i = 0; i < e->op->n_inputs; i++)
        if (e->op->inputs[i].differentiable && request.inputs[i].dtype != OPD_DTYPE_NONE)
            request.wanted |= 1u << i;
    entry_plan(e, b->devices[0], &request, &err);
    opd_err_clear(&err);
}

static void start_edit(struct broker *b, struct edit *edit)
{
    for (int i = 0; i < edit->n; i++) {
        struct entry *e = edit->entries[i];
        const struct entry *old = registry_find(&b->registry, e->op->name);
        if (!old || entry_inherit(e, old) == 0)
            plan_first_example(b, e);
    }
    if (edit->n == 1)
        check_syntax(b, edit, edit->entries[0]);
    struct edit **end = &b->reload.edits;
    while (*end)
        end = &(*end)->next;
    *end = edit;
    broker_retry(b);
}

// Are all kernels of the new version loaded? False with err: one cannot be.
static bool entry_ready(struct entry *e, uint64_t since, struct opd_err *err)
{
    bool ready = true;
    for (struct program *p = e->programs; p; p = p->next_of_entry) {
        ready = program_ensure(p, since, err) && ready;
        if (err->code)
            return false;
    }
    return ready;
}

static void fail_edit(struct broker *b, struct edit *edit, const struct entry *culprit,
                      const struct opd_err *err)
{
    for (int i = 0; i < edit->n; i++) {
        struct entry *e = edit->entries[i];
        struct opd_err own = { 0 };
        if (e == culprit)
            opd_err_copy(&own, err);
        else
            opd_err_set(&own, err->code, "%s is served with %s or not at all: %.800s", e->op->name,
                        culprit->op->name, err->msg);
        registry_fail(&b->registry, e, &own);
        tell_failure(b, e->op->name, e->version, e->path, &own, edit->since);
        opd_err_clear(&own);
    }
}

// True: the edit is over, one way or the other.
static bool poll_edit(struct broker *b, struct edit *edit)
{
    bool ready = true;
    if (edit->err.code) {
        fail_edit(b, edit, edit->entries[0], &edit->err);
        return true;
    }
    for (int i = 0; i < edit->n; i++) {
        struct opd_err err = { 0 };
        ready = entry_ready(edit->entries[i], edit->since, &err) && ready;
        if (!err.code)
            continue;
        fail_edit(b, edit, edit->entries[i], &err);
        opd_err_clear(&err);
        return true;
    }
    for (int i = 0; ready && i < edit->n; i++)
        publish(b, edit->entries[i], edit->since);
    return ready;
}

static void withdraw_gone(struct broker *b, uint64_t since);

void reload_poll(struct broker *b)
{
    struct edit **at = &b->reload.edits;
    uint64_t generation = b->registry.generation;
    while (*at) {
        struct edit *edit = *at;
        if (!poll_edit(b, edit)) {
            at = &edit->next;
            continue;
        }
        *at = edit->next;
        free_edit(edit);
        broker_retry(b); // for whoever waits for it in reload()
    }
    if (b->registry.generation != generation)
        withdraw_gone(b, clock_ns()); // what the new ones were before their files were edited
}

bool reload_busy(const struct broker *b)
{
    return b->reload.edits || b->reload.burst_since;
}

// An edit of the same file that came before is overtaken. Where it was one of several, the others
// go on alone.
static void overtake(struct broker *b, const char *path)
{
    struct edit **at = &b->reload.edits;
    while (*at) {
        struct edit *edit = *at;
        for (int i = 0; i < edit->n; i++)
            if (strcmp(edit->entries[i]->path, path) == 0) {
                entry_unref(edit->entries[i]);
                edit->entries[i--] = edit->entries[--edit->n];
            }
        if (edit->n > 0) {
            at = &edit->next;
            continue;
        }
        *at = edit->next;
        free_edit(edit);
    }
}

static void add_to_edit(struct broker *b, struct edit **edit, struct entry *e, uint64_t since)
{
    if (*edit && (*edit)->n == (int)(sizeof(*edit)->entries / sizeof(*edit)->entries[0])) {
        start_edit(b, *edit);
        *edit = NULL;
    }
    if (!*edit) {
        *edit = mem_zalloc(1, sizeof **edit);
        (*edit)->since = since;
        (*edit)->broker = b;
    }
    (*edit)->entries[(*edit)->n++] = e;
}

// --- files

// The .cu files of a folder. False: it is not there, which need not last: its operators are served
// as they were.
static bool read_folder(struct reload *r, const char *folder, int index)
{
    DIR *dir = opendir(folder);
    if (!dir) {
        for (struct source *s = r->sources; s; s = s->next)
            if (s->folder_index == index)
                s->seen = s->away = true;
        return false;
    }
    struct dirent *d;
    while ((d = readdir(dir)) != NULL) {
        size_t n = strlen(d->d_name);
        if (d->d_name[0] == '.' || n <= 3 || strcmp(d->d_name + n - 3, ".cu") != 0)
            continue;
        char *path = mem_printf("%s/%s", folder, d->d_name);
        struct source *s = find_source(r, path);
        if (!s) {
            s = source_new(folder, d->d_name, index);
            struct source **at = &r->sources; // in the order in which they win: folder, then name
            while (*at && ((*at)->folder_index < index ||
                           ((*at)->folder_index == index && strcmp((*at)->file, s->file) < 0)))
                at = &(*at)->next;
            s->next = *at;
            *at = s;
        }
        s->seen = true;
        s->missing_since = 0;
        free(path);
    }
    closedir(dir);
    return true;
}

static void list_files(struct broker *b)
{
    struct reload *r = &b->reload;
    bool missing = false;
    for (struct source *s = r->sources; s; s = s->next)
        s->seen = s->away = false;
    for (int i = 0; i < b->options.n_kernels; i++) {
        if (read_folder(r, b->options.kernels[i], i))
            continue;
        missing = true;
        if (!r->folder_missing)
            log_warn("%s is not there; its operators are served as they were",
                     b->options.kernels[i]);
    }
    r->folder_missing = missing;
}

// The file that gives an operator its name now: the last that does, in the order in which they win.
static struct source *winner(const struct reload *r, const char *op)
{
    struct source *found = NULL;
    for (struct source *s = r->sources; s; s = s->next)
        if (!s->missing_since && strcmp(s->op, op) == 0)
            found = s;
    return found;
}

static struct entry *parse(struct reload *r, struct source *s, struct opd_err *err)
{
    struct op *op = op_parse(s->file, s->original, s->original_size, err);
    if (!op)
        return NULL;
    snprintf(s->op, sizeof s->op, "%s", op->name);
    return entry_new(op, s, r->common);
}

// An edit that was taken back: the version that is served is that text already.
static bool is_served(struct broker *b, const struct entry *e, uint64_t since)
{
    struct operator* o = registry_operator(&b->registry, e->op->name);
    if (!o || !o->current || o->current->hash != e->hash || strcmp(o->current->path, e->path) != 0)
        return false;
    if (o->current != operator_newest(o))
        return false; // pinned, or rolled back to: what the file says is the newest again
    o->failure = 0;
    events_add(b, &(struct event){ .kind = "reloaded",
                                   .op = o->name,
                                   .version = o->current->version,
                                   .file = o->current->path,
                                   .ms = since_ms(since) });
    return true;
}

// Reads a file that has changed. NULL: nothing new is in it, or it does not parse, which is told.
static struct entry *take_change(struct broker *b, struct source *s, bool common_changed,
                                 uint64_t since)
{
    struct reload *r = &b->reload;
    uint64_t hash = s->text ? s->hash : 0;
    struct opd_err err = { 0 };
    struct entry *e = NULL;
    char before[sizeof s->op];
    snprintf(before, sizeof before, "%s", s->op);
    if (source_read(s, &err) && (common_changed || s->hash != hash || !hash))
        e = parse(r, s, &err);
    if (err.code) {
        overtake(b, s->path);
        tell_failure(b, before, 0, s->path, &err, since);
    } else if (e && is_served(b, e, since)) {
        overtake(b, s->path);
        entry_unref(e);
        e = NULL;
    } else if (e && winner(r, e->op->name) != s) {
        log_info("operator %s: %s is not served, another file of that operator comes later",
                 e->op->name, s->path);
        entry_unref(e);
        e = NULL;
    }
    opd_err_clear(&err);
    return e;
}

// Does the file give an operator that does not serve from it yet, but will when it is compiled, or
// mended?
static bool is_renaming(const struct broker *b, const struct source *s)
{
    const struct entry *e = registry_find(&b->registry, s->op);
    return winner(&b->reload, s->op) == s && (!e || strcmp(e->path, s->path) != 0);
}

// Is that text under way, or has it failed?
static bool is_tried(const struct broker *b, const struct operator* o, const struct entry *e)
{
    for (const struct edit *edit = b->reload.edits; edit; edit = edit->next)
        for (int i = 0; i < edit->n; i++)
            if (edit->entries[i]->hash == e->hash && strcmp(edit->entries[i]->path, e->path) == 0)
                return true;
    const struct entry *last = o->versions;
    return last && last->state == ENTRY_FAILED && last->hash == e->hash &&
           strcmp(last->path, e->path) == 0;
}

// Operators whose file is gone, or gives another operator now, go too, or fall back to a file of an
// earlier folder.
static void withdraw_gone(struct broker *b, uint64_t since)
{
    for (struct operator* o = b->registry.operators; o; o = o->next) {
        if (!o->current)
            continue;
        const struct source *now = find_source(&b->reload, o->current->path);
        if (now && !now->missing_since && (strcmp(now->op, o->name) == 0 || is_renaming(b, now)))
            continue;
        if (now && now->missing_since && since_ms(now->missing_since) < GONE_MS) {
            look_soon(b);
            continue;
        }
        struct source *other = winner(&b->reload, o->name);
        struct opd_err err = { 0 };
        struct entry *e = other ? parse(&b->reload, other, &err) : NULL;
        opd_err_clear(&err);
        if (e && is_tried(b, o, e)) {
            entry_unref(e);
            continue;
        }
        if (e) {
            struct edit *edit = NULL;
            overtake(b, e->path);
            add_to_edit(b, &edit, e, since);
            start_edit(b, edit);
            continue;
        }
        char *path = mem_strdup(o->current->path);
        o->pinned = 0;
        registry_serve(&b->registry, o, NULL);
        events_add(b, &(struct event){ .kind = "withdrawn", .op = o->name, .file = path });
        log_info("operator %s is withdrawn: %s is gone", o->name, path);
        free(path);
    }
}

static bool read_common(struct broker *b, bool *out_changed, struct opd_err *err)
{
    struct reload *r = &b->reload;
    size_t size;
    char *text = file_read(r->common_path, &size, err);
    *out_changed = text && (!r->common || strcmp(text, r->common) != 0);
    if (*out_changed) {
        free(r->common);
        r->common = text;
    } else {
        free(text);
    }
    return err->code == OPD_E_none;
}

static void drop_missing(struct reload *r)
{
    for (struct source **at = &r->sources; *at;) {
        struct source *s = *at;
        if (!s->seen && s->missing_since && since_ms(s->missing_since) >= GONE_MS) {
            *at = s->next;
            source_free(s);
        } else {
            at = &s->next;
        }
    }
}

// It is empty, but not for long.
static bool is_about_to_be_written(struct source *s, const struct stat *st)
{
    if (st->st_size > 0 || !s->text)
        s->empty_since = 0;
    else if (!s->empty_since)
        s->empty_since = clock_ns();
    return s->empty_since && since_ms(s->empty_since) < GONE_MS;
}

static void watch_folders(struct broker *b);

void reload_look(struct broker *b)
{
    struct reload *r = &b->reload;
    uint64_t since = r->burst_since ? r->burst_since : clock_ns();
    r->burst_since = 0;
    list_files(b);
    struct opd_err err = { 0 };
    bool common_changed;
    read_common(b, &common_changed, &err);
    opd_err_clear(&err);          // not there for a moment: the text we have goes on
    struct edit *together = NULL; // all that change through a header
    for (struct source *s = r->sources; s; s = s->next) {
        bool by_include = false;
        struct stat st;
        if (s->away)
            continue;
        if (!s->seen || stat(s->path, &st) < 0) {
            s->missing_since = s->missing_since ? s->missing_since : clock_ns();
            continue;
        }
        if (!common_changed && !source_changed(s, &by_include))
            continue;
        if (is_about_to_be_written(s, &st)) {
            look_soon(b);
            continue;
        }
        struct entry *e = take_change(b, s, common_changed, since);
        if (!e)
            continue;
        overtake(b, s->path);
        struct edit *alone = NULL;
        add_to_edit(b, by_include || common_changed ? &together : &alone, e, since);
        if (alone)
            start_edit(b, alone);
    }
    if (together)
        start_edit(b, together);
    withdraw_gone(b, since);
    drop_missing(r);
    watch_folders(b);
    reload_poll(b);
    broker_retry(b);
    if (r->folder_missing && r->started && !uv_is_active((uv_handle_t *)&r->timer))
        look_soon(b);
}

// --- watching

static void timer_cb(uv_timer_t *timer)
{
    reload_look(timer->data);
}

static void look_soon(struct broker *b)
{
    struct reload *r = &b->reload;
    if (r->started && !r->burst_since)
        uv_timer_start(&r->timer, timer_cb, r->folder_missing ? FOLDER_MS : GONE_MS, 0);
}

static void changed_cb(uv_fs_event_t *handle, const char *name, int events, int status)
{
    (void)events, (void)status, (void)name;
    struct broker *b = handle->data;
    struct reload *r = &b->reload;
    uint64_t now = clock_ns();
    if (!r->burst_since)
        r->burst_since = now;
    uint64_t lasted = (now - r->burst_since) / 1000000;
    uv_timer_start(&r->timer, timer_cb, lasted >= BURST_MS ? 0 : QUIET_MS, 0);
}

static void watch_closed_cb(uv_handle_t *handle)
{
    (void)handle;
}

static void start_watch(struct watch *w)
{
    struct stat st = { 0 };
    bool there = stat(w->folder, &st) == 0;
    if (w->active && there && w->device == st.st_dev && w->inode == st.st_ino)
        return;
    if (w->active)
        uv_fs_event_stop(&w->handle); // it watches what was there before
    w->active = there && uv_fs_event_start(&w->handle, changed_cb, w->folder, 0) == 0;
    w->device = st.st_dev;
    w->inode = st.st_ino;
    if (there && !w->active)
        log_warn("%s is not watched: edits are seen by 'opctl reload' alone", w->folder);
}

static void watch_folder(struct broker *b, const char *folder)
{
    struct watch *free_one = NULL;
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++) {
        struct watch *w = &b->reload.watches[i];
        if (w->folder && strcmp(w->folder, folder) == 0) {
            start_watch(w);
            return;
        }
        if (!w->folder && !free_one)
            free_one = w;
    }
    if (!free_one) {
        log_warn("%s is not watched: more than %d folders", folder, RELOAD_MAX_WATCHES);
        return;
    }
    uv_fs_event_init(&b->loop, &free_one->handle);
    free_one->handle.data = b;
    free_one->folder = mem_strdup(folder);
    start_watch(free_one);
}

// The folder of what a path leads to, where that is another: a symbolic link's target is edited
// there. Of a header that is not there, the folder where it would be.
static void watch_target(struct broker *b, const char *path, const char *folder)
{
    char real[PATH_MAX];
    char *parent = mem_strndup(path, (size_t)(strrchr(path, '/') - path));
    if (realpath(path, real))
        *strrchr(real, '/') = '\0';
    else if (!realpath(parent, real))
        real[0] = '\0';
    free(parent);
    if (real[0] && strcmp(real, folder) != 0)
        watch_folder(b, real);
}

static void watch_folders(struct broker *b)
{
    struct reload *r = &b->reload;
    if (!r->started)
        return;
    for (int i = 0; i < b->options.n_kernels; i++)
        watch_folder(b, b->options.kernels[i]);
    for (const struct source *s = r->sources; s; s = s->next) {
        watch_target(b, s->path, s->folder);
        for (int i = 0; i < s->n_includes; i++)
            watch_target(b, s->includes[i].path, s->folder);
    }
}

// --- life

static struct entry *first_version(struct reload *r, struct source *s)
{
    struct opd_err err = { 0 };
    struct entry *e = source_read(s, &err) ? parse(r, s, &err) : NULL;
    if (!e)
        log_error("not served: %s%s%s", err.msg, err.log ? "\n" : "", err.log ? err.log : "");
    opd_err_clear(&err);
    return e;
}

bool reload_first(struct broker *b, struct opd_err *err)
{
    struct reload *r = &b->reload;
    if (b->options.n_kernels == 0)
        return opd_err_set(
            err, OPD_E_invalid_argument,
            "the shipped operators are not beside the program; name their folder with --kernels");
    r->common_path = mem_printf("%s/opd.cuh", b->options.kernels[0]);
    bool changed;
    if (!read_common(b, &changed, err))
        return false;
    list_files(b);
    if (r->folder_missing)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "a folder of kernels cannot be read; the log names it");
    for (struct source *s = r->sources; s; s = s->next)
        s->first = first_version(r, s);
    for (struct source *s = r->sources; s; s = s->next) {
        const struct source *last = s->first ? winner(r, s->op) : s;
        if (last != s)
            log_info("operator %s: %s replaces %s", s->op, last->path, s->path);
        else if (s->first)
            registry_publish(&b->registry, s->first);
        entry_unref(s->first);
        s->first = NULL;
    }
    return true;
}

void reload_start(struct broker *b)
{
    struct reload *r = &b->reload;
    uv_timer_init(&b->loop, &r->timer);
    r->timer.data = b;
    r->started = true;
    watch_folders(b);
    reload_look(b); // what changed between the first look and the watch
}

void reload_stop(struct broker *b)
{
    struct reload *r = &b->reload;
    if (!r->started)
        return;
    r->started = false;
    uv_close((uv_handle_t *)&r->timer, watch_closed_cb);
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++)
        if (r->watches[i].folder)
            uv_close((uv_handle_t *)&r->watches[i].handle, watch_closed_cb);
    while (r->edits) {
        struct edit *edit = r->edits;
        r->edits = edit->next;
        free_edit(edit);
    }
}

void reload_finish(struct reload *r)
{
    for (struct source *s = r->sources, *next; s; s = next) {
        next = s->next;
        source_free(s);
    }
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++)
        free(r->watches[i].folder);
    free(r->common);
    free(r->common_path);
    *r = (struct reload){ 0 };
}
