#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/builder.h"
#include "op/rules.h"

// A request that has been checked, in an environment of its own: of lists, for their first tensors.
struct revaluation {
    struct env env;
    struct reads reads;
    struct plan_request *first;
};

// What they count is known only where the plan is made.
static void mark_repeats(struct reads *reads, const struct op_body *body)
{
    for (int i = 0; i < body->n_sections; i++)
        for (int k = 0; k < body->sections[i].n_steps; k++) {
            const struct step *step = &body->sections[i].steps[k];
            if (step->kind == STEP_REPEAT)
                reads->slots[step->slot] = READS_PLACE;
        }
}

static bool check_again(struct revaluation *r, const struct plan_request *request)
{
    struct opd_err ignored = { 0 };
    r->env.reads = &r->reads;
    mark_repeats(&r->reads, request->op->body);
    if (request->op->lists) {
        r->first = mem_alloc(sizeof *r->first);
        *r->first = *request;
        r->reads.of_tensors = READS_PLACE;
        for (int i = 0; i < ENV_MAX_SLOTS; i++)
            r->reads.slots[i] = READS_PLACE;
    }
    for (int i = 0; request->op->lists && i < request->op->n_inputs; i++)
        if (request->lists->n[i] > 0) {
            r->first->inputs[i] = *request->lists->of[i][0];
            r->first->inputs[i].dtype = request->inputs[i].dtype;
        }
    bool ok = rules_apply(r->first ? r->first : request, &r->env, &ignored);
    opd_err_clear(&ignored);
    r->env.wanted = builder_wanted(request);
    return ok;
}

static bool revalue_steps(struct plan *plan, struct arena *arena, const struct owned_plan *from,
                          const struct env *env)
{
    struct opd_err ignored = { 0 };
    bool ok = true;
    plan->steps = arena_copy(arena, from->plan.steps, (size_t)plan->n_steps, sizeof *plan->steps);
    for (int i = 0; i < from->n_values && ok; i++) {
        const struct packed_value *v = &from->values[i].in_step;
        struct plan_step *step = &plan->steps[from->values[i].step];
        union expr_value value;
        uint64_t reads;
        if (step->args == from->plan.steps[from->values[i].step].args)
            step->args = arena_copy(arena, step->args, step->args_size, 1);
        ok = expr_eval_again(v->expr, env, &value, &reads, &ignored) &&
             cnumber_store(v->type, value, v->expr->type, step->args + v->offset);
    }
    opd_err_clear(&ignored);
    return ok;
}

struct plan *plan_revalue(const struct plan *plan, const struct plan_request *request,
                          uint32_t *fixed)
{
    const struct owned_plan *from = (const struct owned_plan *)plan;
    struct owned_plan *owned = mem_zalloc(1, sizeof *owned);
    struct revaluation *r = mem_zalloc(1, sizeof *r);
    bool of_nothing = request->op->lists && plan_lists_length(request->lists) == 0;
    *owned =
        (struct owned_plan){ .plan = *plan, .n_values = from->n_values, .values = from->values };
    op_ref(plan->op);
    bool ok = of_nothing || (check_again(r, request) &&
                             revalue_steps(&owned->plan, &owned->arena, from, &r->env));
    // Numbers that are refused show nothing: messages read them.
    uint32_t more = ok ? (uint32_t)r->reads.fixed & ~*fixed : 0;
    ok = ok && !more;
    *fixed |= more;
    free(r->first);
    free(r);
    if (ok)
        return &owned->plan;
    plan_free(&owned->plan);
    return NULL;
}

static bool same_value(const struct op_attr *a, const struct op_value *v, const struct op_value *w)
{
    size_t n = (size_t)v->n;
    if (v->present != w->present || (v->present && v->n != w->n))
        return false;
    return !v->present || (a->type == OP_ATTR_FLOAT ? memcmp(v->f, w->f, n * sizeof *v->f)
                                                    : memcmp(v->i, w->i, n * sizeof *v->i)) == 0;
}

bool plan_same_numbers(const struct plan_request *a, const struct plan_request *b)
{
    bool same = true;
    for (int i = 0; same && i < a->op->n_attrs; i++)
        same = same_value(&a->op->attrs[i], &a->attrs[i], &b->attrs[i]);
    return same;
}
