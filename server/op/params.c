#include "op/params.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void packed_start(struct packed *p)
{
    p->n_params = p->n_slots = 0;
    p->size = 0;
}

void *packed_put(struct packed *p, uint32_t size, uint32_t align)
{
    uint32_t at = (p->size + align - 1) & ~(align - 1);
    if (at + size > OP_MAX_ARGS_SIZE)
        return NULL;
    memset(p->bytes + p->size, 0, at + size - p->size);
    p->size = at + size;
    return p->bytes + at;
}

bool packed_put_slot(struct packed *p, int tensor)
{
    if (p->n_slots == SIGNATURE_MAX_PARAMS || !packed_put(p, 8, 8))
        return false;
    p->slots[p->n_slots++] = (struct plan_slot){ p->size - 8, (uint32_t)tensor };
    return true;
}

static void *reserve(const struct step *launch, struct packed *out, uint32_t size, uint32_t align,
                     struct opd_err *err)
{
    void *at = packed_put(out, size, align);
    if (!at)
        op_fail(err, "kernel %s takes more than %d bytes of parameters", launch->name,
                OP_MAX_ARGS_SIZE);
    out->params[out->n_params++] = (struct plan_param){ .offset = out->size - size, .size = size };
    return at;
}

// Absent inputs and unwanted gradients have no slot: their bytes stay zero.
static void add_slot(const struct argument *arg, const struct env *env, struct packed *out)
{
    if (env_has_tensor(env, arg->tensor))
        out->slots[out->n_slots++] = (struct plan_slot){ out->params[out->n_params - 1].offset,
                                                         (uint32_t)arg->tensor };
}

static bool store_index(const struct step *launch, const struct argument *arg, int64_t value,
                        uint8_t *at, struct opd_err *err)
{
    struct cnumber type = { CNUMBER_SIGNED, (uint8_t)arg->param->index_size, 0 };
    if (cnumber_store(type, (union expr_value){ .i = value }, EXPR_INT, at))
        return true;
    return op_fail(err,
                   "kernel %s has the 32-bit accessor '%s', whose size or stride %" PRId64
                   " does not fit; use PackedTensorAccessor64",
                   launch->name, arg->param->name, value);
}

static bool pack_accessor(const struct step *launch, const struct argument *arg,
                          const struct env *env, struct packed *out, struct opd_err *err)
{
    const struct signature_param *p = arg->param;
    const struct tensor_desc *d = env_tensor(env, arg->tensor);
    uint32_t index = (uint32_t)p->index_size, rank = (uint32_t)p->rank;
    uint8_t *at = reserve(launch, out, 8 + 2 * rank * index, 8, err);
    if (!at)
        return false;
    add_slot(arg, env, out);
    if (!env_has_tensor(env, arg->tensor))
        return true;
    if (d->rank != p->rank) {
        char text[320];
        tensor_desc_format(d, text, sizeof text);
        return op_fail(err, "kernel %s takes '%s' with %d dimensions, it has %d: %s", launch->name,
                       p->name, p->rank, d->rank, text);
    }
    uint8_t *sizes = at + 8, *strides = sizes + rank * index;
    int64_t last = 0; // its offset is computed in the same type
    for (int i = d->rank - 1; i >= 0; i--) {
        int64_t stride = env_stride(env, arg->tensor, i);
        if (!store_index(launch, arg, d->shape[i], sizes + (uint32_t)i * index, err) ||
            !store_index(launch, arg, stride, strides + (uint32_t)i * index, err))
            return false;
        last += d->shape[i] > 0 ? (d->shape[i] - 1) * stride : 0;
    }
    return index == 8 || store_index(launch, arg, last, (uint8_t[8]){ 0 }, err);
}

static bool pack_value(const struct step *launch, const struct argument *arg, const struct env *env,
                       struct packed *out, struct opd_err *err)
{
    union expr_value value;
    struct cnumber type = arg->type;
    const struct expr *e = arg->expr;
    if (type.kind == CNUMBER_VARIABLE)
        type = cnumber_of_dtype(env_dtype(env, type.type));
    if (!expr_eval(e, env, &value, err))
        return false;
    void *at = reserve(launch, out, type.size, cnumber_align(type), err);
    if (!at)
        return false;
    if (cnumber_store(type, value, e->type, at))
        return true;
    char text[32];
    if (e->type == EXPR_FLOAT)
        snprintf(text, sizeof text, "%g", value.f);
    else
        snprintf(text, sizeof text, "%" PRId64, value.i);
    return op_fail(err, "kernel parameter '%s' of %s is %s, value %s does not fit%s",
                   arg->param->name, launch->name, arg->param->type, text,
                   type.kind == CNUMBER_DIVISOR ? ", expected 1 to 2147483647" : "");
}

bool params_pack(const struct step *launch, const struct env *env, struct packed *out,
                 struct opd_err *err)
{
    packed_start(out);
    for (int i = 0; i < launch->n_args; i++) {
        const struct argument *arg = &launch->args[i];
        if (arg->param->kind == PARAM_POINTER) {
            if (!reserve(launch, out, 8, 8, err))
                return false;
            add_slot(arg, env, out);
        } else if (arg->param->kind == PARAM_ACCESSOR) {
            if (!pack_accessor(launch, arg, env, out, err))
                return false;
        } else if (!pack_value(launch, arg, env, out, err)) {
            return false;
        }
        out->params[i].is_tensor = arg->param->kind != PARAM_VALUE;
        snprintf(out->params[i].name, sizeof out->params[i].name, "%s", arg->param->name);
    }
    return true;
}
