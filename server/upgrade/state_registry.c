// The part of the state that is operators: versions, what is served of them, the files they came
// from. Programs and plans are made again by whoever wants them.

#include "upgrade/archive.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "kernels/source.h"

static void archive_error(struct archive *a, struct opd_err *err)
{
    archive_int(a, "error", &err->code, 0, 1000);
    archive_chars(a, "message", err->msg, sizeof err->msg);
    archive_text(a, "log", &err->log);
}

// --- versions

// `whole`: the file's text with what it includes, as far as it has been read.
static void archive_op(struct archive *a, struct op **op, const char *whole)
{
    char *file = a->reading ? NULL : (*op)->file, *source = a->reading ? NULL : (*op)->source;
    archive_str(a, "file", &file);
    archive_text(a, "source", &source);
    if (!a->reading)
        return;
    if (!file || !source)
        archive_fail(a, "there is no source");
    else if (archive_good(a) &&
             !(*op = op_parse_whole(file, source, strlen(source), whole, a->err)))
        opd_err_prefix(a->err, "a version of an operator that is kept");
    free(file);
    free(source);
}

// So that a version that its operator's list has no more is not taken for a file's.
static void archive_scope(struct archive *a, struct version *v)
{
    uint64_t scope = v->of ? v->of->scope : SCOPE_FILES;
    if (a->reading)
        v->mark = (uint32_t)v->number;
    if (!archive_has(a, "scope")) // absent in programs from before operators could be loaded
        return;
    archive_bits(a, "scope", &scope);
    archive_int(a, "mark", &v->mark, 0, UINT32_MAX);
    if (a->reading && scope != SCOPE_FILES)
        v->of = operator_new(v->op ? v->op->name : "", scope);
}

bool state_version(struct archive *a, void *thing)
{
    struct version *v = thing;
    if (a->reading) {
        v = mem_zalloc(1, sizeof *v);
        v->refs = 1;
        archive_made(a, RECORD_version, v);
    }
    archive_text(a, "text", &v->text);
    archive_op(a, &v->op, v->text);
    archive_str(a, "path", &v->path);
    archive_str(a, "folder", &v->folder);
    archive_text(a, "common", &v->common);
    archive_bits(a, "hash", &v->hash);
    archive_int(a, "version", &v->number, 1, INT32_MAX);
    archive_int(a, "state", &v->state, VERSION_SERVING, VERSION_FAILED);
    archive_float(a, "time", &v->time);
    archive_error(a, &v->err);
    archive_scope(a, v);
    return (v->path && v->folder && v->text && v->common) ||
           archive_fail(a, "there is no path, folder or text");
}

// --- operators

static void archive_runs(struct archive *a, struct run_stats *runs)
{
    archive_open(a, "runs", 4, 4, 4);
    archive_count(a, NULL, &runs->forward);
    archive_count(a, NULL, &runs->backward);
    archive_count(a, NULL, &runs->failed);
    archive_count(a, NULL, &runs->ns);
    archive_close(a);
}

static void archive_times(struct archive *a, struct run_stats *runs)
{
    archive_count(a, "bytes", &runs->bytes);
    archive_count(a, "copy_ns", &runs->copy_ns);
    archive_count(a, "compiles", &runs->compiles.n);
    archive_count(a, "compile_ns", &runs->compiles.ns);
    archive_open(a, "times", TIMES_BUCKETS, TIMES_BUCKETS, TIMES_BUCKETS);
    for (unsigned i = 0; i < TIMES_BUCKETS; i++)
        archive_count(a, NULL, &runs->times[i]);
    archive_close(a);
}

// The newest first. Each number but once, so that the list has an end.
static bool archive_versions(struct archive *a, struct opd_operator *o)
{
    size_t n = 0;
    for (const struct version *v = o->versions; v; v = v->older)
        n++;
    n = archive_open(a, "versions", n, 0, SIZE_MAX);
    struct version **at = &o->versions;
    int before = o->last_version + 1;
    for (size_t i = 0; i < n; i++, at = &(*at)->older) {
        struct version *v = archive_ref(a, NULL, RECORD_version, *at);
        if (!a->reading)
            continue;
        if (!v || strcmp(v->op->name, o->name) != 0 || v->number >= before)
            return archive_fail(a, "a version is not of the operator, or out of order");
        before = v->number;
        *at = version_ref(v);
        operator_unref(v->of);
        v->of = operator_ref(o);
    }
    archive_close(a);
    return true;
}

static bool archive_operator(struct archive *a, struct opd_operator *o, uint64_t scope,
                             uint64_t owner)
{
    struct registry *r = &a->broker->registry;
    char name[OP_MAX_NAME] = "";
    if (o)
        memcpy(name, o->name, sizeof name);
    archive_chars(a, "name", name, sizeof name);
    if (a->reading) {
        if (!archive_good(a) || !name[0] || registry_operator(r, name, scope))
            return archive_fail(a, "it has no name, or is there twice");
        o = registry_make_operator(r, name, scope);
        o->owner = owner;
    }
    archive_int(a, "last_version", &o->last_version, 0, INT32_MAX - 1);
    archive_int(a, "pinned", &o->pinned, 0, o->last_version);
    archive_count(a, "failure", &o->failure);
    archive_text(a, "failure_text", &o->failure_text);
    archive_runs(a, o->runs);
    if (archive_has(a, "times")) // absent in programs from before they were counted
        archive_times(a, o->runs);
    // Absent in programs from before there was a page of versions. Another daemon's is another's.
    if (archive_has(a, "slot") && !a->part)
        archive_int(a, "slot", &o->slot, 0, r->published.n_given);
    if (!archive_versions(a, o))
        return false;
    struct version *current = archive_ref(a, "current", RECORD_version, o->current);
    if (!a->reading)
        return true;
    if (current &&
        (operator_version(o, current->number) != current || current->state != VERSION_SERVING))
        return archive_fail(a, "what is served is none of its versions");
    o->current = current;
    r->count += current != NULL;
    return true;
}

bool state_operator(struct archive *a, void *thing)
{
    return archive_operator(a, thing, SCOPE_FILES, 0);
}

bool state_loaded(struct archive *a, void *thing)
{
    const struct opd_operator *o = thing;
    uint64_t owner = o ? o->owner : 0;
    bool shared = o && o->scope == SCOPE_SHARED;
    archive_int(a, "owner", &owner, 1, INT64_MAX);
    archive_bool(a, "shared", &shared);
    return archive_operator(a, thing, shared ? SCOPE_SHARED : owner, owner);
}

// --- files

static void archive_stamp(struct archive *a, const char *key, struct file_stamp *s)
{
    archive_open(a, key, 5, 5, 5);
    archive_bits(a, NULL, &s->device);
    archive_bits(a, NULL, &s->inode);
    archive_bits(a, NULL, &s->size);
    archive_bits(a, NULL, &s->mtime_ns);
    archive_bits(a, NULL, &s->ctime_ns);
    archive_close(a);
}

static void archive_includes(struct archive *a, struct source *s)
{
    s->n_includes = (int)archive_open(a, "includes", (size_t)s->n_includes, 0, SOURCE_MAX_INCLUDES);
    for (int i = 0; i < s->n_includes; i++) {
        archive_open(a, NULL, 2, 2, 2);
        archive_path(a, NULL, &s->includes[i].path);
        archive_stamp(a, NULL, &s->includes[i].stamp);
        archive_close(a);
    }
    archive_close(a);
}

static void archive_failure(struct archive *a, struct source_failure *f)
{
    archive_count(a, "failure", &f->seq);
    archive_chars(a, "failed_op", f->op, sizeof f->op);
    archive_int(a, "failed_version", &f->version, 0, INT32_MAX);
    archive_float(a, "failed_ms", &f->ms);
    if (archive_has(a, "shadowed")) // absent where a program before this one has written it
        archive_bool(a, "shadowed", &f->shadowed);
    archive_error(a, &f->err);
}

bool state_source(struct archive *a, void *thing)
{
    struct broker *b = a->broker;
    struct source *s = thing ? thing : mem_zalloc(1, sizeof *s);
    if (!thing)
        sources_add(&b->reload.sources, s);
    archive_path(a, "folder", &s->folder);
    archive_str(a, "file", &s->file);
    archive_int(a, "folder_index", &s->folder_index, 0, b->options.n_kernels - 1);
    archive_stamp(a, "stamp", &s->stamp);
    archive_includes(a, s);
    archive_text(a, "original", &s->original);
    archive_text(a, "text", &s->text);
    archive_bits(a, "hash", &s->hash);
    archive_chars(a, "op", s->op, sizeof s->op);
    archive_count(a, "missing_since", &s->missing_since);
    if (archive_has(a, "failure")) // absent where a program before this one has written it
        archive_failure(a, &s->failure);
    if (!a->reading)
        return true;
    if (!s->folder || !s->file || !s->file[0] || !s->original != !s->text)
        return archive_fail(a, "it has no file, or but one of its texts");
    s->path = mem_printf("%s/%s", s->folder, s->file);
    s->original_size = s->original ? strlen(s->original) : 0;
    return true;
}

bool state_common(struct archive *a, void *thing)
{
    struct reload *r = &a->broker->reload;
    (void)thing;
    if (a->reading && r->common)
        return archive_fail(a, "there are two");
    archive_text(a, "text", &r->common);
    return r->common || archive_fail(a, "there is no common header");
}

// --- all of it

void state_write_registry(struct archive *a)
{
    struct broker *b = a->broker;
    for (size_t i = 0; i < b->registry.n_operators; i++) {
        struct opd_operator *o = b->registry.operators[i];
        archive_put(a, o->scope == SCOPE_FILES ? RECORD_operator : RECORD_loaded, o);
    }
    archive_put(a, RECORD_common, b);
    for (size_t i = 0; i < b->reload.sources.n; i++)
        archive_put(a, RECORD_source, b->reload.sources.at[i]);
}
