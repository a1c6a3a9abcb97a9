#include "trial/trial_gradients.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trial/trial_slopes.h"

// The first element that differs by more than rounding; `exact`: at all. False: none does.
static bool find_difference(const struct proof *p, int input, const uint8_t *a, const uint8_t *b,
                            bool exact, uint64_t *out)
{
    const struct tensor_desc *d = &p->made[input];
    uint64_t n = (uint64_t)tensor_desc_numel(d);
    size_t each = dtype_size(d->dtype);
    double size = 0;
    for (uint64_t k = 0; !exact && k < n; k++)
        size = fmax(size, fabs(proof_load(d, b, k)));
    for (uint64_t k = 0; k < n; k++) {
        if (memcmp(a + k * each, b + k * each, each) == 0)
            continue;
        double x = proof_load(d, a, k), y = proof_load(d, b, k);
        *out = k;
        if (exact || !(fabs(x - y) <= 1e4 * p->epsilon * size))
            return true;
    }
    return false;
}

static void name_wanted(const struct proof *p, uint32_t wanted, char *out, size_t size)
{
    size_t n = 0;
    for (int i = 0; i < p->op->n_inputs && n < size; i++)
        if (wanted >> i & 1)
            n += (size_t)snprintf(out + n, size - n, "%sgrad_%s", n ? ", " : "",
                                  p->op->inputs[i].name);
}

static void compare(const struct proof *p, const struct plan *plan, uint32_t wanted,
                    uint8_t *const *again, bool exact, uint32_t *told)
{
    uint64_t at;
    for (int i = 0; i < TRIAL_INPUTS; i++) {
        const struct tensor_desc *d = &p->made[i];
        int input = i % OP_MAX_INPUTS;
        if (!(wanted >> input & 1) || (*told >> input & 1) || !again[i] || !p->found[i] ||
            !find_difference(p, i, again[i], p->found[i], exact, &at))
            continue;
        char element[PROOF_NAME], name[PROOF_NAME], names[300] = "", what[1500];
        name_wanted(p, wanted, names, sizeof names);
        proof_name_element("grad_", proof_name_input(p, i, name), d, at, element);
        double now = proof_load(d, again[i], at), before = proof_load(d, p->found[i], at);
        if (exact)
            snprintf(what, sizeof what,
                     "%s is %.17g, expected the same bits as before, %.17g: what it is depends on "
                     "the order in which blocks and threads run",
                     element, now, before);
        else
            snprintf(what, sizeof what,
                     "%s is %.8g where only %s %s wanted, expected %.8g as among all gradients",
                     element, now, names, wanted & (wanted - 1) ? "are" : "is", before);
        proof_tell(p, plan, PLAN_GRAD_INPUT, i, what);
        *told |= 1u << input;
    }
}

static void prove_subsets(const struct proof *p)
{
    uint32_t told = 0;
    for (int k = 0; k < p->c->n_parts; k++) {
        const struct trial_part *part = &p->c->parts[k];
        uint8_t *again[TRIAL_INPUTS] = { 0 };
        proof_run_backward(p, part->plan, again);
        compare(p, part->plan, part->wanted, again, false, &told);
        proof_free_gradients(again);
    }
}

static void prove_order(const struct proof *p)
{
    struct trial_run *s = p->run;
    uint8_t *one_by_one[TRIAL_INPUTS] = { 0 }, *again[TRIAL_INPUTS] = { 0 };
    uint32_t told = 0;
    s->order = TRIAL_ONE_BY_ONE;
    proof_run_backward(p, p->c->backward, one_by_one);
    s->again = true;
    s->order = TRIAL_BACKWARDS;
    proof_run_backward(p, p->c->backward, again);
    if (s->waited) {
        s->order = TRIAL_BLOCKS_BACKWARDS;
        proof_run_backward(p, p->c->backward, again);
    }
    s->order = TRIAL_ANY;
    s->again = false;
    struct proof ordered = *p;
    memcpy(ordered.found, one_by_one, sizeof one_by_one);
    compare(&ordered, p->c->backward, p->all, again, true, &told);
    proof_free_gradients(one_by_one);
    proof_free_gradients(again);
}

// --- linear

// What the outputs are, as float64.
static double *copy_outputs(const struct proof *p, uint64_t n)
{
    double *out = mem_alloc((n + 1) * sizeof *out);
    uint64_t at = 0;
    for (int o = 0; o < p->op->n_outputs; o++) {
        const struct trial_tensor *y = &p->run->outputs[o];
        for (uint64_t k = 0; y->bytes && k < (uint64_t)tensor_desc_numel(&y->desc); k++)
            out[at++] = proof_load(&y->desc, y->bytes, k);
    }
    return out;
}

// Input i, where it is among those, becomes a * base + b * other.
static void mix_inputs(const struct proof *p, uint32_t inputs, double *const *other, double a,
                       double b)
{
    for (int i = 0; i < p->op->n_inputs; i++) {
        const struct trial_tensor *x = &p->base[i];
        for (uint64_t k = 0; (inputs >> i & 1) && k < (uint64_t)tensor_desc_numel(&x->desc); k++)
            proof_store(&x->desc, p->run->inputs[i].bytes, k,
                        a * proof_load(&x->desc, x->bytes, k) + b * other[i][k]);
    }
}

static double *outputs_of(const struct proof *p, uint32_t inputs, double *const *other, double a,
                          double b, uint64_t n)
{
    mix_inputs(p, inputs, other, a, b);
    double noise;
    proof_run_forward(p, &noise);
    return copy_outputs(p, n);
}

static void tell_not_linear(const struct proof *p, uint32_t inputs, uint64_t at, double found,
                            double expected)
{
    char element[PROOF_NAME], names[300] = "", what[1200];
    size_t n = 0;
    int o = 0;
    for (; at >= (uint64_t)tensor_desc_numel(&p->run->outputs[o].desc); o++)
        at -= (uint64_t)tensor_desc_numel(&p->run->outputs[o].desc);
    for (int i = 0; i < p->op->n_inputs && n < sizeof names; i++)
        if (inputs >> i & 1)
            n += (size_t)snprintf(names + n, sizeof names - n, " %s", p->op->inputs[i].name);
    snprintf(what, sizeof what,
             "not linear in%s: of 0.75 times one and -1.25 times another %s is %.8g, expected %.8g",
             names,
             proof_name_element("", p->op->outputs[o].name, &p->run->outputs[o].desc, at, element),
             found, expected);
    proof_tell(p, p->c->forward, PLAN_OUTPUT, o, what);
}

static void prove_linear(const struct proof *p, uint32_t inputs)
{
    double *other[OP_MAX_INPUTS] = { 0 };
    uint64_t n = 0;
    for (int i = 0; i < p->op->n_inputs; i++) {
        struct trial_tensor drawn = { 0 };
        if (!p->base[i].bytes || !proof_is_exact(&p->base[i].desc))
            inputs &= ~(1u << i);
        if (!(inputs >> i & 1))
            continue;
        trial_run_make(p->run, &drawn, &p->base[i].desc);
        trial_run_fill(p->run, &drawn, -2, 2);
        other[i] = mem_alloc((size_t)tensor_desc_numel(&drawn.desc) * sizeof *other[i]);
        for (uint64_t k = 0; k < (uint64_t)tensor_desc_numel(&drawn.desc); k++)
            other[i][k] = proof_load(&drawn.desc, drawn.bytes, k);
        trial_tensor_free(&drawn);
    }
    for (int o = 0; o < p->op->n_outputs; o++)
        n += p->run->outputs[o].bytes ? (uint64_t)tensor_desc_numel(&p->run->outputs[o].desc) : 0;
    double *one = outputs_of(p, inputs, other, 1, 0, n),
           *two = outputs_of(p, inputs, other, 0, 1, n);
    double *both = outputs_of(p, inputs, other, 0.75, -1.25, n), size = 0;
    for (uint64_t k = 0; k < n; k++)
        size = fmax(size, fabs(one[k]) + fabs(two[k]));
    for (uint64_t k = 0; inputs && k < n; k++) {
        double expected = 0.75 * one[k] - 1.25 * two[k];
        if (fabs(both[k] - expected) <= 1e4 * p->epsilon * size)
            continue;
        tell_not_linear(p, inputs, k, both[k], expected);
        break;
    }
    mix_inputs(p, inputs, other, 1, 0);
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        free(other[i]);
    free(one);
    free(two);
    free(both);
}

// Where elements share memory none of them can be moved alone.
static bool can_move(const struct proof *p, int input)
{
    const struct tensor_desc *d = &p->base[input].desc;
    const struct op_tensor *t = &p->op->inputs[input % OP_MAX_INPUTS];
    return p->found[input] && !t->by_definition && !tensor_desc_overlaps(d) && !t->in_place &&
           proof_is_exact(d);
}

// Tensors end where a page does that may not be touched: what is read just before one would not be
// told. Here each begins behind such a page.
static void look_before_tensors(struct trial_run *s, const struct trial_case *c)
{
    uint64_t random = s->random;
    s->at_start = true;
    trial_run_fill_inputs(s, c, -2, 2);
    trial_run_plan(s, c, c->forward, NULL, NULL);
    if (c->backward)
        trial_run_plan(s, c, c->backward, NULL, NULL);
    trial_run_clear(s);
    s->at_start = false;
    s->random = random;
}

void trial_gradients_prove(struct trial_run *s, const struct trial_case *c, double seconds)
{
    struct proof p;
    if ((!c->backward && s->cases.op->n_linear == 0) || c->forward->n_steps == 0)
        return;
    look_before_tensors(s, c);
    if (proof_begin(&p, s, c)) {
        prove_subsets(&p);
        if (c->backward)
            prove_order(&p);
        int n = 0;
        for (int i = 0; i < TRIAL_INPUTS; i++)
            n += can_move(&p, i);
        for (int i = 0; i < TRIAL_INPUTS; i++)
            if (can_move(&p, i))
                slopes_prove(&p, i, seconds / n);
        for (int k = 0; k < p.op->n_linear; k++)
            prove_linear(&p, p.op->linear[k]);
    }
    proof_finish(&p);
}
