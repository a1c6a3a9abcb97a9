#include <stdlib.h>

#include "base/mem.h"
#include "op/plan.h"

static void add(struct buf *offsets, uint32_t offset)
{
    const uint32_t *at = (const uint32_t *)(const void *)offsets->bytes;
    for (size_t i = 0; i < offsets->size / sizeof *at; i++)
        if (at[i] == offset)
            return;
    buf_append(offsets, &offset, sizeof offset);
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

// Of tensors that are absent, too; and in structs, where any launch of the plan has one.
char *plan_checked_prelude(const struct plan *plan, int kernel)
{
    const struct plan_kernel *k = &plan->kernels[kernel];
    struct buf offsets = { 0 }, text = { 0 };
    for (int i = 0; i < k->n_params; i++)
        if (k->params[i].is_tensor)
            add(&offsets, k->params[i].offset);
    for (int s = 0; s < plan->n_steps; s++) {
        const struct plan_step *step = &plan->steps[s];
        bool launches = step->kind == PLAN_STEP_LAUNCH && step->kernel == (uint32_t)kernel;
        for (int i = 0; launches && i < step->n_slots; i++)
            add(&offsets, step->slots[i].arg_offset);
    }
    uint32_t *at = (uint32_t *)(void *)offsets.bytes;
    size_t n = offsets.size / sizeof *at;
    if (n > 0)
        qsort(at, n, sizeof *at, compare);
    buf_append_str(&text, PLAN_CHECKED);
    for (size_t i = 0; i < n; i++)
        buf_printf(&text, " %u", at[i]);
    buf_printf(&text, "\n%s", k->prelude);
    buf_finish(&offsets);
    return buf_take(&text);
}
