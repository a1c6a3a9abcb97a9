// Operators: forward, backward, and what their parameters are packed from.

#include "c/opd.h"

#include "c/client.h"
#include "c/error.h"
#include "c/tensor.h"

struct opd_attr opd_int(const char *name, int64_t value)
{
    return (struct opd_attr){ .name = name, .kind = OPD_ATTR_INT, .value.integer = value };
}

struct opd_attr opd_float(const char *name, double value)
{
    return (struct opd_attr){ .name = name, .kind = OPD_ATTR_FLOAT, .value.real = value };
}

struct opd_attr opd_bool(const char *name, bool value)
{
    return (struct opd_attr){ .name = name, .kind = OPD_ATTR_BOOL, .value.boolean = value };
}

struct opd_attr opd_str(const char *name, const char *value)
{
    return (struct opd_attr){ .name = name, .kind = OPD_ATTR_STR, .value.str = value };
}

struct opd_attr opd_ints(const char *name, const int64_t *values, size_t count)
{
    return (struct opd_attr){ name, OPD_ATTR_INTS, count, { .ints = values } };
}

struct opd_attr opd_floats(const char *name, const double *values, size_t count)
{
    return (struct opd_attr){ name, OPD_ATTR_FLOATS, count, { .floats = values } };
}

static void pack_floats(struct pack *p, const struct opd_attr *attr)
{
    msgpack_pack_array(&p->mp, attr->count);
    for (size_t i = 0; i < attr->count; i++)
        msgpack_pack_double(&p->mp, attr->value.floats[i]);
}

static void pack_attr(struct pack *p, const struct opd_attr *attr)
{
    pack_str(p, attr->name);
    switch (attr->kind) {
    case OPD_ATTR_INT:
        pack_int(p, attr->value.integer);
        return;
    case OPD_ATTR_FLOAT:
        msgpack_pack_double(&p->mp, attr->value.real);
        return;
    case OPD_ATTR_BOOL:
        pack_bool(p, attr->value.boolean);
        return;
    case OPD_ATTR_STR:
        pack_str(p, attr->value.str);
        return;
    case OPD_ATTR_INTS:
        pack_ints(p, attr->value.ints, attr->count);
        return;
    case OPD_ATTR_FLOATS:
        pack_floats(p, attr);
        return;
    case OPD_ATTR_NIL:
        break;
    }
    pack_nil(p);
}

static void pack_attrs(struct pack *p, const struct opd_forward_params *params)
{
    pack_map(p, params->attr_count);
    for (size_t i = 0; i < params->attr_count; i++)
        pack_attr(p, &params->attrs[i]);
}

static void pack_options(struct pack *p, const struct opd_forward_params *params)
{
    bool context = params->context != 0, deadline = params->deadline > 0;
    bool device = params->device != NULL;
    pack_map(p, (size_t)context + deadline + device);
    if (context) {
        pack_str(p, "context");
        pack_int(p, params->context);
    }
    if (deadline) {
        pack_str(p, "deadline");
        msgpack_pack_double(&p->mp, params->deadline);
    }
    if (device) {
        pack_str(p, "device");
        pack_str(p, params->device);
    }
}

// Fills `tensors` from an array of as many descriptions; where one is nil, with a zeroed tensor.
static bool read_tensors(struct opd_client *c, struct opd_tensor *tensors, size_t count,
                         const msgpack_object *infos, struct opd_error *err)
{
    if (!infos || infos->type != MSGPACK_OBJECT_ARRAY || infos->via.array.size != count)
        return error_set(err, OPD_MALFORMED_MESSAGE, "the reply does not describe %zu tensor%s",
                         count, count == 1 ? "" : "s");
    for (size_t i = 0; i < count; i++) {
        const msgpack_object *info = &infos->via.array.ptr[i];
        struct opd_tensor t = { 0 };
        if (info->type != MSGPACK_OBJECT_NIL && !tensor_read_info(&t, info, err))
            return false;
        if (t.id)
            prepared_know(c, &t);
        if (tensors)
            tensors[i] = t;
    }
    return true;
}

static bool check_lengths(const struct id_lists *l, const char *what, struct opd_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < l->length_count && total <= l->count; i++)
        total += id_lists_length(l, i);
    return !l->lengths || total == l->count ||
           error_set(err, OPD_INVALID_ARGUMENT,
                     "%zu id%s of %s, and their lengths do not add up to that", l->count,
                     l->count == 1 ? "" : "s", what);
}

static void pack_lists(struct pack *p, const struct id_lists *l)
{
    msgpack_pack_array(&p->mp, id_lists_arguments(l));
    pack_arguments(p, l);
}

// The descriptions of a list's tensors stand in an array of their own.
static bool read_lists(struct opd_client *c, struct opd_tensor *tensors, const struct id_lists *l,
                       const msgpack_object *infos, struct opd_error *err)
{
    if (!l->lengths)
        return read_tensors(c, tensors, l->count, infos, err);
    if (!infos || infos->type != MSGPACK_OBJECT_ARRAY || infos->via.array.size != l->length_count)
        return error_set(err, OPD_MALFORMED_MESSAGE, "the reply does not describe %zu result%s",
                         l->length_count, l->length_count == 1 ? "" : "s");
    for (size_t i = 0; i < l->length_count; i++) {
        msgpack_object *info = &infos->via.array.ptr[i], single = { .type = MSGPACK_OBJECT_ARRAY };
        size_t n = id_lists_length(l, i);
        single.via.array.size = 1;
        single.via.array.ptr = info;
        if (!read_tensors(c, tensors, n, l->lengths[i] < 0 ? &single : info, err))
            return false;
        tensors = tensors ? tensors + n : NULL;
    }
    return true;
}

bool opd_forward(struct opd_client *c, const struct opd_forward_params *params,
                 struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    const struct id_lists inputs = { params->inputs, params->input_lengths, params->input_count,
                                     params->input_length_count };
    const struct id_lists outputs = { params->outputs, params->output_lengths, params->output_count,
                                      params->output_length_count };
    if (!check_lengths(&inputs, "inputs", err) || !check_lengths(&outputs, "outputs", err))
        return false;
    enum prepared_result prepared = prepared_forward(c, params, pack_attrs, err);
    if (prepared != PREPARED_NOT)
        return prepared == PREPARED_DONE;
    pack_init(&p, 5);
    pack_str(&p, params->op);
    pack_lists(&p, &inputs);
    pack_attrs(&p, params);
    pack_lists(&p, &outputs);
    pack_options(&p, params);
    bool good =
        client_call_with(c, "forward", &p, (struct iovec){ 0 }, params->deadline, &reply, err) &&
        read_lists(c, params->tensors, &outputs, opd_map_get(&reply.result, "outputs"), err);
    opd_reply_clear(&reply);
    return good;
}

bool opd_backward(struct opd_client *c, const struct opd_backward_params *params,
                  struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    struct opd_forward_params options = { .deadline = params->deadline };
    const struct id_lists grads = { params->grads, params->grad_lengths, params->grad_count,
                                    params->grad_length_count };
    const struct id_lists inputs = { params->inputs, params->input_lengths, params->input_count,
                                     params->input_length_count };
    if (!check_lengths(&grads, "gradients", err) || !check_lengths(&inputs, "inputs", err))
        return false;
    pack_init(&p, 4);
    pack_int(&p, params->context);
    pack_lists(&p, &grads);
    pack_lists(&p, &inputs);
    pack_options(&p, &options);
    bool good = client_call_with(c, "backward", &p, (struct iovec){ 0 }, params->deadline, &reply,
                                 err) &&
                read_lists(c, params->tensors, &inputs, &reply.result, err);
    opd_reply_clear(&reply);
    return good;
}

bool opd_context_free(struct opd_client *c, const int64_t *ids, size_t count, struct opd_error *err)
{
    return client_free(c, "context", ids, count, err);
}

bool opd_sync(struct opd_client *c, struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 0);
    return client_call(c, "sync", &p, NULL, err);
}
