#include "request/run_saved.h"

#include <stdio.h>

#include "broker.h"
#include "request/run_params.h"

bool run_read_saved_into(struct request *req, struct run *run, const value *options,
                         bool *out_given, struct opd_err *err)
{
    const value *ids = value_get(options, "saved_into");
    const struct op *op = run->version->op;
    size_t n = op->has_backward ? (size_t)op->n_saved : 0;
    *out_given = false;
    if (value_is_nil(ids))
        return true;
    if (!value_is_nil(value_get(options, "context")) || !value_is_nil(value_get(options, "saved")))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: saved_into goes without context and saved", op->name);
    if (value_type(ids) != VALUE_ARRAY || value_count(ids) != n)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: saved_into is %s of %zu, expected %zu ids, one for each saved "
                           "tensor",
                           op->name, value_type_name(ids), value_count(ids), n);
    for (size_t k = 0; k < n; k++) {
        char what[2 * OP_MAX_NAME + 32];
        snprintf(what, sizeof what, "%s: saved_into, %s", op->name, op->saved[k].name);
        struct tensor *t = request_tensor(req, value_at(ids, k), what, err);
        if (!t || !run_same_device(run, op->name, op->saved[k].name, t, err))
            return false;
        run->saved_into[op->saved[k].temp] = t;
        run->saved[op->saved[k].temp] = t->storage;
        run->saved_offset[op->saved[k].temp] = t->offset;
    }
    *out_given = op->has_backward;
    return true;
}

// The name of what else of the run lies in t, the place of saved tensor `index`; NULL: nothing.
static const char *find_overlap(const struct run *run, const struct tensor *t, int index)
{
    const struct op *op = run->version->op;
    for (int i = 0; i < op->n_inputs; i++)
        if (run->inputs[i] && tensor_overlaps(t, run->inputs[i]))
            return op->inputs[i].name;
    for (int i = 0; i < op->n_outputs; i++)
        if (run->into[i] && tensor_overlaps(t, run->into[i]))
            return op->outputs[i].name;
    for (int i = 0; i < index; i++)
        if (run->saved_into[i] && tensor_overlaps(t, run->saved_into[i]))
            return "another saved tensor";
    return NULL;
}

bool run_check_saved_into(const struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    const char *op = run->version->op->name;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        const struct tensor *t = o->kind == PLAN_SAVED ? run->saved_into[o->index] : NULL;
        if (!t)
            continue;
        char what[2 * OP_MAX_NAME + 32];
        snprintf(what, sizeof what, "%s: the tensor for %s", op, o->name);
        if (!run_check_desc(what, &t->desc, &o->desc, "the saved tensor", err))
            return false;
        const char *other = find_overlap(run, t, o->index);
        if (other)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s lies in the memory of %s; expected memory that nothing else of "
                               "this request uses",
                               what, other);
    }
    return true;
}
