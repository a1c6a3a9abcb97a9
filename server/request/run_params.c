#include "request/run_params.h"

#include <inttypes.h>
#include <stdio.h>

#include "request/parts.h"

// --- what is run, and how

bool run_read_version(struct run *run, const value *name, struct opd_err *err)
{
    struct opd_operator *o = request_operator(run->req, name, err);
    if (!o)
        return false;
    const value *version = value_get(run->options, "version");
    run->version = o->current;
    if (!value_is_nil(version))
        run->version = request_version(o, version, err);
    return run->version && run_read_options(run, err);
}

static bool read_deadline(struct run *run, struct opd_err *err)
{
    const value *v = value_get(run->options, "deadline");
    if (value_is_nil(v))
        return true;
    if ((value_type(v) != VALUE_INT && value_type(v) != VALUE_FLOAT) || !(value_float(v) > 0))
        return opd_err_set(err, OPD_E_invalid_argument, "deadline: expected seconds above 0");
    run->deadline = value_float(v);
    return true;
}

bool run_read_options(struct run *run, struct opd_err *err)
{
    const value *v = value_get(run->options, "debug");
    if (!value_is_nil(v) && value_type(v) != VALUE_BOOL)
        return opd_err_set(err, OPD_E_invalid_argument, "debug: %s came, expected true or false",
                           value_type_name(v));
    run->alone = !value_is_nil(v) && value_bool(v);
    return read_deadline(run, err);
}

bool run_default_device(struct run *run, struct opd_err *err)
{
    struct device *d = request_device(run->req, value_get(run->options, "device"), err);
    if (!run->device)
        run->device = d;
    return d != NULL;
}

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

bool run_read_descs(struct run *run, const value *array, struct opd_err *err)
{
    const struct op *op = run->version->op;
    struct tensor_desc *descs = run->request.inputs;
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

// --- tensors that are given

static bool same_device(struct run *run, const char *name, const struct tensor *t,
                        struct opd_err *err)
{
    if (!run->device)
        run->device = t->storage->space->device;
    if (run->device != t->storage->space->device)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %s is on %s, the tensors before it on %s", run->version->op->name,
                           name, t->storage->space->device->name, run->device->name);
    return true;
}

bool run_read_place(struct run *run, const struct place *place, const char *what, const value *id,
                    struct opd_err *err)
{
    char label[2 * OP_MAX_NAME + 32];
    snprintf(label, sizeof label, "%s: %s", run->version->op->name, what);
    struct place p = *place;
    p.tensor = request_tensor(run->req, id, label, err);
    if (!p.tensor || !same_device(run, what, p.tensor, err) ||
        (p.how == PLACE_GIVEN && !request_may_read(p.tensor, label, err)))
        return false;
    p.id = (uint64_t)value_int(id);
    run_add(run, &p);
    return true;
}

bool run_read_inputs(struct run *run, const value *ids, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (value_count(ids) > (size_t)op->n_inputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s takes %d tensors, %zu came", op->name,
                           op->n_inputs, value_count(ids));
    for (int i = 0; i < op->n_inputs; i++) {
        const value *id = value_at(ids, (size_t)i);
        const struct place place = { .kind = PLAN_INPUT, .index = i, .how = PLACE_GIVEN };
        if (value_is_nil(id))
            continue; // plan_build() knows whether it may be absent
        if (!run_read_place(run, &place, op->inputs[i].name, id, err))
            return false;
        run->request.inputs[i] = run_find(run, PLAN_INPUT, i)->tensor->desc;
    }
    return true;
}

bool run_read_grads(struct run *run, const value *ids, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (value_count(ids) > (size_t)op->n_outputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has %d outputs, %zu gradients came",
                           op->name, op->n_outputs, value_count(ids));
    run->request.grad_absent = 0;
    for (int i = 0; i < op->n_outputs; i++) {
        const value *id = value_at(ids, (size_t)i);
        const struct place place = { .kind = PLAN_GRAD_OUTPUT, .index = i, .how = PLACE_GIVEN };
        char what[OP_MAX_NAME + 8];
        snprintf(what, sizeof what, "grad_%s", op->outputs[i].name);
        if (value_is_nil(id))
            run->request.grad_absent |= 1u << i;
        else if (!run_read_place(run, &place, what, id, err))
            return false;
    }
    return true;
}

bool run_check_grads(struct run *run, const struct tensor_desc *outputs, struct opd_err *err)
{
    const struct op *op = run->version->op;
    for (int i = 0; i < op->n_outputs; i++) {
        const struct place *p = run_find(run, PLAN_GRAD_OUTPUT, i);
        char what[2 * OP_MAX_NAME + 8];
        snprintf(what, sizeof what, "%s: grad_%s", op->name, op->outputs[i].name);
        if (p && !run_check_desc(what, &p->tensor->desc, &outputs[i], "the output", err))
            return false;
    }
    return true;
}

// --- where results go

static bool read_new_id(struct run *run, enum plan_operand_kind kind, int index, const value *v,
                        struct opd_err *err)
{
    if (value_type(v) != VALUE_INT)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "id %d for a result is %s, expected an integer", index,
                           value_type_name(v));
    if (!request_new_id(run->req, value_int(v), err))
        return false;
    uint64_t id = (uint64_t)value_int(v);
    for (int i = 0; i < run->n_places; i++)
        if (run->places[i].how == PLACE_MADE && run->places[i].id == id)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "id %" PRId64 " is given to two results", value_int(v));
    run_add(run, &(struct place){ .kind = kind, .index = index, .how = PLACE_MADE, .id = id });
    return true;
}

static bool read_into(struct run *run, enum plan_operand_kind kind, int index, const value *id,
                      const value *new_id, struct opd_err *err)
{
    const struct place place = { .kind = kind, .index = index, .how = PLACE_INTO };
    char what[32];
    snprintf(what, sizeof what, "element %d of into", index);
    if (!value_is_nil(new_id))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %s is given, so the new id of that result must be nil",
                           run->version->op->name, what);
    return run_read_place(run, &place, what, id, err);
}

bool run_read_results(struct run *run, enum plan_operand_kind kind, const value *ids,
                      struct opd_err *err)
{
    const struct op *op = run->version->op;
    const value *into = value_get(run->options, "into");
    int n = kind == PLAN_OUTPUT ? op->n_outputs : op->n_inputs;
    if (value_count(ids) != (size_t)n)
        return opd_err_set(err, OPD_E_invalid_argument, "%s: %zu ids for results came, expected %d",
                           op->name, value_count(ids), n);
    if (!value_is_nil(into) && (value_type(into) != VALUE_ARRAY || value_count(into) > (size_t)n))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: into is %s of %zu, expected an array of %d, ids of tensors or nil",
                           op->name, value_type_name(into), value_count(into), n);
    for (int i = 0; i < n; i++) {
        const value *id = value_at(ids, (size_t)i), *there = value_at(into, (size_t)i);
        bool wanted = kind == PLAN_OUTPUT || !value_is_nil(id);
        if (value_is_nil(there) ? wanted && !read_new_id(run, kind, i, id, err)
                                : !read_into(run, kind, i, there, id, err))
            return false;
    }
    return true;
}

// The one of `saved` and `saved_into` that is there; NULL: neither.
static const value *find_saved(struct run *run, bool *out_into, struct opd_err *err)
{
    const char *op = run->version->op->name;
    const value *ids = value_get(run->options, "saved"),
                *into = value_get(run->options, "saved_into"),
                *context = value_get(run->options, "context");
    *out_into = !value_is_nil(into);
    if (*out_into && (!value_is_nil(context) || !value_is_nil(ids)))
        opd_err_set(err, OPD_E_invalid_argument, "%s: saved_into goes without context and saved",
                    op);
    else if (!value_is_nil(ids) && !value_is_nil(context))
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s: context and saved together; a context keeps the saved tensors", op);
    return *out_into ? into : value_is_nil(ids) ? NULL : ids;
}

bool run_read_saved(struct run *run, struct opd_err *err)
{
    const struct op *op = run->version->op;
    int n = op->has_backward ? op->n_saved : 0;
    bool into;
    const value *ids = find_saved(run, &into, err);
    if (err->code || !ids)
        return !err->code;
    if (value_type(ids) != VALUE_ARRAY || value_count(ids) != (size_t)n)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %s is %s of %zu, expected %d ids, one for each saved tensor",
                           op->name, into ? "saved_into" : "saved", value_type_name(ids),
                           value_count(ids), n);
    run->request.keep |= op->has_backward;
    for (int i = 0; i < n; i++) {
        const value *id = value_at(ids, (size_t)i);
        const struct place place = { .kind = PLAN_SAVED,
                                     .index = op->saved[i].temp,
                                     .how = PLACE_INTO };
        char what[OP_MAX_NAME + 16];
        snprintf(what, sizeof what, "saved_into, %s", op->saved[i].name);
        if (into ? !run_read_place(run, &place, what, id, err)
                 : !read_new_id(run, place.kind, place.index, id, err))
            return false;
    }
    return true;
}
