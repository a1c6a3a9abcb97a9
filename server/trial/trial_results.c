#include "trial/trial_results.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

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

// False: it has been told before. Else what differs is to be told behind this.
static bool begin_told(struct trial_results *r, const struct plan *plan, int operand)
{
    const struct plan_operand *o = &plan->operands[operand];
    const struct plan_kernel *k = first_kernel(plan, operand);
    for (int i = 0; i < r->n_told; i++)
        if (strcmp(r->told[i], o->name) == 0)
            return false;
    if (r->n_told < TRIAL_MAX_TOLD)
        r->told[r->n_told++] = o->name;
    if (k)
        printf("kernel\t%s\n", k->expr);
    printf("differs\t%s:%d\t'%s': ", plan->op->file, k ? k->line : 1, o->name);
    return true;
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

// What sums in another order may differ by, as a part of the largest of them and a tenth: inputs
// are about 1, and what adds up to nearly 0 is not exact.
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
    return (isnan(x) && isnan(y)) || x == y || fabs(x - y) <= within;
}

// How many elements differ, and where the first one is. Floats may a little where they are rough.
static uint64_t count_different(enum opd_dtype dtype, const uint8_t *a, const uint8_t *b,
                                size_t size, bool rough, size_t *first)
{
    size_t each = dtype_size(dtype);
    uint64_t n = 0;
    rough = rough && dtype_is_float(dtype);
    double within = rough ? near(dtype) * (find_largest(dtype, b, size) + 0.1) : 0;
    for (size_t at = size; at > 0;) {
        at -= each;
        if (memcmp(a + at, b + at, each) == 0 || (rough && is_near(dtype, a + at, b + at, within)))
            continue;
        *first = at;
        n++;
    }
    return n;
}

// --- the CPU's results and a GPU's

struct made {
    uint64_t key, size; // the bytes follow
};

static uint64_t make_key(const struct trial_results *r, const struct plan *plan,
                         const struct plan_operand *o)
{
    const uint64_t which[] = { r->of, (uint64_t)plan->direction, (uint64_t)o->kind,
                               (uint64_t)o->index };
    return hash_bytes(which, sizeof which, 0);
}

// NULL: the CPU has not made it.
static const uint8_t *find_made(const struct trial_results *r, uint64_t key, size_t size)
{
    struct made head;
    for (size_t at = 0; r->made.size - at > sizeof head; at += head.size) {
        memcpy(&head, r->made.bytes + at, sizeof head);
        at += sizeof head;
        if (head.key == key && head.size == size)
            return r->made.bytes + at;
    }
    return NULL;
}

static void format_value(enum opd_dtype dtype, const uint8_t *at, char *out, size_t size)
{
    uint64_t bits = 0;
    memcpy(&bits, at, dtype_size(dtype));
    int unused = 64 - 8 * (int)dtype_size(dtype);
    if (dtype_is_float(dtype))
        snprintf(out, size, "%.9g", as_double(dtype, at));
    else if (dtype == OPD_DTYPE_bool || dtype == OPD_DTYPE_uint8)
        snprintf(out, size, "%llu", (unsigned long long)bits);
    else
        snprintf(out, size, "%lld", (long long)(bits << unused) >> unused);
}

static void compare_devices(struct trial_results *r, const struct plan *plan, int operand,
                            const uint8_t *bytes, size_t size)
{
    const struct plan_operand *o = &plan->operands[operand];
    enum opd_dtype dtype = o->desc.dtype;
    const uint8_t *cpu = find_made(r, make_key(r, plan, o), size);
    size_t first = 0;
    uint64_t n = cpu ? count_different(dtype, bytes, cpu, size, true, &first) : 0;
    char here[40], there[40];
    if (n == 0 || !begin_told(r, plan, operand))
        return;
    format_value(dtype, bytes + first, here, sizeof here);
    format_value(dtype, cpu + first, there, sizeof there);
    printf("element %llu is %s, on the CPU %s (%s); %llu of %llu elements are not what they are "
           "there\n",
           (unsigned long long)(first / dtype_size(dtype)), here, there, dtype_name(dtype),
           (unsigned long long)n, (unsigned long long)tensor_desc_numel(&o->desc));
}

void trial_results_take(struct trial_results *r, const struct plan *plan, int operand,
                        const uint8_t *bytes, size_t size)
{
    const struct plan_operand *o = &plan->operands[operand];
    size_t first = 0;
    if (!is_result(plan, o))
        return;
    if (!r->compare) {
        buf_append(&r->kept, bytes, size);
        return;
    }
    const uint8_t *kept = r->kept.bytes + r->at;
    uint64_t n = count_different(o->desc.dtype, bytes, kept, size, r->rough, &first);
    r->at += size;
    if (n > 0 && begin_told(r, plan, operand)) {
        printf("%llu of %llu elements depend on what was in memory before, the first is %llu: "
               "nothing writes them, or they are made of what nothing has written\n",
               (unsigned long long)n, (unsigned long long)tensor_desc_numel(&o->desc),
               (unsigned long long)(first / dtype_size(o->desc.dtype)));
    } else if (n == 0 && r->by_cpu) {
        const struct made head = { make_key(r, plan, o), size };
        buf_append(&r->made, &head, sizeof head);
        buf_append(&r->made, bytes, size);
    } else if (n == 0) {
        compare_devices(r, plan, operand, bytes, size);
    }
}
