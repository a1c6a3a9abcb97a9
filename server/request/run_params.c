#include "request/run_params.h"

#include <string.h>

#include "request/parts.h"

// --- what is run, and how

bool run_read_version(struct run *run, const value *name, struct opd_err *err)
{
    struct version *v = request_derived(run->req, name, value_get(run->options, "version"), err);
    if (!v)
        return false;
    run->fixed = !value_is_nil(value_get(run->options, "version"));
    run_set_version(run, v);
    return run_read_options(run, err);
}

bool run_read_flag(const struct run *run, const char *name, bool *out, struct opd_err *err)
{
    const value *v = value_get(run->options, name);
    *out = !value_is_nil(v) && value_type(v) == VALUE_BOOL && value_bool(v);
    return value_is_nil(v) || value_type(v) == VALUE_BOOL ||
           opd_err_set(err, OPD_E_invalid_argument, "%s: %s is %s, expected true or false",
                       run->version->op->name, name, value_type_name(v));
}

bool run_read_options(struct run *run, struct opd_err *err)
{
    return run_read_flag(run, "debug", &run->alone, err) &&
           request_deadline(run->options, &run->deadline, err);
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
    if (value_type(pair) != VALUE_ARRAY || value_count(pair) < 2 || value_count(pair) > 3)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %s is described by %s, expected [dtype, shape] or nil; strides "
                           "may follow the shape",
                           op->name, name, value_type_name(pair));
    if (value_type(value_at(pair, 1)) != VALUE_ARRAY)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: the shape of %s is %s, expected an array of integers", op->name,
                           name, value_type_name(value_at(pair, 1)));
    return (request_dtype(value_at(pair, 0), &out->dtype, err) &&
            request_shape(value_at(pair, 1), out, err) &&
            request_strides(value_at(pair, 2), out, err)) ||
           opd_err_prefix(err, "%s: %s", op->name, name);
}

// Room for them; all absent at first.
static const struct plan_lists *make_lists(struct run *run)
{
    if (run->lists)
        return run->lists;
    struct plan_lists *lists = arena_alloc(&run->req->room, 1, sizeof *lists);
    memset(lists->n, -1, sizeof lists->n);
    run_take_lists(run, lists);
    return lists;
}

// A list is as long as what came for it. NULL: that is no array.
static const struct tensor_desc **start_list(struct run *run, int input, const value *array,
                                             const char *of, struct opd_err *err)
{
    const struct op *op = run->version->op;
    size_t n = value_count(array);
    if (value_type(array) != VALUE_ARRAY || n > PLAN_MAX_MEMBERS) {
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s: %s is %s of %zu, expected an array of at most %d %s", op->name,
                    op->inputs[input].name, value_type_name(array), n, PLAN_MAX_MEMBERS, of);
        return NULL;
    }
    struct plan_lists *lists = (struct plan_lists *)(uintptr_t)make_lists(run); // of this run
    const struct tensor_desc **list = arena_alloc(&run->req->room, n + 1, sizeof *list);
    lists->n[input] = (int)n;
    lists->of[input] = list;
    return list;
}

// All tensors of a list have the dtype of its first.
static bool add_to_list(struct run *run, int input, int member, const struct tensor_desc *d,
                        struct opd_err *err)
{
    const struct op *op = run->version->op;
    const char *name = op->inputs[input].name;
    enum opd_dtype *dtype = &run->request->inputs[input].dtype;
    ((const struct tensor_desc **)(uintptr_t)run->lists->of[input])[member] = d;
    if (member == 0)
        *dtype = d->dtype;
    return d->dtype == *dtype ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s: %s[%d] has dtype %s, %s[0] has %s; expected one dtype", op->name, name,
                       member, dtype_name(d->dtype), name, dtype_name(*dtype));
}

static bool read_desc_list(struct run *run, int input, const value *array, struct opd_err *err)
{
    if (!start_list(run, input, array, "[dtype, shape]", err))
        return false;
    for (size_t k = 0; k < value_count(array); k++) {
        struct tensor_desc *d = arena_alloc(&run->req->room, 1, sizeof *d);
        if (!read_desc(run->version->op, input, value_at(array, k), d, err) ||
            !add_to_list(run, input, (int)k, d, err))
            return false;
    }
    return true;
}

bool run_read_descs(struct run *run, const value *array, struct opd_err *err)
{
    const struct op *op = run->version->op;
    struct tensor_desc *descs = run->request->inputs;
    if (!value_is_nil(array) && value_type(array) != VALUE_ARRAY)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: inputs is %s, expected an array of [dtype, shape] or nil", op->name,
                           value_type_name(array));
    if (value_count(array) > (size_t)op->n_inputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s takes %d tensor%s, %zu came", op->name,
                           op->n_inputs, PLURAL_S(op->n_inputs), value_count(array));
    for (size_t i = 0; i < value_count(array); i++) {
        struct tensor_desc desc = { 0 };
        if (value_is_nil(value_at(array, i)))
            continue;
        if (op->inputs[i].list) {
            bool known = run->lists && run->lists->n[i] >= 0;
            if (!known && !read_desc_list(run, (int)i, value_at(array, i), err))
                return false;
            continue;
        }
        if (!read_desc(op, (int)i, value_at(array, i), &desc, err))
            return false;
        if (descs[i].dtype == OPD_DTYPE_NONE)
            descs[i] = desc;
    }
    return true;
}

static void pack_operand(struct buf *out, const struct plan_operand *o)
{
    pack_array(out, 2);
    pack_str(out, dtype_name(o->desc.dtype));
    pack_array(out, (size_t)o->desc.rank);
    for (int i = 0; i < o->desc.rank; i++)
        pack_int(out, o->desc.shape[i]);
}

static void pack_desc(struct buf *out, const struct plan *plan, enum plan_operand_kind kind,
                      int index)
{
    const struct plan_operand *o = plan->operands;
    while (o->kind != kind || o->index != index)
        o++;
    pack_operand(out, o);
}

// Those of a list, in order.
static void pack_desc_list(struct buf *out, const struct plan *plan, int output)
{
    size_t array = pack_array_begin(out), n = 0;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        if (o->kind != PLAN_OUTPUT || plan_index(o->index) != output)
            continue;
        pack_operand(out, o);
        n++;
    }
    pack_array_end(out, array, n);
}

void run_pack_results(struct buf *out, const struct plan *plan, int n_saved)
{
    pack_key_array(out, "outputs", (size_t)plan->op->n_outputs);
    for (int i = 0; i < plan->op->n_outputs; i++)
        if (plan->op->outputs[i].list)
            pack_desc_list(out, plan, i);
        else
            pack_desc(out, plan, PLAN_OUTPUT, i);
    pack_key_array(out, "saved", (size_t)n_saved);
    for (int i = 0; i < n_saved; i++)
        pack_desc(out, plan, PLAN_SAVED, plan->op->saved[i].temp);
}

void run_pack_views(struct buf *out, const struct op *op)
{
    pack_key_array(out, "views", (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++) {
        if (op->outputs[i].is_view)
            pack_int(out, op->outputs[i].view_of);
        else
            pack_nil(out);
    }
}

bool run_refuse_lists(const struct run *run, const char *what, struct opd_err *err)
{
    return !run->version->op->lists ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s takes lists of tensors, which go into no request for %s",
                       run->version->op->name, what);
}

// --- tensors that are given

struct run_ids run_ids(const value *array)
{
    return (struct run_ids){ .array = array, .n = (int)value_count(array) };
}

const value *run_id(struct run_ids ids, int i)
{
    return i < ids.n ? value_at(ids.array, (size_t)(ids.first + i)) : NULL;
}

// Why a tensor cannot be the place that it was given for.
static bool refuse_place(struct run *run, const struct place *p, const value *id,
                         struct opd_err *err)
{
    char label[RUN_LABEL_SIZE];
    run_label(run, p, label);
    const struct tensor *t = request_tensor(run->req, id, label, err);
    if (!t)
        return false;
    const struct device *d = t->storage->space->device;
    if (d != run->device) {
        opd_err_set(err, OPD_E_invalid_argument, "%s is on %s, %s on %s", label, d->name,
                    run->prepared ? "and was prepared" : "the tensors before it",
                    run->device->name);
        err->misfit = run->prepared;
        return false;
    }
    return request_may_read(t, label, err);
}

bool run_read_place(struct run *run, const struct place *place, const value *id,
                    struct opd_err *err)
{
    struct place p = *place;
    p.tensor = request_find_tensor(run->req, id);
    if (p.tensor && !run->device)
        run->device = p.tensor->storage->space->device;
    if (!p.tensor || run->device != p.tensor->storage->space->device ||
        (p.how == PLACE_GIVEN && tensor_suspect(p.tensor)))
        return refuse_place(run, &p, id, err);
    p.id = (uint64_t)value_int(id);
    run_add(run, &p);
    return true;
}

bool run_check_ids(struct run *run, const struct place *first, const value *ids,
                   struct opd_err *err)
{
    int n = plan_lists_length(run->lists);
    char name[RUN_NAME_SIZE];
    if (value_type(ids) != VALUE_ARRAY || value_count(ids) != (size_t)n)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: what %s %.*s is %s of %zu, expected an array of %d id%s, as many "
                           "as the lists have tensors",
                           run->version->op->name, first->how == PLACE_GIVEN ? "is" : "takes",
                           (int)strcspn(run_place_name(run, first, name), "["), name,
                           value_type_name(ids), value_count(ids), n, PLURAL_S(n));
    make_lists(run);
    *run_first(run, first->kind, first->index) = run->n_places;
    run_reserve(run, n);
    return true;
}

// Nil: there is none.
static bool read_given(struct run *run, enum plan_operand_kind kind, int index, const value *id,
                       struct opd_err *err)
{
    struct place place = { .kind = kind, .index = index, .how = PLACE_GIVEN };
    const struct op_tensor *t = run_tensor(run, kind, index);
    if (value_is_nil(id) || !t || !t->list)
        return value_is_nil(id) || run_read_place(run, &place, id, err);
    if (!run_check_ids(run, &place, id, err))
        return false;
    for (size_t k = 0; k < value_count(id); k++, place.index += PLAN_MEMBER)
        if (!run_read_place(run, &place, value_at(id, k), err))
            return false;
    return true;
}

static bool read_list(struct run *run, int input, const value *ids, struct opd_err *err)
{
    if (!start_list(run, input, ids, "tensors' ids", err))
        return false;
    *run_first(run, PLAN_INPUT, input) = run->n_places;
    run_reserve(run, (int)value_count(ids));
    for (int k = 0; k < (int)value_count(ids); k++) {
        const struct place place = { .kind = PLAN_INPUT,
                                     .index = input + PLAN_MEMBER * k,
                                     .how = PLACE_GIVEN };
        if (!run_read_place(run, &place, value_at(ids, (size_t)k), err) ||
            !add_to_list(run, input, k, &run->places[run->n_places - 1].tensor->desc, err))
            return false;
    }
    return true;
}

bool run_read_inputs(struct run *run, struct run_ids ids, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (ids.n > op->n_inputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s takes %d tensor%s, %d came", op->name,
                           op->n_inputs, PLURAL_S(op->n_inputs), ids.n);
    for (int i = 0; i < ids.n; i++) {
        const value *id = run_id(ids, i);
        if (value_is_nil(id))
            continue; // plan_build() knows whether it may be absent
        if (op->inputs[i].list ? !read_list(run, i, id, err)
                               : !read_given(run, PLAN_INPUT, i, id, err))
            return false;
        if (!op->inputs[i].list)
            run->request->inputs[i] = run->places[run->n_places - 1].tensor->desc;
    }
    return true;
}

static bool check_count(const struct op *op, struct run_ids ids, int most, const char *what,
                        struct opd_err *err)
{
    return ids.n <= most || opd_err_set(err, OPD_E_invalid_argument, "%s has %d %s, %d came",
                                        op->name, most, what, ids.n);
}

bool run_read_kept(struct run *run, struct run_ids outputs, struct run_ids saved,
                   struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (!check_count(op, outputs, op->n_outputs, "outputs", err) ||
        !check_count(op, saved, op->n_saved, "saved tensors", err))
        return false;
    for (int i = 0; i < outputs.n; i++)
        if (!read_given(run, PLAN_OUTPUT, i, run_id(outputs, i), err))
            return false;
    for (int i = 0; i < saved.n; i++)
        if (!read_given(run, PLAN_SAVED, op->saved[i].temp, run_id(saved, i), err))
            return false;
    return true;
}

bool run_read_grads(struct run *run, struct run_ids ids, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (ids.n > op->n_outputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has %d output%s, %d gradient%s came",
                           op->name, op->n_outputs, PLURAL_S(op->n_outputs), ids.n,
                           PLURAL_S(ids.n));
    for (int i = 0; i < ids.n; i++)
        if (!read_given(run, PLAN_GRAD_OUTPUT, i, run_id(ids, i), err))
            return false;
    return true;
}

bool run_check_grads(struct run *run, const struct tensor_desc *outputs, struct opd_err *err)
{
    for (int i = 0; i < run->version->op->n_outputs; i++) {
        const struct place *p = run_find(run, PLAN_GRAD_OUTPUT, i);
        if (p && !run->version->op->outputs[i].list &&
            !run_check_desc(run, p, &outputs[i], "the output", err))
            return false;
    }
    return true;
}

bool run_check_kept(struct run *run, const struct plan *plan, struct opd_err *err)
{
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        const struct place *p = o->kind == PLAN_INPUT ? NULL : run_find(run, o->kind, o->index);
        const char *role = o->kind == PLAN_SAVED ? "the saved tensor" : "the output";
        if (p && p->how == PLACE_GIVEN && !run_check_desc(run, p, &o->desc, role, err))
            return false;
        p = o->kind == PLAN_OUTPUT ? run_find(run, PLAN_GRAD_OUTPUT, o->index) : NULL;
        if (p && !run_check_desc(run, p, &o->desc, role, err))
            return false;
    }
    return true;
}
