#include "kernels/edit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/turn.h"
#include "device/devices.h"
#include "base/clock.h"
#include "device/device.h"
#include "kernels/events.h"
#include "base/log.h"
#include "base/mem.h"
#include "kernels/pool.h"
#include "kernels/program.h"
#include "kernels/registry.h"
#include "kernels/reload.h"
#include "kernels/warm.h"

// More users of one header than this are served in several lots.
enum { EDIT_MAX = 1024 };

// New versions that are served together or not at all.
struct edit {
    struct edit *next;
    struct version *versions[EDIT_MAX]; // a reference each
    int n;
    uint64_t since;     // when the change was noticed
    struct opd_err err; // of a quick look at the syntax, or of a source that does not parse
    struct reload *reload;
    struct pool_job *syntax; // the look that has not answered, or NULL
};

// The edit of an operator's file failed: the next reply of it says so to every client once.
static void remember_failure(struct registry *registry, struct opd_operator *o,
                             const struct opd_err *err, uint64_t seq)
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
    registry_tell(registry, o);
}

void edit_tell_failure(struct reload *r, const char *op, int version, const char *file,
                       const struct opd_err *err, uint64_t since)
{
    struct event event = { .kind = "failed",
                           .op = op[0] ? op : NULL,
                           .version = version,
                           .file = file,
                           .err = err,
                           .ms = clock_ms_since(since) };
    uint64_t seq = events_add(r->events, &event);
    struct source *s = sources_find(&r->sources, file);
    if (s) {
        source_mend(s);
        s->failure = (struct source_failure){ .seq = seq, .version = version, .ms = event.ms };
        snprintf(s->failure.op, sizeof s->failure.op, "%s", op);
        opd_err_copy(&s->failure.err, err);
    }
    // Also for an operator that this edit would have renamed.
    for (size_t i = 0; i < r->registry->n_operators; i++) {
        struct opd_operator *o = r->registry->operators[i];
        bool named = strcmp(o->name, op) == 0;
        if (o->scope == SCOPE_FILES &&
            (named || (o->current && strcmp(o->current->path, file) == 0)))
            remember_failure(r->registry, o, err, seq);
    }
    log_error("not served: %s%s%s", err->msg, err->log ? "\n" : "", err->log ? err->log : "");
}

// Every client is told once of what is served but hardly meant, as of a failure.
static void remember_warnings(const struct version *v, uint64_t seq)
{
    free(v->of->failure_text);
    v->of->failure_text = mem_printf("%s: %s", v->op->name, v->op->warnings);
    v->of->failure = seq;
}

static void publish_loaded(struct reload *r, struct version *v, uint64_t since)
{
    struct event event = { .kind = "loaded",
                           .op = v->op->name,
                           .version = v->number,
                           .file = v->path,
                           .ms = clock_ms_since(since) };
    events_add(r->events, &event);
    log_info("operator %s of connection %llu: version %d serves %s, %.1f ms after it was loaded",
             v->op->name, (unsigned long long)v->of->owner, v->number,
             v->of->scope == SCOPE_SHARED ? "everybody" : "it", event.ms);
}

static void publish(struct reload *r, struct version *v, uint64_t since)
{
    struct opd_err doubt = { 0 };
    registry_publish(r->registry, v);
    if (version_is_loaded(v)) {
        publish_loaded(r, v, since);
        return;
    }
    source_mend(sources_find(&r->sources, v->path));
    bool pinned = v->state != VERSION_SERVING, doubtful = v->op->warnings[0] && !pinned;
    if (doubtful)
        opd_err_set(&doubt, OPD_E_invalid_argument, "%s", v->op->warnings);
    struct event event = { .kind = "reloaded",
                           .op = v->op->name,
                           .version = v->number,
                           .file = v->path,
                           .err = doubtful ? &doubt : NULL,
                           .ms = clock_ms_since(since) };
    uint64_t seq = events_add(r->events, &event);
    if (doubtful)
        remember_warnings(v, seq);
    opd_err_clear(&doubt);
    log_info("operator %s: version %d %s, %.1f ms after the edit", v->op->name, v->number,
             pinned ? "is ready (another is pinned)" : "serves", event.ms);
    prove_add(&r->prove, v);
}

static void free_edit(struct edit *edit)
{
    for (int i = 0; i < edit->n; i++)
        version_unref(edit->versions[i]);
    pool_drop(edit->syntax);
    opd_err_clear(&edit->err);
    free(edit);
}

static void syntax_checked(void *data, struct pool_result *result, const struct opd_err *err)
{
    (void)result;
    struct edit *edit = data;
    edit->syntax = NULL;
    if (err->code == OPD_E_compile_error && edit->n == 1)
        opd_err_copy(&edit->err, err);
    turn_retry(edit->reload->turn);
}

// A look at the front end alone, so that a mistake is told before any code is generated.
static void check_syntax(struct reload *r, struct edit *edit, const struct version *v)
{
    const struct bound_plan *bp = NULL;
    size_t cursor = 0;
    int n = 0;
    for (const struct bound_plan *at; (at = map_next(&v->plans, &cursor)) != NULL;)
        for (; at; at = at->next) {
            n += !at->request->checked;
            bp = at->plan->n_kernels > 0 && !at->request->checked ? at : bp;
        }
    if (!bp || n < 2 || pool_width(r->pool) < 2)
        return; // the compile itself tells as soon
    const char *strings[JOB_MAX_STRINGS] = {
        [JOB_KIND] = "syntax",    [JOB_TARGET] = bp->device->info.target,
        [JOB_COMMON] = v->common, [JOB_PRELUDE] = bp->plan->kernels[0].prelude,
        [JOB_FILE] = v->op->file, [JOB_FOLDER] = v->folder,
        [JOB_SOURCE] = v->text,   [JOB_EXPR] = bp->plan->kernels[0].expr,
    };
    edit->syntax = pool_submit(r->pool, POOL_FRONT, edit, strings, syntax_checked, edit);
}

void edit_start(struct reload *r, struct edit *edit)
{
    for (int i = 0; i < edit->n; i++) {
        struct version *v = edit->versions[i];
        const struct version *old = v->of ? v->of->current
                                          : registry_find(r->registry, v->op->name);
        v->checks_first = r->checks_first && (old || !version_is_loaded(v));
        // Where nothing is in use yet, the first example stands for it: a mistake should show now,
        // not with the first request.
        if ((!old || version_inherit(v, old) == 0) && r->devices->n > 0)
            warm_example(r->devices->at[0], v, 0, OPD_DTYPE_NONE, NULL);
    }
    if (edit->n == 1)
        check_syntax(r, edit, edit->versions[0]);
    struct edit **end = &r->edits;
    while (*end)
        end = &(*end)->next;
    *end = edit;
    turn_retry(r->turn);
}

// The checked builds of what may run first: begun behind the others, and not waited for.
static void start_checked(struct version *v, const struct edit *edit)
{
    for (struct program *p = v->programs; p; p = p->next_of_version) {
        struct opd_err err = { 0 }; // told by who runs it
        if (p->checked)
            program_ensure(p, edit->reload->pool, edit, edit->since, &err);
        opd_err_clear(&err);
    }
}

// Are all kernels of the new version loaded? False with err: one cannot be.
static bool version_ready(struct version *v, const struct edit *edit, struct opd_err *err)
{
    bool ready = true;
    for (struct program *p = v->programs; p; p = p->next_of_version) {
        ready = (p->checked ||
                 program_ensure(p, edit->reload->pool, edit, edit->since, err)) &&
                ready;
        if (err->code)
            return false;
    }
    start_checked(v, edit);
    for (struct version *d = v->derived; d && !err->code; d = d->next_derived)
        ready = version_ready(d, edit, err) && ready;
    return ready && !err->code;
}

// Who loads it is told; others have nothing of it.
static void fail_loaded(struct reload *r, struct version *v, const struct opd_err *err,
                        uint64_t since)
{
    registry_fail(r->registry, v, err);
    events_add(r->events, &(struct event){ .kind = "not loaded",
                                           .op = v->op->name,
                                           .version = v->number,
                                           .file = v->path,
                                           .err = err,
                                           .ms = clock_ms_since(since) });
    log_info("not loaded: %s%s%s", err->msg, err->log ? "\n" : "", err->log ? err->log : "");
    if (!v->of->current)
        registry_remove(r->registry, v->of);
}

static void fail_edit(struct reload *r, struct edit *edit, const struct version *culprit,
                      const struct opd_err *err)
{
    for (int i = 0; i < edit->n; i++) {
        struct version *v = edit->versions[i];
        struct opd_err own = { 0 };
        if (version_is_loaded(v)) {
            fail_loaded(r, v, err, edit->since); // it is alone
            return;
        }
        if (v == culprit)
            opd_err_copy(&own, err);
        else
            opd_err_set(&own, err->code, "%s is served with %s or not at all: %.800s", v->op->name,
                        culprit->op->name, err->msg);
        registry_fail(r->registry, v, &own);
        edit_tell_failure(r, v->op->name, v->number, v->path, &own, edit->since);
        opd_err_clear(&own);
    }
}

// True: the edit is over, one way or the other.
static bool poll_edit(struct reload *r, struct edit *edit)
{
    bool ready = true;
    if (edit->err.code) {
        fail_edit(r, edit, edit->versions[0], &edit->err);
        return true;
    }
    for (int i = 0; i < edit->n; i++) {
        struct opd_err err = { 0 };
        ready = version_ready(edit->versions[i], edit, &err) && ready;
        if (!err.code)
            continue;
        fail_edit(r, edit, edit->versions[i], &err);
        opd_err_clear(&err);
        return true;
    }
    for (int i = 0; ready && i < edit->n; i++)
        publish(r, edit->versions[i], edit->since);
    return ready;
}

// path: of a file; NULL: what that connection loads.
static bool is_of(const struct version *v, const char *path, uint64_t owner)
{
    if (!path)
        return version_is_loaded(v) && v->of->owner == owner;
    return !version_is_loaded(v) && strcmp(v->path, path) == 0;
}

// Where it was one of several, the others go on alone.
static void drop_edits(struct reload *r, const char *path, uint64_t owner)
{
    struct edit **at = &r->edits;
    while (*at) {
        struct edit *edit = *at;
        for (int i = 0; i < edit->n; i++)
            if (is_of(edit->versions[i], path, owner)) {
                version_unref(edit->versions[i]);
                edit->versions[i--] = edit->versions[--edit->n];
            }
        if (edit->n > 0) {
            at = &edit->next;
            continue;
        }
        *at = edit->next;
        free_edit(edit);
    }
}

void edit_overtake(struct reload *r, const char *path)
{
    drop_edits(r, path, 0);
}

void edit_drop_loaded(struct reload *r, uint64_t owner)
{
    drop_edits(r, NULL, owner);
}

void edit_add(struct reload *r, struct edit **edit, struct version *v, uint64_t since)
{
    if (*edit && (*edit)->n == (int)(sizeof(*edit)->versions / sizeof(*edit)->versions[0])) {
        edit_start(r, *edit);
        *edit = NULL;
    }
    if (!*edit) {
        *edit = mem_zalloc(1, sizeof **edit);
        (*edit)->since = since;
        (*edit)->reload = r;
    }
    (*edit)->versions[(*edit)->n++] = v;
}

bool edit_has(const struct reload *r, const struct version *v)
{
    for (const struct edit *edit = r->edits; edit; edit = edit->next)
        for (int i = 0; i < edit->n; i++)
            if (edit->versions[i]->hash == v->hash && is_of(edit->versions[i], v->path, 0))
                return true;
    return false;
}

bool edit_compiles(const struct reload *r, const struct version *v)
{
    for (const struct edit *edit = r->edits; edit; edit = edit->next)
        for (int i = 0; i < edit->n; i++)
            if (edit->versions[i] == v)
                return true;
    return false;
}

bool edit_poll_all(struct reload *r)
{
    struct edit **at = &r->edits;
    bool over = false;
    while (*at) {
        struct edit *edit = *at;
        if (!poll_edit(r, edit)) {
            at = &edit->next;
            continue;
        }
        *at = edit->next;
        free_edit(edit);
        over = true;
    }
    return over;
}

void edit_drop_all(struct reload *r)
{
    while (r->edits) {
        struct edit *edit = r->edits;
        r->edits = edit->next;
        free_edit(edit);
    }
}
