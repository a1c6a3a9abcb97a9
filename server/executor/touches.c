#include "executor/touches.h"

#include "executor/order.h"

static void add(struct buf *out, uint64_t begin, uint64_t size, bool written)
{
    buf_append(out, &(struct order_range){ begin, begin + size, written },
               sizeof(struct order_range));
}

static bool add_memory(const struct steps *s, struct dev_ref ref, uint64_t size, bool written,
                       struct buf *out, struct opd_err *err)
{
    device_addr addr;
    if (!regions_resolve(&s->regions, ref, size, &addr, err))
        return false;
    if (regions_is_own(&s->regions, ref.region))
        add(out, addr, size, written);
    else
        add(out, 0, UINT64_MAX, written);
    return true;
}

// A program that keeps something is known by an address that no device memory has.
static bool add_launch(const struct steps *s, const struct dev_launch *l, struct buf *out,
                       struct opd_err *err)
{
    const struct dev_slot *slots = (const struct dev_slot *)(l + 1);
    const struct backend_program *program = programs_get(&s->programs, l->program);
    if (program && s->ops->keeps && s->ops->keeps(program))
        add(out, (uintptr_t)program, 1, true);
    bool good = true;
    for (uint32_t i = 0; i < l->n_slots && good; i++) {
        const struct dev_ref ref = { .region = slots[i].region, .offset = slots[i].offset };
        good = add_memory(s, ref, slots[i].size, slots[i].written, out, err);
    }
    return good;
}

static bool add_matmul(struct steps *s, const struct dev_matmul *x, struct buf *out,
                       struct opd_err *err)
{
    struct backend_matmul m;
    uint64_t size = 0;
    s->workspace = 0;
    if (!add_memory(s, x->d.ref, x->d.size, true, out, err) ||
        !add_memory(s, x->a.ref, x->a.size, false, out, err) ||
        !add_memory(s, x->b.ref, x->b.size, false, out, err) || !steps_product(s, x, &m, err) ||
        (s->ops->matmul_workspace &&
         !s->ops->matmul_workspace(s->be, &m, &s->workspace, &size, err)))
        return false;
    add(out, s->workspace, size, true);
    return true;
}

bool touches_of(struct steps *s, const struct dev_step *step, struct buf *out, struct opd_err *err)
{
    const struct dev_fill *fill = (const void *)step;
    const struct dev_copy *copy = (const void *)step;
    out->size = 0;
    switch (step->type) {
    case DEV_STEP_LAUNCH:
        return add_launch(s, (const void *)step, out, err);
    case DEV_STEP_MATMUL:
        return add_matmul(s, (const void *)step, out, err);
    case DEV_STEP_FILL:
        return add_memory(s, fill->dst, fill->size, true, out, err);
    case DEV_STEP_COPY:
        return add_memory(s, copy->dst, copy->size, true, out, err) &&
               add_memory(s, copy->src, copy->size, false, out, err);
    default:
        add(out, 0, UINT64_MAX, true);
        return true;
    }
}
