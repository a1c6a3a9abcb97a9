#include "kernels/warm.h"

#include "request/parts.h"
#include "base/clock.h"
#include "device/device.h"
#include "base/log.h"
#include "kernels/program.h"

static void warm_plan(struct device *d, struct version *v, const struct plan_request *request,
                      bool compile)
{
    struct opd_err err = { 0 };
    struct bound_plan *bp = version_plan(v, d, request, &err);
    for (int i = 0; compile && bp && i < bp->plan->n_kernels; i++) {
        program_ensure(bp->programs[i], NULL, clock_ns(), &err);
        opd_err_clear(&err);
    }
    if (err.code)
        log_warn("warming: %s", err.msg);
    opd_err_clear(&err);
}

bool warm_example(struct device *d, struct version *v, int k, enum opd_dtype dtype, bool compile)
{
    struct plan_request request;
    if (!plan_example(v->op, k, dtype, &request))
        return false;
    device_fill_plan_request(d, &request);
    warm_plan(d, v, &request, compile);
    if (!v->op->has_backward)
        return true;
    request.keep = true;
    warm_plan(d, v, &request, compile);
    request.direction = PLAN_BACKWARD;
    request.wanted = plan_gradients(&request);
    warm_plan(d, v, &request, compile);
    return true;
}

static void warm_version(struct device *d, struct version *v)
{
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
    int n = plan_example_dtypes(v->op, false, dtypes);
    for (int i = 0; i < n; i++)
        for (int k = 0; warm_example(d, v, k, dtypes[i], true);)
            k++;
}

void warm_start(struct broker *b)
{
    for (int i = 0; i < b->devices.n; i++)
        for (struct opd_operator *o = b->registry.operators; o; o = o->next)
            if (o->current)
                warm_version(b->devices.at[i], o->current);
}
