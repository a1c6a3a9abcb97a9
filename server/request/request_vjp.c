// Requests that know an operator's plan without a context: what a forward would give, and backward
// of tensors that the client has kept.

#include <stdio.h>

#include "request/parts.h"
#include "request/run_params.h"

const struct plan *run_plan_forward(struct run *run, struct opd_err *err)
{
    run->request->direction = PLAN_FORWARD;
    run->request->keep = run->version->op->has_backward;
    device_fill_plan_request(run->device, run->request);
    const struct bound_plan *bound = version_plan(run->version, run->device, run->request, err);
    return bound ? bound->plan : NULL;
}

static void pack_plan(struct buf *out, const struct version *version, const struct plan *plan)
{
    const struct op *op = version->op;
    size_t map = pack_map_begin(out);
    pack_key_int(out, "version", version->number);
    run_pack_results(out, plan, op->has_backward ? op->n_saved : 0);
    run_pack_views(out, op);
    pack_map_end(out, map);
}

enum request_status request_plan(struct request *req, const value *params, struct opd_err *err)
{
    struct run run;
    run_init(&run, req, value_at(params, 3));
    if (!run_read_version(&run, value_at(params, 0), err) ||
        !run_read_descs(&run, value_at(params, 1), err) ||
        !request_attrs(run.version->op, value_at(params, 2), run.request->attrs, err) ||
        !run_default_device(&run, err))
        return REQUEST_ERROR;
    const struct plan *plan = run_plan_forward(&run, err);
    if (!plan)
        return REQUEST_ERROR;
    pack_plan(&req->reply, run.version, plan);
    return REQUEST_ANSWERED;
}

// --- vjp

static bool find_kept(struct run *run, const value *name, struct opd_err *err)
{
    if (run_read_version(run, name, err))
        return true;
    if (run->version || !run->req->op[0])
        return false;
    opd_err_clear(err);
    return opd_err_set(err, OPD_E_not_found,
                       "%s: the version that ran forward is no longer kept; run forward again",
                       run->req->op);
}

enum request_status request_vjp(struct request *req, const value *params, struct opd_err *err)
{
    struct run run;
    run_init(&run, req, value_at(params, 7));
    if (!find_kept(&run, value_at(params, 0), err) ||
        !run_read_inputs(&run, run_ids(value_at(params, 1)), err) ||
        !run_read_descs(&run, value_get(run.options, "inputs"), err) ||
        !request_attrs(run.version->op, value_at(params, 5), run.request->attrs, err) ||
        !run_read_kept(&run, run_ids(value_at(params, 2)), run_ids(value_at(params, 3)), err) ||
        !run_read_grads(&run, run_ids(value_at(params, 4)), err) ||
        !run_read_results(&run, PLAN_GRAD_INPUT, value_at(params, 6), err) ||
        !run_default_device(&run, err))
        return REQUEST_ERROR;
    const struct plan *plan = run_plan_forward(&run, err);
    if (!plan || !run_check_kept(&run, plan, err))
        return REQUEST_ERROR;
    return run_backward(&run, err);
}
