#include "kernels/reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/turn.h"
#include "base/clock.h"
#include "kernels/edit.h"
#include "kernels/events.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/registry.h"
#include "wire/trust.h"
#include "kernels/watch.h"

// A file that is gone may come back at once (editors rename), so it is missed for so long before
// its operator is withdrawn.
enum { GONE_MS = 300 };

static bool is_recent(uint64_t since)
{
    return clock_ms_since(since) < GONE_MS;
}

// A file that does not parse is taken by its name.
const char *reload_explain(const struct reload *r, const char *op, char *out, size_t size)
{
    size_t n = strlen(op);
    out[0] = '\0';
    for (size_t i = 0; i < r->sources.n; i++) {
        const struct source *s = r->sources.at[i];
        bool named = strncmp(s->file, op, n) == 0 && strcmp(s->file + n, ".cu") == 0;
        if (s->failure.seq && !s->missing_since && (named || strcmp(s->failure.op, op) == 0))
            snprintf(out, size, "; %s is not served: %s", s->file, s->failure.err.msg);
    }
    return out;
}

static void withdraw_gone(struct reload *r, uint64_t since);

void reload_poll(struct reload *r)
{
    if (!edit_poll_all(r))
        return;
    turn_retry(r->turn);          // for whoever waits for it in reload()
    withdraw_gone(r, clock_ns()); // what the new ones were before their files were edited
}

bool reload_busy(const struct reload *r)
{
    return r->edits || r->burst_since || (r->unsettled && r->started);
}

// --- versions of files

static struct version *parse(struct reload *r, struct source *s, struct opd_err *err)
{
    struct op *op = op_parse_whole(s->file, s->original, s->original_size, s->text, err);
    if (!op)
        return NULL;
    r->doubt = r->doubt || strcmp(s->op, op->name) != 0;
    sources_rename(&r->sources, s, op->name);
    if (op->warnings[0])
        log_warn("%s", op->warnings);
    return version_new(op, s, r->common, NULL);
}

// An edit that was taken back: the version that is served is that text already.
static bool is_served(struct reload *r, const struct version *v, uint64_t since)
{
    struct opd_operator *o = registry_operator(r->registry, v->op->name, SCOPE_FILES);
    if (!o || !o->current || o->current->hash != v->hash || strcmp(o->current->path, v->path) != 0)
        return false;
    if (o->current != operator_newest(o))
        return false; // pinned, or rolled back to: what the file says is the newest again
    o->failure = 0;
    source_mend(sources_find(&r->sources, v->path));
    events_add(r->events, &(struct event){ .kind = "reloaded",
                                           .op = o->name,
                                           .version = o->current->number,
                                           .file = o->current->path,
                                           .ms = clock_ms_since(since) });
    return true;
}

// `by` gives the same operator, and wins.
static void tell_shadowed(struct reload *r, struct source *s, const struct source *by)
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
        r->events,
        &(struct event){ .kind = "shadowed", .op = s->op, .file = s->path, .err = &why });
}

// Reads a file that has changed. NULL: nothing new is in it, or it does not parse, which is told.
static struct version *take_change(struct reload *r, struct source *s, bool common_changed,
                                   uint64_t since)
{
    uint64_t hash = s->text ? s->hash : 0;
    struct opd_err err = { 0 };
    struct version *v = NULL;
    char before[sizeof s->op];
    snprintf(before, sizeof before, "%s", s->op);
    bool again = common_changed || !hash || (s->failure.seq && !s->failure.shadowed);
    if (source_read(s, &err) && (again || s->hash != hash))
        v = parse(r, s, &err);
    if (err.code) {
        edit_overtake(r, s->path);
        edit_tell_failure(r, before, 0, s->path, &err, since);
    } else if (v && is_served(r, v, since)) {
        edit_overtake(r, s->path);
        version_unref(v);
        v = NULL;
    } else if (v && sources_winner(&r->sources, v->op->name) != s) {
        tell_shadowed(r, s, sources_winner(&r->sources, v->op->name));
        version_unref(v);
        v = NULL;
    }
    opd_err_clear(&err);
    return v;
}

// Does the file give an operator that does not serve from it yet, but will when it is compiled, or
// mended?
static bool is_renaming(const struct reload *r, const struct source *s)
{
    const struct version *v = registry_find(r->registry, s->op);
    return sources_winner(&r->sources, s->op) == s && (!v || strcmp(v->path, s->path) != 0);
}

// Is that text under way, or has it failed?
static bool is_tried(const struct reload *r, const struct opd_operator *o, const struct version *v)
{
    if (edit_has(r, v))
        return true;
    const struct version *last = o->versions;
    return last && last->state == VERSION_FAILED && last->hash == v->hash &&
           strcmp(last->path, v->path) == 0;
}

// Operators whose file is gone, or gives another operator now, go too, or fall back to a file of an
// earlier folder.
static void withdraw_gone(struct reload *r, uint64_t since)
{
    if (!r->doubt)
        return;
    r->doubt = false;
    for (size_t i = 0; i < r->registry->n_operators; i++) {
        struct opd_operator *o = r->registry->operators[i];
        if (!o->current || o->scope != SCOPE_FILES)
            continue;
        const struct source *now = sources_find(&r->sources, o->current->path);
        if (now && !now->missing_since && strcmp(now->op, o->name) == 0)
            continue;
        if (now && (now->missing_since ? is_recent(now->missing_since) : is_renaming(r, now))) {
            r->doubt = true;
            continue;
        }
        struct source *other = sources_winner(&r->sources, o->name);
        struct opd_err err = { 0 };
        struct version *v = other ? parse(r, other, &err) : NULL;
        opd_err_clear(&err);
        if (v && is_tried(r, o, v)) {
            version_unref(v);
            continue;
        }
        if (v) {
            struct edit *edit = NULL;
            edit_overtake(r, v->path);
            edit_add(r, &edit, v, since);
            edit_start(r, edit);
            continue;
        }
        char *path = mem_strdup(o->current->path);
        o->pinned = 0;
        registry_serve(r->registry, o, NULL);
        events_add(r->events, &(struct event){ .kind = "withdrawn", .op = o->name, .file = path });
        log_info("operator %s is withdrawn: %s is gone", o->name, path);
        free(path);
    }
}

static bool read_common(struct reload *r, bool *out_changed, struct opd_err *err)
{
    char *text = source_common(r->sources.folders[0], err);
    *out_changed = text && (!r->common || strcmp(text, r->common) != 0);
    if (*out_changed) {
        free(r->common);
        r->common = text;
    } else {
        free(text);
    }
    return err->code == OPD_E_none;
}

static void drop_missing(struct sources *ss)
{
    for (size_t i = ss->n; i-- > 0;)
        if (!ss->at[i]->seen && ss->at[i]->missing_since && !is_recent(ss->at[i]->missing_since))
            sources_remove(ss, i);
}

// Is the file empty, but not for long?
static bool is_about_to_be_written(struct source *s)
{
    if (s->now.size > 0 || !s->text)
        s->empty_since = 0;
    else if (!s->empty_since)
        s->empty_since = clock_ns();
    return s->empty_since && is_recent(s->empty_since);
}

// Is the file there, and another than it was read?
static bool has_changed(struct reload *r, struct source *s, bool common_changed, bool *by_include)
{
    *by_include = false;
    if (s->away)
        return false;
    if (s->missing_since) {
        r->doubt = true;
        r->unsettled = r->unsettled || is_recent(s->missing_since);
        return false;
    }
    if (!common_changed && !source_changed(s, by_include))
        return false;
    if (!is_about_to_be_written(s))
        return true;
    r->unsettled = true;
    return false;
}

void reload_look(struct reload *r)
{
    if (r->held)
        return; // the successor looks, or this one when the upgrade is refused
    uint64_t since = r->burst_since ? r->burst_since : clock_ns();
    r->burst_since = 0;
    if (r->started)
        uv_timer_stop(&r->timer); // this look sees what was noticed until now
    r->unsettled = false;
    sources_list(&r->sources);
    struct opd_err err = { 0 };
    bool common_changed;
    read_common(r, &common_changed, &err);
    opd_err_clear(&err);          // not there for a moment: the text we have goes on
    struct edit *together = NULL; // all that change through a header
    for (size_t i = 0; i < r->sources.n; i++) {
        struct source *s = r->sources.at[i];
        bool by_include;
        struct version *v = has_changed(r, s, common_changed, &by_include)
                                ? take_change(r, s, common_changed, since)
                                : NULL;
        if (!v)
            continue;
        edit_overtake(r, s->path);
        struct edit *alone = NULL;
        edit_add(r, by_include || common_changed ? &together : &alone, v, since);
        if (alone)
            edit_start(r, alone);
    }
    if (together)
        edit_start(r, together);
    withdraw_gone(r, since);
    drop_missing(&r->sources);
    watch_update(r);
    reload_poll(r);
    turn_retry(r->turn);
    if (r->unsettled || (r->sources.folder_missing && !uv_is_active((uv_handle_t *)&r->timer)))
        watch_look_soon(r);
}

// --- life

static struct version *first_version(struct reload *r, struct source *s)
{
    uint64_t since = clock_ns();
    struct opd_err err = { 0 };
    struct version *v = source_read(s, &err) ? parse(r, s, &err) : NULL;
    if (!v)
        edit_tell_failure(r, "", 0, s->path, &err, since);
    opd_err_clear(&err);
    return v;
}

bool reload_first(struct reload *r, struct opd_err *err)
{
    if (r->sources.n_folders == 0)
        return opd_err_set(
            err, OPD_E_invalid_argument,
            "the shipped operators are not beside the program; name their folder with --kernels");
    for (int i = 0; i < r->sources.n_folders; i++)
        if (!trust_folder(r->sources.folders[i], err))
            return opd_err_prefix(err, "--kernels");
    bool changed;
    if (!read_common(r, &changed, err))
        return false;
    sources_list(&r->sources);
    if (r->sources.folder_missing)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "a folder of kernels cannot be read; the log names it");
    for (size_t i = 0; i < r->sources.n; i++)
        r->sources.at[i]->first = first_version(r, r->sources.at[i]);
    for (size_t i = 0; i < r->sources.n; i++) {
        struct source *s = r->sources.at[i];
        const struct source *last = s->first ? sources_winner(&r->sources, s->op) : s;
        if (last != s)
            log_info("operator %s: %s replaces %s", s->op, last->path, s->path);
        else if (s->first)
            registry_publish(r->registry, s->first);
        version_unref(s->first);
        s->first = NULL;
    }
    return true;
}

void reload_start(struct reload *r)
{
    uv_timer_init(&r->turn->loop, &r->timer);
    r->timer.data = r;
    r->started = true;
    watch_update(r);
    reload_look(r); // what changed between the first look and the watch
}

void reload_stop(struct reload *r)
{
    if (!r->started)
        return;
    r->started = false;
    prove_stop(&r->prove);
    uv_close((uv_handle_t *)&r->timer, NULL);
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++)
        if (r->watches[i].folder)
            uv_close((uv_handle_t *)&r->watches[i].handle, NULL);
    edit_drop_all(r);
}

void reload_finish(struct reload *r)
{
    sources_finish(&r->sources);
    for (int i = 0; i < RELOAD_MAX_WATCHES; i++)
        free(r->watches[i].folder);
    free(r->common);
    *r = (struct reload){ 0 };
}
