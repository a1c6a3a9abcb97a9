#include "trial/trial_results.h"

#include <math.h>
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

static double of_half(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double d = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return h >> 15 ? -d : d;
}

static double as_double(enum opd_dtype dtype, const uint8_t *at)
{
    uint16_t half;
    uint32_t bits;
    float f;
    double d;
    if (dtype == OPD_DTYPE_float64) {
        memcpy(&d, at, sizeof d);
        return d;
    }
    if (dtype == OPD_DTYPE_float32) {
        memcpy(&f, at, sizeof f);
        return (double)f;
    }
    memcpy(&half, at, sizeof half);
    if (dtype == OPD_DTYPE_float16)
        return of_half(half);
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

// What sums in another order may differ by, as a part of the largest of them.
static double near(enum opd_dtype dtype)
{
    return dtype == OPD_DTYPE_float64 ? 1e-9 : dtype == OPD_DTYPE_float32 ? 1e-4 : 0.03;
}

static double find_largest(enum opd_dtype dtype, const uint8_t *bytes, size_t size)
{
    double largest = 0;
    for (size_t at = 0; at < size; at += dtype_size(dtype)) {
        double d = fabs(as_double(dtype, bytes + at));
        if (isfinite(d) && d > largest)
            largest = d;
    }
    return largest;
}

static bool is_near(enum opd_dtype dtype, const uint8_t *a, const uint8_t *b, double within)
{
    double x = as_double(dtype, a), y = as_double(dtype, b);
    return (isnan(x) && isnan(y)) || fabs(x - y) <= within;
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
    const uint8_t *kept = r->kept.bytes + r->at;
    bool rough = r->rough && dtype_is_float(o->desc.dtype);
    double within = rough ? near(o->desc.dtype) * find_largest(o->desc.dtype, kept, size) : 0;
    for (size_t at = size; at > 0;) {
        at -= each;
        if (memcmp(bytes + at, kept + at, each) == 0 ||
            (rough && is_near(o->desc.dtype, bytes + at, kept + at, within)))
            continue;
        first = at / each;
        n++;
    }
    r->at += size;
    if (n > 0)
        tell(r, plan, operand, first, n);
}
