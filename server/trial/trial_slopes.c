#include "trial/trial_slopes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_GROUPS = 4, MOST_GROUPS = 512 };

// Some elements of an input: first, first + stride, ...
struct group {
    int input;
    uint64_t first, stride, n;
    double usual; // a tenth of what is the mean size in the tensor
};

static double sign_of(uint64_t element)
{
    return element * UINT64_C(0x9e3779b97f4a7c15) >> 63 ? 1 : -1;
}

static uint64_t element_of(const struct group *g, uint64_t k)
{
    return g->first + k * g->stride;
}

// How far an element is moved by a step of 1: by its size, or what is usual where that is more.
static double unit_of(const struct proof *p, const struct group *g, uint64_t k)
{
    uint64_t at = element_of(g, k);
    const struct trial_tensor *b = &p->base[g->input];
    return sign_of(at) * fmax(fabs(proof_load(&b->desc, b->bytes, at)), g->usual);
}

static double usual_size(const struct proof *p, int input)
{
    const struct trial_tensor *b = &p->base[input];
    uint64_t n = (uint64_t)tensor_desc_numel(&b->desc);
    double sum = 0;
    for (uint64_t k = 0; k < n; k++)
        sum += fabs(proof_load(&b->desc, b->bytes, k));
    return sum > 0 ? 0.1 * sum / (double)n : 1;
}

// What happens where the group's elements are moved by h: how much more what is differentiated
// grows than the gradients say. Moved inputs are rounded: the gradients are taken of what they have
// become.
struct move {
    double excess, said, size, noise;
};

static struct move move_by(const struct proof *p, const struct group *g, double h)
{
    const struct trial_tensor *b = &p->base[g->input];
    uint8_t *x = p->run->inputs[g->input].bytes;
    struct move m = { 0 };
    for (uint64_t k = 0; k < g->n; k++) {
        uint64_t at = element_of(g, k);
        double before = proof_load(&b->desc, b->bytes, at);
        double moved = proof_store(&b->desc, x, at, before + h * unit_of(p, g, k)) - before;
        double part = proof_load(&p->made[g->input], p->found[g->input], at) * moved;
        m.said += part;
        m.size += fabs(part);
    }
    double grown = proof_run_forward(p, &m.noise);
    m.excess = grown - m.said;
    m.size += fabs(grown);
    for (uint64_t k = 0; k < g->n; k++)
        proof_store(&b->desc, x, element_of(g, k),
                    proof_load(&b->desc, b->bytes, element_of(g, k)));
    return m;
}

// By how much the slope is above what the gradients say, and how sure that is.
struct slope {
    double excess, said, size, error, noise;
};

static struct slope measure_one(const struct proof *p, const struct group *g, double h)
{
    struct move up = move_by(p, g, h), down = move_by(p, g, -h);
    return (struct slope){ .excess = (up.excess - down.excess) / (2 * h),
                           .said = (up.said - down.said) / (2 * h),
                           .size = (up.size + down.size) / (2 * h),
                           .noise = (up.noise + down.noise) / (2 * h) };
}

// Extrapolated from two steps: what is left is of the fourth power of h.
static struct slope measure(const struct proof *p, const struct group *g, double h)
{
    struct slope whole = measure_one(p, g, h), half = measure_one(p, g, h / 2);
    half.error = fabs(half.excess - whole.excess) + half.noise;
    half.excess = (4 * half.excess - whole.excess) / 3;
    return half;
}

enum verdict { RIGHT, WRONG, UNSURE };

static enum verdict judge(const struct proof *p, const struct group *g, struct slope *best)
{
    static const double sizes[] = { 1, 1.0 / 8, 8, 1.0 / 64, 64, 1.0 / 512 };
    double first = pow(p->epsilon, 0.2), tolerance = sqrt(p->epsilon);
    *best = (struct slope){ .error = INFINITY };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (first * sizes[i] > 0.3)
            continue;
        struct slope s = measure(p, g, first * sizes[i]);
        if (fabs(s.excess) <= tolerance * s.size + s.noise && s.noise <= 1e-3 * s.size)
            return RIGHT;
        if (isfinite(s.error) && s.error < best->error)
            *best = s;
    }
    if (fabs(best->excess) > 4 * (tolerance * best->size + best->error))
        return WRONG;
    // Of what is less than its rounding nothing better can be said.
    return best->error - best->noise <= 0.02 * best->size ? RIGHT : UNSURE;
}

// A single element where differences are no slope, or another one than the gradient: a corner?
static enum verdict judge_corner(const struct proof *p, const struct group *g, enum verdict before,
                                 struct slope *best)
{
    double h = pow(p->epsilon, 0.2) / 64, side[2], steep[2], size = 0, noise = 0;
    for (int fine = 1; fine >= 0; fine--) {
        double step = fine ? h / 4 : h;
        struct move up = move_by(p, g, step), down = move_by(p, g, -step);
        side[0] = up.excess / step;
        side[1] = -down.excess / step;
        best->said = up.said / step;
        noise = (up.noise + down.noise) / step;
        size = (up.size + down.size) / step;
        steep[fine] = fmax(fabs(side[0] + best->said), fabs(side[1] + best->said));
    }
    if (!isfinite(steep[0]) || !isfinite(steep[1]) || steep[1] > 2 * steep[0] + noise)
        return UNSURE; // it jumps
    double low = fmin(side[0], side[1]), high = fmax(side[0], side[1]), slack = 0.01 * size + noise;
    if (high - low <= slack)
        return before;
    best->excess = low > 0 ? low : high;
    return low <= slack && high >= -slack ? RIGHT : WRONG;
}

// The gradients that come for an output, or for all tensors of a list. False: there is none.
static bool scale_grads(const struct proof *p, int output, double factor)
{
    bool any = false;
    for (int o = output; o < TRIAL_OUTPUTS; o += OP_MAX_OUTPUTS) {
        struct trial_tensor *g = &p->run->grads[o];
        uint64_t n = g->bytes && proof_is_exact(&g->desc) ? (uint64_t)tensor_desc_numel(&g->desc)
                                                          : 0;
        for (uint64_t k = 0; k < n; k++)
            proof_store(&g->desc, g->bytes, k, factor * proof_load(&g->desc, g->bytes, k));
        any = any || n > 0;
    }
    return any;
}

static void tell_unread(const struct proof *p, int input, char *out, size_t size)
{
    size_t at = strlen(out);
    for (int o = 0; o < p->op->n_outputs; o++) {
        uint8_t *again[TRIAL_INPUTS] = { 0 };
        double noise;
        proof_run_forward(p, &noise);
        if (!scale_grads(p, o, 2))
            continue;
        proof_run_backward(p, p->c->backward, again);
        scale_grads(p, o, 0.5);
        if (at < size && again[input] &&
            memcmp(again[input], p->found[input], tensor_desc_size(&p->made[input])) == 0)
            at += (size_t)snprintf(out + at, size - at, "; it is the same whatever grad_%s is",
                                   p->op->outputs[o].name);
        proof_free_gradients(again);
    }
}

static void tell_wrong(struct proof *p, const struct group *g, const struct slope *best)
{
    char element[PROOF_NAME], name[PROOF_NAME], what[1500];
    const struct tensor_desc *d = &p->made[g->input];
    double unit = unit_of(p, g, 0), found = proof_load(d, p->found[g->input], g->first);
    snprintf(what, sizeof what, "%s is %.8g, expected %.8g by central differences",
             proof_name_element("grad_", proof_name_input(p, g->input, name), d, g->first,
                                element),
             found,
             found + best->excess / unit);
    tell_unread(p, g->input, what, sizeof what);
    proof_tell(p, p->c->backward, PLAN_GRAD_INPUT, g->input, what);
}

// True: something is wrong, and has been told.
static bool prove_group(struct proof *p, const struct group *g)
{
    struct slope best;
    enum verdict verdict = judge(p, g, &best);
    if (verdict == RIGHT)
        return false;
    if (g->n > 1) {
        struct group a = *g, b = *g;
        a.n = g->n / 2;
        b.first = element_of(g, a.n);
        b.n = g->n - a.n;
        return prove_group(p, &a) || prove_group(p, &b);
    }
    verdict = judge_corner(p, g, verdict, &best);
    p->n_jumps += verdict == UNSURE;
    if (verdict == WRONG)
        tell_wrong(p, g, &best);
    return verdict == WRONG;
}

bool slopes_prove(struct proof *p, int input, double seconds)
{
    uint64_t n = (uint64_t)tensor_desc_numel(&p->base[input].desc);
    double most = seconds / (4 * p->seconds);
    uint64_t groups = most > MOST_GROUPS ? MOST_GROUPS : (uint64_t)most;
    groups = groups < LEAST_GROUPS ? LEAST_GROUPS : groups;
    groups = groups < n ? groups : n;
    p->n_jumps = 0;
    for (uint64_t k = 0; k < groups; k++) {
        struct group g = { input, k, groups, (n - k + groups - 1) / groups, usual_size(p, input) };
        if (prove_group(p, &g))
            return false;
    }
    if (2 * p->n_jumps <= n)
        return true;
    char name[PROOF_NAME], what[1000];
    snprintf(what, sizeof what,
             "grad_%s is not proved: at %llu of its %llu elements the outputs have no slope",
             proof_name_input(p, input, name), (unsigned long long)p->n_jumps,
             (unsigned long long)n);
    proof_tell(p, p->c->backward, PLAN_GRAD_INPUT, input, what);
    return false;
}
