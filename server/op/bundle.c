#include "op/bundle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MAGIC "opd fault 1 "
enum { SIZE_DIGITS = 12, MAX_WORD = 320 };

// --- written

static void write_desc(struct buf *out, int index, const struct tensor_desc *d)
{
    if (d->dtype == OPD_DTYPE_NONE)
        return;
    buf_printf(out, "input %d %s %d", index, dtype_name(d->dtype), d->rank);
    for (int i = 0; i < d->rank; i++)
        buf_printf(out, " %" PRId64, d->shape[i]);
    for (int i = 0; i < d->rank && d->strided; i++)
        buf_printf(out, " %" PRId64, d->strides[i]);
    buf_append_str(out, "\n");
}

static void write_attr(struct buf *out, const struct op_attr *a, const struct op_value *v)
{
    buf_printf(out, "attr %s", a->name);
    if (!v->present)
        buf_append_str(out, " none");
    else if (a->type == OP_ATTR_STR)
        buf_printf(out, " word %s", a->words[v->i[0]]);
    else
        buf_append_str(out, a->type == OP_ATTR_INT    ? " ints"
                            : a->type == OP_ATTR_BOOL ? " bool"
                                                      : " floats");
    for (int k = 0; k < v->n && v->present && a->type != OP_ATTR_STR; k++)
        if (a->type == OP_ATTR_FLOAT)
            buf_printf(out, " %a", v->f[k]);
        else
            buf_printf(out, " %" PRId64, v->i[k]);
    buf_append_str(out, "\n");
}

static void write_request(struct buf *out, const struct plan_request *r)
{
    buf_printf(out, "request %d %d %u %u\n", (int)r->direction, r->keep, r->wanted, r->grad_absent);
    for (int i = 0; i < r->op->n_inputs; i++) {
        int n = r->lists ? r->lists->n[i] : -1;
        if (n < 0)
            write_desc(out, i, &r->inputs[i]);
        else
            buf_printf(out, "list %d %d\n", i, n);
        for (int k = 0; k < n; k++) {
            struct tensor_desc d = *r->lists->of[i][k];
            d.dtype = r->inputs[i].dtype;
            write_desc(out, i + PLAN_MEMBER * k, &d);
        }
    }
    for (int i = 0; i < r->op->n_attrs; i++)
        write_attr(out, &r->op->attrs[i], &r->attrs[i]);
}

// Of one line: names and messages are, but a folder may be called anything.
static void write_text(struct buf *out, const char *name, const char *text)
{
    buf_printf(out, "%s ", name);
    for (; *text; text++)
        buf_append(out, *text == '\n' ? " " : text, 1);
    buf_append_str(out, "\n");
}

void bundle_write(const struct bundle *b, struct buf *out)
{
    char size[SIZE_DIGITS + 1];
    size_t start = out->size;
    buf_printf(out, MAGIC "%0*d\ntime %.3f\nversion %d\n", SIZE_DIGITS, 0, b->time, b->version);
    write_text(out, "device", b->device);
    write_text(out, "file", b->file);
    write_text(out, "op", b->op);
    write_text(out, "message", b->message);
    write_request(out, b->request);
    for (int i = 0; i < b->n_tensors; i++)
        buf_printf(out, "tensor %d %d %" PRIu64 "\n", (int)b->tensors[i].kind, b->tensors[i].index,
                   b->tensors[i].size);
    buf_printf(out, "source %zu %zu\n", b->source_size, b->whole_size);
    buf_append(out, b->source, b->source_size);
    buf_append(out, b->whole, b->whole_size);
    for (int i = 0; i < b->n_tensors; i++)
        buf_append(out, b->tensors[i].bytes, b->tensors[i].size);
    snprintf(size, sizeof size, "%0*zu", SIZE_DIGITS, out->size - start);
    memcpy(out->bytes + start + strlen(MAGIC), size, SIZE_DIGITS);
}

// --- read

// A line, and what has been read of it. What is not there, or not as it should be, is 0 or "".
struct line {
    const char *at, *end;
    bool bad;
};

static struct line next_line(const char **at, const char *end)
{
    const char *newline = *at < end ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;
    struct line l = { *at, newline, !newline };
    if (newline)
        *at = newline + 1;
    return l;
}

static const char *next_word(struct line *l, char out[MAX_WORD])
{
    size_t n = 0;
    while (!l->bad && l->at < l->end && *l->at != ' ' && n < MAX_WORD - 1)
        out[n++] = *l->at++;
    out[n] = '\0';
    l->bad = l->bad || n == 0 || (l->at < l->end && *l->at++ != ' ');
    return out;
}

static int64_t next_int(struct line *l, int64_t least, int64_t most)
{
    char word[MAX_WORD], *end;
    next_word(l, word);
    long long n = strtoll(word, &end, 10);
    l->bad = l->bad || *end || n < least || n > most;
    return l->bad ? 0 : n;
}

static double next_float(struct line *l)
{
    char word[MAX_WORD], *end;
    double d = strtod(next_word(l, word), &end);
    l->bad = l->bad || *end;
    return d;
}

static void rest(struct line *l, char *out, size_t size)
{
    size_t n = l->bad ? 0 : (size_t)(l->end - l->at);
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), l->bad ? "" : l->at);
}

static bool fail(struct opd_err *err)
{
    return op_fail(err, "this is no fault as opd writes them, or not all of one");
}

static bool read_tensor(struct bundle *b, struct line *l)
{
    if (b->n_tensors == PLAN_MAX_MEMBERS)
        return false;
    struct bundle_tensor *t = &b->tensors[b->n_tensors++];
    t->kind = (enum plan_operand_kind)next_int(l, PLAN_INPUT, PLAN_GRAD_INPUT);
    t->index = (int)next_int(l, 0, PLAN_MEMBER * PLAN_MAX_MEMBERS - 1);
    t->size = (uint64_t)next_int(l, 0, BUNDLE_MAX_SIZE);
    return !l->bad;
}

// A line before the source. False: it makes no sense.
static bool read_head(struct bundle *b, const char *name, struct line *l)
{
    if (strcmp(name, "time") == 0)
        b->time = next_float(l);
    else if (strcmp(name, "version") == 0)
        b->version = (int)next_int(l, 0, INT32_MAX);
    else if (strcmp(name, "device") == 0)
        rest(l, b->device, sizeof b->device);
    else if (strcmp(name, "file") == 0)
        rest(l, b->file, sizeof b->file);
    else if (strcmp(name, "op") == 0)
        rest(l, b->op, sizeof b->op);
    else if (strcmp(name, "message") == 0)
        rest(l, b->message, sizeof b->message);
    else if (strcmp(name, "tensor") == 0)
        return read_tensor(b, l);
    return !l->bad;
}

// Bytes of the file behind its lines. NULL: so many are not there.
static const char *take(const char **at, const char *end, uint64_t size)
{
    const char *begin = *at;
    if ((uint64_t)(end - *at) < size)
        return NULL;
    *at += size;
    return begin;
}

static bool read_parts(struct bundle *b, struct line *l, const char *at, const char *end)
{
    b->source_size = (size_t)next_int(l, 0, BUNDLE_MAX_SIZE);
    b->whole_size = (size_t)next_int(l, 0, BUNDLE_MAX_SIZE);
    bool ok = !l->bad && (b->source = take(&at, end, b->source_size)) &&
              (b->whole = take(&at, end, b->whole_size));
    for (int i = 0; ok && i < b->n_tensors; i++) {
        b->tensors[i].bytes = (const uint8_t *)take(&at, end, b->tensors[i].size);
        ok = b->tensors[i].bytes != NULL;
    }
    return ok && at == end;
}

bool bundle_read(struct bundle *b, const uint8_t *bytes, size_t size, struct opd_err *err)
{
    const char *at = (const char *)bytes, *end = at + size;
    char name[MAX_WORD];
    *b = (struct bundle){ .size = size };
    struct line l = next_line(&at, end);
    if (l.bad || (size_t)(l.end - l.at) < strlen(MAGIC) || memcmp(l.at, MAGIC, strlen(MAGIC)) != 0)
        return fail(err);
    l.at += strlen(MAGIC);
    if (next_int(&l, (int64_t)size, (int64_t)size) != (int64_t)size || size > BUNDLE_MAX_SIZE)
        return fail(err);
    b->tensors = arena_alloc(&b->room, PLAN_MAX_MEMBERS, sizeof *b->tensors);
    b->lines = at;
    for (;;) {
        l = next_line(&at, end);
        next_word(&l, name);
        if (strcmp(name, "source") == 0)
            return read_parts(b, &l, at, end) || fail(err);
        if (!read_head(b, name, &l))
            return fail(err);
    }
}

// --- the request

struct reading {
    struct bundle *b;
    struct plan_request *request;
    struct plan_lists *lists;
    const struct tensor_desc **members[OP_MAX_INPUTS];
};

static bool read_list(struct reading *r, struct line *l)
{
    int input = (int)next_int(l, 0, r->request->op->n_inputs - 1);
    int n = (int)next_int(l, 0, PLAN_MAX_MEMBERS);
    if (l->bad || !r->request->op->inputs[input].list)
        return false;
    r->members[input] = arena_alloc(&r->b->room, (size_t)n + 1, sizeof **r->members);
    for (int k = 0; k < n; k++)
        r->members[input][k] = arena_alloc(&r->b->room, 1, sizeof ***r->members);
    r->lists->n[input] = n;
    r->lists->of[input] = r->members[input];
    return true;
}

static bool read_input(struct reading *r, struct line *l)
{
    char word[MAX_WORD];
    struct tensor_desc d = { 0 };
    int index = (int)next_int(l, 0, PLAN_MEMBER * PLAN_MAX_MEMBERS - 1);
    int input = plan_index(index), member = plan_member(index);
    d.dtype = dtype_parse(next_word(l, word));
    d.rank = (int)next_int(l, 0, OP_MAX_RANK);
    for (int i = 0; i < d.rank; i++)
        d.shape[i] = next_int(l, INT64_MIN, INT64_MAX);
    d.strided = !l->bad && l->at < l->end;
    for (int i = 0; i < d.rank && d.strided; i++)
        d.strides[i] = next_int(l, INT64_MIN, INT64_MAX);
    if (l->bad || input >= r->request->op->n_inputs || !tensor_desc_check(&d, NULL))
        return false;
    bool list = r->request->op->inputs[input].list;
    if (list ? member >= r->lists->n[input] : member > 0)
        return false;
    if (list) {
        *(struct tensor_desc *)(uintptr_t)r->members[input][member] = d;
        r->request->inputs[input].dtype = d.dtype;
    } else {
        r->request->inputs[input] = d;
    }
    return true;
}

static bool read_attr(struct reading *r, struct line *l, struct opd_err *err)
{
    const struct op *op = r->request->op;
    char name[MAX_WORD], kind[MAX_WORD], word[MAX_WORD];
    int64_t ints[OP_MAX_LIST];
    double floats[OP_MAX_LIST];
    int attr = op_attr_index(op, next_word(l, name)), n = 0;
    if (attr < 0)
        return op_fail(err, "%s has no attribute '%s'", op->name, name);
    struct op_value *v = &r->request->attrs[attr];
    next_word(l, kind);
    if (strcmp(kind, "none") == 0)
        return op_attr_set_none(op, attr, v, err);
    if (strcmp(kind, "word") == 0) {
        next_word(l, word);
        return op_attr_set_str(op, attr, word, strlen(word), v, err);
    }
    if (strcmp(kind, "bool") == 0)
        return op_attr_set_bool(op, attr, next_int(l, 0, 1), v, err);
    for (; !l->bad && l->at < l->end && n < OP_MAX_LIST; n++)
        if (strcmp(kind, "ints") == 0)
            ints[n] = next_int(l, INT64_MIN, INT64_MAX);
        else
            floats[n] = next_float(l);
    return !l->bad && (strcmp(kind, "ints") == 0 ? op_attr_set_ints(op, attr, ints, n, v, err)
                                                 : op_attr_set_floats(op, attr, floats, n, v, err));
}

static bool read_flags(struct plan_request *r, struct line *l)
{
    r->direction = (enum plan_direction)next_int(l, PLAN_FORWARD, PLAN_BACKWARD);
    r->keep = next_int(l, 0, 1);
    r->wanted = (uint32_t)next_int(l, 0, UINT32_MAX);
    r->grad_absent = (uint32_t)next_int(l, 0, UINT32_MAX);
    return !l->bad;
}

bool bundle_read_request(struct bundle *b, const struct op *op, struct opd_err *err)
{
    struct reading r = { .b = b,
                         .request = arena_alloc(&b->room, 1, sizeof *r.request),
                         .lists = arena_alloc(&b->room, 1, sizeof *r.lists) };
    const char *at = b->lines;
    bool ok = true;
    r.request->op = op;
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        r.lists->n[i] = -1;
    for (int i = 0; i < op->n_attrs; i++)
        r.request->attrs[i] = op->attrs[i].value;
    while (ok && at < b->source) {
        char name[MAX_WORD];
        struct line l = next_line(&at, b->source);
        next_word(&l, name);
        if (strcmp(name, "request") == 0)
            ok = read_flags(r.request, &l);
        else if (strcmp(name, "list") == 0)
            ok = read_list(&r, &l);
        else if (strcmp(name, "input") == 0)
            ok = read_input(&r, &l);
        else if (strcmp(name, "attr") == 0)
            ok = read_attr(&r, &l, err);
    }
    if (op->lists)
        r.request->lists = r.lists;
    b->request = r.request;
    return ok || (!err->code && fail(err));
}

void bundle_finish(struct bundle *b)
{
    arena_finish(&b->room);
}
