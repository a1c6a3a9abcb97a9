// Requests that know an operator's plan without a context: what a forward would give, and backward
// of tensors that the client has kept.

#include <stdio.h>

#include "request/parts.h"
#include "request/run_params.h"

// The plan of the forward before: what it makes, every saved tensor included. NULL with an error.
static const struct plan *plan_forward(const struct run *run, struct opd_err *err)
{
    struct plan_request request = run->request;
    request.op = run->version->op;
    request.direction = PLAN_FORWARD;
    request.keep = request.op->has_backward;
    device_fill_plan_request(run->device, &request);
    const struct bound_plan *bound = version_plan(run->version, run->device, &request, err);
    return bound ? bound->plan : NULL;
}

static const struct tensor_desc *find_desc(const struct plan *plan, enum plan_operand_kind kind,
                                           int index)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].kind == kind && plan->operands[i].index == index)
            return &plan->operands[i].desc;
    return NULL;
}

static void pack_plan(struct buf *out, const struct version *version, const struct plan *plan)
{
    const struct op *op = version->op;
    pack_map(out, 4);
    pack_key_int(out, "version", version->number);
    pack_str(out, "outputs");
    pack_array(out, (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++)
        run_pack_desc(out, find_desc(plan, PLAN_OUTPUT, i));
    int n_saved = op->has_backward ? op->n_saved : 0;
    pack_str(out, "saved");
    pack_array(out, (size_t)n_saved);
    for (int i = 0; i < n_saved; i++)
        run_pack_desc(out, find_desc(plan, PLAN_SAVED, op->saved[i].temp));
    pack_str(out, "views");
    pack_array(out, (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++) {
        if (op->outputs[i].is_view)
            pack_int(out, op->outputs[i].view_of);
        else
            pack_nil(out);
    }
}

enum request_status request_plan(struct request *req, const value *params, struct opd_err *err)
{
    struct run run = { .req = req, .options = value_at(params, 3) };
    if (!run_read_version(&run, value_at(params, 0), err) ||
        !run_read_descs(&run, value_at(params, 1), err) ||
        !request_attrs(run.version->op, value_at(params, 2), run.request.attrs, err) ||
        !run_default_device(&run, err))
        return REQUEST_ERROR;
    const struct plan *plan = plan_forward(&run, err);
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

static bool check_count(const struct op *op, const value *ids, int most, const char *what,
                        struct opd_err *err)
{
    return value_count(ids) <= (size_t)most ||
           opd_err_set(err, OPD_E_invalid_argument, "%s has %d %s, %zu came", op->name, most, what,
                       value_count(ids));
}

// Outputs and saved tensors, nil for those that backward does not read.
static bool read_kept(struct run *run, const value *outputs, const value *saved,
                      struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (!check_count(op, outputs, op->n_outputs, "outputs", err) ||
        !check_count(op, saved, op->n_saved, "saved tensors", err))
        return false;
    for (int i = 0; i < op->n_outputs; i++) {
        const struct place place = { .kind = PLAN_OUTPUT, .index = i, .how = PLACE_GIVEN };
        const value *id = value_at(outputs, (size_t)i);
        if (!value_is_nil(id) && !run_read_place(run, &place, op->outputs[i].name, id, err))
            return false;
    }
    for (int i = 0; i < op->n_saved; i++) {
        const struct place place = { .kind = PLAN_SAVED,
                                     .index = op->saved[i].temp,
                                     .how = PLACE_GIVEN };
        const value *id = value_at(saved, (size_t)i);
        if (!value_is_nil(id) && !run_read_place(run, &place, op->saved[i].name, id, err))
            return false;
    }
    return true;
}

// With forward's plan: is each of them what it made?
static bool check_kept(struct run *run, const struct plan *plan, struct opd_err *err)
{
    const struct op *op = run->version->op;
    struct tensor_desc outputs[OP_MAX_OUTPUTS];
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        const struct place *p = run_find(run, o->kind, o->index);
        char what[2 * OP_MAX_NAME + 4];
        snprintf(what, sizeof what, "%s: %s", op->name, o->name);
        if (o->kind == PLAN_OUTPUT)
            outputs[o->index] = o->desc;
        const char *role = o->kind == PLAN_SAVED ? "the saved tensor" : "the output";
        if (p && p->how == PLACE_GIVEN && o->kind != PLAN_INPUT &&
            !run_check_desc(what, &p->tensor->desc, &o->desc, role, err))
            return false;
    }
    return run_check_grads(run, outputs, err);
}

enum request_status request_vjp(struct request *req, const value *params, struct opd_err *err)
{
    struct run run = { .req = req, .options = value_at(params, 7) };
    if (!find_kept(&run, value_at(params, 0), err) ||
        !run_read_inputs(&run, value_at(params, 1), err) ||
        !run_read_descs(&run, value_get(run.options, "inputs"), err) ||
        !request_attrs(run.version->op, value_at(params, 5), run.request.attrs, err) ||
        !read_kept(&run, value_at(params, 2), value_at(params, 3), err) ||
        !run_read_grads(&run, value_at(params, 4), err) ||
        !run_read_results(&run, PLAN_GRAD_INPUT, value_at(params, 6), err) ||
        !run_default_device(&run, err))
        return REQUEST_ERROR;
    const struct plan *plan = plan_forward(&run, err);
    if (!plan || !check_kept(&run, plan, err))
        return REQUEST_ERROR;
    return run_backward(&run, err);
}
