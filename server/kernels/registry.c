#include "kernels/registry.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "device/device.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kernels/program.h"
#include "kernels/source.h"
#include "op/suggest.h"

// A signature seldom has more than a few dozen plans in use; of so many a new version is made ready
// for the same.
// A plan of many steps takes the place of several: one for each so many steps.
enum { MAX_PLANS = 1024, MAX_INHERITED = 256, LIGHT_STEPS = 64 };

const char *entry_state_name(enum entry_state state)
{
    static const char *const names[] = { "compiling", "serving", "retired", "failed" };
    return names[state];
}

// --- versions

struct entry *entry_new(struct op *op, const struct source *source, const char *common)
{
    struct entry *e = mem_zalloc(1, sizeof *e);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *e = (struct entry){
        .refs = 1,
        .op = op,
        .time = (double)now.tv_sec + (double)now.tv_nsec / 1e9,
        .path = mem_strdup(source->path),
        .folder = mem_strdup(source->folder),
        .text = mem_strdup(source->text),
        .common = mem_strdup(common),
        .hash = hash_bytes(common, strlen(common), source->hash),
    };
    return e;
}

struct entry *entry_ref(struct entry *e)
{
    e->refs++;
    return e;
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
    free(bp->request);
    free(bp);
}

void entry_drop_plans(struct entry *e)
{
    size_t cursor = 0;
    struct bound_plan *bp, *next;
    while ((bp = map_next(&e->plans, &cursor)) != NULL) {
        for (; bp; bp = next) {
            next = bp->next;
            bound_plan_unref(bp);
        }
    }
    map_finish(&e->plans);
    e->n_plans = 0;
}

void entry_unref(struct entry *e)
{
    if (!e || --e->refs > 0)
        return;
    entry_drop_plans(e);
    program_drop_all(e);
    op_unref(e->op);
    opd_err_clear(&e->err);
    free(e->path);
    free(e->folder);
    free(e->text);
    free(e->common);
    free(e);
}

static struct bound_plan *bind_plan(struct entry *e, struct device *d,
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
    memcpy(bp->signature, signature->bytes, signature->size);
    for (int i = 0; i < plan->n_kernels; i++)
        bp->programs[i] = program_get(d, e, plan, i);
    return bp;
}

struct bound_plan *entry_plan(struct entry *e, struct device *d, const struct plan_request *request,
                              struct opd_err *err)
{
    struct buf signature = { 0 };
    plan_signature(request, &signature);
    uint64_t key = hash_bytes(signature.bytes, signature.size, (uint64_t)d->index);
    struct bound_plan *first = map_get(&e->plans, key), *bp = first;
    while (bp && (bp->device != d || bp->signature_size != signature.size ||
                  memcmp(bp->signature, signature.bytes, signature.size) != 0))
        bp = bp->next;
    if (!bp) {
        struct plan *plan = plan_build(request, err);
        if (plan) {
            if (e->n_plans >= MAX_PLANS) {
                entry_drop_plans(e);
                first = NULL;
            }
            bp = bind_plan(e, d, request, plan, &signature);
            bp->next = first;
            map_put(&e->plans, key, bp);
            e->n_plans += 1 + plan->n_steps / LIGHT_STEPS;
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

static bool carry_request(const struct op *from, const struct plan_request *request,
                          const struct op *to, struct plan_request *out)
{
    if (from->n_inputs != to->n_inputs || from->n_outputs != to->n_outputs)
        return false;
    for (int i = 0; i < to->n_inputs; i++)
        if (strcmp(from->inputs[i].name, to->inputs[i].name) != 0)
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

int entry_inherit(struct entry *e, const struct entry *old)
{
    int n = 0;
    size_t cursor = 0;
    for (struct bound_plan *bp; (bp = map_next(&old->plans, &cursor)) != NULL;)
        for (; bp && n < MAX_INHERITED; bp = bp->next) {
            struct plan_request request;
            struct opd_err err = { 0 };
            struct bound_plan *carried = NULL;
            if (bp->used && carry_request(old->op, bp->request, e->op, &request))
                carried = entry_plan(e, bp->device, &request, &err);
            if (carried) {
                carried->used = true;
                n++;
            }
            opd_err_clear(&err); // what no longer fits is no longer in use
        }
    return n;
}

// --- operators

struct family *registry_family(const struct registry *r, const char *name)
{
    for (struct family *o = r->families; o; o = o->next)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

struct family *registry_make(struct registry *r, const char *name)
{
    struct family **at = &r->families;
    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    if (*at && strcmp((*at)->name, name) == 0)
        return *at;
    struct family *o = mem_zalloc(1, sizeof *o);
    strncpy(o->name, name, sizeof o->name - 1);
    o->next = *at;
    *at = o;
    return o;
}

struct entry *registry_find(const struct registry *r, const char *name)
{
    const struct family *o = registry_family(r, name);
    return o ? o->current : NULL;
}

struct entry *family_version(const struct family *o, int version)
{
    struct entry *e = o->versions;
    while (e && e->version != version)
        e = e->older;
    return e;
}

struct entry *family_newest(const struct family *o)
{
    struct entry *e = o->versions;
    while (e && e->state == ENTRY_FAILED)
        e = e->older;
    return e;
}

const char *registry_suggest(const struct registry *r, const char *name, char *out, size_t size)
{
    struct suggest suggest;
    suggest_init(&suggest, name, strlen(name));
    for (struct family *o = r->families; o; o = o->next)
        if (o->current)
            suggest_add(&suggest, o->name);
    return suggest_text(&suggest, out, size);
}

static void drop_kernels(struct entry *e)
{
    entry_drop_plans(e);
    program_drop_all(e);
}

// Whoever ran forward with it may still ask for backward.
static void retire(struct entry *e)
{
    e->state = ENTRY_RETIRED;
    if (e->n_contexts == 0)
        drop_kernels(e);
}

void entry_add_context(struct entry *e, int n)
{
    e->n_contexts += n;
    if (e->n_contexts == 0 && e->state != ENTRY_SERVING)
        drop_kernels(e);
}

void registry_serve(struct registry *r, struct family *o, struct entry *e)
{
    struct entry *old = o->current;
    if (old == e)
        return;
    o->current = e;
    if (e)
        e->state = ENTRY_SERVING;
    if (old)
        retire(old);
    r->count += (e != NULL) - (old != NULL);
    r->generation++;
}

// The oldest that nobody needs goes when there are too many.
static void forget_oldest(struct family *o)
{
    int n = 0;
    struct entry **last = NULL;
    for (struct entry **at = &o->versions; *at; at = &(*at)->older, n++)
        if (*at != o->current && (*at)->version != o->pinned)
            last = at;
    if (n <= REGISTRY_MAX_VERSIONS || !last)
        return;
    struct entry *e = *last;
    *last = e->older;
    e->older = NULL;
    entry_unref(e);
}

static struct family *add_version(struct registry *r, struct entry *e)
{
    struct family *o = registry_make(r, e->op->name);
    e->version = ++o->last_version;
    e->older = o->versions;
    o->versions = entry_ref(e);
    return o;
}

void registry_publish(struct registry *r, struct entry *e)
{
    struct family *o = add_version(r, e);
    o->failure = 0;
    if (o->pinned && o->current)
        retire(e);
    else
        registry_serve(r, o, e);
    forget_oldest(o);
}

void registry_fail(struct registry *r, struct entry *e, const struct opd_err *err)
{
    struct family *o = add_version(r, e);
    retire(e);
    e->state = ENTRY_FAILED;
    opd_err_copy(&e->err, err);
    forget_oldest(o);
}

void registry_finish(struct registry *r)
{
    struct family *next;
    for (struct family *o = r->families; o; o = next) {
        next = o->next;
        struct entry *older;
        for (struct entry *e = o->versions; e; e = older) {
            older = e->older;
            entry_unref(e);
        }
        free(o->failure_text);
        free(o);
    }
    *r = (struct registry){ 0 };
}
