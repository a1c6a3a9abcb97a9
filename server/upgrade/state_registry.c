// The part of the state that is operators: versions, what is served of them, the files they came
// from. Programs and plans are made again by whoever wants them.

#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "request/request.h"
#include "kernels/source.h"

enum { MAX_PATH = 4096 };

// --- versions

static void write_version(struct state_out *out, const struct version *v)
{
    if (!state_add(&out->versions, v))
        return;
    struct buf *bytes = &out->bytes;
    uint64_t source = state_text(out, v->op->source), text = state_text(out, v->text),
             common = state_text(out, v->common), log = state_text(out, v->err.log);
    state_begin(out, "entry", 13);
    state_put_str(out, "file", v->op->file);
    state_put_str(out, "path", v->path);
    state_put_str(out, "folder", v->folder);
    pack_key_uint(bytes, "source", source);
    pack_key_uint(bytes, "text", text);
    pack_key_uint(bytes, "common", common);
    state_put_hash(out, "hash", v->hash);
    pack_key_int(bytes, "version", v->number);
    pack_key_int(bytes, "state", v->state);
    pack_key_float(bytes, "time", v->time);
    pack_key_int(bytes, "error", v->err.code);
    state_put_str(out, "message", v->err.msg);
    pack_key_uint(bytes, "log", log);
}

static void read_error(struct state_in *in, struct opd_err *err)
{
    err->code = (enum opd_err_code)state_int(in, "error", 0, 1000);
    state_copy_str(in, "message", err->msg, sizeof err->msg);
    const char *log = state_text_of(in, "log");
    err->log = log ? mem_strdup(log) : NULL;
}

static struct op *parse_op(struct state_in *in)
{
    const char *source = state_text_of(in, "source");
    char *file = state_str(in, "file");
    struct op *op = NULL;
    if (source && file && state_good(in)) {
        op = op_parse(file, source, strlen(source), in->err);
        if (!op)
            opd_err_prefix(in->err, "a version of an operator that is kept");
    } else {
        state_fail(in, "there is no source");
    }
    free(file);
    return op;
}

bool state_read_version(struct state_in *in)
{
    const char *text = state_text_of(in, "text"), *common = state_text_of(in, "common");
    struct op *op = parse_op(in);
    if (!op)
        return false;
    struct version *v = mem_zalloc(1, sizeof *v);
    *v = (struct version){
        .refs = 1,
        .op = op,
        .number = (int)state_int(in, "version", 1, INT32_MAX),
        .state = (enum version_state)state_int(in, "state", VERSION_SERVING, VERSION_FAILED),
        .time = state_float(in, "time"),
        .path = state_str(in, "path"),
        .folder = state_str(in, "folder"),
        .hash = state_hash(in, "hash"),
    };
    v->text = text ? mem_strdup(text) : NULL;
    v->common = common ? mem_strdup(common) : NULL;
    read_error(in, &v->err);
    state_keep(&in->versions, v);
    return (v->path && v->folder && v->text && v->common) ||
           state_fail(in, "there is no path, folder or text");
}

// --- operators

static void write_operator(struct state_out *out, const struct opd_operator *o)
{
    struct buf *bytes = &out->bytes;
    size_t n = 0;
    for (const struct version *v = o->versions; v; v = v->older, n++)
        write_version(out, v);
    uint64_t failure_text = state_text(out, o->failure_text);
    state_begin(out, "family", 8);
    state_put_str(out, "name", o->name);
    pack_str(bytes, "versions");
    pack_array(bytes, n);
    for (const struct version *v = o->versions; v; v = v->older)
        pack_uint(bytes, state_number(&out->versions, v));
    pack_key_uint(bytes, "current", state_number(&out->versions, o->current));
    pack_key_int(bytes, "last_version", o->last_version);
    pack_key_int(bytes, "pinned", o->pinned);
    pack_key_uint(bytes, "failure", o->failure);
    pack_key_uint(bytes, "failure_text", failure_text);
    const struct run_stats *runs = &o->runs;
    pack_str(bytes, "runs");
    pack_array(bytes, 4);
    pack_uint(bytes, runs->forward);
    pack_uint(bytes, runs->backward);
    pack_uint(bytes, runs->failed);
    pack_uint(bytes, runs->ns);
}

static void read_runs(struct state_in *in, struct run_stats *runs)
{
    const value *list = state_get(in, "runs");
    uint64_t *numbers[] = { &runs->forward, &runs->backward, &runs->failed, &runs->ns };
    for (size_t i = 0; i < 4; i++)
        *numbers[i] = (uint64_t)state_int_of(in, value_at(list, i), 0, INT64_MAX);
}

// The newest first. Each number but once, so that the list has an end.
static bool read_versions(struct state_in *in, struct opd_operator *o)
{
    const value *list = state_get(in, "versions");
    struct version **end = &o->versions;
    int before = o->last_version + 1;
    for (size_t i = 0; i < value_count(list); i++) {
        struct version *v = state_thing_of(in, value_at(list, i), &in->versions);
        if (!v || strcmp(v->op->name, o->name) != 0 || v->number >= before)
            return state_fail(in, "a version is not of the operator, or out of order");
        before = v->number;
        *end = version_ref(v);
        v->of = o;
        end = &v->older;
    }
    return true;
}

bool state_read_operator(struct state_in *in)
{
    struct registry *r = &in->broker->registry;
    char name[OP_MAX_NAME];
    state_copy_str(in, "name", name, sizeof name);
    if (!state_good(in) || !name[0] || registry_operator(r, name))
        return state_fail(in, "it has no name, or is there twice");
    struct opd_operator *o = registry_make_operator(r, name);
    const char *failure_text = state_text_of(in, "failure_text");
    o->last_version = (int)state_int(in, "last_version", 0, INT32_MAX - 1);
    o->pinned = (int)state_int(in, "pinned", 0, o->last_version);
    o->failure = state_uint(in, "failure");
    o->failure_text = failure_text ? mem_strdup(failure_text) : NULL;
    read_runs(in, &o->runs);
    if (!read_versions(in, o))
        return false;
    struct version *current = state_thing(in, "current", &in->versions);
    if (current &&
        (operator_version(o, current->number) != current || current->state != VERSION_SERVING))
        return state_fail(in, "what is served is none of its versions");
    o->current = current;
    r->count += current != NULL;
    return true;
}

// --- files

static void pack_stamp(struct buf *bytes, const struct file_stamp *s)
{
    pack_array(bytes, 5);
    pack_int(bytes, (int64_t)s->device);
    pack_int(bytes, (int64_t)s->inode);
    pack_int(bytes, s->size);
    pack_int(bytes, s->mtime_ns);
    pack_int(bytes, s->ctime_ns);
}

static void read_stamp(struct state_in *in, const value *v, struct file_stamp *out)
{
    int64_t part[5];
    for (size_t i = 0; i < 5; i++)
        part[i] = state_int_of(in, value_at(v, i), INT64_MIN, INT64_MAX);
    *out = (struct file_stamp){ (dev_t)part[0], (ino_t)part[1], part[2], part[3], part[4] };
}

static void write_source(struct state_out *out, const struct source *s)
{
    struct buf *bytes = &out->bytes;
    const struct source_failure *f = &s->failure;
    uint64_t original = state_text(out, s->original), text = state_text(out, s->text),
             log = state_text(out, f->err.log);
    state_begin(out, "source", 17);
    state_put_str(out, "folder", s->folder);
    state_put_str(out, "file", s->file);
    pack_key_int(bytes, "folder_index", s->folder_index);
    pack_str(bytes, "stamp");
    pack_stamp(bytes, &s->stamp);
    pack_str(bytes, "includes");
    pack_array(bytes, (size_t)s->n_includes);
    for (int i = 0; i < s->n_includes; i++) {
        pack_array(bytes, 2);
        pack_bin(bytes, s->includes[i].path, strlen(s->includes[i].path));
        pack_stamp(bytes, &s->includes[i].stamp);
    }
    pack_key_uint(bytes, "original", original);
    pack_key_uint(bytes, "text", text);
    state_put_hash(out, "hash", s->hash);
    state_put_str(out, "op", s->op);
    pack_key_uint(bytes, "missing_since", s->missing_since);
    pack_key_uint(bytes, "failure", f->seq);
    state_put_str(out, "failed_op", f->op);
    pack_key_int(bytes, "failed_version", f->version);
    pack_key_float(bytes, "failed_ms", f->ms);
    pack_key_int(bytes, "error", f->err.code);
    state_put_str(out, "message", f->err.msg);
    pack_key_uint(bytes, "log", log);
}

static void read_includes(struct state_in *in, struct source *s)
{
    const value *list = state_get(in, "includes");
    if (value_count(list) > SOURCE_MAX_INCLUDES)
        state_fail(in, "it includes too much");
    for (size_t i = 0; state_good(in) && i < value_count(list); i++) {
        const value *pair = value_at(list, i), *path = value_at(pair, 0);
        size_t size = 0;
        const char *p = path && value_type(path) == VALUE_BIN ? value_bytes(path, &size) : "";
        struct source_include *inc = &s->includes[s->n_includes++];
        inc->path = mem_strndup(p, size);
        if (inc->path[0] != '/' || size >= MAX_PATH || strlen(inc->path) != size)
            state_fail(in, "what it includes has no absolute path");
        read_stamp(in, value_at(pair, 1), &inc->stamp);
    }
}

static void read_texts(struct state_in *in, struct source *s)
{
    const char *original = state_text_of(in, "original"), *text = state_text_of(in, "text");
    if (!original != !text)
        state_fail(in, "it has but one of its texts");
    s->original = original ? mem_strdup(original) : NULL;
    s->original_size = original ? strlen(original) : 0;
    s->text = text ? mem_strdup(text) : NULL;
}

// Absent where a program before this one has written the state.
static void read_failure(struct state_in *in, struct source_failure *f)
{
    if (!state_get(in, "failure") || !state_uint(in, "failure"))
        return;
    f->seq = state_uint(in, "failure");
    state_copy_str(in, "failed_op", f->op, sizeof f->op);
    f->version = (int)state_int(in, "failed_version", 0, INT32_MAX);
    f->ms = state_float(in, "failed_ms");
    read_error(in, &f->err);
}

bool state_read_source(struct state_in *in)
{
    struct broker *b = in->broker;
    char folder[MAX_PATH], file[MAX_PATH];
    state_copy_str(in, "folder", folder, sizeof folder);
    state_copy_str(in, "file", file, sizeof file);
    int index = (int)state_int(in, "folder_index", 0, b->options.n_kernels - 1);
    if (!state_good(in) || folder[0] != '/' || !file[0])
        return state_fail(in, "it has no absolute path");
    struct source *s = source_new(folder, file, index), **end = &b->reload.sources;
    while (*end)
        end = &(*end)->next;
    *end = s;
    read_stamp(in, state_get(in, "stamp"), &s->stamp);
    read_includes(in, s);
    read_texts(in, s);
    s->hash = state_hash(in, "hash");
    state_copy_str(in, "op", s->op, sizeof s->op);
    s->missing_since = state_uint(in, "missing_since");
    read_failure(in, &s->failure);
    return true;
}

bool state_read_common(struct state_in *in)
{
    const char *text = state_text_of(in, "text");
    struct reload *r = &in->broker->reload;
    if (!text || r->common)
        return state_fail(in, "there is no common header, or two");
    r->common = mem_strdup(text);
    return true;
}

// --- all of it

// Versions that the operators have forgotten live on in contexts.
static void write_kept_entries(struct state_out *out, const struct broker *b)
{
    for (const struct conn *c = b->conns; c; c = c->next) {
        size_t cursor = 0;
        for (const struct context *ctx; (ctx = map_next(&c->contexts, &cursor)) != NULL;)
            write_version(out, ctx->version);
    }
}

void state_write_registry(struct state_out *out, struct broker *b)
{
    for (const struct opd_operator *o = b->registry.operators; o; o = o->next)
        write_operator(out, o);
    write_kept_entries(out, b);
    uint64_t common = state_text(out, b->reload.common);
    state_begin(out, "common", 1);
    pack_key_uint(&out->bytes, "text", common);
    for (const struct source *s = b->reload.sources; s; s = s->next)
        write_source(out, s);
}
