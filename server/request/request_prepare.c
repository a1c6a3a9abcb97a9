// Requests that check a run once, and run it many times.

#include "request/prepared.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"
#include "request/run_params.h"

// --- binding

static bool read_direction(struct prepared *p, const value *name, struct opd_err *err)
{
    char text[16] = "";
    value_copy_str(name, text, sizeof text);
    p->vjp = strcmp(text, "vjp") == 0;
    return p->vjp || strcmp(text, "forward") == 0 ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "prepare: direction '%s', expected forward or vjp", text);
}

// What a context or vjp will need of the forward is a part of its plan.
static bool read_keep(struct run *run, struct prepared *p, struct opd_err *err)
{
    const struct op *op = run->version->op;
    bool saved;
    if (!run_read_flag(run, "context", &p->context, err) ||
        !run_read_flag(run, "saved", &saved, err) || !run_read_flag(run, "new", &p->makes, err))
        return false;
    if ((p->context || p->vjp) && !op->has_backward)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has no backward", op->name);
    if (p->context && (saved || p->vjp))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: context goes with forward, and without saved", op->name);
    p->n_saved = op->has_backward && (saved || p->vjp) ? op->n_saved : 0;
    run->request->keep = op->has_backward && (saved || p->context || p->vjp);
    return true;
}

// [dtype, shape] of each output, and of each saved tensor that calls take an id for; views.
enum { N_RESULTS = 3 };

static void pack_results(struct buf *out, const struct prepared *p)
{
    run_pack_results(out, p->forward->plan, p->n_saved);
    run_pack_views(out, p->forward->plan->op);
}

static uint64_t hash_results(const struct prepared *p)
{
    struct buf text = { 0 };
    pack_results(&text, p);
    uint64_t hash = hash_bytes(text.bytes, text.size, 0);
    buf_finish(&text);
    return hash;
}

// Reads what was prepared, as of now, into a prepared call that is not bound.
static bool bind_params(struct run *run, struct request *req, struct prepared *p,
                        const value *params, struct opd_err *err)
{
    run_init(run, req, value_at(params, 5));
    if (!read_direction(p, value_at(params, 1), err) ||
        !run_read_version(run, value_at(params, 2), err) ||
        !run_read_descs(run, value_at(params, 3), err) ||
        !request_attrs(run->version->op, value_at(params, 4), run->request->attrs, err) ||
        (p->vjp && !run_refuse_lists(run, "a prepared vjp; use vjp", err)) ||
        !read_keep(run, p, err) ||
        !run_default_device(run, err))
        return false;
    run_fill_plan_request(run);
    struct bound_plan *bound = version_plan(run->version, run->device, run->request, err);
    if (!bound)
        return false;
    p->forward = bound_plan_ref(bound);
    p->n_inputs = (int)value_count(value_at(params, 3));
    p->n_outputs = run->version->op->n_outputs;
    p->of = operator_ref(run->version->of);
    p->changes = p->of->changes;
    p->version = run->version;
    p->device = run->device;
    p->deadline = run->deadline;
    p->alone = run->alone;
    p->fixed = run->fixed;
    return true;
}

// Nothing has run, and what the client wants may be prepared again. Always false.
static bool mark_misfit(struct opd_err *err)
{
    err->misfit = true;
    return false;
}

static bool is_bound(const struct prepared *p)
{
    return p->of && p->changes == p->of->changes;
}

// Once more, after an edit or an upgrade: its client goes on sending as many ids.
static bool bind_again(struct request *req, struct prepared *p, struct opd_err *err)
{
    struct run run;
    struct prepared now = { 0 };
    struct msg msg;
    bool good = msg_decode(&msg, p->message.bytes, p->message.size, err) &&
                bind_params(&run, req, &now, msg.params, err);
    msg_finish(&msg);
    if (good && (now.n_outputs != p->n_outputs || now.n_saved != p->n_saved))
        good = opd_err_set(err, OPD_E_invalid_argument,
                           "%s version %d has %d outputs and %d saved tensors, expected %d and %d",
                           run.version->op->name, run.version->number, now.n_outputs, now.n_saved,
                           p->n_outputs, p->n_saved);
    if (!good) {
        bound_plan_unref(now.forward);
        operator_unref(now.of);
        opd_err_prefix(err, "the prepared call no longer fits, prepare it again");
        return mark_misfit(err);
    }
    now.message = p->message;
    now.told = p->told;
    now.differs = hash_results(&now) != p->told;
    bound_plan_unref(p->forward);
    bound_plan_unref(p->backward);
    operator_unref(p->of);
    *p = now;
    return true;
}

// --- prepare

static bool may_prepare(struct request *req, uint64_t id, size_t size, struct opd_err *err)
{
    const struct conn *c = req->conn;
    if (map_get(&c->prepared, id))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "prepared call %" PRIu64 " is in use; choose another or free it first",
                           id);
    if (c->prepared.count >= REQUEST_MAX_PREPARED ||
        size > REQUEST_MAX_PREPARED_SIZE - c->prepared_size)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "this connection keeps %zu prepared calls of %zu bytes, at most %d of "
                           "%d are allowed; free some",
                           c->prepared.count, c->prepared_size, REQUEST_MAX_PREPARED,
                           REQUEST_MAX_PREPARED_SIZE);
    return true;
}

static void pack_prepared(struct buf *out, const struct prepared *p)
{
    const struct op *op = p->version->op;
    const struct plan_request *request = p->forward->request;
    size_t map = pack_map_begin(out);
    pack_key_int(out, "version", p->version->number);
    pack_key_str(out, "device", p->device->name);
    pack_results(out, p);
    pack_key_array(out, "gradients", (size_t)p->n_inputs);
    for (int i = 0; i < p->n_inputs; i++)
        pack_bool(out, op->inputs[i].differentiable && request->inputs[i].dtype != OPD_DTYPE_NONE);
    pack_map_end(out, map);
}

enum request_status request_prepare(struct request *req, const value *params, struct opd_err *err)
{
    struct conn *c = req->conn;
    struct run run;
    struct prepared *p = mem_zalloc(1, sizeof *p);
    uint64_t id = (uint64_t)value_int(value_at(params, 0));
    size_t size = c->scan.position; // of this message
    if (!may_prepare(req, id, size, err) || !bind_params(&run, req, p, params, err)) {
        prepared_free(p, NULL);
        return REQUEST_ERROR;
    }
    buf_append(&p->message, stream_bytes(&c->stream), size);
    p->told = hash_results(p);
    map_put(&c->prepared, id, p);
    c->prepared_size += size;
    pack_prepared(&req->reply, p);
    return REQUEST_ANSWERED;
}

// --- call

static struct prepared *find_prepared(struct request *req, const value *id, struct opd_err *err)
{
    struct prepared *p = map_get(&req->conn->prepared, (uint64_t)value_int(id));
    if (!p) {
        opd_err_set(err, OPD_E_not_found,
                    "this connection has no prepared call %" PRId64 " (never made, or freed)",
                    value_int(id));
        mark_misfit(err);
        return NULL;
    }
    if (!is_bound(p) && !bind_again(req, p, err))
        return NULL;
    memcpy(req->op, p->version->op->name, sizeof req->op);
    return p;
}

static bool check_count(const struct prepared *p, const value *ids, struct opd_err *err)
{
    int n = p->n_inputs + p->n_outputs + p->n_saved;
    n += p->vjp ? p->n_outputs + p->n_inputs : p->context;
    return value_count(ids) == (size_t)n ||
           opd_err_set(
               err, OPD_E_invalid_argument,
               "%s: %zu id%s came, expected %d: as many inputs as were prepared, outputs%s%s"
               "%s",
               p->version->op->name, value_count(ids), PLURAL_S(value_count(ids)), n,
               p->n_saved ? ", saved" : "",
               p->vjp ? ", gradients of the outputs, those of the inputs" : "",
               p->context ? ", the context" : "");
}

static bool read_input(struct run *run, int index, const value *id, const struct tensor_desc *desc,
                       struct opd_err *err)
{
    const struct place place = { .kind = PLAN_INPUT, .index = index, .how = PLACE_GIVEN };
    if (!run_read_place(run, &place, id, err))
        return value_is_nil(id) && mark_misfit(err);
    return run_check_desc(run, run_find(run, PLAN_INPUT, index), desc, "what was prepared", err) ||
           mark_misfit(err);
}

// As many as were prepared, each as it was.
static bool read_list(struct run *run, int input, const value *ids, struct opd_err *err)
{
    const struct place first = { .kind = PLAN_INPUT, .index = input, .how = PLACE_GIVEN };
    if (!run_check_ids(run, &first, ids, err))
        return mark_misfit(err);
    for (int k = 0; k < run->lists->n[input]; k++)
        if (!read_input(run, input + PLAN_MEMBER * k, value_at(ids, (size_t)k),
                        run->lists->of[input][k], err))
            return false;
    return true;
}

static bool read_inputs(struct run *run, const struct prepared *p, struct run_ids ids,
                        struct opd_err *err)
{
    const struct op *op = run->version->op;
    for (int i = 0; i < p->n_inputs; i++) {
        const struct tensor_desc *desc = &run->request->inputs[i];
        const value *id = run_id(ids, i);
        bool list = op->inputs[i].list;
        bool absent = list ? run->lists->n[i] < 0 : desc->dtype == OPD_DTYPE_NONE;
        if (value_is_nil(id) && (p->vjp || absent))
            continue;
        if (absent) {
            opd_err_set(err, OPD_E_invalid_argument, "%s: %s came, and was prepared as nil",
                        op->name, op->inputs[i].name);
            return mark_misfit(err);
        }
        if (!(list ? read_list(run, i, id, err) : read_input(run, i, id, desc, err)))
            return false;
    }
    return true;
}

// Results: an id that is in use is that of a tensor which takes it, unless each is to be new.
static bool read_result(struct run *run, bool makes, enum plan_operand_kind kind, int index,
                        const value *id, struct opd_err *err)
{
    bool there = !makes && request_find_tensor(run->req, id) != NULL;
    const struct place place = { .kind = kind,
                                 .index = index,
                                 .how = there ? PLACE_INTO : PLACE_MADE };
    return run_read_result(run, &place, id, err);
}

static bool read_output(struct run *run, bool makes, int output, const value *id,
                        struct opd_err *err)
{
    const struct place first = { .kind = PLAN_OUTPUT, .index = output, .how = PLACE_MADE };
    if (!run->version->op->outputs[output].list)
        return read_result(run, makes, PLAN_OUTPUT, output, id, err);
    if (!run_check_ids(run, &first, id, err))
        return false;
    for (size_t k = 0; k < value_count(id); k++)
        if (!read_result(run, makes, PLAN_OUTPUT, output + PLAN_MEMBER * (int)k, value_at(id, k),
                         err))
            return false;
    return true;
}

// Whether there is no more to it than the version.
static bool pack_called(struct buf *out, const struct run *run, const struct prepared *p)
{
    const char *warning = run_take_warning(run->req, run->version->of);
    pack_map(out, 1u + (p->differs ? N_RESULTS : 0) + (warning ? 1 : 0));
    pack_key_int(out, "version", run->version->number);
    if (p->differs)
        pack_results(out, p);
    if (warning) {
        pack_key_array(out, "warnings", 1);
        pack_str(out, warning);
    }
    return !p->differs && !warning;
}

// Inputs, outputs, saved tensors; *ids: what follows.
static bool read_forward(struct run *run, const struct prepared *p, bool makes, struct run_ids *ids,
                         struct opd_err *err)
{
    run->request = p->forward->request;
    run->bound = p->forward;
    if (run->request->lists)
        run_take_lists(run, run->request->lists);
    if (!read_inputs(run, p, *ids, err))
        return false;
    ids->first = p->n_inputs;
    for (int i = 0; i < p->n_outputs; i++, ids->first++)
        if (!read_output(run, makes, i, run_id(*ids, 0), err))
            return false;
    for (int i = 0; i < p->n_saved; i++, ids->first++)
        if (!read_result(run, makes, PLAN_SAVED, run->version->op->saved[i].temp, run_id(*ids, 0),
                         err))
            return false;
    return !run->lists || run_check_new_ids(run, err);
}

// ids: inputs, outputs, saved tensors, a context.
static enum request_status call_forward(struct run *run, const struct prepared *p,
                                        const value *array, struct opd_err *err)
{
    struct run_ids ids = run_ids(array);
    uint64_t context = 0;
    if (!read_forward(run, p, p->makes, &ids, err) ||
        (p->context && !run_read_context(run, run_id(ids, 0), &context, err)))
        return REQUEST_ERROR;
    enum request_status status = run_prepare(run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    if (context)
        run_keep_context(run, context);
    run->plain = pack_called(&run->req->reply, run, p);
    return run_submit(run);
}

// Of the gradients that are given and wanted now, seldom others than before.
static bool bind_backward(struct run *run, struct prepared *p, struct opd_err *err)
{
    uint32_t wanted = run_wanted(run), absent = run_absent(run);
    if (!p->backward || p->wanted != wanted || p->absent != absent) {
        run->own = *p->forward->request;
        run->own.direction = PLAN_BACKWARD;
        run->own.wanted = wanted;
        run->own.grad_absent = absent;
        struct bound_plan *bound = version_plan(p->version, p->device, &run->own, err);
        if (!bound)
            return false;
        bound_plan_unref(p->backward);
        p->backward = bound_plan_ref(bound);
        p->wanted = wanted;
        p->absent = absent;
    }
    run->bound = p->backward;
    run->request = p->backward->request;
    return true;
}

// ids: inputs, outputs, saved tensors, gradients of the outputs; then those of the inputs.
static enum request_status call_vjp(struct run *run, struct prepared *p, const value *array,
                                    struct opd_err *err)
{
    const struct op *op = run->version->op;
    struct run_ids ids = { array, 0, p->n_inputs };
    struct run_ids outputs = { array, p->n_inputs, p->n_outputs };
    struct run_ids saved = { array, outputs.first + outputs.n, p->n_saved };
    struct run_ids grads = { array, saved.first + saved.n, p->n_outputs };
    struct run_ids results = { array, grads.first + grads.n, p->n_inputs };
    run->request = p->forward->request;
    if (!read_inputs(run, p, ids, err) || !run_read_kept(run, outputs, saved, err) ||
        !run_read_grads(run, grads, err) || !run_check_kept(run, p->forward->plan, err))
        return REQUEST_ERROR;
    for (int i = 0; i < p->n_inputs; i++) {
        const value *id = run_id(results, i);
        bool made = op->inputs[i].differentiable && run->request->inputs[i].dtype != OPD_DTYPE_NONE;
        if (value_is_nil(id))
            continue;
        if (!made)
            opd_err_set(err, OPD_E_invalid_argument, "%s: %s has no gradient, expected nil for it",
                        op->name, op->inputs[i].name);
        if (!made || !read_result(run, p->makes, PLAN_GRAD_INPUT, i, id, err))
            return REQUEST_ERROR;
    }
    if (!bind_backward(run, p, err))
        return REQUEST_ERROR;
    enum request_status status = run_prepare(run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    run->plain = pack_called(&run->req->reply, run, p);
    return run_submit(run);
}

static void begin_run(struct run *run, struct request *req, const struct prepared *p)
{
    run_init(run, req, NULL);
    run->version = p->version;
    run->device = p->device;
    run->deadline = p->deadline;
    run->alone = p->alone;
    run->fixed = p->fixed;
    run->prepared = true;
}

enum request_status request_call(struct request *req, const value *params, struct opd_err *err)
{
    struct prepared *p = find_prepared(req, value_at(params, 0), err);
    const value *ids = value_at(params, 1);
    struct run run;
    if (!p || !check_count(p, ids, err))
        return REQUEST_ERROR;
    begin_run(&run, req, p);
    return p->vjp ? call_vjp(&run, p, ids, err) : call_forward(&run, p, ids, err);
}

// --- lane_call

static bool makes_view(const struct plan *plan)
{
    int i = 0;
    while (i < plan->n_operands && plan->operands[i].view_of < 0)
        i++;
    return i < plan->n_operands;
}

// In the lane's hands if that may run it, else gone.
static void arm_call(struct request *req, struct graph *g, struct opd_err *err)
{
    struct graph **room = lane_call_room(req->conn->lane);
    g->capturing = false;
    if (room && !g->failed && graph_prepare(g, req, err) == REQUEST_ANSWERED) {
        g->launch->call = true;
        if (lane_arm(req, g, 0)) {
            lane_pack_arm(&req->reply, g);
            *room = g;
            return;
        }
    }
    graph_unref(g);
}

// Nothing runs. A call that goes by the lane later is made as this one is now: a graph of it.
enum request_status request_lane_call(struct request *req, const value *params, struct opd_err *err)
{
    struct conn *c = req->conn;
    struct prepared *p = find_prepared(req, value_at(params, 0), err);
    const value *array = value_at(params, 1);
    struct run run;
    if (!p || !check_count(p, array, err))
        return REQUEST_ERROR;
    bool may = c->lane && !c->capture && !p->vjp && !p->context && !p->differs &&
               !run_has_warning(req, p->of) && !makes_view(p->forward->plan) &&
               !version_first(p->version, p->forward); // that goes by the daemon
    if (!may) {
        pack_map(&req->reply, 0);
        return REQUEST_ANSWERED;
    }
    struct run_ids ids = run_ids(array);
    begin_run(&run, req, p);
    if (!read_forward(&run, p, false, &ids, err))
        return REQUEST_ERROR;
    if (run_has(&run, PLACE_MADE))
        return REQUEST_FAIL(err, OPD_E_invalid_argument,
                            "lane_call: %s makes a new tensor, expected one that is there for "
                            "each result",
                            p->version->op->name);
    enum request_status status = run_prepare(&run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    struct graph *g = graph_new(req->broker);
    run_record(&run, g);
    arm_call(req, g, err);
    if (!err->code && req->reply.size == 0)
        pack_map(&req->reply, 0);
    return err->code ? REQUEST_ERROR : REQUEST_ANSWERED;
}
