// The part of the state that is contexts: what backward needs of each forward.

#include "upgrade/archive.h"

#include <string.h>

#include "memory/context.h"
#include "request/parts.h"
#include "request/request.h"

void state_attrs(struct archive *a, struct plan_request *pr)
{
    size_t n = (size_t)pr->op->n_attrs, parts = 2 + 2 * OP_MAX_LIST;
    archive_open(a, "attrs", n, n, n);
    for (size_t i = 0; i < n; i++) {
        struct op_value *v = &pr->attrs[i];
        archive_open(a, NULL, parts, parts, parts);
        archive_bool(a, NULL, &v->present);
        archive_int(a, NULL, &v->n, 0, OP_MAX_LIST);
        for (int k = 0; k < OP_MAX_LIST; k++)
            archive_bits(a, NULL, &v->i[k]);
        for (int k = 0; k < OP_MAX_LIST; k++)
            archive_float(a, NULL, &v->f[k]);
        archive_close(a);
    }
    archive_close(a);
}

static void archive_tensor(struct archive *a, struct tensor_desc *desc, struct tensor **t,
                           uint64_t *version)
{
    archive_open(a, NULL, 3, 3, 3);
    state_desc(a, NULL, desc);
    *t = archive_ref(a, NULL, RECORD_tensor, *t);
    archive_count(a, NULL, version);
    archive_close(a);
    if (a->reading && *t)
        tensor_ref(*t);
}

static void archive_arguments(struct archive *a, struct context *ctx)
{
    size_t n = (size_t)ctx->version->op->n_inputs;
    archive_open(a, "inputs", n, n, n);
    for (size_t i = 0; i < n; i++)
        archive_tensor(a, &ctx->request.inputs[i], &ctx->inputs[i], &ctx->input_versions[i]);
    archive_close(a);
    n = (size_t)ctx->version->op->n_outputs;
    archive_open(a, "outputs", n, n, n);
    for (size_t i = 0; i < n; i++)
        archive_tensor(a, &ctx->output_descs[i], &ctx->outputs[i], &ctx->output_versions[i]);
    archive_close(a);
    archive_open(a, "saved", OP_MAX_TEMPS, OP_MAX_TEMPS, OP_MAX_TEMPS);
    for (size_t i = 0; i < OP_MAX_TEMPS; i++) {
        ctx->saved[i] = state_storage_ref(a, NULL, ctx->saved[i]);
        if (a->reading && ctx->saved[i])
            storage_ref(ctx->saved[i]);
    }
    archive_close(a);
}

static void archive_kept(struct archive *a, struct context_list *list)
{
    size_t n = archive_open(a, NULL, (size_t)list->n, 0, PLAN_MAX_MEMBERS);
    if (a->reading && n > 0)
        context_make_list(list, (int)n);
    for (size_t k = 0; k < n; k++) {
        archive_open(a, NULL, 2, 2, 2);
        list->of[k] = archive_ref(a, NULL, RECORD_tensor, list->of[k]);
        archive_count(a, NULL, &list->versions[k]);
        archive_close(a);
        if (a->reading && list->of[k])
            tensor_ref(list->of[k]);
    }
    archive_close(a);
}

static void archive_lists(struct archive *a, struct context *ctx)
{
    size_t n = OP_MAX_INPUTS + OP_MAX_OUTPUTS;
    state_lists(a, &ctx->request);
    archive_open(a, "kept", n, n, n);
    for (size_t i = 0; i < n; i++)
        archive_kept(a, &ctx->lists[i]);
    archive_close(a);
}

static const struct tensor *find_kept(const struct context *ctx, const struct plan_operand *o)
{
    int i = plan_index(o->index), k = plan_member(o->index);
    const struct context_list *list = &ctx->lists[o->kind == PLAN_INPUT ? i : OP_MAX_INPUTS + i];
    if (ctx->request.op->lists && list->of)
        return k < list->n ? list->of[k] : NULL;
    return k > 0 ? NULL : o->kind == PLAN_INPUT ? ctx->inputs[i] : ctx->outputs[i];
}

static bool same_tensor(const struct tensor *t, const struct tensor_desc *desc,
                        const struct device *d)
{
    return t && t->storage->space->device == d && tensor_desc_same(&t->desc, desc);
}

static bool fits(const struct context *ctx, const struct plan_operand *o)
{
    const struct op *op = ctx->version->op;
    const struct storage *s;
    switch (o->kind) {
    case PLAN_INPUT:
        return !op->inputs[plan_index(o->index)].used_backward ||
               same_tensor(find_kept(ctx, o), &o->desc, ctx->device);
    case PLAN_OUTPUT:
        return !op->outputs[plan_index(o->index)].used_backward ||
               same_tensor(find_kept(ctx, o), &o->desc, ctx->device);
    case PLAN_SAVED:
        s = ctx->saved[o->index];
        return s && s->space->device == ctx->device && s->size >= tensor_desc_size(&o->desc);
    default:
        return true;
    }
}

// Whether this program would have kept the same for the same forward: else its backward would read
// something else.
static bool check_plan(struct archive *a, const struct context *ctx)
{
    struct plan *plan = plan_build(&ctx->request, a->err);
    if (!plan)
        return opd_err_prefix(a->err, "the context of a forward that is kept");
    bool ok = true;
    for (int i = 0; i < plan->n_operands; i++)
        ok = ok && fits(ctx, &plan->operands[i]);
    plan_free(plan);
    return ok || archive_fail(a, "what it keeps is not what its operator keeps for backward");
}

// One whose operator's list has forgotten it, or never had it: a derivative, which is that
// operator's where the list has the version that it is of.
void state_keep_operator(struct archive *a, struct version *v)
{
    struct registry *r = &a->broker->registry;
    char name[OP_MAX_NAME];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(v->op->name, "."), v->op->name);
    struct opd_operator *o = v->of ? registry_operator(r, name, v->of->scope)
                                   : registry_make_operator(r, name, SCOPE_FILES);
    const struct version *same = o ? operator_version(o, v->number) : NULL;
    if (v->of && (!same || same->mark != v->mark))
        return;
    operator_unref(v->of);
    v->of = operator_ref(o);
}

bool state_context(struct archive *a, void *thing)
{
    const struct map_slot *slot = thing;
    struct context *ctx = slot ? slot->value : NULL;
    uint64_t id = slot ? slot->key : 0;
    struct version *v = ctx ? ctx->version : NULL;
    struct device *d = ctx ? ctx->device : NULL;
    archive_int(a, "id", &id, 1, INT64_MAX);
    v = archive_ref(a, "entry", RECORD_version, v);
    state_device_ref(a, "device", &d);
    if (!slot) {
        if (!archive_good(a) || !v || map_get(&a->conn->contexts, id))
            return archive_fail(a, "there is no version for it, or its id is in use");
        ctx = mem_zalloc(1, sizeof *ctx);
        *ctx = (struct context){ .version = version_keep(v),
                                 .drop = version_drop,
                                 .device = d,
                                 .request = { .op = v->op, .keep = true } };
        state_keep_operator(a, v);
        device_fill_plan_request(d, &ctx->request);
        map_put(&a->conn->contexts, id, ctx);
    }
    archive_count(a, "serial", &ctx->serial);
    state_attrs(a, &ctx->request);
    archive_arguments(a, ctx);
    if (v->op->lists)
        archive_lists(a, ctx);
    return slot || (archive_good(a) && check_plan(a, ctx));
}
