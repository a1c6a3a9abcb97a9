#include <stdio.h>
#include <string.h>

#include "op/formula.h"

// The size in dimension d of `rank`, where the shape stands at its right end.
static int64_t size_at(const struct tensor_desc *t, int rank, int d)
{
    int own = d - (rank - t->rank);
    return own < 0 ? 1 : t->shape[own];
}

struct tensor_desc formula_common_shape(const struct plan_request *request)
{
    struct tensor_desc common = { 0 };
    for (int i = 0; i < request->op->n_inputs; i++)
        if (request->inputs[i].rank > common.rank)
            common.rank = request->inputs[i].rank;
    for (int d = 0; d < common.rank; d++) {
        common.shape[d] = 1;
        for (int i = 0; i < request->op->n_inputs; i++) {
            int64_t size = size_at(&request->inputs[i], common.rank, d);
            if (size != 1)
                common.shape[d] = size;
        }
    }
    return common;
}

static bool fail_shape(const struct op *op, int input, const struct tensor_desc *d,
                       const struct tensor_desc *common, const char *expected, struct opd_err *err)
{
    char own[256], text[256];
    tensor_desc_format_shape(d->shape, d->rank, own, sizeof own);
    tensor_desc_format_shape(common->shape, common->rank, text, sizeof text);
    return op_fail(err, "%s is %s, expected %s %s", op->inputs[input].name, own, expected, text);
}

// Fails at the first input that does not broadcast with one before it, and names both.
static bool check_broadcast(const struct plan_request *request, struct opd_err *err)
{
    const struct op *op = request->op;
    for (int i = 1; i < op->n_inputs; i++)
        for (int k = 0; k < i; k++) {
            const struct tensor_desc *a = &request->inputs[k], *b = &request->inputs[i];
            int rank = a->rank > b->rank ? a->rank : b->rank;
            for (int d = 0; d < rank; d++) {
                int64_t m = size_at(a, rank, d), n = size_at(b, rank, d);
                char what[OP_MAX_NAME + 64];
                snprintf(what, sizeof what, "a shape that broadcasts with %s, which is",
                         op->inputs[k].name);
                if (m != n && m != 1 && n != 1)
                    return fail_shape(op, i, b, a, what, err);
            }
        }
    return true;
}

bool formula_shapes(struct env *env, struct opd_err *err)
{
    const struct plan_request *request = env->request;
    const struct op *op = request->op;
    if (!check_broadcast(request, err))
        return false;
    struct tensor_desc common = formula_common_shape(request);
    common.dtype = OPD_DTYPE_uint8;
    if (!tensor_desc_check(&common, err))
        return opd_err_prefix(err, "all inputs together");
    for (int o = 0; o < op->n_outputs; o++) {
        env->outputs[o] = common;
        env->outputs[o].dtype = env_dtype(env, op->outputs[o].type);
        if (!tensor_desc_check(&env->outputs[o], err))
            return opd_err_prefix(err, "%s", op->outputs[o].name);
    }
    for (int i = 0; i < op->n_inputs; i++) {
        const struct tensor_desc *d = &request->inputs[i];
        if (op->inputs[i].in_place && d->dtype != OPD_DTYPE_NONE &&
            (d->rank != common.rank ||
             memcmp(d->shape, common.shape, (size_t)d->rank * sizeof *d->shape) != 0))
            return fail_shape(op, i, d, &common,
                              "the shape of all inputs together, as it is changed in place:", err);
    }
    return true;
}

void formula_collapse(const struct tensor_desc *common, const struct tensor_desc *const *tensors,
                      int n, struct formula_dims *out)
{
    *out = (struct formula_dims){ 0 };
    for (int d = 0; d < common->rank; d++) {
        uint64_t repeated = 0;
        if (common->shape[d] == 1)
            continue;
        for (int t = 0; t < n; t++)
            if (size_at(tensors[t], common->rank, d) == 1)
                repeated |= UINT64_C(1) << t;
        if (out->rank > 0 && out->repeated[out->rank - 1] == repeated) {
            out->size[out->rank - 1] *= common->shape[d];
        } else {
            out->repeated[out->rank] = repeated;
            out->size[out->rank++] = common->shape[d];
        }
    }
}
