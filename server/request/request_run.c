// Requests that run operators: forward and backward.

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "request/parts.h"
#include "base/hash.h"
#include "request/run_params.h"

// --- forward

static void keep_list(struct run *run, enum plan_operand_kind kind, int index,
                      struct context_list *list)
{
    int n = plan_lists_length(run->lists);
    if (!run_find(run, kind, index))
        return;
    context_make_list(list, n);
    for (int k = 0; k < n; k++) {
        const struct place *p = run_find(run, kind, index + PLAN_MEMBER * k);
        list->of[k] = tensor_ref(p->tensor);
        list->versions[k] = p->storage->version;
    }
}

static void keep_lists(struct run *run, struct context *ctx)
{
    const struct op *op = run->version->op;
    ctx->request.lists = plan_lists_copy(run->request->lists);
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i].list && op->inputs[i].used_backward)
            keep_list(run, PLAN_INPUT, i, &ctx->lists[i]);
    for (int o = 0; o < op->n_outputs; o++)
        if (op->outputs[o].list && op->outputs[o].used_backward)
            keep_list(run, PLAN_OUTPUT, o, &ctx->lists[OP_MAX_INPUTS + o]);
}

void run_keep_context(struct run *run, uint64_t id)
{
    struct request *req = run->req;
    const struct op *op = run->version->op;
    const struct plan *plan = run->bound->plan;
    struct context *ctx = mem_zalloc(1, sizeof *ctx);
    ctx->version = version_keep(run->version);
    ctx->drop = version_drop;
    ctx->serial = req->made_serial = ++req->broker->counters.contexts;
    ctx->device = run->device;
    ctx->request = *run->request;
    if (op->lists)
        keep_lists(run, ctx);
    for (int i = 0; i < op->n_inputs; i++) {
        const struct place *p = run_find(run, PLAN_INPUT, i);
        if (!op->inputs[i].used_backward || op->inputs[i].list || !p)
            continue;
        ctx->inputs[i] = tensor_ref(p->tensor);
        ctx->input_versions[i] = p->storage->version;
    }
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        const struct place *p = run_place(run, (uint32_t)i);
        if (o->kind == PLAN_SAVED)
            ctx->saved[o->index] = storage_ref(p->storage);
        if (o->kind != PLAN_OUTPUT || op->outputs[plan_index(o->index)].list)
            continue;
        ctx->output_descs[o->index] = o->desc;
        if (op->outputs[o->index].used_backward) {
            ctx->outputs[o->index] = tensor_ref(p->tensor);
            ctx->output_versions[o->index] = p->storage->version;
        }
    }
    map_put(&req->conn->contexts, id, ctx);
    req->made_context = id;
}

bool run_read_context(struct run *run, const value *id, uint64_t *out, struct opd_err *err)
{
    const struct map *contexts = &run->req->conn->contexts;
    *out = 0;
    if (value_type(id) != VALUE_INT || value_int(id) <= 0)
        return opd_err_set(err, OPD_E_invalid_argument, "context: expected an id from 1 to 2^63-1");
    if (contexts->count >= REQUEST_MAX_CONTEXTS)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "this connection keeps %d contexts; free those that no backward needs",
                           REQUEST_MAX_CONTEXTS);
    if (map_get(contexts, (uint64_t)value_int(id)))
        return opd_err_set(err, OPD_E_invalid_argument, "context %" PRId64 " is in use",
                           value_int(id));
    if (!run->version->op->has_backward)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has no backward",
                           run->version->op->name);
    *out = (uint64_t)value_int(id);
    return true;
}

static bool read_context(struct run *run, uint64_t *out, struct opd_err *err)
{
    const value *id = value_get(run->options, "context");
    *out = 0;
    run->request->keep = !value_is_nil(id);
    return value_is_nil(id) || run_read_context(run, id, out, err);
}

static uint64_t warning_key(const struct opd_operator *o)
{
    return hash_bytes(o->name, strlen(o->name), 0);
}

bool run_has_warning(const struct request *req, const struct opd_operator *o)
{
    const struct map *heard = &req->conn->warnings;
    return o->failure && (uint64_t)(uintptr_t)map_get(heard, warning_key(o)) != o->failure;
}

// The failure of the operator's last edit, for a client that has not heard of it; NULL: there is
// none.
const char *run_take_warning(struct request *req, const struct opd_operator *o)
{
    if (!run_has_warning(req, o))
        return NULL;
    map_put(&req->conn->warnings, warning_key(o), (void *)(uintptr_t)o->failure);
    return o->failure_text;
}

static void pack_place(struct run *run, enum plan_operand_kind kind, int index)
{
    const struct place *p = run_find(run, kind, index);
    if (p)
        tensor_pack(&run->req->reply, p->id, p->tensor);
    else
        pack_nil(&run->req->reply);
}

// A tensor, or those of a list.
static void pack_result(struct run *run, enum plan_operand_kind kind, int index, bool any)
{
    int n = plan_lists_length(run->lists);
    if (!any || !run_tensor(run, kind, index)->list) {
        pack_place(run, kind, index);
        return;
    }
    pack_array(&run->req->reply, (size_t)n);
    for (int k = 0; k < n; k++)
        pack_place(run, kind, index + PLAN_MEMBER * k);
}

static void pack_saved(struct run *run)
{
    const struct op *op = run->version->op;
    int n = op->has_backward ? op->n_saved : 0;
    pack_key_array(&run->req->reply, "saved", (size_t)n);
    for (int i = 0; i < n; i++)
        pack_place(run, PLAN_SAVED, op->saved[i].temp);
}

static void pack_forward(struct run *run, uint64_t context)
{
    const struct op *op = run->version->op;
    const char *warning = run_take_warning(run->req, run->version->of);
    struct buf *out = &run->req->reply;
    size_t map = pack_map_begin(out);
    if (warning) {
        pack_key_array(out, "warnings", 1);
        pack_str(out, warning);
    }
    pack_key_array(out, "outputs", (size_t)op->n_outputs);
    for (int i = 0; i < op->n_outputs; i++)
        pack_result(run, PLAN_OUTPUT, i, true);
    pack_str(out, "context");
    if (context)
        pack_uint(out, context);
    else
        pack_nil(out);
    pack_key_int(out, "version", run->version->number);
    if (!value_is_nil(value_get(run->options, "saved")))
        pack_saved(run);
    pack_map_end(out, map);
}

enum request_status request_forward(struct request *req, const value *params, struct opd_err *err)
{
    struct run run;
    uint64_t context;
    run_init(&run, req, value_at(params, 4));
    if (!run_read_version(&run, value_at(params, 0), err) ||
        !run_read_inputs(&run, run_ids(value_at(params, 1)), err) ||
        !request_attrs(run.version->op, value_at(params, 2), run.request->attrs, err) ||
        !read_context(&run, &context, err) ||
        !run_read_results(&run, PLAN_OUTPUT, value_at(params, 3), err) ||
        !run_read_saved(&run, err) || !run_default_device(&run, err))
        return REQUEST_ERROR;
    enum request_status status = run_prepare(&run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    if (context)
        run_keep_context(&run, context);
    pack_forward(&run, context);
    return run_submit(&run);
}

// --- backward

uint32_t run_absent(struct run *run)
{
    uint32_t absent = 0;
    for (int i = 0; i < run->version->op->n_outputs; i++)
        if (!run_find(run, PLAN_GRAD_OUTPUT, i))
            absent |= 1u << i;
    return absent;
}

uint32_t run_wanted(struct run *run)
{
    const struct op *op = run->version->op;
    uint32_t wanted = 0;
    for (int i = 0; i < op->n_inputs; i++)
        if (run_find(run, PLAN_GRAD_INPUT, i) && op->inputs[i].differentiable &&
            run->request->inputs[i].dtype != OPD_DTYPE_NONE)
            wanted |= 1u << i;
    return wanted;
}

enum request_status run_backward(struct run *run, struct opd_err *err)
{
    run->request->direction = PLAN_BACKWARD;
    run->request->wanted = run_wanted(run);
    run->request->grad_absent = run_absent(run);
    enum request_status status = run_prepare(run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    int n = run->version->op->n_inputs;
    pack_array(&run->req->reply, (size_t)n);
    for (int i = 0; i < n; i++)
        pack_result(run, PLAN_GRAD_INPUT, i, run->request->wanted >> i & 1);
    return run_submit(run);
}

static struct context *find_context(struct request *req, const value *id, struct opd_err *err)
{
    struct context *ctx = map_get(&req->conn->contexts, (uint64_t)value_int(id));
    if (!ctx)
        opd_err_set(err, OPD_E_not_found,
                    "this connection has no context %" PRId64 " (never made, or freed)",
                    value_int(id));
    else
        memcpy(req->op, ctx->version->op->name, sizeof req->op);
    return ctx;
}

static bool unchanged(const struct run *run, const struct place *p, const char *name,
                      uint64_t version, struct opd_err *err)
{
    if (p->storage->version == version)
        return request_may_read(p->tensor, name, err);
    return opd_err_set(
        err, OPD_E_invalid_argument,
        "%s: %s was written after forward, and backward needs what it was; run forward again",
        run->version->op->name, name);
}

static bool add_kept(struct run *run, enum plan_operand_kind kind, int index, struct tensor *t,
                     const char *name, uint64_t version, struct opd_err *err)
{
    const struct place place = { .kind = kind, .index = index, .how = PLACE_GIVEN, .tensor = t };
    return !t || unchanged(run, run_add(run, &place), name, version, err);
}

static bool add_lists(struct run *run, const struct context *ctx, struct opd_err *err)
{
    char name[RUN_NAME_SIZE];
    run_take_lists(run, ctx->request.lists);
    for (int i = 0; i < OP_MAX_INPUTS + OP_MAX_OUTPUTS; i++) {
        const struct context_list *list = &ctx->lists[i];
        enum plan_operand_kind kind = i < OP_MAX_INPUTS ? PLAN_INPUT : PLAN_OUTPUT;
        struct place p = { .kind = kind, .index = i < OP_MAX_INPUTS ? i : i - OP_MAX_INPUTS };
        if (list->of)
            *run_first(run, kind, p.index) = run->n_places;
        for (int k = 0; k < list->n; k++, p.index += PLAN_MEMBER)
            if (!add_kept(run, kind, p.index, list->of[k], run_place_name(run, &p, name),
                          list->versions[k], err))
                return false;
    }
    return true;
}

static bool take_context(struct run *run, const struct context *ctx, struct opd_err *err)
{
    const struct op *op = ctx->version->op;
    run_set_version(run, ctx->version);
    run->device = ctx->device;
    *run->request = ctx->request;
    if (op->lists && !add_lists(run, ctx, err))
        return false;
    for (int i = 0; i < op->n_inputs; i++)
        if (!add_kept(run, PLAN_INPUT, i, ctx->inputs[i], op->inputs[i].name,
                      ctx->input_versions[i], err))
            return false;
    for (int i = 0; i < op->n_outputs; i++)
        if (!add_kept(run, PLAN_OUTPUT, i, ctx->outputs[i], op->outputs[i].name,
                      ctx->output_versions[i], err))
            return false;
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        if (ctx->saved[i])
            run_add(run, &(struct place){ .kind = PLAN_SAVED,
                                          .index = i,
                                          .how = PLACE_GIVEN,
                                          .storage = ctx->saved[i],
                                          .size = ctx->saved[i]->size });
    return true;
}

// The gradients that came for lists, against the outputs.
static bool check_lists(struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->lists ? run_plan_forward(run, err) : NULL;
    return !run->lists || (plan && run_check_kept(run, plan, err));
}

enum request_status request_backward(struct request *req, const value *params, struct opd_err *err)
{
    struct run run;
    run_init(&run, req, value_at(params, 3));
    const struct context *ctx = find_context(req, value_at(params, 0), err);
    if (!ctx || !take_context(&run, ctx, err) || !run_read_options(&run, err) ||
        !run_read_grads(&run, run_ids(value_at(params, 1)), err) ||
        !run_check_grads(&run, ctx->output_descs, err) ||
        !run_read_results(&run, PLAN_GRAD_INPUT, value_at(params, 2), err) ||
        !check_lists(&run, err))
        return REQUEST_ERROR;
    return run_backward(&run, err);
}

enum request_status request_sync(struct request *req, const value *params, struct opd_err *err)
{
    (void)params, (void)err;
    if (req->conn->n_flight > 0)
        return REQUEST_WAIT; // a completion of this connection's last request tries again
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}
