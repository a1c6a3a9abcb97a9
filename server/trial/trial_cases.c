#include "trial/trial_cases.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_OF_ALL_SUBSETS = 5 };

const struct trial_kernel *trial_cases_find(const struct trial_cases *t, const struct plan *plan,
                                            uint32_t kernel)
{
    const char *expr = plan->kernels[kernel].expr, *prelude = plan->kernels[kernel].prelude;
    for (int i = 0; i < t->n_kernels; i++)
        if (strcmp(t->kernels[i].prelude, prelude) == 0 && strcmp(t->kernels[i].expr, expr) == 0)
            return &t->kernels[i];
    return NULL;
}

static void add_kernels(struct trial_cases *t, const struct plan *plan)
{
    for (int k = 0; k < plan->n_kernels; k++) {
        if (trial_cases_find(t, plan, (uint32_t)k))
            continue;
        struct trial_kernel new = { .prelude = plan->kernels[k].prelude,
                                    .expr = plan->kernels[k].expr,
                                    .image = t->n_images };
        for (int i = 0; i < t->n_kernels; i++)
            if (strcmp(t->kernels[i].prelude, new.prelude) == 0) {
                new.image = t->kernels[i].image;
                new.place++;
            }
        t->n_images += new.image == t->n_images;
        t->kernels = mem_realloc(t->kernels, (size_t)t->n_kernels + 1, sizeof *t->kernels);
        t->kernels[t->n_kernels++] = new;
    }
}

static bool add_part(struct trial_case *c, struct plan_request *request, uint32_t wanted,
                     struct opd_err *err)
{
    request->wanted = wanted;
    struct plan *plan = plan_build(request, err);
    if (!plan)
        return false;
    c->parts = mem_realloc(c->parts, (size_t)c->n_parts + 1, sizeof *c->parts);
    c->parts[c->n_parts++] = (struct trial_part){ wanted, plan };
    return true;
}

// Every subset of the gradients but all; of many, those of one, and of all but one.
static bool add_parts(struct trial_case *c, struct plan_request *request, struct opd_err *err)
{
    uint32_t all = plan_gradients(request);
    bool ok = true;
    if (__builtin_popcount(all) <= MAX_OF_ALL_SUBSETS) {
        for (uint32_t part = (all - 1) & all; ok && part; part = (part - 1) & all)
            ok = add_part(c, request, part, err);
        return ok;
    }
    for (uint32_t left = all; ok && left; left &= left - 1) {
        uint32_t one = left & -left;
        ok = add_part(c, request, one, err) && add_part(c, request, all & ~one, err);
    }
    return ok;
}

static void finish_case(struct trial_case *c)
{
    plan_free(c->forward);
    plan_free(c->backward);
    for (int i = 0; i < c->n_parts; i++)
        plan_free(c->parts[i].plan);
    free(c->parts);
}

void trial_cases_add(struct trial_cases *t, const struct trial_case *c)
{
    t->cases = mem_realloc(t->cases, (size_t)t->n + 1, sizeof *t->cases);
    t->cases[t->n++] = *c;
    if (c->forward)
        add_kernels(t, c->forward);
    if (c->backward)
        add_kernels(t, c->backward);
    for (int i = 0; i < c->n_parts; i++)
        add_kernels(t, c->parts[i].plan);
}

static bool add_case(struct trial_cases *t, struct plan_request *request, enum opd_dtype dtype,
                     int example, enum trial_aim aim, struct opd_err *err)
{
    const struct op *op = t->op;
    struct trial_case c = { .dtype = dtype, .example = example };
    request->on_cpu = aim != TRIAL_ON_GPU;
    request->checked = !request->on_cpu;
    request->keep = op->has_backward;
    bool ok = (c.forward = plan_build(request, err)) != NULL;
    request->direction = PLAN_BACKWARD;
    request->wanted = plan_gradients(request);
    if (ok && op->has_backward && request->wanted)
        ok = (c.backward = plan_build(request, err)) != NULL &&
             (aim != TRIAL_PROOFS || add_parts(&c, request, err));
    if (!ok) {
        finish_case(&c);
        return false;
    }
    trial_cases_add(t, &c);
    return true;
}

// Differences are taken in the widest type that there is.
static void keep_widest(enum opd_dtype *dtypes, int *n)
{
    static const enum opd_dtype order[] = { OPD_DTYPE_float64, OPD_DTYPE_float32 };
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        for (int k = 0; k < *n; k++)
            if (dtypes[k] == order[i]) {
                dtypes[0] = order[i];
                *n = 1;
                return;
            }
}

static bool is_chosen(const char *dtypes, const char *name)
{
    size_t n = strlen(name);
    bool found = !dtypes[0];
    for (const char *at = dtypes; *at && !found; at += strcspn(at, ","), at += *at == ',')
        found = strcspn(at, ",") == n && strncmp(at, name, n) == 0;
    return found;
}

bool trial_cases_init(struct trial_cases *t, struct op *op, const char *dtypes, enum trial_aim aim,
                      struct opd_err *err)
{
    *t = (struct trial_cases){ .op = op };
    enum opd_dtype all[OPD_DTYPE_COUNT];
    int n = plan_example_dtypes(op, false, all);
    if (aim == TRIAL_PROOFS && !dtypes[0])
        keep_widest(all, &n);
    for (int d = 0; d < n; d++) {
        struct plan_request request;
        if (!is_chosen(dtypes, dtype_name(all[d])))
            continue;
        for (int k = 0; plan_example(op, k, all[d], &request); k++)
            if (!add_case(t, &request, all[d], k + 1, aim, err))
                return false;
    }
    if (t->n > 0)
        return true;
    return opd_err_set(err, OPD_E_invalid_argument,
                       dtypes[0] ? "%s: no example has dtype %s"
                                 : "%s: it has no example to run%s; add one",
                       op->file, dtypes);
}

void trial_cases_finish(struct trial_cases *t)
{
    for (int i = 0; i < t->n; i++)
        finish_case(&t->cases[i]);
    free(t->cases);
    free(t->kernels);
    *t = (struct trial_cases){ 0 };
}
