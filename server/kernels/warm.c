#include "kernels/warm.h"

#include "request/parts.h"
#include "base/clock.h"
#include "device/device.h"
#include "base/log.h"
#include "kernels/program.h"

static void warm_plan(struct device *d, struct version *v, const struct plan_request *request)
{
    struct opd_err err = { 0 };
    struct bound_plan *bp = version_plan(v, d, request, &err);
    for (int i = 0; bp && i < bp->plan->n_kernels; i++) {
        program_ensure(bp->programs[i], clock_ns(), &err);
        opd_err_clear(&err);
    }
    if (err.code)
        log_warn("warming: %s", err.msg);
    opd_err_clear(&err);
}

static void warm_example(struct device *d, struct version *v, struct plan_request *request)
{
    device_fill_plan_request(d, request);
    request->direction = PLAN_FORWARD;
    warm_plan(d, v, request);
    if (!v->op->has_backward)
        return;
    request->keep = true;
    warm_plan(d, v, request);
    request->direction = PLAN_BACKWARD;
    request->wanted = plan_gradients(request);
    warm_plan(d, v, request);
}

static void warm_version(struct device *d, struct version *v)
{
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
    int n = plan_example_dtypes(v->op, false, dtypes);
    for (int i = 0; i < n; i++) {
        struct plan_request request;
        for (int k = 0; plan_example(v->op, k, dtypes[i], &request); k++)
            warm_example(d, v, &request);
    }
}

void warm_start(struct broker *b)
{
    for (int i = 0; i < b->devices.n; i++)
        for (struct opd_operator *o = b->registry.operators; o; o = o->next)
            if (o->current)
                warm_version(b->devices.at[i], o->current);
}
