#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/formula.h"

// The size in dimension d of `rank`, where the shape stands at its right end.
static int64_t size_at(const struct tensor_desc *t, int rank, int d)
{
    int own = d - (rank - t->rank);
    return own < 0 ? 1 : t->shape[own];
}

struct tensor_desc formula_common_shape(const struct tensor_desc *inputs, int n)
{
    struct tensor_desc common = { 0 };
    for (int i = 0; i < n; i++)
        if (inputs[i].dtype && inputs[i].rank > common.rank)
            common.rank = inputs[i].rank;
    for (int d = 0; d < common.rank; d++) {
        common.shape[d] = 1;
        for (int i = 0; i < n; i++)
            if (inputs[i].dtype && size_at(&inputs[i], common.rank, d) != 1)
                common.shape[d] = size_at(&inputs[i], common.rank, d);
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
            int rank = !a->dtype || !b->dtype ? 0 : a->rank > b->rank ? a->rank : b->rank;
            for (int d = 0; d < rank; d++) {
                int64_t m = size_at(a, rank, d), n = size_at(b, rank, d);
                char what[OP_MAX_NAME + 64];
                if (m == n || m == 1 || n == 1)
                    continue;
                snprintf(what, sizeof what, "a shape that broadcasts with %s, which is",
                         op->inputs[k].name);
                return fail_shape(op, i, b, a, what, err);
            }
        }
    return true;
}

bool formula_count_over(const struct formula_over *over, const struct env *env, int rank, int *out,
                        struct opd_err *err)
{
    int64_t value = -rank;
    if (over->expr && !expr_eval_int(over->expr, env, &value, err))
        return false;
    if (over->expr && !over->is_slice && value != -1)
        return op_fail(err,
                       "a sum over dimension %" PRId64 " ('%s'), expected -1, the last, or -N:, "
                       "the last N",
                       value, over->text);
    if (over->is_slice && (value >= 0 || value < -(int64_t)rank))
        return op_fail(err,
                       "a sum over the dimensions '%s' from %" PRId64 " on, expected -%d to -1",
                       over->text, value, rank);
    *out = rank == 0 ? 0 : (int)-value;
    return true;
}

struct tensor_desc formula_row_shape(const struct tensor_desc *common, int n_over)
{
    struct tensor_desc row = *common;
    for (int d = row.rank - n_over; d < row.rank; d++)
        row.shape[d] = 1;
    return row;
}

// --- the dimensions of an output, as an expression for requests

static struct node *make_plan_node(struct arena *arena, int kind, struct node *a, struct node *b,
                                   struct node *c)
{
    struct node *n = arena_alloc(arena, 1, sizeof *n);
    *n = (struct node){ .kind = (uint8_t)kind,
                        .type = EXPR_INT,
                        .n_args = (uint8_t)((a != NULL) + (b != NULL) + (c != NULL)),
                        .args = { a, b, c } };
    return n;
}

static struct node *make_number(struct arena *arena, int64_t value)
{
    struct node *n = make_plan_node(arena, NODE_CONST, NULL, NULL, NULL);
    n->value.i = value;
    return n;
}

// A condition of truth values that are known in a request. NULL: it is none.
static struct node *make_condition(struct arena *arena, const struct formula_set *set,
                                   const struct node *n, int *left)
{
    struct node *args[2] = { NULL, NULL };
    if (--*left < 0)
        return NULL;
    if (n->kind == NODE_FORMULA)
        return make_condition(arena, set, set->items[n->a].root, left);
    if (n->kind == NODE_VALUE && set->values[n->a].is_constant)
        return (struct node *)(uintptr_t)set->values[n->a].expr->root;
    if (n->kind != NODE_NOT && n->kind != NODE_AND && n->kind != NODE_OR)
        return NULL;
    for (int i = 0; i < n->n_args; i++)
        if (!(args[i] = make_condition(arena, set, n->args[i], left)))
            return NULL;
    return make_plan_node(arena, n->kind, args[0], args[1], NULL);
}

static struct node *make_reduced(struct arena *arena, const struct op *op,
                                 const struct formula_set *set, const struct node *n, int *branches)
{
    while (n->kind == NODE_FORMULA)
        n = set->items[n->a].root;
    int left = FORMULA_MAX_CONDITION;
    struct node *condition = n->kind == NODE_CHOICE ? make_condition(arena, set, n->args[0], &left)
                                                    : NULL;
    if (condition && --*branches >= 0) {
        struct node *a = make_reduced(arena, op, set, n->args[1], branches);
        struct node *b = make_reduced(arena, op, set, n->args[2], branches);
        bool same = a->kind == NODE_CONST && b->kind == NODE_CONST && a->value.i == b->value.i;
        return same ? a : make_plan_node(arena, NODE_CHOICE, condition, a, b);
    }
    struct formula_reach *reach = mem_zalloc(1, sizeof *reach);
    reach->outside = true;
    formula_reach(set, n, NULL, reach);
    bool rows = reach->n_sums > 0 && formula_level(op, set, n, NULL) == LEVEL_ROW;
    const struct formula_over *over = rows ? &set->overs[reach->sums[0]->a] : NULL;
    free(reach);
    if (!over)
        return make_number(arena, 0);
    if (!over->expr)
        return make_plan_node(arena, NODE_NEG, make_number(arena, 1), NULL, NULL);
    return make_plan_node(arena, NODE_NEG, (struct node *)(uintptr_t)over->expr->root, NULL, NULL);
}

const struct expr *formula_reduced(struct arena *arena, const struct op *op,
                                   const struct formula_set *set, const struct formula *f)
{
    int branches = FORMULA_MAX_CONDITION;
    const struct node *root = make_reduced(arena, op, set, f->root, &branches);
    if (root->kind == NODE_CONST && root->value.i == 0)
        return NULL;
    struct expr *e = arena_alloc(arena, 1, sizeof *e);
    *e = (struct expr){ .text = f->name, .file = op->file, .line = f->line, .root = root };
    return e;
}

static bool reduce_output(struct env *env, int output, struct opd_err *err)
{
    const struct op_body *body = env->request->op->body;
    struct tensor_desc *d = &env->outputs[output];
    int64_t n;
    for (int i = 0; i < body->formulas->n_overs; i++) {
        int ignored;
        if (!formula_count_over(&body->formulas->overs[i], env, d->rank, &ignored, err))
            return false;
    }
    if (!body->reduced[output])
        return true;
    if (!expr_eval_int(body->reduced[output], env, &n, err))
        return false;
    n = n > d->rank ? d->rank : n; // of a scalar
    enum opd_dtype dtype = d->dtype;
    *d = n < 0 ? (struct tensor_desc){ .dtype = dtype } : formula_row_shape(d, (int)n);
    return true;
}

bool formula_shapes(struct env *env, struct opd_err *err)
{
    const struct plan_request *request = env->request;
    const struct op *op = request->op;
    if (!check_broadcast(request, err))
        return false;
    struct tensor_desc common = formula_common_shape(request->inputs, request->op->n_inputs);
    common.dtype = OPD_DTYPE_uint8;
    if (!tensor_desc_check(&common, err))
        return opd_err_prefix(err, "all inputs together");
    for (int o = 0; o < op->n_outputs; o++) {
        env->outputs[o] = common;
        env->outputs[o].dtype = env_dtype(env, op->outputs[o].type);
        if (!reduce_output(env, o, err) || !tensor_desc_check(&env->outputs[o], err))
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
