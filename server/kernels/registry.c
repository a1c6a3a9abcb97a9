#include "kernels/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/device.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kernels/program.h"
#include "kernels/source.h"
#include "base/suggest.h"

// A signature seldom has more than a few dozen plans in use; of so many a new version is made ready
// for the same.
// A plan of many steps or tensors takes the place of several: one for each so many of them.
static const uint32_t MARK_LOADED = 1u << 31;
enum { MAX_PLANS = 1024, MAX_INHERITED = 256, LIGHT_PLAN = 64 };

const char *version_state_name(enum version_state state)
{
    static const char *const names[] = { "compiling", "serving", "retired", "failed" };
    return names[state];
}

// --- versions

struct version *version_new(struct op *op, const struct source *source, const char *common,
                            struct opd_operator *of)
{
    struct version *v = mem_zalloc(1, sizeof *v);
    *v = (struct version){
        .refs = 1,
        .op = op,
        .time = clock_unix(),
        .path = mem_strdup(source->path),
        .folder = mem_strdup(source->folder),
        .text = mem_strdup(source->text),
        .common = mem_strdup(common),
        .hash = hash_bytes(common, strlen(common), source->hash),
        .of = of ? operator_ref(of) : NULL,
    };
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
    free(bp->programs);
    free(bp->signature);
    free((void *)(uintptr_t)bp->request->lists);
    free(bp->request);
    free(bp);
}

void version_drop_plans(struct version *v)
{
    size_t cursor = 0;
    struct bound_plan *bp, *next;
    while ((bp = map_next(&v->plans, &cursor)) != NULL) {
        for (; bp; bp = next) {
            next = bp->next;
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
    version_drop_plans(v);
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

static void set_operator(struct version *v, struct opd_operator *o)
{
    struct opd_operator *before = v->of;
    v->of = o ? operator_ref(o) : NULL;
    operator_unref(before);
}

// What a version's derivatives have from it.
static void tell_derived(struct version *v)
{
    for (struct version *d = v->derived; d; d = d->next_derived) {
        d->number = v->number;
        d->mark = v->mark;
        d->state = v->state;
        if (d->of != v->of)
            set_operator(d, v->of);
        tell_derived(d);
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
    struct version *d = mem_zalloc(1, sizeof *d);
    *d = (struct version){
        .refs = 1,
        .op = op,
        .time = v->time,
        .path = mem_strdup(v->path),
        .folder = mem_strdup(v->folder),
        .text = mem_strdup(op->source),
        .common = mem_strdup(v->common),
        .hash = v->hash,
        .next_derived = v->derived,
    };
    v->derived = d;
    tell_derived(v);
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

struct bound_plan *version_plan(struct version *v, struct device *d,
                                const struct plan_request *request, struct opd_err *err)
{
    struct buf signature = { 0 };
    plan_signature(request, &signature);
    uint64_t key = hash_bytes(signature.bytes, signature.size, (uint64_t)d->space.index);
    struct bound_plan *first = map_get(&v->plans, key), *bp = first;
    while (bp && (bp->device != d || bp->signature_size != signature.size ||
                  memcmp(bp->signature, signature.bytes, signature.size) != 0))
        bp = bp->next;
    if (!bp) {
        struct plan *plan = plan_build(request, err);
        if (plan) {
            if (v->n_plans >= MAX_PLANS) {
                version_drop_plans(v);
                first = NULL;
            }
            bp = bind_plan(v, d, request, plan, &signature);
            bp->next = first;
            map_put(&v->plans, key, bp);
            v->n_plans += 1 + (plan->n_steps + plan->n_operands) / LIGHT_PLAN;
        }
    }
    buf_finish(&signature);
    return bp;
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

int version_inherit(struct version *v, const struct version *old)
{
    int n = inherit_derived(v, old);
    size_t cursor = 0;
    for (struct bound_plan *bp; (bp = map_next(&old->plans, &cursor)) != NULL;)
        for (; bp && n < MAX_INHERITED; bp = bp->next) {
            struct plan_request request;
            struct opd_err err = { 0 };
            struct bound_plan *carried = NULL;
            if (bp->used && version_carry(bp->request, v->op, &request))
                carried = version_plan(v, bp->device, &request, &err);
            if (carried) {
                carried->used = true;
                n++;
            }
            opd_err_clear(&err); // what no longer fits is no longer in use
        }
    return n;
}

// --- operators

struct opd_operator *operator_new(const char *name, uint64_t scope)
{
    struct opd_operator *o = mem_zalloc(1, sizeof *o);
    strncpy(o->name, name, sizeof o->name - 1);
    o->refs = 1;
    o->scope = scope;
    o->runs = run_stats_new();
    return o;
}

struct opd_operator *operator_ref(struct opd_operator *o)
{
    o->refs++;
    return o;
}

void operator_unref(struct opd_operator *o)
{
    if (!o || --o->refs > 0)
        return;
    run_stats_unref(o->runs);
    free(o->failure_text);
    free(o);
}

// The place of a name and scope among those in order. True: it is there.
static bool find_operator(const struct registry *r, const char *name, uint64_t scope,
                          size_t *out_at)
{
    size_t low = 0, high = r->n_operators;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct opd_operator *o = r->operators[middle];
        int order = strcmp(o->name, name);
        if (order < 0 || (order == 0 && o->scope < scope))
            low = middle + 1;
        else
            high = middle;
    }
    *out_at = low;
    return low < r->n_operators && r->operators[low]->scope == scope &&
           strcmp(r->operators[low]->name, name) == 0;
}

struct opd_operator *registry_operator(const struct registry *r, const char *name, uint64_t scope)
{
    size_t at;
    return find_operator(r, name, scope, &at) ? r->operators[at] : NULL;
}

bool registry_is_first(const struct registry *r, size_t i)
{
    return i == 0 || r->operators[i - 1]->runs != r->operators[i]->runs;
}

// Of that name, in any scope; at: the place of one of them, or of the one behind.
static struct opd_operator *find_namesake(const struct registry *r, const char *name, size_t at)
{
    if (at > 0 && strcmp(r->operators[at - 1]->name, name) == 0)
        return r->operators[at - 1];
    if (at < r->n_operators && strcmp(r->operators[at]->name, name) == 0)
        return r->operators[at];
    return NULL;
}

struct opd_operator *registry_make_operator(struct registry *r, const char *name, uint64_t scope)
{
    size_t at;
    if (find_operator(r, name, scope, &at))
        return r->operators[at];
    struct opd_operator *o = operator_new(name, scope), *namesake = find_namesake(r, o->name, at);
    if (namesake) {
        run_stats_unref(o->runs);
        o->runs = run_stats_ref(namesake->runs);
    }
    if (r->n_operators % 64 == 0)
        r->operators = mem_realloc(r->operators, r->n_operators + 64,
                                   sizeof(struct opd_operator *));
    memmove(&r->operators[at + 1], &r->operators[at],
            (r->n_operators++ - at) * sizeof(struct opd_operator *));
    r->n_loaded += scope != SCOPE_FILES;
    return r->operators[at] = o;
}

struct opd_operator *registry_see(const struct registry *r, const char *name, uint64_t conn)
{
    const uint64_t scopes[] = { conn, SCOPE_SHARED, SCOPE_FILES };
    for (int i = r->n_loaded > 0 ? 0 : 2; i < 3; i++) {
        struct opd_operator *o = registry_operator(r, name, scopes[i]);
        if (o && o->current)
            return o;
    }
    return NULL;
}

struct version *registry_find(const struct registry *r, const char *name)
{
    const struct opd_operator *o = registry_operator(r, name, SCOPE_FILES);
    return o ? o->current : NULL;
}

struct version *operator_version(const struct opd_operator *o, int number)
{
    struct version *v = o->versions;
    while (v && v->number != number)
        v = v->older;
    return v;
}

struct version *operator_newest(const struct opd_operator *o)
{
    struct version *v = o->versions;
    while (v && v->state == VERSION_FAILED)
        v = v->older;
    return v;
}

const char *registry_suggest(const struct registry *r, const char *name, uint64_t conn,
                             struct suggest *near)
{
    suggest_init(near, name, strlen(name));
    for (size_t i = 0; i < r->n_operators; i++)
        if (registry_see(r, r->operators[i]->name, conn) == r->operators[i])
            suggest_add(near, r->operators[i]->name);
    return suggest_text(near);
}

static void drop_kernels(struct version *v)
{
    version_drop_plans(v);
    program_drop_all(v);
}

// Whoever ran forward with it may still ask for backward.
static void retire(struct version *v)
{
    v->state = VERSION_RETIRED;
    if (v->n_contexts == 0)
        drop_kernels(v);
    for (struct version *d = v->derived; d; d = d->next_derived)
        retire(d);
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

// A file's is served to nobody while one of its name is shared.
void registry_tell(struct registry *r, const struct opd_operator *o)
{
    bool served = o->current;
    if (served && o->scope == SCOPE_FILES && r->n_loaded > 0)
        served = registry_see(r, o->name, SCOPE_SHARED) == o;
    published_set(&r->published, o->slot, served ? o->current->mark : 0, o->failure);
}

// One that an operator had which was loaded and has gone. What is left of that in clients can be
// told from another's by its mark.
static uint32_t find_free_slot(const struct registry *r)
{
    bool *used = mem_zalloc((size_t)r->published.n_given + 1, sizeof *used);
    uint32_t slot = 1;
    for (size_t i = 0; i < r->n_operators; i++)
        used[r->operators[i]->slot] = true;
    while (slot <= r->published.n_given && used[slot])
        slot++;
    free(used);
    return slot <= r->published.n_given ? slot : 0;
}

uint32_t registry_slot(struct registry *r, struct opd_operator *o, struct opd_err *err)
{
    if (o->slot || !published_open(&r->published, err))
        return o->slot;
    if (published_full(&r->published) && o->scope != SCOPE_FILES)
        o->slot = find_free_slot(r);
    if (!o->slot)
        o->slot = published_give(&r->published, err);
    registry_tell(r, o);
    return o->slot;
}

// One that comes or goes may hide others of its name, or show them.
static void tell_namesakes(struct registry *r, const struct opd_operator *o)
{
    size_t at;
    find_operator(r, o->name, SCOPE_FILES, &at);
    for (; at < r->n_operators && r->operators[at]->runs == o->runs; at++) {
        r->operators[at]->changes++;
        registry_tell(r, r->operators[at]);
    }
}

void registry_serve(struct registry *r, struct opd_operator *o, struct version *v)
{
    struct version *old = o->current;
    if (old == v)
        return;
    o->current = v;
    o->changes++;
    if (v) {
        v->state = VERSION_SERVING;
        tell_derived(v);
    }
    if (old)
        retire(old);
    r->count += (v != NULL) - (old != NULL);
    r->generation++;
    registry_tell(r, o);
    if (!v != !old)
        tell_namesakes(r, o);
}

// The oldest that nobody needs goes when there are too many.
static void forget_oldest(struct opd_operator *o)
{
    int n = 0;
    struct version **last = NULL;
    for (struct version **at = &o->versions; *at; at = &(*at)->older, n++)
        if (*at != o->current && (*at)->number != o->pinned)
            last = at;
    if (n <= REGISTRY_MAX_VERSIONS || !last)
        return;
    struct version *v = *last;
    *last = v->older;
    o->changes++;
    v->older = NULL;
    version_unref(v);
}

static struct opd_operator *add_version(struct registry *r, struct version *v)
{
    struct opd_operator *o = v->of;
    if (!o)
        set_operator(v, o = registry_make_operator(r, v->op->name, SCOPE_FILES));
    v->number = ++o->last_version;
    v->mark = o->scope == SCOPE_FILES ? (uint32_t)v->number : MARK_LOADED | ++r->n_marks;
    o->runs->compiles.n += v->compiles.n;
    o->runs->compiles.ns += v->compiles.ns;
    v->older = o->versions;
    o->versions = version_ref(v);
    tell_derived(v);
    return o;
}

void registry_publish(struct registry *r, struct version *v)
{
    struct opd_operator *o = add_version(r, v);
    o->failure = 0;
    if (o->pinned && o->current)
        retire(v);
    else
        registry_serve(r, o, v);
    registry_tell(r, o); // that the last edit has not failed
    forget_oldest(o);
}

void registry_fail(struct registry *r, struct version *v, const struct opd_err *err)
{
    struct opd_operator *o = add_version(r, v);
    retire(v);
    v->state = VERSION_FAILED;
    opd_err_copy(&v->err, err);
    forget_oldest(o);
}

static void drop_versions(struct opd_operator *o)
{
    o->current = NULL;
    for (struct version *v; (v = o->versions) != NULL;) {
        o->versions = v->older;
        v->older = NULL;
        version_unref(v);
    }
}

void registry_remove(struct registry *r, struct opd_operator *o)
{
    size_t at;
    registry_serve(r, o, NULL);
    drop_versions(o);
    o->changes++;
    o->slot = 0;
    find_operator(r, o->name, o->scope, &at);
    memmove(&r->operators[at], &r->operators[at + 1],
            (--r->n_operators - at) * sizeof(struct opd_operator *));
    r->n_loaded--;
    operator_unref(o);
}

void registry_finish(struct registry *r)
{
    for (size_t i = 0; i < r->n_operators; i++) {
        drop_versions(r->operators[i]);
        operator_unref(r->operators[i]);
    }
    free(r->operators);
    published_finish(&r->published);
    *r = (struct registry){ 0 };
}
