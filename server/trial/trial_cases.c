#include "trial/trial_cases.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

const struct trial_kernel *trial_cases_find(const struct trial_cases *t, const struct plan *plan,
                                            uint32_t kernel)
{
    const char *expr = plan->kernels[kernel].expr;
    for (int i = 0; i < t->n_kernels; i++)
        if (strcmp(t->kernels[i].prelude, plan->prelude) == 0 &&
            strcmp(t->kernels[i].expr, expr) == 0)
            return &t->kernels[i];
    return NULL;
}

static void add_kernels(struct trial_cases *t, const struct plan *plan)
{
    for (int k = 0; k < plan->n_kernels; k++) {
        if (trial_cases_find(t, plan, (uint32_t)k))
            continue;
        struct trial_kernel new = { .prelude = plan->prelude,
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

static bool add_case(struct trial_cases *t, struct plan_request *request, enum opd_dtype dtype,
                     int example, struct opd_err *err)
{
    const struct op *op = t->op;
    struct trial_case c = { .dtype = dtype, .example = example };
    request->on_cpu = true;
    request->keep = op->has_backward;
    if (!(c.forward = plan_build(request, err)))
        return false;
    request->direction = PLAN_BACKWARD;
    request->wanted = plan_gradients(request);
    if (op->has_backward && request->wanted && !(c.backward = plan_build(request, err))) {
        plan_free(c.forward);
        return false;
    }
    t->cases = mem_realloc(t->cases, (size_t)t->n + 1, sizeof *t->cases);
    t->cases[t->n++] = c;
    add_kernels(t, c.forward);
    if (c.backward)
        add_kernels(t, c.backward);
    return true;
}

static bool is_chosen(const char *dtypes, const char *name)
{
    size_t n = strlen(name);
    bool found = !dtypes[0];
    for (const char *at = dtypes; *at && !found; at += strcspn(at, ","), at += *at == ',')
        found = strcspn(at, ",") == n && strncmp(at, name, n) == 0;
    return found;
}

bool trial_cases_init(struct trial_cases *t, struct op *op, const char *dtypes, struct opd_err *err)
{
    *t = (struct trial_cases){ .op = op };
    enum opd_dtype all[OPD_DTYPE_COUNT];
    int n = plan_example_dtypes(op, false, all);
    for (int d = 0; d < n; d++) {
        struct plan_request request;
        if (!is_chosen(dtypes, dtype_name(all[d])))
            continue;
        for (int k = 0; plan_example(op, k, all[d], &request); k++)
            if (!add_case(t, &request, all[d], k + 1, err))
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
    for (int i = 0; i < t->n; i++) {
        plan_free(t->cases[i].forward);
        plan_free(t->cases[i].backward);
    }
    free(t->cases);
    free(t->kernels);
    *t = (struct trial_cases){ 0 };
}
