#include "executor/touches.h"

#include "executor/devuse.h"
#include "executor/order.h"

static void add(struct buf *out, uint64_t begin, uint64_t size, bool written)
{
    buf_append(out, &(struct order_range){ begin, begin + size, written },
               sizeof(struct order_range));
}

struct touching {
    const struct steps *steps;
    struct buf *out;
    struct opd_err *err;
};

static bool add_use(void *data, const struct dev_use *use)
{
    const struct touching *t = data;
    const struct regions *regions = &t->steps->regions;
    const struct dev_ref ref = { .region = *use->region, .offset = *use->offset };
    device_addr addr;
    if (!regions_resolve(regions, ref, use->size, &addr, t->err))
        return false;
    if (regions_is_own(regions, ref.region))
        add(t->out, addr, use->size, use->written);
    else
        add(t->out, 0, UINT64_MAX, use->written);
    return true;
}

// A program that keeps something is known by an address that no device memory has.
static void add_kept(const struct steps *s, const struct dev_launch *l, struct buf *out)
{
    const struct backend_program *program = programs_get(&s->programs, l->program);
    if (program && s->ops->keeps && s->ops->keeps(program))
        add(out, (uintptr_t)program, 1, true);
}

static bool add_workspace(struct steps *s, const struct dev_matmul *x, struct buf *out,
                          struct opd_err *err)
{
    struct backend_matmul m;
    uint64_t size = 0;
    s->workspace = 0;
    if (!steps_product(s, x, &m, err) ||
        (s->ops->matmul_workspace &&
         !s->ops->matmul_workspace(s->be, &m, &s->workspace, &size, err)))
        return false;
    add(out, s->workspace, size, true);
    return true;
}

bool touches_of(struct steps *s, const struct dev_step *step, struct buf *out, struct opd_err *err)
{
    struct touching t = { s, out, err };
    out->size = 0;
    switch (step->type) {
    case DEV_STEP_LAUNCH:
        add_kept(s, (const void *)step, out);
        break;
    case DEV_STEP_MATMUL:
        if (!add_workspace(s, (const void *)step, out, err))
            return false;
        break;
    case DEV_STEP_REPORT: // in turn: they are known by their places
        add(out, (uintptr_t)&s->reports, 1, true);
        break;
    case DEV_STEP_FILL:
    case DEV_STEP_COPY:
        break;
    default:
        add(out, 0, UINT64_MAX, true);
    }
    return dev_each_use((struct dev_step *)(uintptr_t)step, add_use, &t); // which only looks
}
