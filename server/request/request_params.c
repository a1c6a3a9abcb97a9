#include "request/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "request/lane.h"
#include "request/parts.h"

struct tensor *request_find_tensor(const struct request *req, const value *id)
{
    bool is_id = value_type(id) == VALUE_INT && value_int(id) > 0;
    return is_id ? map_get(&req->conn->tensors, (uint64_t)value_int(id)) : NULL;
}

struct tensor *request_tensor(struct request *req, const value *id, const char *what,
                              struct opd_err *err)
{
    if (value_type(id) != VALUE_INT || value_int(id) <= 0) {
        opd_err_set(err, OPD_E_invalid_argument, "%s is %s, expected a tensor's id", what,
                    value_type_name(id));
        return NULL;
    }
    struct tensor *t = request_find_tensor(req, id);
    if (!t)
        opd_err_set(err, OPD_E_not_found,
                    "%s: this connection has no tensor %lld (never made, or freed)", what,
                    (long long)value_int(id));
    return t;
}

bool request_new_id(struct request *req, int64_t id, struct opd_err *err)
{
    if (id <= 0)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "id %lld, expected an integer from 1 to 2^63-1", (long long)id);
    if (req->conn->tensors.count >= REQUEST_MAX_TENSORS)
        return opd_err_set(err, OPD_E_out_of_memory, "this connection has %d tensors; free some",
                           REQUEST_MAX_TENSORS);
    if (map_get(&req->conn->tensors, (uint64_t)id))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "id %lld is in use; choose another or free it first", (long long)id);
    return true;
}

void request_make(struct request *req, uint64_t id, struct tensor *t)
{
    if (req->n_made == req->made_capacity) {
        const struct request_made *few = req->made;
        req->made_capacity *= 2;
        req->made = arena_alloc(&req->room, (size_t)req->made_capacity, sizeof *few);
        memcpy(req->made, few, (size_t)req->n_made * sizeof *few);
    }
    map_put(&req->conn->tensors, id, t);
    t->n_ids++;
    req->made[req->n_made++] = (struct request_made){ .id = id, .tensor = t };
}

void request_drop_id(struct conn *c, uint64_t id)
{
    struct tensor *t = map_remove(&c->tensors, id);
    if (!t)
        return;
    t->n_ids--;
    lane_leave_storage(c, t->storage);
    tensor_unref(t);
}

bool request_dtype(const value *name, enum opd_dtype *out, struct opd_err *err)
{
    char text[32];
    *out = value_copy_str(name, text, sizeof text) ? dtype_parse(text) : OPD_DTYPE_NONE;
    return *out != OPD_DTYPE_NONE ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "no such dtype; expected one of those that hello lists");
}

struct device *request_device(struct request *req, const value *name, struct opd_err *err)
{
    const struct devices *all = &req->broker->devices;
    char text[64] = "";
    if (value_is_nil(name))
        return all->at[0];
    bool is_name = value_is_text(name) && value_copy_str(name, text, sizeof text);
    struct device *d = is_name ? devices_find(all, text) : NULL;
    if (d)
        return d;
    char served[200] = "";
    for (int i = 0; i < all->n; i++)
        snprintf(served + strlen(served), sizeof served - strlen(served), i ? ", %s" : "%s",
                 all->at[i]->name);
    opd_err_set(err, OPD_E_not_found, "no such device is served: '%s'; expected one of %s",
                is_name ? text : value_type_name(name), served);
    return NULL;
}

static struct opd_operator *find_operator(struct request *req, const char *name,
                                          struct opd_err *err)
{
    struct broker *b = req->broker;
    char failed[800];
    struct suggest near;
    struct opd_operator *o = registry_see(&b->registry, name, req->conn->id);
    if (o) {
        memcpy(req->op, o->name, sizeof req->op);
        return o;
    }
    opd_err_set(err, OPD_E_not_found, "there is no operator '%s'%s%s", name,
                registry_suggest(&b->registry, name, req->conn->id, &near),
                reload_explain(&b->reload, name, failed, sizeof failed));
    return NULL;
}

struct opd_operator *request_operator(struct request *req, const value *name, struct opd_err *err)
{
    char text[OP_MAX_NAME] = "";
    value_copy_str(name, text, sizeof text);
    return find_operator(req, text, err);
}

struct version *request_derived(struct request *req, const value *name, const value *number,
                                struct opd_err *err)
{
    char text[OP_MAX_NAME] = "";
    value_copy_str(name, text, sizeof text);
    char *what = strchr(text, '.');
    if (what)
        *what++ = '\0';
    struct opd_operator *o = find_operator(req, text, err);
    struct version *v = o ? o->current : NULL;
    if (o && !value_is_nil(number))
        v = request_version(o, number, err);
    if (!v || !what)
        return v;
    v = version_derive(v, what, err);
    if (v)
        snprintf(req->op, sizeof req->op, "%s", v->op->name);
    return v;
}

struct version *request_version(const struct opd_operator *o, const value *number,
                                struct opd_err *err)
{
    int64_t n = value_type(number) == VALUE_INT ? value_int(number) : 0;
    struct version *v = n > 0 && n <= o->last_version ? operator_version(o, (int)n) : NULL;
    if (v && v->state != VERSION_FAILED)
        return v;
    opd_err_set(err, OPD_E_not_found,
                "%s: version %" PRId64 " is not kept, or failed; opctl ops %s lists them", o->name,
                n, o->name);
    return NULL;
}

bool request_strides(const value *array, struct tensor_desc *desc, struct opd_err *err)
{
    if (value_is_nil(array))
        return true;
    if (value_type(array) != VALUE_ARRAY || value_count(array) != (size_t)desc->rank)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "strides: %s of %zu, expected an array of %d, one for each dimension",
                           value_type_name(array), value_count(array), desc->rank);
    desc->strided = true;
    for (int i = 0; i < desc->rank; i++) {
        const value *v = value_at(array, (size_t)i);
        if (value_type(v) != VALUE_INT)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "strides: element %d is %s, expected an integer", i,
                               value_type_name(v));
        desc->strides[i] = value_int(v);
    }
    if (!tensor_desc_check(desc, err))
        return false;
    tensor_desc_simplify(desc);
    return true;
}

bool request_shape(const value *array, struct tensor_desc *desc, struct opd_err *err)
{
    size_t rank = value_count(array);
    if (rank > OP_MAX_RANK)
        return opd_err_set(err, OPD_E_invalid_argument, "shape of rank %zu; expected at most %d",
                           rank, OP_MAX_RANK);
    desc->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        const value *v = value_at(array, i);
        if (value_type(v) != VALUE_INT)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "shape: element %zu is %s, expected an integer", i,
                               value_type_name(v));
        desc->shape[i] = value_int(v);
    }
    return tensor_desc_check(desc, err);
}

bool request_flag(const value *options, const char *of, const char *name, bool *out,
                  struct opd_err *err)
{
    const value *v = value_get(options, name);
    if (value_is_nil(v))
        return true;
    if (value_type(v) != VALUE_BOOL)
        return opd_err_set(err, OPD_E_invalid_argument, "%s: %s is %s, expected a boolean", of,
                           name, value_type_name(v));
    *out = value_bool(v);
    return true;
}

bool request_name(const value *v, char name[REQUEST_MAX_NAME], struct opd_err *err)
{
    name[0] = '\0';
    return value_is_nil(v) || (value_copy_str(v, name, REQUEST_MAX_NAME) && name[0]) ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "name: expected 1 to %d bytes of UTF-8 without zeros", REQUEST_MAX_NAME - 1);
}

bool request_deadline(const value *options, double *out, struct opd_err *err)
{
    const value *v = value_get(options, "deadline");
    if (value_is_nil(v))
        return true;
    if ((value_type(v) != VALUE_INT && value_type(v) != VALUE_FLOAT) || !(value_float(v) > 0))
        return opd_err_set(err, OPD_E_invalid_argument, "deadline: expected seconds above 0");
    *out = value_float(v);
    return true;
}
