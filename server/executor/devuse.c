#include "executor/devuse.h"

static bool use_ref(struct dev_ref *ref, uint64_t size, bool written, dev_use_fn *fn, void *data)
{
    const struct dev_use use = { &ref->region, &ref->offset, size, written, NULL };
    return size == 0 || fn(data, &use);
}

static bool use_slots(struct dev_launch *l, dev_use_fn *fn, void *data)
{
    struct dev_slot *slots = (struct dev_slot *)(l + 1);
    bool good = true;
    for (struct dev_slot *s = slots; s < slots + l->n_slots && good; s++) {
        const struct dev_use use = { &s->region, &s->offset, s->size, s->written, s };
        good = use.size == 0 || fn(data, &use);
    }
    return good;
}

bool dev_each_use(struct dev_step *step, dev_use_fn *fn, void *data)
{
    struct dev_fill *fill = (void *)step;
    struct dev_copy *copy = (void *)step;
    struct dev_matmul *m = (void *)step;
    struct dev_report *report = (void *)step;
    switch (step->type) {
    case DEV_STEP_LAUNCH:
        return use_slots((void *)step, fn, data);
    case DEV_STEP_FILL:
        return use_ref(&fill->dst, fill->size, true, fn, data);
    case DEV_STEP_COPY:
        return use_ref(&copy->dst, copy->size, true, fn, data) &&
               use_ref(&copy->src, copy->size, false, fn, data);
    case DEV_STEP_MATMUL:
        return use_ref(&m->d.ref, m->d.size, true, fn, data) &&
               use_ref(&m->a.ref, m->a.size, false, fn, data) &&
               use_ref(&m->b.ref, m->b.size, false, fn, data);
    case DEV_STEP_REPORT:
        return use_ref(&report->src, sizeof(uint64_t), false, fn, data);
    default:
        return true;
    }
}

bool dev_each_use_of(uint8_t *steps, size_t size, uint64_t n, dev_use_fn *fn, void *data)
{
    size_t at = 0;
    for (uint64_t i = 0; i < n; i++) {
        struct dev_step *step = (void *)(steps + at);
        if (at >= size || !dev_each_use(step, fn, data))
            return false;
        at += step->size;
    }
    return true;
}
