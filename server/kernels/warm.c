#include "kernels/warm.h"

#include "base/clock.h"
#include "device/devices.h"
#include "base/log.h"
#include "kernels/program.h"
#include "kernels/registry.h"

static void warm_plan(struct device *d, struct version *v, const struct plan_request *request,
                      struct pool *pool)
{
    struct opd_err err = { 0 };
    struct bound_plan *bp = version_plan(v, d, request, &err);
    for (int i = 0; pool && bp && i < bp->plan->n_kernels; i++) {
        program_ensure(bp->programs[i], pool, NULL, clock_ns(), &err);
        opd_err_clear(&err);
    }
    if (err.code)
        log_warn("warming: %s", err.msg);
    opd_err_clear(&err);
}

bool warm_example(struct device *d, struct version *v, int k, enum opd_dtype dtype,
                  struct pool *pool)
{
    struct plan_request request;
    if (!plan_example(v->op, k, dtype, &request))
        return false;
    device_fill_plan_request(d, &request);
    warm_plan(d, v, &request, pool);
    if (!v->op->has_backward)
        return true;
    request.keep = true;
    warm_plan(d, v, &request, pool);
    request.direction = PLAN_BACKWARD;
    request.wanted = plan_gradients(&request);
    warm_plan(d, v, &request, pool);
    return true;
}

static void warm_version(struct device *d, struct version *v, struct pool *pool)
{
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
    int n = plan_example_dtypes(v->op, false, dtypes);
    for (int i = 0; i < n; i++)
        for (int k = 0; warm_example(d, v, k, dtypes[i], pool);)
            k++;
}

void warm_start(const struct registry *r, const struct devices *devices, struct pool *pool)
{
    for (int i = 0; i < devices->n; i++)
        for (size_t k = 0; k < r->n_operators; k++)
            if (r->operators[k]->current)
                warm_version(devices->at[i], r->operators[k]->current, pool);
}
