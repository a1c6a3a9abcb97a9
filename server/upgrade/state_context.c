// The part of the state that is contexts: what backward needs of each forward.

#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "request/request.h"

// --- writing

static void put_attrs(struct state_out *out, const struct context *ctx)
{
    struct buf *bytes = &out->bytes;
    pack_str(bytes, "attrs");
    pack_array(bytes, (size_t)ctx->version->op->n_attrs);
    for (int i = 0; i < ctx->version->op->n_attrs; i++) {
        const struct op_value *v = &ctx->request.attrs[i];
        pack_array(bytes, 2 + 2 * OP_MAX_LIST);
        pack_bool(bytes, v->present);
        pack_int(bytes, v->n);
        for (int k = 0; k < OP_MAX_LIST; k++)
            pack_int(bytes, v->i[k]);
        for (int k = 0; k < OP_MAX_LIST; k++)
            pack_float(bytes, v->f[k]);
    }
}

static void put_arguments(struct state_out *out, const struct context *ctx)
{
    const struct op *op = ctx->version->op;
    struct buf *bytes = &out->bytes;
    pack_str(bytes, "inputs");
    pack_array(bytes, (size_t)op->n_inputs);
    for (int i = 0; i < op->n_inputs; i++) {
        pack_array(bytes, 3);
        state_put_desc(out, &ctx->request.inputs[i]);
        pack_uint(bytes, state_number(&out->tensors, ctx->inputs[i]));
        pack_uint(bytes, ctx->input_versions[i]);
    }
    pack_str(bytes, "outputs");
    pack_array(bytes, (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++) {
        pack_array(bytes, 3);
        state_put_desc(out, &ctx->output_descs[i]);
        pack_uint(bytes, state_number(&out->tensors, ctx->outputs[i]));
        pack_uint(bytes, ctx->output_versions[i]);
    }
    pack_str(bytes, "saved");
    pack_array(bytes, OP_MAX_TEMPS);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        pack_uint(bytes, state_number(&out->storages, ctx->saved[i]));
}

static void write_context(struct state_out *out, uint64_t id, const struct context *ctx)
{
    struct buf *bytes = &out->bytes;
    state_begin(out, "context", 8);
    pack_key_uint(bytes, "id", id);
    pack_key_uint(bytes, "serial", ctx->serial);
    pack_key_uint(bytes, "entry", state_number(&out->versions, ctx->version));
    pack_key_int(bytes, "device", ctx->device->space.index);
    put_attrs(out, ctx);
    put_arguments(out, ctx);
}

void state_write_contexts(struct state_out *out, const struct conn *c)
{
    const struct map *m = &c->contexts;
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].value)
            write_context(out, m->slots[i].key, m->slots[i].value);
}

// --- reading

static void read_attrs(struct state_in *in, struct plan_request *pr)
{
    const value *list = state_get(in, "attrs");
    if (value_count(list) != (size_t)pr->op->n_attrs)
        state_fail(in, "it has not the operator's attributes");
    for (int i = 0; state_good(in) && i < pr->op->n_attrs; i++) {
        const value *one = value_at(list, (size_t)i), *present = value_at(one, 0);
        struct op_value *v = &pr->attrs[i];
        v->present = present && value_type(present) == VALUE_BOOL && value_bool(present);
        v->n = (int)state_int_of(in, value_at(one, 1), 0, OP_MAX_LIST);
        for (size_t k = 0; k < OP_MAX_LIST; k++) {
            v->i[k] = state_int_of(in, value_at(one, 2 + k), INT64_MIN, INT64_MAX);
            const value *f = value_at(one, 2 + OP_MAX_LIST + k);
            if (f && value_type(f) == VALUE_FLOAT)
                v->f[k] = value_float(f);
        }
    }
}

static struct tensor *read_tensor(struct state_in *in, const value *triple,
                                  struct tensor_desc *desc, uint64_t *version)
{
    state_desc_of(in, value_at(triple, 0), desc);
    struct tensor *t = state_thing_of(in, value_at(triple, 1), &in->tensors);
    *version = (uint64_t)state_int_of(in, value_at(triple, 2), 0, INT64_MAX);
    return t ? tensor_ref(t) : NULL;
}

static void read_arguments(struct state_in *in, struct context *ctx)
{
    const struct op *op = ctx->version->op;
    const value *inputs = state_get(in, "inputs"), *outputs = state_get(in, "outputs"),
                *saved = state_get(in, "saved");
    if (value_count(inputs) != (size_t)op->n_inputs ||
        value_count(outputs) != (size_t)op->n_outputs)
        state_fail(in, "it has not the operator's inputs and outputs");
    for (int i = 0; state_good(in) && i < op->n_inputs; i++)
        ctx->inputs[i] = read_tensor(in, value_at(inputs, (size_t)i), &ctx->request.inputs[i],
                                     &ctx->input_versions[i]);
    for (int i = 0; state_good(in) && i < op->n_outputs; i++)
        ctx->outputs[i] = read_tensor(in, value_at(outputs, (size_t)i), &ctx->output_descs[i],
                                      &ctx->output_versions[i]);
    for (size_t i = 0; state_good(in) && i < OP_MAX_TEMPS; i++) {
        struct storage *s = state_thing_of(in, value_at(saved, i), &in->storages);
        ctx->saved[i] = s ? storage_ref(s) : NULL;
    }
}

static bool same_tensor(const struct tensor *t, const struct tensor_desc *desc,
                        const struct device *d)
{
    return t && t->storage->space->device == d && t->desc.dtype == desc->dtype &&
           t->desc.rank == desc->rank &&
           memcmp(t->desc.shape, desc->shape, (size_t)desc->rank * sizeof desc->shape[0]) == 0;
}

static bool fits(const struct context *ctx, const struct plan_operand *o)
{
    const struct op *op = ctx->version->op;
    const struct storage *s;
    switch (o->kind) {
    case PLAN_INPUT:
        return !op->inputs[o->index].used_backward ||
               same_tensor(ctx->inputs[o->index], &o->desc, ctx->device);
    case PLAN_OUTPUT:
        return !op->outputs[o->index].used_backward ||
               same_tensor(ctx->outputs[o->index], &o->desc, ctx->device);
    case PLAN_SAVED:
        s = ctx->saved[o->index];
        return s && s->space->device == ctx->device && s->size >= tensor_desc_size(&o->desc);
    default:
        return true;
    }
}

// Whether this program would have kept the same for the same forward: else its backward would read
// something else.
static bool check_plan(struct state_in *in, const struct context *ctx)
{
    struct plan *plan = plan_build(&ctx->request, in->err);
    if (!plan)
        return opd_err_prefix(in->err, "the context of a forward that is kept");
    bool ok = true;
    for (int i = 0; i < plan->n_operands; i++)
        ok = ok && fits(ctx, &plan->operands[i]);
    plan_free(plan);
    return ok || state_fail(in, "what it keeps is not what its operator keeps for backward");
}

bool state_read_context(struct state_in *in)
{
    struct conn *c = in->conn;
    struct broker *b = in->broker;
    uint64_t id = (uint64_t)state_int(in, "id", 1, INT64_MAX);
    struct version *v = state_thing(in, "entry", &in->versions);
    int device = (int)state_int(in, "device", 0, b->devices.n - 1);
    if (!state_good(in) || !c || !v || map_get(&c->contexts, id))
        return state_fail(in, "there is no connection or version for it, or its id is in use");
    struct context *ctx = mem_zalloc(1, sizeof *ctx);
    *ctx = (struct context){ .serial = state_uint(in, "serial"),
                             .version = version_ref(v),
                             .device = b->devices.at[device] };
    version_add_context(v, 1);
    if (!v->of) // whose list has forgotten it
        v->of = registry_make_operator(&b->registry, v->op->name);
    ctx->request.op = v->op;
    ctx->request.keep = true;
    device_fill_plan_request(ctx->device, &ctx->request);
    map_put(&c->contexts, id, ctx);
    read_attrs(in, &ctx->request);
    read_arguments(in, ctx);
    return state_good(in) && check_plan(in, ctx);
}
