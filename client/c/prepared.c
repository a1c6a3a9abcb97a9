#include "c/prepared.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/hash.h"
#include "c/client.h"
#include "c/error.h"
#include "c/map.h"

enum { MAX_CALLS = 1 << 8, MAX_KEY = 1 << 15, MAX_OUTPUTS = 1 << 12 };

enum call_state {
    CALL_NEW,
    CALL_SEEN, // once: it may be the only time
    CALL_PREPARED,
    CALL_PLAIN, // it cannot be prepared: forward says why
};

struct prepared_call {
    char *key; // the parameters of `prepare` behind the id; NULL: none
    size_t key_size;
    enum call_state state;
    int64_t id;
    size_t n_outputs; // those of lists one by one
    const struct known_desc **outputs;
    bool views;      // some share an input's memory
    uint64_t inputs; // hash of the last call's
    unsigned n_same; // calls before it that had these, at most LANE_STEADY
};

static void clear_call(struct prepared_call *call)
{
    free(call->key);
    free(call->outputs);
    *call = (struct prepared_call){ 0 };
}

void prepared_finish(struct prepared *prepared)
{
    for (size_t i = 0; prepared->calls && i < MAX_CALLS; i++)
        clear_call(&prepared->calls[i]);
    free(prepared->calls);
    known_finish(&prepared->known);
}

// ---- tensors ------------------------------------------------------------------------------------

void prepared_know(struct opd_client *c, const struct opd_tensor *t)
{
    struct known_desc desc = { .rank = t->rank, .bytes = t->bytes, .strided = t->strided };
    memcpy(desc.dtype, t->dtype, sizeof desc.dtype);
    memcpy(desc.device, t->device, sizeof desc.device);
    memcpy(desc.shape, t->shape, sizeof desc.shape);
    memcpy(desc.strides, t->strides, sizeof desc.strides);
    const struct known_desc *kept = known_desc(&c->prepared.known, &desc);
    if (kept)
        known_put(&c->prepared.known, t->id, kept);
    else
        known_remove(&c->prepared.known, t->id);
}

void prepared_forget(struct opd_client *c, const int64_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        known_remove(&c->prepared.known, ids[i]);
}

// ---- what a call is like ------------------------------------------------------------------------

static void pack_options(struct pack *p, const struct opd_forward_params *params,
                         const char *device)
{
    bool context = params->context != 0, deadline = params->deadline > 0;
    pack_map(p, 1u + (device != NULL) + context + deadline);
    pack_str(p, "new");
    pack_bool(p, true);
    if (device) {
        pack_str(p, "device");
        pack_str(p, device);
    }
    if (context) {
        pack_str(p, "context");
        pack_bool(p, true);
    }
    if (deadline) {
        pack_str(p, "deadline");
        msgpack_pack_double(&p->mp, params->deadline);
    }
}

// False: this side does not know what it is.
static bool pack_input(struct opd_client *c, struct pack *p, int64_t id, const char **device)
{
    const struct known_desc *desc = known_find(&c->prepared.known, id);
    if (!id) {
        pack_nil(p);
        return true;
    }
    if (!desc)
        return false;
    *device = desc->device;
    msgpack_pack_array(&p->mp, desc->strided ? 3 : 2);
    pack_str(p, desc->dtype);
    pack_ints(p, desc->shape, (size_t)desc->rank);
    if (desc->strided)
        pack_ints(p, desc->strides, (size_t)desc->rank);
    return true;
}

static struct id_lists inputs_of(const struct opd_forward_params *params)
{
    return (struct id_lists){ params->inputs, params->input_lengths, params->input_count,
                              params->input_length_count };
}

static bool pack_inputs(struct opd_client *c, struct pack *p,
                        const struct opd_forward_params *params, const char **device)
{
    const struct id_lists inputs = inputs_of(params);
    const int64_t *id = params->inputs;
    bool known = true;
    msgpack_pack_array(&p->mp, id_lists_arguments(&inputs));
    for (size_t i = 0; i < id_lists_arguments(&inputs) && known; i++) {
        const int64_t *end = id + id_lists_length(&inputs, i);
        if (id_lists_is_list(&inputs, i))
            msgpack_pack_array(&p->mp, (size_t)(end - id));
        while (known && id < end)
            known = pack_input(c, p, *id++, device);
    }
    return known;
}

// The daemon forgets it.
static void unprepare(struct opd_client *c, const struct prepared_call *call)
{
    struct pack p;
    uint32_t request;
    pack_init(&p, 2);
    pack_str(&p, "prepared");
    pack_ids(&p, &call->id, 1);
    struct iovec parts[2] = { { p.bytes.data, p.bytes.size } };
    if (client_send(c, "free", parts, -1, &request, NULL))
        client_forget(c, request);
    pack_finish(&p);
}

static void give_up(struct opd_client *c, struct prepared_call *call)
{
    if (call->state == CALL_PREPARED)
        unprepare(c, call);
    clear_call(call);
}

// The call that is like that, or the place for it, with the key taken over; NULL: no memory.
static struct prepared_call *find_call(struct opd_client *c, struct pack *key)
{
    struct prepared *prepared = &c->prepared;
    size_t size = key->bytes.size;
    if (!prepared->calls)
        prepared->calls = calloc(MAX_CALLS, sizeof *prepared->calls);
    if (!prepared->calls)
        return NULL;
    struct prepared_call *call = &prepared->calls[hash_bytes(key->bytes.data, size, 0) % MAX_CALLS];
    if (call->key && call->key_size == size && memcmp(call->key, key->bytes.data, size) == 0)
        return call;
    give_up(c, call);
    call->key = msgpack_sbuffer_release(&key->bytes);
    call->key_size = size;
    return call;
}

// ---- preparing ----------------------------------------------------------------------------------

static const struct known_desc *read_desc(struct opd_client *c, const msgpack_object *o,
                                          const char *device, size_t device_size)
{
    struct known_desc desc = { 0 };
    const msgpack_object *dtype = o->via.array.ptr, *shape = dtype + 1;
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size != 2 ||
        dtype->type != MSGPACK_OBJECT_STR || dtype->via.str.size >= sizeof desc.dtype ||
        shape->type != MSGPACK_OBJECT_ARRAY || shape->via.array.size > OPD_MAX_RANK)
        return NULL;
    memcpy(desc.dtype, dtype->via.str.ptr, dtype->via.str.size);
    memcpy(desc.device, device, device_size);
    desc.rank = (int)shape->via.array.size;
    desc.bytes = dtype_size(dtype_parse(desc.dtype));
    for (int i = 0; i < desc.rank; i++) {
        if (!map_as_int(&shape->via.array.ptr[i], &desc.shape[i]))
            return NULL;
        desc.bytes *= (uint64_t)desc.shape[i];
    }
    return known_desc(&c->prepared.known, &desc);
}

// Of a list, or of the one that stands there: [dtype, shape].
static bool read_output(struct opd_client *c, struct prepared_call *call, const msgpack_object *o,
                        const char device[32])
{
    bool list = o->type == MSGPACK_OBJECT_ARRAY &&
                (o->via.array.size == 0 || o->via.array.ptr->type == MSGPACK_OBJECT_ARRAY);
    size_t n = list ? o->via.array.size : 1;
    if (n > MAX_OUTPUTS - call->n_outputs)
        return false;
    const struct known_desc **more =
        realloc(call->outputs, (call->n_outputs + n + 1) * sizeof *call->outputs);
    if (!more)
        return false;
    call->outputs = more;
    for (size_t i = 0; i < n; i++, call->n_outputs++)
        if (!(more[call->n_outputs] =
                  read_desc(c, list ? &o->via.array.ptr[i] : o, device, 32)))
            return false;
    return true;
}

// What its outputs are. False: the reply does not say so, or there is no room to know them.
static bool read_outputs(struct opd_client *c, struct prepared_call *call,
                         const msgpack_object *outputs, const char device[32])
{
    if (!outputs || outputs->type != MSGPACK_OBJECT_ARRAY)
        return false;
    call->n_outputs = 0;
    for (size_t i = 0; i < outputs->via.array.size; i++)
        if (!read_output(c, call, &outputs->via.array.ptr[i], device))
            return false;
    return true;
}

static bool has_views(const msgpack_object *views)
{
    size_t n = views && views->type == MSGPACK_OBJECT_ARRAY ? views->via.array.size : 0;
    for (size_t i = 0; i < n; i++)
        if (views->via.array.ptr[i].type != MSGPACK_OBJECT_NIL)
            return true;
    return false;
}

// What cannot be prepared, forward says why.
static void prepare(struct opd_client *c, struct prepared_call *call)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    struct opd_error err = { 0 };
    struct iovec rest = { call->key, call->key_size };
    char device[32] = "";
    pack_init(&p, 6);
    call->id = ++c->prepared.last_id;
    pack_int(&p, call->id);
    call->state = CALL_PLAIN;
    bool made = client_call_with(c, "prepare", &p, rest, 0, &reply, &err);
    if (made && opd_map_str(&reply.result, "device", device, sizeof device) &&
        read_outputs(c, call, opd_map_get(&reply.result, "outputs"), device))
        call->state = CALL_PREPARED;
    else if (made) // of an output that there is no room to know
        unprepare(c, call);
    call->views = has_views(opd_map_get(&reply.result, "views"));
    c->prepared.refused = err.code == OPD_UNKNOWN_METHOD;
    opd_reply_clear(&reply);
    opd_error_clear(&err);
}

// ---- calling ------------------------------------------------------------------------------------

static void fill_outputs(struct opd_client *c, const struct prepared_call *call,
                         const struct opd_forward_params *params)
{
    for (size_t i = 0; i < call->n_outputs; i++) {
        const struct known_desc *desc = call->outputs[i];
        known_put(&c->prepared.known, params->outputs[i], desc);
        if (!params->tensors)
            continue;
        struct opd_tensor *t = &params->tensors[i];
        *t = (struct opd_tensor){ .id = params->outputs[i], .rank = desc->rank };
        t->bytes = desc->bytes;
        memcpy(t->dtype, desc->dtype, sizeof t->dtype);
        memcpy(t->device, desc->device, sizeof t->device);
        memcpy(t->shape, desc->shape, sizeof t->shape);
    }
}

static bool send_call(struct opd_client *c, struct prepared_call *call,
                      const struct opd_forward_params *params, struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    pack_init(&p, 2);
    pack_int(&p, call->id);
    const struct id_lists inputs = inputs_of(params);
    const struct id_lists results = { params->outputs, params->output_lengths,
                                         params->output_count, params->output_length_count };
    msgpack_pack_array(&p.mp, id_lists_arguments(&inputs) + id_lists_arguments(&results) +
                                  (params->context != 0));
    pack_arguments(&p, &inputs);
    pack_arguments(&p, &results);
    if (params->context)
        pack_int(&p, params->context);
    bool good = done_run(c, "call", &p, params->deadline, &reply, err);
    const msgpack_object *outputs = good ? opd_map_get(&reply.result, "outputs") : NULL;
    char device[32] = "";
    if (call->n_outputs > 0)
        memcpy(device, call->outputs[0]->device, sizeof device);
    if (outputs) // an edit has changed them
        call->views = has_views(opd_map_get(&reply.result, "views"));
    if (outputs && call->views)
        lane_call_clear(c);
    if (outputs && !read_outputs(c, call, outputs, device))
        good = error_set(err, OPD_MALFORMED_MESSAGE, "the reply does not describe the outputs");
    opd_reply_clear(&reply);
    return good;
}

static bool is_steady(struct prepared_call *call, const struct opd_forward_params *params)
{
    uint64_t inputs = hash_bytes(params->inputs, params->input_count * sizeof *params->inputs, 0);
    if (inputs != call->inputs)
        call->n_same = 0;
    else if (call->n_same < LANE_STEADY)
        call->n_same++;
    call->inputs = inputs;
    bool lists = params->input_lengths || params->output_lengths; // which go by no lane
    return call->n_same == LANE_STEADY && params->input_count > 0 && !lists;
}

// By the lane, or else by a request.
static bool make_call(struct opd_client *c, struct prepared_call *call,
                      const struct opd_forward_params *params, struct opd_error *err)
{
    bool holds = params->context || call->views; // other memory's, by what it makes
    if (holds)
        lane_call_clear(c);
    bool steady = is_steady(call, params) && !holds;
    enum lane_result by_lane = lane_call_run(c, call->id, params, err);
    if (by_lane != LANE_NOT)
        return by_lane == LANE_DONE;
    bool good = send_call(c, call, params, err);
    if (good && steady)
        lane_call_note(c, call->id, params);
    return good;
}

// NULL: there is none, or it is better made without.
static struct prepared_call *ready_call(struct opd_client *c,
                                        const struct opd_forward_params *params,
                                        void (*attrs)(struct pack *p,
                                                      const struct opd_forward_params *params))
{
    struct pack key;
    const char *device = params->device;
    pack_begin(&key);
    pack_str(&key, "forward");
    pack_str(&key, params->op);
    bool good = pack_inputs(c, &key, params, &device);
    attrs(&key, params);
    pack_options(&key, params, device);
    good = good && !key.failed && key.bytes.size <= MAX_KEY;
    struct prepared_call *call = good ? find_call(c, &key) : NULL;
    pack_finish(&key);
    if (call && call->state == CALL_SEEN)
        prepare(c, call);
    if (call && call->state == CALL_NEW)
        call->state = CALL_SEEN;
    bool ready = call && call->state == CALL_PREPARED && call->n_outputs == params->output_count;
    return ready ? call : NULL;
}

enum prepared_result prepared_forward(struct opd_client *c, const struct opd_forward_params *params,
                                      void (*attrs)(struct pack *p,
                                                    const struct opd_forward_params *params),
                                      struct opd_error *err)
{
    struct prepared_call *call = c->prepared.refused ? NULL : ready_call(c, params, attrs);
    if (!call)
        return PREPARED_NOT;
    struct opd_error own;
    if (!err) {
        own = (struct opd_error){ 0 };
        err = &own;
    }
    // A misfit: an edit has changed the operator, or a tensor is not what this side takes it for.
    bool good = make_call(c, call, params, err), misfit = !good && err->misfit;
    if (good)
        fill_outputs(c, call, params);
    if (misfit)
        give_up(c, call);
    if (misfit || err == &own)
        opd_error_clear(err);
    return good ? PREPARED_DONE : misfit ? PREPARED_NOT : PREPARED_FAILED;
}
