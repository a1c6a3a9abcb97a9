// Requests that run operators: forward and backward. Both work out a plan, see to it that its
// kernels are loaded, allocate what it makes, and send the executor one command with every step of
// it.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker.h"
#include "base/hash.h"
#include "request/request.h"
#include "request/run.h"
#include "request/run_params.h"
#include "request/run_saved.h"

// The version that is served, or the one that the options name.
struct version *run_find_version(struct request *req, const value *name, const value *options,
                                 struct opd_err *err)
{
    char text[OP_MAX_NAME] = "", near[128], failed[800];
    value_copy_str(name, text, sizeof text);
    struct opd_operator *o = registry_operator(&req->broker->registry, text);
    if (!o || !o->current) {
        opd_err_set(err, OPD_E_not_found, "there is no operator '%s'%s%s", text,
                    registry_suggest(&req->broker->registry, text, near, sizeof near),
                    reload_explain(&req->broker->reload, text, failed, sizeof failed));
        return NULL;
    }
    snprintf(req->op, sizeof req->op, "%s", o->name);
    const value *version = value_get(options, "version");
    if (value_is_nil(version))
        return o->current;
    struct version *v = NULL;
    if (value_type(version) == VALUE_INT && value_int(version) > 0 &&
        value_int(version) <= o->last_version)
        v = operator_version(o, (int)value_int(version));
    if (!v || v->state == VERSION_FAILED) {
        opd_err_set(err, OPD_E_not_found,
                    "%s: that version is not kept, or failed; opctl ops %s lists them", o->name,
                    o->name);
        return NULL;
    }
    return v;
}

bool run_read_deadline(const value *options, double *out, struct opd_err *err)
{
    const value *v = value_get(options, "deadline");
    *out = 0;
    if (value_is_nil(v))
        return true;
    if ((value_type(v) != VALUE_INT && value_type(v) != VALUE_FLOAT) || !(value_float(v) > 0))
        return opd_err_set(err, OPD_E_invalid_argument, "deadline: expected seconds above 0");
    *out = value_float(v);
    return true;
}

bool run_read_debug(const value *options, bool *out, struct opd_err *err)
{
    const value *v = value_get(options, "debug");
    if (!value_is_nil(v) && value_type(v) != VALUE_BOOL)
        return opd_err_set(err, OPD_E_invalid_argument, "debug: %s came, expected true or false",
                           value_type_name(v));
    *out = !value_is_nil(v) && value_bool(v);
    return true;
}

// --- inputs

bool run_same_device(struct run *run, const char *op, const char *name, const struct tensor *t,
                     struct opd_err *err)
{
    if (!run->device)
        run->device = t->storage->space->device;
    if (run->device != t->storage->space->device)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: %s is on %s, the tensors before it on %s", op, name,
                           t->storage->space->device->name, run->device->name);
    return true;
}

bool run_read_inputs(struct request *req, struct run *run, const value *ids,
                     struct plan_request *pr, struct opd_err *err)
{
    const struct op *op = run->version->op;
    if (value_count(ids) > (size_t)op->n_inputs)
        return opd_err_set(err, OPD_E_invalid_argument, "%s takes %d tensors, %zu came", op->name,
                           op->n_inputs, value_count(ids));
    for (int i = 0; i < op->n_inputs; i++) {
        const value *id = value_at(ids, (size_t)i);
        if (value_is_nil(id))
            continue; // plan_build() knows whether it may be absent
        char what[2 * OP_MAX_NAME + 4];
        snprintf(what, sizeof what, "%s: %s", op->name, op->inputs[i].name);
        struct tensor *t = request_tensor(req, id, what, err);
        if (!t || !run_same_device(run, op->name, op->inputs[i].name, t, err) ||
            !request_may_read(t, what, err))
            return false;
        run->inputs[i] = t;
        pr->inputs[i] = t->desc;
    }
    return true;
}

// --- forward

static void keep_context(struct request *req, const struct run *run, const struct plan_request *pr,
                         uint64_t id)
{
    const struct op *op = run->version->op;
    const struct plan *plan = run->bound->plan;
    struct context *ctx = mem_zalloc(1, sizeof *ctx);
    ctx->version = version_ref(run->version);
    version_add_context(ctx->version, 1);
    ctx->serial = req->made_serial = ++req->broker->n_contexts;
    ctx->device = run->device;
    ctx->request = *pr;
    for (int i = 0; i < op->n_inputs; i++) {
        if (!op->inputs[i].used_backward || !run->inputs[i])
            continue;
        ctx->inputs[i] = tensor_ref(run->inputs[i]);
        ctx->input_versions[i] = run->inputs[i]->storage->version;
    }
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        if (o->kind == PLAN_SAVED)
            ctx->saved[o->index] = storage_ref(run->made[i]);
        if (o->kind != PLAN_OUTPUT)
            continue;
        ctx->output_descs[o->index] = o->desc;
        if (op->outputs[o->index].used_backward) {
            ctx->outputs[o->index] = tensor_ref(run->outputs[o->index]);
            ctx->output_versions[o->index] = run->outputs[o->index]->storage->version;
        }
    }
    map_put(&req->conn->contexts, id, ctx);
    req->made_context = id;
}

// Gives the outputs and, where they are asked for, the saved tensors their ids.
static void make_outputs(struct request *req, struct run *run, const struct run_results *results,
                         const struct run_new_ids *saved_ids, struct tensor **saved)
{
    const struct op *op = run->version->op;
    const struct plan *plan = run->bound->plan;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        if (o->kind == PLAN_OUTPUT)
            run->outputs[o->index] = run_make_result(req, run, i, results->ids[o->index]);
        for (int k = 0; o->kind == PLAN_SAVED && k < saved_ids->n; k++)
            if (op->saved[k].temp == o->index)
                saved[k] = run_make_result(req, run, i, saved_ids->ids[k]);
    }
}

// The option `saved`: ids for every saved tensor. *out_keep: it is there.
static bool read_saved_ids(struct request *req, const struct run *run, const value *options,
                           struct run_new_ids *taken, struct run_new_ids *out, bool *out_keep,
                           struct opd_err *err)
{
    const value *ids = value_get(options, "saved");
    const struct op *op = run->version->op;
    int n = op->has_backward ? op->n_saved : 0;
    out->n = 0;
    *out_keep = !value_is_nil(ids);
    if (!*out_keep)
        return true;
    if (!value_is_nil(value_get(options, "context")))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: context and saved together; a context keeps the saved tensors",
                           op->name);
    if (value_type(ids) != VALUE_ARRAY || value_count(ids) != (size_t)n)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: saved is %s of %zu, expected %d ids, one for each saved tensor",
                           op->name, value_type_name(ids), value_count(ids), n);
    *out_keep = op->has_backward;
    for (int i = 0; i < n; i++) {
        if (!run_take_id(req, value_at(ids, (size_t)i), taken, err))
            return false;
        out->ids[out->n++] = taken->ids[taken->n - 1];
    }
    return true;
}

static bool read_context_id(struct request *req, const struct run *run, const value *options,
                            uint64_t *out, struct opd_err *err)
{
    const value *id = value_get(options, "context");
    *out = 0;
    if (value_is_nil(id))
        return true;
    if (value_type(id) != VALUE_INT || value_int(id) <= 0)
        return opd_err_set(err, OPD_E_invalid_argument, "context: expected an id from 1 to 2^63-1");
    if (req->conn->contexts.count >= REQUEST_MAX_CONTEXTS)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "this connection keeps %d contexts; free those that no backward needs",
                           REQUEST_MAX_CONTEXTS);
    if (map_get(&req->conn->contexts, (uint64_t)value_int(id)))
        return opd_err_set(err, OPD_E_invalid_argument, "context %" PRId64 " is in use",
                           value_int(id));
    if (!run->version->op->has_backward)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has no backward",
                           run->version->op->name);
    *out = (uint64_t)value_int(id);
    return true;
}

bool run_default_device(struct request *req, struct run *run, const value *options,
                        struct opd_err *err)
{
    const value *name = value_get(options, "device");
    char text[16] = "";
    if (!value_is_nil(name) &&
        (value_type(name) != VALUE_STR || !value_copy_str(name, text, sizeof text) ||
         !devices_find(&req->broker->devices, text)))
        return opd_err_set(err, OPD_E_not_found, "device: no such device is served");
    if (!run->device)
        run->device = text[0] ? devices_find(&req->broker->devices, text)
                              : req->broker->devices.at[0];
    return true;
}

// The failure of the operator's last edit, for a client that has not heard of it; NULL: there is
// none.
static const char *take_warning(struct request *req, const struct op *op)
{
    const struct opd_operator *o = registry_operator(&req->broker->registry, op->name);
    uint64_t key = hash_bytes(op->name, strlen(op->name), 0);
    if (!o || !o->failure || (uint64_t)(uintptr_t)map_get(&req->conn->warnings, key) == o->failure)
        return NULL;
    map_put(&req->conn->warnings, key, (void *)(uintptr_t)o->failure);
    return o->failure_text;
}

static void pack_forward(struct request *req, const struct run *run,
                         const struct run_results *results, uint64_t context)
{
    const struct op *op = run->version->op;
    const char *warning = take_warning(req, op);
    struct buf *out = &req->reply;
    pack_map(out, warning ? 4 : 3);
    if (warning) {
        pack_str(out, "warnings");
        pack_array(out, 1);
        pack_str(out, warning);
    }
    pack_str(out, "outputs");
    pack_array(out, (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++)
        tensor_pack(out, results->ids[i], run->outputs[i]);
    pack_str(out, "context");
    if (context)
        pack_uint(out, context);
    else
        pack_nil(out);
    pack_key_int(out, "version", run->version->number);
}

// One more pair in the map that has just been packed.
static void pack_saved(struct request *req, const struct run_new_ids *ids,
                       struct tensor *const *saved)
{
    req->reply.bytes[0]++; // a map of up to 15 pairs has their number in its first byte
    pack_str(&req->reply, "saved");
    pack_array(&req->reply, (size_t)ids->n);
    for (int i = 0; i < ids->n; i++)
        tensor_pack(&req->reply, ids->ids[i], saved[i]);
}

enum request_status request_forward(struct request *req, const value *params, struct opd_err *err)
{
    const value *ids = value_at(params, 3), *options = value_at(params, 4);
    struct run run = { .version = run_find_version(req, value_at(params, 0), options, err) };
    struct plan_request pr = { .direction = PLAN_FORWARD };
    struct run_new_ids taken = { 0 }, saved_ids;
    struct run_results results;
    struct tensor *saved[OP_MAX_TEMPS] = { NULL };
    uint64_t context;
    bool keep;
    if (!run.version || !run_read_inputs(req, &run, value_at(params, 1), &pr, err) ||
        !request_attrs(run.version->op, value_at(params, 2), pr.attrs, err) ||
        !run_read_deadline(options, &run.deadline, err) ||
        !run_read_debug(options, &run.alone, err) ||
        !read_context_id(req, &run, options, &context, err) ||
        !run_read_results(req, &run, ids, options, run.version->op->n_outputs, false, &taken,
                          &results, err) ||
        !read_saved_ids(req, &run, options, &taken, &saved_ids, &pr.keep, err) ||
        !run_read_saved_into(req, &run, options, &keep, err) ||
        !run_default_device(req, &run, options, err))
        return REQUEST_ERROR;
    pr.keep = pr.keep || keep || context != 0;
    enum request_status status = run_bind(req, &run, &pr, err);
    if (status == REQUEST_ANSWERED)
        status = run_check_in_place(&run, err) && run_check_into(&run, err) &&
                         run_check_saved_into(&run, err)
                     ? run_allocate(req, &run, err)
                     : REQUEST_ERROR;
    if (status != REQUEST_ANSWERED)
        return status;
    struct command *c = run_command(req->broker, &run, err);
    if (!c)
        return REQUEST_ERROR;
    make_outputs(req, &run, &results, &saved_ids, saved);
    run_bump_versions(&run);
    if (context)
        keep_context(req, &run, &pr, context);
    pack_forward(req, &run, &results, context);
    if (!value_is_nil(value_get(options, "saved")))
        pack_saved(req, &saved_ids, saved);
    return run_submit(req, &run, c);
}

// --- backward

static struct context *find_context(struct request *req, const value *id, struct opd_err *err)
{
    struct context *ctx = map_get(&req->conn->contexts, (uint64_t)value_int(id));
    if (!ctx)
        opd_err_set(err, OPD_E_not_found,
                    "this connection has no context %" PRId64 " (never made, or freed)",
                    value_int(id));
    else
        snprintf(req->op, sizeof req->op, "%s", ctx->version->op->name);
    return ctx;
}

static bool unchanged(const struct op *op, const char *name, const struct tensor *t,
                      uint64_t version, struct opd_err *err)
{
    if (!t || t->storage->version == version)
        return request_may_read(t, name, err);
    return opd_err_set(
        err, OPD_E_invalid_argument,
        "%s: %s was written after forward, and backward needs what it was; run forward again",
        op->name, name);
}

static bool take_context(struct run *run, const struct context *ctx, struct opd_err *err)
{
    const struct op *op = ctx->version->op;
    run->version = ctx->version;
    run->device = ctx->device;
    memcpy(run->saved, ctx->saved, sizeof run->saved);
    for (int i = 0; i < op->n_inputs; i++) {
        run->inputs[i] = ctx->inputs[i];
        if (!unchanged(op, op->inputs[i].name, ctx->inputs[i], ctx->input_versions[i], err))
            return false;
    }
    for (int i = 0; i < op->n_outputs; i++) {
        run->outputs[i] = ctx->outputs[i];
        if (!unchanged(op, op->outputs[i].name, ctx->outputs[i], ctx->output_versions[i], err))
            return false;
    }
    return true;
}

enum request_status request_backward(struct request *req, const value *params, struct opd_err *err)
{
    struct run run = { 0 };
    struct run_new_ids taken = { 0 };
    struct run_results results;
    const value *options = value_at(params, 3);
    struct context *ctx = find_context(req, value_at(params, 0), err);
    if (!ctx || !take_context(&run, ctx, err))
        return REQUEST_ERROR;
    struct plan_request pr = ctx->request;
    if (!run_read_grads(req, &run, ctx->output_descs, value_at(params, 1), &pr, err) ||
        !run_read_results(req, &run, value_at(params, 2), options, run.version->op->n_inputs, true,
                          &taken, &results, err) ||
        !run_read_deadline(options, &run.deadline, err) ||
        !run_read_debug(options, &run.alone, err))
        return REQUEST_ERROR;
    return run_backward(req, &run, &pr, &results, err);
}

enum request_status request_context_free(struct request *req, const value *params,
                                         struct opd_err *err)
{
    const value *ids = value_at(params, 0);
    for (size_t i = 0; i < value_count(ids); i++) {
        const value *id = value_at(ids, i);
        if (value_type(id) != VALUE_INT ||
            !map_get(&req->conn->contexts, (uint64_t)value_int(id))) {
            opd_err_set(err, OPD_E_not_found,
                        "context_free: element %zu is no context of this connection", i);
            return REQUEST_ERROR;
        }
    }
    for (size_t i = 0; i < value_count(ids); i++)
        context_free(map_remove(&req->conn->contexts, (uint64_t)value_int(value_at(ids, i))));
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

enum request_status request_sync(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    if (req->conn->n_flight > 0)
        return REQUEST_WAIT; // a completion of this connection's last request tries again
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}
