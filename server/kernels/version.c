#include "kernels/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kernels/program.h"
#include "kernels/registry.h"
#include "kernels/source.h"

// A signature seldom has more than a few dozen plans in use; of so many a new version is made ready
// for the same. A plan of many steps or tensors takes the place of several: one for each so many.
enum { MAX_PLANS = 1024, MAX_INHERITED = 256, LIGHT_PLAN = 64 };

const char *version_state_name(enum version_state state)
{
    static const char *const names[] = { "compiling", "serving", "retired", "failed" };
    return names[state];
}

// --- versions

static struct version *make_version(struct op *op, double time, const char *path,
                                    const char *folder, const char *text, const char *common)
{
    struct version *v = mem_zalloc(1, sizeof *v);
    *v = (struct version){
        .refs = 1,
        .op = op,
        .time = time,
        .path = mem_strdup(path),
        .folder = mem_strdup(folder),
        .text = mem_strdup(text),
        .common = mem_strdup(common),
    };
    return v;
}

struct version *version_new(struct op *op, const struct source *source, const char *common,
                            struct opd_operator *of)
{
    struct version *v = make_version(op, clock_unix(), source->path, source->folder, source->text,
                                     common);
    v->hash = hash_bytes(common, strlen(common), source->hash);
    v->of = of ? operator_ref(of) : NULL;
    return v;
}

bool version_is_loaded(const struct version *v)
{
    return v->of && v->of->scope != SCOPE_FILES;
}

struct version *version_ref(struct version *v)
{
    v->refs++;
    return v;
}

struct bound_plan *bound_plan_ref(struct bound_plan *bp)
{
    bp->refs++;
    return bp;
}

void bound_plan_unref(struct bound_plan *bp)
{
    if (!bp || --bp->refs > 0)
        return;
    plan_free(bp->plan);
    if (!bp->of) {
        free(bp->programs);
        free(bp->signature);
        free((void *)(uintptr_t)bp->request->lists);
    }
    bound_plan_unref(bp->of);
    free(bp->request);
    free(bp);
}

static void drop_plans(struct version *v)
{
    size_t cursor = 0;
    struct bound_plan *bp, *next;
    while ((bp = map_next(&v->plans, &cursor)) != NULL) {
        for (; bp; bp = next) {
            next = bp->next;
            bound_plan_unref(bp->last);
            bp->last = NULL; // it refers to this one
            bound_plan_unref(bp);
        }
    }
    map_finish(&v->plans);
    v->n_plans = 0;
    if (v->of)
        v->of->changes++;
}

void version_unref(struct version *v)
{
    if (!v || --v->refs > 0)
        return;
    drop_plans(v);
    program_drop_all(v);
    for (struct version *d = v->derived, *next; d; d = next) {
        next = d->next_derived;
        d->next_derived = NULL;
        version_unref(d);
    }
    op_unref(v->op);
    operator_unref(v->of);
    opd_err_clear(&v->err);
    opd_err_clear(&v->refused[0]);
    opd_err_clear(&v->refused[1]);
    free(v->path);
    free(v->folder);
    free(v->text);
    free(v->common);
    free(v);
}

// --- derivatives

static const char *derived_name(const struct version *v, const struct version *derived)
{
    return derived->op->name + strlen(v->op->name) + 1;
}

void version_set_operator(struct version *v, struct opd_operator *o)
{
    struct opd_operator *before = v->of;
    v->of = o ? operator_ref(o) : NULL;
    operator_unref(before);
}

void version_tell_derived(struct version *v)
{
    for (struct version *d = v->derived; d; d = d->next_derived) {
        d->number = v->number;
        d->mark = v->mark;
        d->state = v->state;
        d->checks_first = v->checks_first;
        if (d->of != v->of)
            version_set_operator(d, v->of);
        version_tell_derived(d);
    }
}

static struct version *derive_one(struct version *v, const char *what, struct opd_err *err)
{
    for (struct version *d = v->derived; d; d = d->next_derived)
        if (strcmp(derived_name(v, d), what) == 0)
            return d;
    struct opd_err *refused = strcmp(what, "backward") == 0  ? &v->refused[0]
                              : strcmp(what, "tangent") == 0 ? &v->refused[1]
                                                             : NULL;
    if (refused && refused->code) {
        opd_err_copy(err, refused);
        return NULL;
    }
    struct op *op = op_derive(v->op, what, err);
    if (!op) {
        if (refused)
            opd_err_copy(refused, err);
        return NULL;
    }
    struct version *d = make_version(op, v->time, v->path, v->folder, op->source, v->common);
    d->hash = v->hash;
    d->next_derived = v->derived;
    v->derived = d;
    version_tell_derived(v);
    return d;
}

struct version *version_derive(struct version *v, const char *what, struct opd_err *err)
{
    while (v && what) {
        char name[OP_MAX_NAME];
        const char *dot = strchr(what, '.');
        snprintf(name, sizeof name, "%.*s", dot ? (int)(dot - what) : (int)strlen(what), what);
        v = derive_one(v, name, err);
        what = dot ? dot + 1 : NULL;
    }
    return v;
}

// --- plans

static struct bound_plan *bind_plan(struct version *v, struct device *d,
                                    const struct plan_request *request, struct plan *plan,
                                    const struct buf *signature)
{
    struct bound_plan *bp = mem_zalloc(1, sizeof *bp);
    *bp = (struct bound_plan){
        .refs = 1,
        .device = d,
        .plan = plan,
        .request = mem_alloc(sizeof *request),
        .signature = mem_alloc(signature->size),
        .signature_size = signature->size,
        .programs = mem_zalloc((size_t)plan->n_kernels, sizeof *bp->programs),
    };
    *bp->request = *request;
    bp->request->lists = plan_lists_copy(request->lists);
    memcpy(bp->signature, signature->bytes, signature->size);
    for (int i = 0; i < plan->n_kernels; i++)
        bp->programs[i] = program_get(d, v, plan, i);
    return bp;
}

// The plan for the numbers that this request has, where it differs in nothing else. NULL: it is to
// be built.
static struct bound_plan *revalue_plan(struct version *v, struct bound_plan *bp,
                                       const struct plan_request *request)
{
    if (plan_same_numbers(bp->request, request))
        return bp;
    if (bp->last && plan_same_numbers(bp->last->request, request))
        return bp->last;
    struct plan *plan = plan_revalue(bp->plan, request, &v->fixed);
    if (!plan)
        return NULL;
    struct bound_plan *other = mem_alloc(sizeof *other);
    *other = *bp;
    other->refs = 1;
    other->next = NULL;
    other->last = NULL;
    other->of = bound_plan_ref(bp);
    other->plan = plan;
    other->request = mem_alloc(sizeof *request);
    *other->request = *request;
    other->request->lists = bp->request->lists;
    bound_plan_unref(bp->last);
    return bp->last = other;
}

static uint64_t sign(const struct version *v, const struct device *d,
                     const struct plan_request *request, struct buf *signature)
{
    signature->size = 0;
    plan_signature(request, v->fixed, signature);
    return hash_bytes(signature->bytes, signature->size, (uint64_t)d->space.index);
}

static struct bound_plan *build_plan(struct version *v, struct device *d,
                                     const struct plan_request *request, struct buf *signature,
                                     struct opd_err *err)
{
    struct plan *plan = plan_build(request, err);
    if (!plan)
        return NULL;
    v->fixed |= plan->fixed; // what was kept under shorter signatures is not found any more
    if (v->n_plans >= MAX_PLANS)
        drop_plans(v);
    uint64_t key = sign(v, d, request, signature);
    struct bound_plan *bp = bind_plan(v, d, request, plan, signature);
    bp->next = map_get(&v->plans, key);
    map_put(&v->plans, key, bp);
    v->n_plans += 1 + (plan->n_steps + plan->n_operands) / LIGHT_PLAN;
    return bp;
}

struct bound_plan *version_plan(struct version *v, struct device *d,
                                const struct plan_request *request, struct opd_err *err)
{
    struct buf signature = { 0 };
    struct bound_plan *bp = map_get(&v->plans, sign(v, d, request, &signature));
    while (bp && (bp->device != d || bp->signature_size != signature.size ||
                  memcmp(bp->signature, signature.bytes, signature.size) != 0))
        bp = bp->next;
    bp = bp ? revalue_plan(v, bp, request) : NULL;
    if (!bp)
        bp = build_plan(v, d, request, &signature, err);
    buf_finish(&signature);
    return bp;
}

static struct bound_plan *find_base(struct bound_plan *bp)
{
    return bp->of ? bp->of : bp;
}

struct bound_plan *version_first(struct version *v, struct bound_plan *bp)
{
    struct bound_plan *base = find_base(bp), *first = NULL;
    if (!v->checks_first || base->settled || bp->request->checked)
        return NULL;
    struct plan_request request = *bp->request; // large: not of every run
    struct opd_err err = { 0 };
    request.checked = true;
    // Where it found no room others would go.
    if (bp->plan->n_kernels > 0 && !request.on_cpu && v->n_plans < MAX_PLANS)
        first = version_plan(v, bp->device, &request, &err);
    opd_err_clear(&err);
    base->settled = !first || find_base(first)->settled;
    return base->settled ? NULL : first;
}

void version_first_over(struct bound_plan *first)
{
    find_base(first)->settled = true;
}

// The value of an attribute in a request for the old version, for the new one. False: it has no
// place there.
static bool carry_attr(const struct op_attr *from, const struct op_value *v,
                       const struct op_attr *to, struct op_value *out)
{
    if (from->type != to->type || from->list != to->list || (!v->present && !to->optional))
        return false;
    *out = *v;
    if (from->type != OP_ATTR_STR || !v->present)
        return true;
    for (int w = 0; w < to->n_words; w++)
        if (strcmp(from->words[v->i[0]], to->words[w]) == 0) {
            out->i[0] = w;
            return true;
        }
    return false;
}

bool version_carry(const struct plan_request *request, const struct op *to,
                   struct plan_request *out)
{
    const struct op *from = request->op;
    if (from->n_inputs != to->n_inputs || from->n_outputs != to->n_outputs)
        return false;
    for (int i = 0; i < to->n_inputs; i++)
        if (strcmp(from->inputs[i].name, to->inputs[i].name) != 0 ||
            from->inputs[i].list != to->inputs[i].list)
            return false;
    *out = *request;
    out->op = to;
    for (int i = 0; i < to->n_attrs; i++) {
        int old = op_attr_index(from, to->attrs[i].name);
        out->attrs[i] = to->attrs[i].value;
        if (old < 0 ? to->attrs[i].required
                    : !carry_attr(&from->attrs[old], &request->attrs[old], &to->attrs[i],
                                  &out->attrs[i]))
            return false;
    }
    return true;
}

static int inherit_derived(struct version *v, const struct version *old)
{
    int n = 0;
    for (const struct version *d = old->derived; d; d = d->next_derived) {
        struct opd_err err = { 0 };
        struct version *same = version_derive(v, derived_name(old, d), &err);
        n += same ? version_inherit(same, d) : 0;
        opd_err_clear(&err); // formulas no more
    }
    return n;
}

static bool inherit_plan(struct version *v, const struct bound_plan *bp)
{
    struct plan_request request;
    struct opd_err err = { 0 };
    struct bound_plan *carried = NULL;
    if (bp && bp->used && version_carry(bp->request, v->op, &request))
        carried = version_plan(v, bp->device, &request, &err);
    if (carried) {
        carried->used = true;
        version_first(v, carried); // compiled beside it
    }
    opd_err_clear(&err); // what no longer fits is no longer in use
    return carried != NULL;
}

int version_inherit(struct version *v, const struct version *old)
{
    int n = inherit_derived(v, old);
    size_t cursor = 0;
    for (const struct bound_plan *bp; (bp = map_next(&old->plans, &cursor)) != NULL;)
        for (; bp && n < MAX_INHERITED; bp = bp->next) {
            bool first = inherit_plan(v, bp); // its numbers may decide on more now
            n += inherit_plan(v, bp->last) || first;
        }
    return n;
}

// --- for how long its kernels are kept

static void drop_kernels(struct version *v)
{
    drop_plans(v);
    program_drop_all(v);
}

// Whoever ran forward with it may still ask for backward.
void version_retire(struct version *v)
{
    v->state = VERSION_RETIRED;
    if (v->n_contexts == 0)
        drop_kernels(v);
    for (struct version *d = v->derived; d; d = d->next_derived)
        version_retire(d);
}

struct version *version_keep(struct version *v)
{
    v->n_contexts++;
    return version_ref(v);
}

void version_drop(struct version *v)
{
    v->n_contexts--;
    if (v->n_contexts == 0 && v->state != VERSION_SERVING)
        drop_kernels(v);
    version_unref(v);
}
