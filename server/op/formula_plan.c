#include "op/formula_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const char sum_join[] = "opd::formula_add";

static bool find_known(struct planner *p)
{
    memset(p->known, -1, sizeof p->known);
    for (int v = 0; v < p->set->n_values; v++) {
        bool truth;
        if (!p->set->values[v].is_constant)
            continue;
        if (!expr_eval_bool(p->set->values[v].expr, p->env, &truth, p->err))
            return false;
        p->known[v] = truth;
    }
    return true;
}

static bool is_repeated(const struct planner *p, int input)
{
    return tensor_desc_numel(&p->env->request->inputs[input]) != p->n;
}

// --- sums over rows

// Lists the sums that a tree is made of, and before each those that it is made of itself.
static bool list_sums(struct planner *p, const struct node *root)
{
    struct formula_reach *reach = mem_zalloc(1, sizeof *reach);
    reach->outside = true;
    formula_reach(p->set, root, p->known, reach);
    bool ok = reach->n_sums <= FORMULA_MAX_SUMS;
    p->overs |= reach->overs;
    for (int i = 0; i < reach->n_sums && ok; i++) {
        if (planner_find_sum(p, reach->sums[i]) >= 0)
            continue;
        ok = list_sums(p, reach->sums[i]->args[0]);
        ok = ok && p->n_sums < FORMULA_MAX_SUMS;
        if (ok)
            p->sums[p->n_sums++] = reach->sums[i];
    }
    free(reach);
    if (ok || p->err->code)
        return ok;
    return op_fail(p->err, "more than %d sums are made in one direction", FORMULA_MAX_SUMS);
}

// All sums are over the same dimensions.
static bool find_over(struct planner *p)
{
    const struct formula_over *first = NULL;
    for (int i = 0; i < p->set->n_overs; i++) {
        const struct formula_over *over = &p->set->overs[i];
        int n;
        if (!(p->overs >> i & 1))
            continue;
        if (!formula_count_over(over, p->env, p->common.rank, &n, p->err))
            return false;
        if (first && n != p->n_over)
            return op_fail(p->err,
                           "sums over the last %d dimensions ('%s') and over %d ('%s'); "
                           "expected the same in all formulas of an operator",
                           p->n_over, first->text, n, over->text);
        p->n_over = n;
        first = over;
    }
    p->row = formula_row_shape(&p->common, p->n_over);
    p->n_row = p->n > 0 ? p->n / tensor_desc_numel(&p->row) : 0;
    return true;
}

// Few long rows are summed in parts; each sum is a launch, and what is made of it another.
static bool is_staged(const struct planner *p)
{
    int64_t rows = tensor_desc_numel(&p->row), longest = p->on_cpu ? 1 << 16 : 1 << 14;
    return rows > 0 && rows < (p->on_cpu ? 8 : 128) && p->n / rows > longest &&
           2 * p->n_sums <= OP_MAX_TEMPS - p->n_temps;
}

static bool keep_sum(struct planner *p, int sum)
{
    if (p->n_temps == OP_MAX_TEMPS)
        return op_fail(p->err, "the gradients of its inputs are made of too many sums");
    struct tensor_desc *d = &p->env->temps[p->n_temps];
    p->temps[sum] = TENSOR_TEMP + p->n_temps++;
    *d = p->row;
    d->dtype = env_dtype(p->env, TYPE_ACC);
    return true;
}

static bool make_sum(struct planner *p, int sum)
{
    const struct node *n = p->sums[sum];
    char suffix[16];
    snprintf(suffix, sizeof suffix, "row%d", sum);
    launch_start(p, suffix, false);
    p->launch.line = p->set->items[0].line;
    bool ok = keep_sum(p, sum);
    if (ok) {
        const struct sum_target target = { n->args[0], p->temps[sum], TENSOR_TEMP + p->n_temps++ };
        ok = launch_sums(p, &target, 1, formula_join(n), &p->row);
    }
    p->is_made[sum] = true;
    return ok;
}

// --- a request

static int64_t env_numel(const struct planner *p, int tensor)
{
    return tensor_desc_numel(env_tensor(p->env, tensor));
}

struct targets {
    int n, n_summed;
    int each[OP_MAX_INPUTS + OP_MAX_OUTPUTS]; // formulas, of elements or rows
    int summed[OP_MAX_INPUTS];                // of gradients of inputs that were repeated
};

static bool find_targets(struct planner *p, struct targets *t)
{
    bool backward = p->env->request->direction == PLAN_BACKWARD;
    for (int i = 0; i < p->set->n; i++) {
        int target = p->set->items[i].target;
        if (target < 0 || (target >= TENSOR_GRAD_INPUT) != backward ||
            !env_has_tensor(p->env, target))
            continue;
        if (p->n == 0 && !(p->set->n_overs > 0 && env_numel(p, target) > 0 && !backward))
            continue; // of nothing; but what a row of nothing gives is computed
        if (backward && is_repeated(p, target - TENSOR_GRAD_INPUT))
            t->summed[t->n_summed++] = i;
        else
            t->each[t->n++] = i;
        if (!list_sums(p, p->set->items[i].root))
            return false;
    }
    return !p->overs || find_over(p);
}

static const char *direction(const struct planner *p)
{
    return p->env->request->direction == PLAN_BACKWARD ? "backward" : "forward";
}

static bool is_of_row(const struct planner *p, int tensor)
{
    return env_numel(p, tensor) != p->n;
}

// The gradient that is handed on as it came; -1: it is another.
static int find_copied(const struct planner *p, const struct formula *f)
{
    const struct node *n = f->root;
    bool is = n->kind == NODE_TENSOR && n->a >= TENSOR_GRAD_OUTPUT && n->a < TENSOR_GRAD_INPUT;
    const struct tensor_desc *from = is ? env_tensor(p->env, n->a) : NULL;
    return is && tensor_desc_same(from, env_tensor(p->env, f->target)) ? n->a : -1;
}

// Those results that have a row's number, or those that have one for each element.
static bool map_targets(struct planner *p, const struct targets *t, bool of_row)
{
    launch_start(p, of_row ? "rows" : direction(p), false);
    for (int i = 0; i < t->n; i++) {
        int target = p->set->items[t->each[i]].target;
        if (is_of_row(p, target) == of_row) {
            int copied = find_copied(p, &p->set->items[t->each[i]]);
            if (p->launch.n_written == 0 || copied != p->launch.copied)
                p->launch.copied = p->launch.n_written == 0 ? copied : -1;
            launch_add_formula(p, t->each[i]);
            launch_add_written(p, target);
        }
    }
    if (p->launch.n_written == 0)
        return true;
    struct tensor_desc common = p->common;
    int64_t n = p->n;
    if (of_row) {
        p->common = p->row;
        p->n = tensor_desc_numel(&p->row);
    }
    bool ok = launch_map(p);
    p->common = common;
    p->n = n;
    return ok;
}

static bool stage(struct planner *p, const struct targets *t)
{
    for (int i = 0; i < p->n_sums; i++)
        if (!make_sum(p, i))
            return false;
    return map_targets(p, t, false) && map_targets(p, t, true);
}

// The sums that the gradients of repeated inputs are made of are stored: each of those is a launch.
static bool rows(struct planner *p, const struct targets *t)
{
    struct formula_reach *stored = mem_zalloc(1, sizeof *stored);
    stored->outside = true;
    launch_start(p, direction(p), true);
    for (int i = 0; i < t->n; i++) {
        launch_add_formula(p, t->each[i]);
        launch_add_written(p, p->set->items[t->each[i]].target);
    }
    for (int i = 0; i < t->n_summed; i++)
        formula_reach(p->set, p->set->items[t->summed[i]].root, p->known, stored);
    bool ok = true;
    for (int i = 0; i < stored->n_sums && ok; i++) {
        int sum = planner_find_sum(p, stored->sums[i]);
        ok = keep_sum(p, sum);
        if (ok)
            launch_add_sum(p, sum);
    }
    ok = ok && launch_rows(p);
    for (int i = 0; i < stored->n_sums; i++)
        p->is_made[planner_find_sum(p, stored->sums[i])] = true;
    free(stored);
    return ok;
}

// The gradients of inputs that are alike are summed together: all read the gradient of the output.
static bool sum_alike(struct planner *p, struct targets *t)
{
    const struct formula *first = &p->set->items[t->summed[0]];
    const struct tensor_desc *shape = &p->env->request->inputs[first->target - TENSOR_GRAD_INPUT];
    struct sum_target each[OP_MAX_INPUTS];
    int n = 0, left = 0;
    for (int i = 0; i < t->n_summed; i++) {
        const struct formula *f = &p->set->items[t->summed[i]];
        int input = f->target - TENSOR_GRAD_INPUT;
        if (n < launch_max_sums(p) && tensor_desc_same(&p->env->request->inputs[input], shape))
            each[n++] = (struct sum_target){ f->root, f->target, TENSOR_TEMP + input };
        else
            t->summed[left++] = t->summed[i];
    }
    t->n_summed = left;
    launch_start(p, first->name, false);
    p->launch.line = first->line;
    return launch_sums(p, each, n, sum_join, shape);
}

static bool add_all(struct planner *p)
{
    struct targets t = { 0 };
    if (!find_targets(p, &t))
        return false;
    if (p->n_sums == 0 ? !map_targets(p, &t, false) : is_staged(p) ? !stage(p, &t) : !rows(p, &t))
        return false;
    while (t.n_summed > 0)
        if (!sum_alike(p, &t))
            return false;
    return true;
}

bool formula_plan(struct env *env, struct buf *text,
                  bool (*add)(void *data, const struct formula_launch *launch), void *data,
                  struct opd_err *err)
{
    struct planner *p = mem_zalloc(1, sizeof *p);
    p->env = env;
    p->set = env->request->op->body->formulas;
    p->err = err;
    p->common = formula_common_shape(env->request->inputs, env->request->op->n_inputs);
    p->n = tensor_desc_numel(&p->common);
    p->n_temps = env->request->op->n_inputs;
    p->on_cpu = env->request->on_cpu;
    p->text = text;
    p->add = add;
    p->data = data;
    bool ok = find_known(p) && add_all(p);
    free(p);
    return ok;
}
