#include "trial/trial_results.h"

#include <stdio.h>
#include <string.h>

void trial_results_begin(struct trial_results *r, bool compare)
{
    r->compare = compare;
    r->at = 0;
    if (!compare)
        r->kept.size = 0;
}

static bool is_result(const struct plan *plan, const struct plan_operand *o)
{
    if (plan->direction == PLAN_BACKWARD)
        return o->kind == PLAN_GRAD_INPUT && o->view_of < 0;
    return (o->kind == PLAN_OUTPUT && o->view_of < 0) ||
           (o->kind == PLAN_INPUT && plan->op->inputs[plan_index(o->index)].in_place);
}

// The kernel of the first launch that it is given to.
static const struct plan_kernel *first_kernel(const struct plan *plan, int operand)
{
    for (int i = 0; i < plan->n_steps; i++)
        for (int k = 0; k < plan->steps[i].n_slots; k++)
            if (plan->steps[i].slots[k].operand == (uint32_t)operand)
                return &plan->kernels[plan->steps[i].kernel];
    return NULL;
}

static void tell(struct trial_results *r, const struct plan *plan, int operand, uint64_t first,
                 uint64_t n)
{
    const struct plan_operand *o = &plan->operands[operand];
    const struct plan_kernel *k = first_kernel(plan, operand);
    for (int i = 0; i < r->n_told; i++)
        if (strcmp(r->told[i], o->name) == 0)
            return;
    if (r->n_told < TRIAL_MAX_TOLD)
        r->told[r->n_told++] = o->name;
    if (k)
        printf("kernel\t%s\n", k->expr);
    printf("differs\t%s:%d\t'%s': %llu of %llu elements depend on what was in memory before, the "
           "first is %llu: nothing writes them, or they are made of what nothing has written\n",
           plan->op->file, k ? k->line : 1, o->name, (unsigned long long)n,
           (unsigned long long)tensor_desc_numel(&o->desc), (unsigned long long)first);
}

void trial_results_take(struct trial_results *r, const struct plan *plan, int operand,
                        const uint8_t *bytes, size_t size)
{
    const struct plan_operand *o = &plan->operands[operand];
    size_t each = dtype_size(o->desc.dtype);
    uint64_t first = 0, n = 0;
    if (!is_result(plan, o))
        return;
    if (!r->compare) {
        buf_append(&r->kept, bytes, size);
        return;
    }
    for (size_t at = size; at > 0;) {
        at -= each;
        if (memcmp(bytes + at, r->kept.bytes + r->at + at, each) == 0)
            continue;
        first = at / each;
        n++;
    }
    r->at += size;
    if (n > 0)
        tell(r, plan, operand, first, n);
}
