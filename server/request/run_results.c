#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "request/run_params.h"

#include "kernels/version.h"

static bool fail_twice(uint64_t id, struct opd_err *err)
{
    return opd_err_set(err, OPD_E_invalid_argument, "id %" PRIu64 " is given to two results", id);
}

static int compare_ids(const void *a, const void *b)
{
    const uint64_t p = *(const uint64_t *)a, q = *(const uint64_t *)b;
    return (p > q) - (p < q);
}

// Of lists, where they are many: all at once.
bool run_check_new_ids(struct run *run, struct opd_err *err)
{
    uint64_t *ids = arena_alloc(&run->req->room, (size_t)run->n_places + 1, sizeof *ids);
    size_t n = 0;
    for (int i = 0; i < run->n_places; i++)
        if (run->places[i].how == PLACE_MADE)
            ids[n++] = run->places[i].id;
    qsort(ids, n, sizeof *ids, compare_ids);
    for (size_t i = 1; i < n; i++)
        if (ids[i] == ids[i - 1])
            return fail_twice(ids[i], err);
    return true;
}

static bool read_new_id(struct run *run, const struct place *place, const value *v,
                        struct opd_err *err)
{
    char member[16] = "";
    const struct op_tensor *t = run_tensor(run, place->kind, place->index);
    if (t && t->list)
        snprintf(member, sizeof member, "[%d]", plan_member(place->index));
    if (value_type(v) != VALUE_INT)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "id %d%s for a result is %s, expected an integer",
                           plan_index(place->index), member, value_type_name(v));
    if (!request_new_id(run->req, value_int(v), err))
        return false;
    struct place p = *place;
    p.how = PLACE_MADE;
    p.id = (uint64_t)value_int(v);
    for (int i = 0; !run->lists && i < run->n_places; i++)
        if (run->places[i].how == PLACE_MADE && run->places[i].id == p.id)
            return fail_twice(p.id, err);
    run_add(run, &p);
    return true;
}

bool run_read_result(struct run *run, const struct place *place, const value *id,
                     struct opd_err *err)
{
    return place->how == PLACE_INTO ? run_read_place(run, place, id, err)
                                    : read_new_id(run, place, id, err);
}

// For the tensors of a list, as many as the lists that came have.
static bool read_result_list(struct run *run, const struct place *first, const value *ids,
                             struct opd_err *err)
{
    struct place place = *first;
    if (!run_check_ids(run, first, ids, err))
        return false;
    for (size_t k = 0; k < value_count(ids); k++, place.index += PLAN_MEMBER)
        if (!run_read_result(run, &place, value_at(ids, k), err))
            return false;
    return true;
}

bool run_read_results(struct run *run, enum plan_operand_kind kind, const value *ids,
                      struct opd_err *err)
{
    const struct op *op = run->version->op;
    const value *into = value_get(run->options, "into");
    int n = kind == PLAN_OUTPUT ? op->n_outputs : op->n_inputs;
    if (value_count(ids) != (size_t)n)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %zu id%s for results came, expected %d", op->name, value_count(ids),
                           PLURAL_S(value_count(ids)), n);
    if (!value_is_nil(into) && (value_type(into) != VALUE_ARRAY || value_count(into) > (size_t)n))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: into is %s of %zu, expected an array of %d, ids of tensors or nil",
                           op->name, value_type_name(into), value_count(into), n);
    for (int i = 0; i < n; i++) {
        const value *id = value_at(ids, (size_t)i), *there = value_at(into, (size_t)i);
        struct place place = { .kind = kind, .index = i, .how = PLACE_MADE };
        if (value_is_nil(there) && value_is_nil(id) && kind != PLAN_OUTPUT)
            continue; // not wanted
        if (!value_is_nil(there)) {
            place.how = PLACE_INTO;
            if (!value_is_nil(id))
                return opd_err_set(err, OPD_E_invalid_argument,
                                   "%s: element %d of into is given, so the new id of that result "
                                   "must be nil",
                                   op->name, i);
        }
        const value *to = place.how == PLACE_INTO ? there : id;
        if (run_tensor(run, kind, i)->list ? !read_result_list(run, &place, to, err)
                                           : !run_read_result(run, &place, to, err))
            return false;
    }
    return !run->lists || run_check_new_ids(run, err);
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
                           "%s: %s is %s of %zu, expected %d id%s, one for each saved tensor",
                           op->name, into ? "saved_into" : "saved", value_type_name(ids),
                           value_count(ids), n, PLURAL_S(n));
    run->request->keep |= op->has_backward;
    for (int i = 0; i < n; i++) {
        const struct place place = { .kind = PLAN_SAVED,
                                     .index = op->saved[i].temp,
                                     .how = into ? PLACE_INTO : PLACE_MADE };
        if (!run_read_result(run, &place, value_at(ids, (size_t)i), err))
            return false;
    }
    return true;
}
