#include "kernels/reload.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "request/parts.h"
#include "base/clock.h"
#include "kernels/edit.h"
#include "kernels/events.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/source.h"
#include "wire/trust.h"
#include "kernels/watch.h"

// A file that is gone may come back at once (editors rename), so it is missed for so long before
// its operator is withdrawn.
enum { GONE_MS = 300 };

static double since_ms(uint64_t since)
{
    return (double)(clock_ns() - since) / 1e6;
}

struct source *reload_source(const struct reload *r, const char *path)
{
    struct source *s = r->sources;
    while (s && strcmp(s->path, path) != 0)
        s = s->next;
    return s;
}

// A file that does not parse is taken by its name.
const char *reload_explain(const struct reload *r, const char *op, char *out, size_t size)
{
    size_t n = strlen(op);
    out[0] = '\0';
    for (const struct source *s = r->sources; s; s = s->next) {
        bool named = strncmp(s->file, op, n) == 0 && strcmp(s->file + n, ".cu") == 0;
        if (s->failure.seq && !s->missing_since && (named || strcmp(s->failure.op, op) == 0))
            snprintf(out, size, "; %s is not served: %s", s->file, s->failure.err.msg);
    }
    return out;
}

static void withdraw_gone(struct broker *b, uint64_t since);

void reload_poll(struct broker *b)
{
    uint64_t generation = b->registry.generation;
    if (edit_poll_all(b))
        turn_retry(&b->turn); // for whoever waits for it in reload()
    if (b->registry.generation != generation)
        withdraw_gone(b, clock_ns()); // what the new ones were before their files were edited
}

bool reload_busy(const struct broker *b)
{
    return b->reload.edits || b->reload.burst_since;
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
        struct source *s = reload_source(r, path);
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

static struct version *parse(struct reload *r, struct source *s, struct opd_err *err)
{
    struct op *op = op_parse(s->file, s->original, s->original_size, err);
    if (!op)
        return NULL;
    snprintf(s->op, sizeof s->op, "%s", op->name);
    if (op->warnings[0])
        log_warn("%s", op->warnings);
    return version_new(op, s, r->common);
}

// An edit that was taken back: the version that is served is that text already.
static bool is_served(struct broker *b, const struct version *v, uint64_t since)
{
    struct opd_operator *o = registry_operator(&b->registry, v->op->name);
    if (!o || !o->current || o->current->hash != v->hash || strcmp(o->current->path, v->path) != 0)
        return false;
    if (o->current != operator_newest(o))
        return false; // pinned, or rolled back to: what the file says is the newest again
    o->failure = 0;
    source_mend(reload_source(&b->reload, v->path));
    events_add(b, &(struct event){ .kind = "reloaded",
                                   .op = o->name,
                                   .version = o->current->number,
                                   .file = o->current->path,
                                   .ms = since_ms(since) });
    return true;
}

// `by` gives the same operator, and wins.
static void tell_shadowed(struct broker *b, struct source *s, const struct source *by)
{
    struct opd_err why = { 0 };
    opd_err_set(&why, OPD_E_invalid_argument,
                "%s is not served: %s gives operator %s too, and of several files the one in the "
                "last folder wins, there the last by name",
                s->path, by->path, s->op);
    log_info("%s", why.msg);
    source_mend(s);
    s->failure = (struct source_failure){ .shadowed = true, .err = why };
    snprintf(s->failure.op, sizeof s->failure.op, "%s", s->op);
    s->failure.seq = events_add(
        b, &(struct event){ .kind = "shadowed", .op = s->op, .file = s->path, .err = &why });
}

// Reads a file that has changed. NULL: nothing new is in it, or it does not parse, which is told.
static struct version *take_change(struct broker *b, struct source *s, bool common_changed,
                                   uint64_t since)
{
    struct reload *r = &b->reload;
    uint64_t hash = s->text ? s->hash : 0;
    struct opd_err err = { 0 };
    struct version *v = NULL;
    char before[sizeof s->op];
    snprintf(before, sizeof before, "%s", s->op);
    bool again = common_changed || !hash || (s->failure.seq && !s->failure.shadowed);
    if (source_read(s, &err) && (again || s->hash != hash))
        v = parse(r, s, &err);
    if (err.code) {
        edit_overtake(b, s->path);
        edit_tell_failure(b, before, 0, s->path, &err, since);
    } else if (v && is_served(b, v, since)) {
        edit_overtake(b, s->path);
        version_unref(v);
        v = NULL;
    } else if (v && winner(r, v->op->name) != s) {
        tell_shadowed(b, s, winner(r, v->op->name));
        version_unref(v);
        v = NULL;
    }
    opd_err_clear(&err);
    return v;
}

// Does the file give an operator that does not serve from it yet, but will when it is compiled, or
// mended?
static bool is_renaming(const struct broker *b, const struct source *s)
{
    const struct version *v = registry_find(&b->registry, s->op);
    return winner(&b->reload, s->op) == s && (!v || strcmp(v->path, s->path) != 0);
}

// Is that text under way, or has it failed?
static bool is_tried(const struct broker *b, const struct opd_operator *o, const struct version *v)
{
    if (edit_has(b, v))
        return true;
    const struct version *last = o->versions;
    return last && last->state == VERSION_FAILED && last->hash == v->hash &&
           strcmp(last->path, v->path) == 0;
}

// Operators whose file is gone, or gives another operator now, go too, or fall back to a file of an
// earlier folder.
static void withdraw_gone(struct broker *b, uint64_t since)
{
    for (struct opd_operator *o = b->registry.operators; o; o = o->next) {
        if (!o->current)
            continue;
        const struct source *now = reload_source(&b->reload, o->current->path);
        if (now && !now->missing_since && (strcmp(now->op, o->name) == 0 || is_renaming(b, now)))
            continue;
        if (now && now->missing_since && since_ms(now->missing_since) < GONE_MS) {
            watch_look_soon(b);
            continue;
        }
        struct source *other = winner(&b->reload, o->name);
        struct opd_err err = { 0 };
        struct version *v = other ? parse(&b->reload, other, &err) : NULL;
        opd_err_clear(&err);
        if (v && is_tried(b, o, v)) {
            version_unref(v);
            continue;
        }
        if (v) {
            struct edit *edit = NULL;
            edit_overtake(b, v->path);
            edit_add(b, &edit, v, since);
            edit_start(b, edit);
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

void reload_look(struct broker *b)
{
    struct reload *r = &b->reload;
    if (b->handover.upgrade)
        return; // the successor looks, or this one when the upgrade is refused
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
            watch_look_soon(b);
            continue;
        }
        struct version *v = take_change(b, s, common_changed, since);
        if (!v)
            continue;
        edit_overtake(b, s->path);
        struct edit *alone = NULL;
        edit_add(b, by_include || common_changed ? &together : &alone, v, since);
        if (alone)
            edit_start(b, alone);
    }
    if (together)
        edit_start(b, together);
    withdraw_gone(b, since);
    drop_missing(r);
    watch_update(b);
    reload_poll(b);
    turn_retry(&b->turn);
    if (r->folder_missing && r->started && !uv_is_active((uv_handle_t *)&r->timer))
        watch_look_soon(b);
}

// --- life

static struct version *first_version(struct broker *b, struct source *s)
{
    uint64_t since = clock_ns();
    struct opd_err err = { 0 };
    struct version *v = source_read(s, &err) ? parse(&b->reload, s, &err) : NULL;
    if (!v)
        edit_tell_failure(b, "", 0, s->path, &err, since);
    opd_err_clear(&err);
    return v;
}

bool reload_first(struct broker *b, struct opd_err *err)
{
    struct reload *r = &b->reload;
    if (b->options.n_kernels == 0)
        return opd_err_set(
            err, OPD_E_invalid_argument,
            "the shipped operators are not beside the program; name their folder with --kernels");
    for (int i = 0; i < b->options.n_kernels; i++)
        if (!trust_folder(b->options.kernels[i], err))
            return opd_err_prefix(err, "--kernels");
    r->common_path = mem_printf("%s/opd.cuh", b->options.kernels[0]);
    bool changed;
    if (!read_common(b, &changed, err))
        return false;
    list_files(b);
    if (r->folder_missing)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "a folder of kernels cannot be read; the log names it");
    for (struct source *s = r->sources; s; s = s->next)
        s->first = first_version(b, s);
    for (struct source *s = r->sources; s; s = s->next) {
        const struct source *last = s->first ? winner(r, s->op) : s;
        if (last != s)
            log_info("operator %s: %s replaces %s", s->op, last->path, s->path);
        else if (s->first)
            registry_publish(&b->registry, s->first);
        version_unref(s->first);
        s->first = NULL;
    }
    return true;
}

void reload_start(struct broker *b)
{
    struct reload *r = &b->reload;
    uv_timer_init(&b->turn.loop, &r->timer);
    r->timer.data = b;
    r->started = true;
    watch_update(b);
    reload_look(b); // what changed between the first look and the watch
}

void reload_stop(struct broker *b)
{
    struct reload *r = &b->reload;
    if (!r->started)
        return;
    r->started = false;
    uv_close((uv_handle_t *)&r->timer, NULL);
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++)
        if (r->watches[i].folder)
            uv_close((uv_handle_t *)&r->watches[i].handle, NULL);
    edit_drop_all(b);
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
