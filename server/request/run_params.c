#include "request/run_params.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "broker.h"

// --- shapes

static bool read_desc(const struct op *op, int input, const value *pair, struct tensor_desc *out,
                      struct opd_err *err)
{
    const char *name = op->inputs[input].name;
    if (value_type(pair) != VALUE_ARRAY || value_count(pair) != 2)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %s is described by %s, expected [dtype, shape] or nil", op->name,
                           name, value_type_name(pair));
    if (value_type(value_at(pair, 1)) != VALUE_ARRAY)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: the shape of %s is %s, expected an array of integers", op->name,
                           name, value_type_name(value_at(pair, 1)));
    return (request_dtype(value_at(pair, 0), &out->dtype, err) &&
            request_shape(value_at(pair, 1), out, err)) ||
           opd_err_prefix(err, "%s: %s", op->name, name);
}

bool run_read_descs(const struct op *op, const value *array, struct tensor_desc *descs,
                    struct opd_err *err)
{
    if (!value_is_nil(array) && value_type(array) != VALUE_ARRAY)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: inputs is %s, expected an array of [dtype, shape] or nil", op->name,
                           value_type_name(array));
    if (value_count(array) > (size_t)op->n_inputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s takes %d tensors, %zu came", op->name,
                           op->n_inputs, value_count(array));
    for (size_t i = 0; i < value_count(array); i++) {
        struct tensor_desc desc = { 0 };
        if (value_is_nil(value_at(array, i)))
            continue;
        if (!read_desc(op, (int)i, value_at(array, i), &desc, err))
            return false;
        if (descs[i].dtype == OPD_DTYPE_NONE)
            descs[i] = desc;
    }
    return true;
}

void run_pack_desc(struct buf *out, const struct tensor_desc *d)
{
    pack_array(out, 2);
    pack_str(out, dtype_name(d->dtype));
    pack_array(out, (size_t)d->rank);
    for (int i = 0; i < d->rank; i++)
        pack_int(out, d->shape[i]);
}

bool run_check_desc(const char *what, const struct tensor_desc *got, const struct tensor_desc *want,
                    const char *role, struct opd_err *err)
{
    char came[320], expected[320];
    tensor_desc_format(got, came, sizeof came);
    tensor_desc_format(want, expected, sizeof expected);
    if (strcmp(came, expected) == 0)
        return true;
    return opd_err_set(err, OPD_E_invalid_argument, "%s is %s, expected %s as %s", what, came,
                       expected, role);
}

bool run_check_in_place(const struct run *run, struct opd_err *err)
{
    const struct op *op = run->version->op;
    for (int i = 0; i < op->n_inputs; i++)
        for (int k = 0; k < i; k++)
            if (op->inputs[i].in_place && op->inputs[k].in_place && run->inputs[i] &&
                run->inputs[k] && tensor_overlaps(run->inputs[i], run->inputs[k]))
                return opd_err_set(err, OPD_E_invalid_argument,
                                   "%s: %s and %s are changed in place and share memory; expected "
                                   "a tensor for each",
                                   op->name, op->inputs[k].name, op->inputs[i].name);
    return true;
}

// --- results

bool run_take_id(struct request *req, const value *v, struct run_new_ids *ids, struct opd_err *err)
{
    if (value_type(v) != VALUE_INT)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "id %d for a result is %s, expected an integer", ids->n,
                           value_type_name(v));
    if (!request_new_id(req, value_int(v), err))
        return false;
    for (int i = 0; i < ids->n; i++)
        if (ids->ids[i] == (uint64_t)value_int(v))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "id %" PRId64 " is given to two results", value_int(v));
    ids->ids[ids->n++] = (uint64_t)value_int(v);
    return true;
}

static bool take_into(struct request *req, struct run *run, int i, const value *id,
                      const value *new_id, struct opd_err *err)
{
    char what[OP_MAX_NAME + 32];
    snprintf(what, sizeof what, "%s: element %d of into", req->op, i);
    struct tensor *t = request_tensor(req, id, what, err);
    if (!t)
        return false;
    if (!value_is_nil(new_id))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s is given, so the new id of that result must be nil", what);
    if (!run_same_device(run, req->op, what + strlen(req->op) + 2, t, err))
        return false;
    run->into[i] = t;
    return true;
}

bool run_read_results(struct request *req, struct run *run, const value *ids, const value *options,
                      int n, bool optional, struct run_new_ids *taken, struct run_results *out,
                      struct opd_err *err)
{
    const value *into = value_get(options, "into");
    if (value_count(ids) != (size_t)n)
        return opd_err_set(err, OPD_E_invalid_argument, "%s%s%zu ids for results came, expected %d",
                           req->op, req->op[0] ? ": " : "", value_count(ids), n);
    if (!value_is_nil(into) && (value_type(into) != VALUE_ARRAY || value_count(into) > (size_t)n))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: into is %s of %zu, expected an array of %d, ids of tensors or nil",
                           req->op, value_type_name(into), value_count(into), n);
    for (int i = 0; i < n; i++) {
        const value *id = value_at(ids, (size_t)i), *there = value_at(into, (size_t)i);
        out->ids[i] = 0;
        if (!value_is_nil(there)) {
            if (!take_into(req, run, i, there, id, err))
                return false;
            out->ids[i] = (uint64_t)value_int(there);
        } else if (!value_is_nil(id) || !optional) {
            if (!run_take_id(req, id, taken, err))
                return false;
            out->ids[i] = (uint64_t)value_int(id);
        }
    }
    return true;
}

static bool fail_overlap(const struct run *run, const char *result, const char *other,
                         struct opd_err *err)
{
    return opd_err_set(err, OPD_E_invalid_argument,
                       "%s: the tensor that %s is to be written into lies in the memory of %s; "
                       "expected memory that nothing else of this request uses",
                       run->version->op->name, result, other);
}

static bool check_apart(const struct run *run, int index, const char *name, struct opd_err *err)
{
    const struct op *op = run->version->op;
    const struct tensor *t = run->into[index];
    bool backward = run->bound->plan->direction == PLAN_BACKWARD;
    for (int i = 0; i < op->n_inputs; i++)
        if (run->inputs[i] && tensor_overlaps(t, run->inputs[i]))
            return fail_overlap(run, name, op->inputs[i].name, err);
    for (int i = 0; backward && i < op->n_outputs; i++)
        if ((run->outputs[i] && tensor_overlaps(t, run->outputs[i])) ||
            (run->grad_outputs[i] && tensor_overlaps(t, run->grad_outputs[i])))
            return fail_overlap(run, name, op->outputs[i].name, err);
    for (int i = 0; backward && i < run->bound->plan->n_operands; i++) {
        const struct plan_operand *o = &run->bound->plan->operands[i];
        if (o->kind != PLAN_SAVED || !run->saved[o->index])
            continue;
        struct tensor saved = { .storage = run->saved[o->index],
                                .offset = run->saved_offset[o->index],
                                .desc = o->desc };
        if (tensor_overlaps(t, &saved))
            return fail_overlap(run, name, o->name, err);
    }
    for (int i = 0; i < index; i++)
        if (run->into[i] && tensor_overlaps(t, run->into[i]))
            return fail_overlap(run, name, "another result", err);
    return true;
}

bool run_check_into(const struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    bool forward = plan->direction == PLAN_FORWARD;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        if (o->kind != (forward ? PLAN_OUTPUT : PLAN_GRAD_INPUT) || !run->into[o->index])
            continue;
        if (o->view_of >= 0)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: %s is a view, which cannot be written into another tensor",
                               run->version->op->name, o->name);
        char what[2 * OP_MAX_NAME + 32];
        snprintf(what, sizeof what, "%s: the tensor for %s", run->version->op->name, o->name);
        if (!run_check_desc(what, &run->into[o->index]->desc, &o->desc, "the result", err) ||
            !check_apart(run, o->index, o->name, err))
            return false;
    }
    return true;
}

// --- backward

bool run_read_grads(struct request *req, struct run *run, const struct tensor_desc *outputs,
                    const value *ids, struct plan_request *pr, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (value_count(ids) > (size_t)op->n_outputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has %d outputs, %zu gradients came",
                           op->name, op->n_outputs, value_count(ids));
    pr->grad_absent = 0;
    for (int i = 0; i < op->n_outputs; i++) {
        const value *id = value_at(ids, (size_t)i);
        if (value_is_nil(id)) {
            pr->grad_absent |= 1u << i;
            continue;
        }
        char what[2 * OP_MAX_NAME + 8];
        snprintf(what, sizeof what, "%s: grad_%s", op->name, op->outputs[i].name);
        struct tensor *t = request_tensor(req, id, what, err);
        if (!t || !run_same_device(run, op->name, what + strlen(op->name) + 2, t, err) ||
            !run_check_desc(what, &t->desc, &outputs[i], "the output", err) ||
            !request_may_read(t, what, err))
            return false;
        run->grad_outputs[i] = t;
    }
    return true;
}

static uint32_t find_wanted(const struct op *op, const struct plan_request *pr,
                            const struct run_results *results)
{
    uint32_t wanted = 0;
    for (int i = 0; i < op->n_inputs; i++)
        if (results->ids[i] && op->inputs[i].differentiable &&
            pr->inputs[i].dtype != OPD_DTYPE_NONE)
            wanted |= 1u << i;
    return wanted;
}

// What the plan reads must have come.
static bool check_present(const struct run *run, struct opd_err *err)
{
    for (int i = 0; i < run->bound->plan->n_operands; i++) {
        const struct plan_operand *o = &run->bound->plan->operands[i];
        bool there = o->kind == PLAN_INPUT    ? run->inputs[o->index] != NULL
                     : o->kind == PLAN_OUTPUT ? run->outputs[o->index] != NULL
                     : o->kind == PLAN_SAVED  ? run->saved[o->index] != NULL
                                              : true;
        if (!there)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: backward reads %s, expected its tensor, nil came",
                               run->version->op->name, o->name);
    }
    return true;
}

static void make_grads(struct request *req, const struct run *run,
                       const struct run_results *results)
{
    const struct plan *plan = run->bound->plan;
    struct tensor *grads[OP_MAX_INPUTS] = { NULL };
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        if (o->kind != PLAN_GRAD_INPUT)
            continue;
        grads[o->index] = run_make_result(req, run, i, results->ids[o->index]);
    }
    int n = run->version->op->n_inputs;
    pack_array(&req->reply, (size_t)n);
    for (int i = 0; i < n; i++) {
        if (grads[i])
            tensor_pack(&req->reply, results->ids[i], grads[i]);
        else
            pack_nil(&req->reply);
    }
}

enum request_status run_backward(struct request *req, struct run *run, struct plan_request *pr,
                                 const struct run_results *results, struct opd_err *err)
{
    pr->direction = PLAN_BACKWARD;
    pr->wanted = find_wanted(run->version->op, pr, results);
    enum request_status status = run_bind(req, run, pr, err);
    if (status != REQUEST_ANSWERED)
        return status;
    if (!check_present(run, err) || !run_check_into(run, err))
        return REQUEST_ERROR;
    status = run_allocate(req, run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    struct command *c = run_command(req->broker, run, err);
    if (!c)
        return REQUEST_ERROR;
    make_grads(req, run, results);
    run_bump_versions(run);
    return run_submit(req, run, c);
}
