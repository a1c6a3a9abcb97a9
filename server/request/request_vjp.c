// Requests that know an operator's plan without a context: what a forward would give, and backward
// of tensors that the client has kept.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "broker.h"
#include "request/run_params.h"

// What a forward of this request makes, every saved tensor included. NULL with an error.
static const struct plan *plan_forward(struct run *run, struct plan_request *pr,
                                       struct opd_err *err)
{
    pr->op = run->version->op;
    pr->direction = PLAN_FORWARD;
    device_fill_plan_request(run->device, pr);
    pr->keep = pr->op->has_backward;
    const struct bound_plan *bound = version_plan(run->version, run->device, pr, err);
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
    const value *options = value_at(params, 3);
    struct run run = { .version = run_find_version(req, value_at(params, 0), options, err) };
    struct plan_request pr = { 0 };
    if (!run.version || !run_read_descs(run.version->op, value_at(params, 1), pr.inputs, err) ||
        !request_attrs(run.version->op, value_at(params, 2), pr.attrs, err) ||
        !run_default_device(req, &run, options, err))
        return REQUEST_ERROR;
    const struct plan *plan = plan_forward(&run, &pr, err);
    if (!plan)
        return REQUEST_ERROR;
    pack_plan(&req->reply, run.version, plan);
    return REQUEST_ANSWERED;
}

// --- vjp

static struct version *find_kept(struct request *req, const value *name, const value *options,
                                 struct opd_err *err)
{
    struct version *v = run_find_version(req, name, options, err);
    if (v || !req->op[0])
        return v; // or there is no such operator
    opd_err_clear(err);
    opd_err_set(err, OPD_E_not_found,
                "%s: the version that ran forward is no longer kept; run forward again", req->op);
    return NULL;
}

// One tensor that backward may read, or NULL where nil came.
static bool read_tensor(struct request *req, struct run *run, const value *id, const char *name,
                        const struct tensor_desc *want, const char *role, struct tensor **out,
                        struct opd_err *err)
{
    char what[2 * OP_MAX_NAME + 4];
    *out = NULL;
    if (value_is_nil(id))
        return true;
    snprintf(what, sizeof what, "%s: %s", req->op, name);
    struct tensor *t = request_tensor(req, id, what, err);
    if (!t || !run_same_device(run, req->op, name, t, err) ||
        (want && !run_check_desc(what, &t->desc, want, role, err)) ||
        !request_may_read(t, what, err))
        return false;
    *out = t;
    return true;
}

static bool check_count(const struct op *op, const value *ids, int most, const char *what,
                        struct opd_err *err)
{
    return value_count(ids) <= (size_t)most ||
           opd_err_set(err, OPD_E_invalid_argument, "%s has %d %s, %zu came", op->name, most, what,
                       value_count(ids));
}

static bool read_kept(struct request *req, struct run *run, const struct plan *plan,
                      const value *outputs, const value *saved, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (!check_count(op, outputs, op->n_outputs, "outputs", err) ||
        !check_count(op, saved, op->n_saved, "saved tensors", err))
        return false;
    for (int i = 0; i < op->n_outputs; i++)
        if (!read_tensor(req, run, value_at(outputs, (size_t)i), op->outputs[i].name,
                         find_desc(plan, PLAN_OUTPUT, i), "the output", &run->outputs[i], err))
            return false;
    for (int i = 0; i < op->n_saved; i++) {
        struct tensor *t;
        int temp = op->saved[i].temp;
        if (!read_tensor(req, run, value_at(saved, (size_t)i), op->saved[i].name,
                         find_desc(plan, PLAN_SAVED, temp), "the saved tensor", &t, err))
            return false;
        run->saved[temp] = t ? t->storage : NULL;
        run->saved_offset[temp] = t ? t->offset : 0;
    }
    return true;
}

enum request_status request_vjp(struct request *req, const value *params, struct opd_err *err)
{
    const value *options = value_at(params, 7), *ids = value_at(params, 6);
    struct run run = { .version = find_kept(req, value_at(params, 0), options, err) };
    struct plan_request pr = { 0 };
    struct run_new_ids taken = { 0 };
    struct run_results results;
    struct tensor_desc outputs[OP_MAX_OUTPUTS];
    if (!run.version || !run_read_inputs(req, &run, value_at(params, 1), &pr, err) ||
        !run_read_descs(run.version->op, value_get(options, "inputs"), pr.inputs, err) ||
        !request_attrs(run.version->op, value_at(params, 5), pr.attrs, err) ||
        !run_read_deadline(options, &run.deadline, err) ||
        !run_read_debug(options, &run.alone, err) ||
        !run_read_results(req, &run, ids, options, run.version->op->n_inputs, true, &taken,
                          &results, err))
        return REQUEST_ERROR;
    const struct op *op = run.version->op;
    // The device is that of the first tensor.
    for (size_t list = 2; list <= 4 && !run.device; list++)
        for (size_t i = 0; i < value_count(value_at(params, list)) && !run.device; i++) {
            const value *id = value_at(value_at(params, list), i);
            if (!value_is_nil(id)) {
                const struct tensor *t = request_tensor(req, id, op->name, err);
                if (!t)
                    return REQUEST_ERROR;
                run.device = t->storage->space->device;
            }
        }
    if (!run_default_device(req, &run, options, err))
        return REQUEST_ERROR;
    const struct plan *plan = plan_forward(&run, &pr, err);
    if (!plan || !read_kept(req, &run, plan, value_at(params, 2), value_at(params, 3), err))
        return REQUEST_ERROR;
    for (int i = 0; i < op->n_outputs; i++)
        outputs[i] = *find_desc(plan, PLAN_OUTPUT, i);
    if (!run_read_grads(req, &run, outputs, value_at(params, 4), &pr, err))
        return REQUEST_ERROR;
    return run_backward(req, &run, &pr, &results, err);
}
