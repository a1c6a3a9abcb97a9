#include <string.h>

#include "op/formula_plan.h"

static bool put_index(struct packed *packed, bool wide, int64_t value)
{
    void *at = packed_put(packed, wide ? 8 : 4, wide ? 8 : 4);
    uint32_t narrow = (uint32_t)value;
    if (at)
        memcpy(at, wide ? (const void *)&value : &narrow, wide ? 8 : 4);
    return at != NULL;
}

bool args_add_long(struct planner *p, int64_t value)
{
    return put_index(&p->launch.packed, true, value);
}

bool args_add_dims(struct planner *p, uint32_t chosen, int first)
{
    struct packed *packed = &p->launch.packed;
    const struct formula_dims *dims = &p->dims;
    bool wide = p->kernel.wide;
    int64_t size[OP_MAX_RANK] = { 1 };
    int inner = dims->rank - 1, n = 0;
    int step = p->kernel.askew && p->kernel.rank > 0 ? 1 : p->kernel.width; // elements
    for (int d = 0; d < dims->rank; d++)
        if (chosen >> d & 1)
            size[n++] = d == inner ? dims->size[d] / step : dims->size[d];
    n = n > 0 ? n : 1;
    bool ok = true;
    for (int d = 0; d < n; d++)
        ok = ok && put_index(packed, wide, size[d]);
    for (int d = 0; d < n; d++)
        ok = ok && put_index(packed, wide, wide ? 0 : cnumber_magic(size[d] > 1 ? size[d] : 1));
    for (int t = first; t < p->kernel.n_offsets; t++) {
        int64_t strides[OP_MAX_RANK] = { 0 }, stride = 1;
        int k = n;
        for (int d = inner; d >= 0; d--) {
            bool stays = p->patterns[t] >> d & 1;
            if (chosen >> d & 1)
                strides[--k] = stays ? 0 : d == inner ? step : stride;
            stride *= stays ? 1 : dims->size[d];
        }
        for (int d = 0; d < n; d++)
            ok = ok && put_index(packed, wide, strides[d]);
    }
    return ok;
}

static bool put_value(struct planner *p, const struct formula_value *v)
{
    union expr_value value;
    uint64_t reads;
    struct cnumber type = cnumber_of_dtype(env_dtype(p->env, TYPE_ACC));
    if (!expr_eval_again(v->expr, p->env, &value, &reads, p->err))
        return false;
    void *at = packed_put(&p->launch.packed, type.size, type.size);
    if (!at)
        return false;
    packed_note_value(&p->launch.packed, at, type, v->expr, reads, p->env);
    if (cnumber_store(type, value, v->expr->type, at))
        return true;
    return op_fail(p->err, "%s does not fit into %s", v->text,
                   dtype_name(env_dtype(p->env, TYPE_ACC)));
}

// How many elements a row has, as the others: acc_t.
static bool put_row_count(struct planner *p)
{
    struct cnumber type = cnumber_of_dtype(env_dtype(p->env, TYPE_ACC));
    void *at = packed_put(&p->launch.packed, type.size, type.size);
    return at && cnumber_store(type, (union expr_value){ .f = (double)p->n_row }, EXPR_FLOAT, at);
}

bool args_add_operands(struct planner *p)
{
    for (int i = 0; i < p->kernel.n_operands; i++)
        if (!packed_put_slot(&p->launch.packed, p->kernel.operands[i].tensor))
            return false;
    return true;
}

bool args_end(struct planner *p)
{
    struct packed *packed = &p->launch.packed;
    for (int v = 0; v < p->set->n_values; v++)
        if ((p->kernel.reach.uses.values >> v & 1) && !p->set->values[v].is_constant &&
            !put_value(p, &p->set->values[v]))
            return false;
    if (p->overs && !put_row_count(p))
        return false;
    packed_put(packed, 0, 8);
    packed->params[packed->n_params++] = (struct plan_param){ .size = packed->size };
    return true;
}
