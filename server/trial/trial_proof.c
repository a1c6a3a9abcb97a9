#include "trial/trial_proof.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/report.h"

double proof_load(const struct tensor_desc *d, const void *bytes, uint64_t at)
{
    at = tensor_desc_offset(d, at);
    double f64;
    float f32;
    if (d->dtype == OPD_DTYPE_float64) {
        memcpy(&f64, (const uint8_t *)bytes + at * 8, 8);
        return f64;
    }
    if (d->dtype == OPD_DTYPE_float32) {
        memcpy(&f32, (const uint8_t *)bytes + at * 4, 4);
        return (double)f32;
    }
    return 0;
}

// What is stored: it may be rounded.
double proof_store(const struct tensor_desc *d, void *bytes, uint64_t at, double value)
{
    at = tensor_desc_offset(d, at);
    float f32 = (float)value;
    if (d->dtype == OPD_DTYPE_float64)
        memcpy((uint8_t *)bytes + at * 8, &value, 8);
    else
        memcpy((uint8_t *)bytes + at * 4, &f32, 4);
    return d->dtype == OPD_DTYPE_float64 ? value : (double)f32;
}

bool proof_is_exact(const struct tensor_desc *d)
{
    return d->dtype == OPD_DTYPE_float64 || d->dtype == OPD_DTYPE_float32;
}

static double find_epsilon(const struct proof *p)
{
    for (int i = 0; i < p->op->n_inputs; i++)
        if (p->run->inputs[i].desc.dtype == OPD_DTYPE_float32)
            return (double)FLT_EPSILON;
    for (int o = 0; o < p->op->n_outputs; o++)
        if (p->run->outputs[o].desc.dtype == OPD_DTYPE_float32)
            return (double)FLT_EPSILON;
    return DBL_EPSILON;
}

static const char *name_place(const struct op_tensor *t, int place, char out[PROOF_NAME])
{
    if (t->list)
        snprintf(out, PROOF_NAME, "%s[%d]", t->name, place);
    return t->list ? out : t->name;
}

const char *proof_name_input(const struct proof *p, int input, char out[PROOF_NAME])
{
    return name_place(&p->op->inputs[input % OP_MAX_INPUTS], input / OP_MAX_INPUTS, out);
}

const char *proof_name_element(const char *prefix, const char *name, const struct tensor_desc *d,
                               uint64_t at, char out[PROOF_NAME])
{
    uint64_t index[OP_MAX_RANK];
    for (int i = d->rank; i-- > 0; at /= (uint64_t)d->shape[i])
        index[i] = at % (uint64_t)d->shape[i];
    int n = snprintf(out, PROOF_NAME, "%s%s", prefix, name);
    for (int i = 0; i < d->rank; i++)
        n += snprintf(out + n, PROOF_NAME - (size_t)n, "%s%llu", i ? ", " : "[",
                      (unsigned long long)index[i]);
    if (d->rank > 0)
        snprintf(out + n, PROOF_NAME - (size_t)n, "]");
    return out;
}

static const struct plan_kernel *last_kernel(const struct plan *plan, enum plan_operand_kind kind,
                                             int index)
{
    const struct plan_kernel *last = NULL;
    for (int i = 0; i < plan->n_steps; i++)
        for (int k = 0; plan->steps[i].kind == PLAN_STEP_LAUNCH && k < plan->steps[i].n_slots;
             k++) {
            const struct plan_operand *o = &plan->operands[plan->steps[i].slots[k].operand];
            if (o->kind == kind && o->index == index)
                last = &plan->kernels[plan->steps[i].kernel];
        }
    return last;
}

void proof_tell(const struct proof *p, const struct plan *plan, enum plan_operand_kind made,
                int index, const char *what)
{
    int all = made == PLAN_OUTPUT ? OP_MAX_OUTPUTS : OP_MAX_INPUTS;
    index = index % all + PLAN_MEMBER * (index / all);
    const struct plan_kernel *k = last_kernel(plan, made, index);
    printf("run\t%s\t%d\t%s\n", dtype_name(p->c->dtype), p->c->example,
           plan->direction == PLAN_FORWARD ? "forward" : "backward");
    printf("kernel\t%s\n", k ? k->expr : "no kernel");
    printf("differs\t%s:%d\t%s: %s\n", p->op->file, k && k->line > 0 ? k->line : 1, p->op->name,
           what);
}

// --- runs

static void restore(const struct proof *p, int input)
{
    if (p->base[input].bytes)
        memcpy(p->run->inputs[input].bytes, p->base[input].bytes, p->base[input].size);
}

double proof_run_forward(const struct proof *p, double *out_noise)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < TRIAL_INPUTS; i++)
        if (p->base[i].bytes && p->op->inputs[i % OP_MAX_INPUTS].in_place)
            restore(p, i);
    trial_run_plan(p->run, p->c, p->c->forward, NULL, NULL);
    for (int o = 0; o < TRIAL_OUTPUTS; o++) {
        const struct trial_tensor *y = &p->run->outputs[o], *g = &p->run->grads[o];
        uint64_t n = p->outputs[o] ? (uint64_t)tensor_desc_numel(&y->desc) : 0;
        for (uint64_t k = 0; k < n; k++) {
            double now = proof_load(&y->desc, y->bytes, k), grown = now - p->outputs[o][k];
            if (grown == 0)
                continue;
            double weight = proof_load(&g->desc, g->bytes, k);
            sum += weight * grown;
            squares += weight * now * weight * now;
        }
    }
    *out_noise = 8 * p->epsilon * sqrt(squares);
    return sum;
}

static void take_gradient(void *arg, const struct plan *plan, int operand,
                          const struct trial_tensor *m)
{
    uint8_t **to = arg;
    const struct plan_operand *o = &plan->operands[operand];
    if (o->kind != PLAN_GRAD_INPUT)
        return;
    uint8_t **place = &to[trial_place(o->index, OP_MAX_INPUTS)];
    free(*place);
    *place = mem_alloc(m->size);
    memcpy(*place, m->bytes, m->size);
}

void proof_run_backward(const struct proof *p, const struct plan *plan, uint8_t **to)
{
    trial_run_plan(p->run, p->c, plan, take_gradient, to);
}

void proof_free_gradients(uint8_t **g)
{
    for (int i = 0; i < TRIAL_INPUTS; i++) {
        free(g[i]);
        g[i] = NULL;
    }
}

// --- life

enum { COARSE_POINTS = 16 };

// From where to where inputs are drawn, until all that is made of them is finite.
static const double ranges[][2] = { { -2, 2 }, { 0.1, 0.9 }, { 1.1, 2.9 } };

static void fill_inputs(struct proof *p, const double *range)
{
    trial_run_fill_inputs(p->run, p->c, range[0], range[1]);
    for (int i = 0; i < TRIAL_INPUTS; i++) {
        struct trial_tensor *x = &p->run->inputs[i];
        p->made[i] = x->desc;
        p->made[i].strided = false;
        trial_run_make(p->run, &p->base[i], &x->desc);
        if (x->bytes)
            memcpy(p->base[i].bytes, x->bytes, x->size);
    }
}

// Keeps them as well. False: some element is not finite.
static bool keep_outputs(struct proof *p)
{
    bool finite = true;
    for (int o = 0; o < TRIAL_OUTPUTS; o++) {
        const struct trial_tensor *y = &p->run->outputs[o];
        uint64_t n = y->bytes && proof_is_exact(&y->desc) ? (uint64_t)tensor_desc_numel(&y->desc)
                                                          : 0;
        free(p->outputs[o]);
        p->outputs[o] = n > 0 ? mem_alloc(n * sizeof *p->outputs[o]) : NULL;
        for (uint64_t k = 0; k < n; k++) {
            p->outputs[o][k] = proof_load(&y->desc, y->bytes, k);
            finite = finite && isfinite(p->outputs[o][k]);
        }
    }
    return finite;
}

static void fill_grads(struct proof *p)
{
    for (int o = 0; o < TRIAL_OUTPUTS; o++) {
        if (p->run->outputs[o].desc.dtype == OPD_DTYPE_NONE)
            continue;
        trial_run_make(p->run, &p->run->grads[o], &p->run->outputs[o].desc);
        trial_run_fill(p->run, &p->run->grads[o], -2, 2);
    }
}

static void tell_refused(const struct proof *p)
{
    struct buf text = { 0 };
    if (p->run->reported)
        report_explain(p->c->forward->checks, p->c->forward->checks_size, p->run->reported, &text);
    else
        buf_append_str(&text, "its outputs are not finite");
    buf_append_str(&text, ", so nothing is proved by this example");
    proof_tell(p, p->c->forward, PLAN_OUTPUT, 0, buf_str(&text));
    buf_finish(&text);
}

// What is computed in float32 inside, though its tensors are float64, grows in jumps.
static bool is_coarse(const struct proof *p)
{
    double grown[COARSE_POINTS], noise, size = 0;
    for (int k = 0; k < COARSE_POINTS; k++) {
        for (int i = 0; i < TRIAL_INPUTS; i++) {
            const struct trial_tensor *b = &p->base[i];
            uint64_t n = b->bytes && proof_is_exact(&b->desc)
                             ? (uint64_t)tensor_desc_numel(&b->desc)
                             : 0;
            for (uint64_t at = 0; at < n; at++)
                proof_store(&b->desc, p->run->inputs[i].bytes, at,
                            proof_load(&b->desc, b->bytes, at) * (1 + k * 2e-8));
        }
        grown[k] = proof_run_forward(p, &noise);
        size = fmax(size, noise / p->epsilon);
    }
    for (int i = 0; i < TRIAL_INPUTS; i++)
        restore(p, i);
    for (int k = 2; k < COARSE_POINTS; k++)
        if (fabs(grown[k] - 2 * grown[k - 1] + grown[k - 2]) > 1e-12 * size)
            return true;
    return false;
}

bool proof_begin(struct proof *p, struct trial_run *run, const struct trial_case *c)
{
    *p = (struct proof){ .run = run, .c = c, .op = run->cases.op };
    bool good = false;
    for (size_t k = 0; k < sizeof ranges / sizeof *ranges && !good; k++) {
        fill_inputs(p, ranges[k]);
        trial_run_plan(run, c, c->forward, NULL, NULL);
        fill_grads(p);
        good = !run->reported && keep_outputs(p);
    }
    if (!good) {
        tell_refused(p);
        return false;
    }
    p->epsilon = find_epsilon(p);
    uint64_t begun = clock_ns();
    if (is_coarse(p))
        p->epsilon = (double)FLT_EPSILON;
    p->seconds = (double)(clock_ns() - begun + 1) / 1e9 / COARSE_POINTS;
    double noise;
    proof_run_forward(p, &noise);
    if (c->backward)
        proof_run_backward(p, c->backward, p->found);
    for (int i = 0; i < TRIAL_INPUTS; i++)
        p->all |= (uint32_t)(p->found[i] != NULL) << i % OP_MAX_INPUTS;
    return true;
}

void proof_finish(struct proof *p)
{
    proof_free_gradients(p->found);
    for (int o = 0; o < TRIAL_OUTPUTS; o++)
        free(p->outputs[o]);
    for (int i = 0; i < TRIAL_INPUTS; i++)
        trial_tensor_free(&p->base[i]);
    trial_run_clear(p->run);
}
