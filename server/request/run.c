#include "request/run.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "request/compiling.h"
#include "request/graph.h"
#include "request/parts.h"
#include "kernels/program.h"
#include "request/trace.h"

void run_init(struct run *run, struct request *req, const value *options)
{
    memset(run, 0, offsetof(struct run, few));
    arena_finish(&req->room); // of a try before
    run->places = run->few;
    run->places_capacity = RUN_FEW_PLACES;
    memset(&run->own, 0, offsetof(struct plan_request, inputs));
    run->req = req;
    run->options = options;
    run->request = &run->own;
}

void run_set_version(struct run *run, struct version *version)
{
    run->version = version;
    run->own.op = version->op;
    for (int i = 0; i < version->op->n_inputs; i++) { // absent; what the shape was is never read
        run->own.inputs[i].dtype = OPD_DTYPE_NONE;
        run->own.inputs[i].rank = 0;
        run->own.inputs[i].strided = false;
    }
}

// --- places

void run_reserve(struct run *run, int n)
{
    const struct place *few = run->places;
    if (run->n_places + n <= run->places_capacity)
        return;
    run->places_capacity = 2 * run->places_capacity + n;
    run->places = arena_alloc(&run->req->room, (size_t)run->places_capacity, sizeof *few);
    memcpy(run->places, few, (size_t)run->n_places * sizeof *few);
}

const struct op_tensor *run_tensor(const struct run *run, enum plan_operand_kind kind, int index)
{
    const struct op *op = run->version->op;
    if (kind == PLAN_INPUT || kind == PLAN_GRAD_INPUT)
        return &op->inputs[plan_index(index)];
    return kind == PLAN_OUTPUT || kind == PLAN_GRAD_OUTPUT ? &op->outputs[plan_index(index)] : NULL;
}

enum { N_LISTS = 2 * (OP_MAX_INPUTS + OP_MAX_OUTPUTS) };

int *run_first(struct run *run, enum plan_operand_kind kind, int index)
{
    int rest = kind == PLAN_OUTPUT || kind == PLAN_GRAD_OUTPUT ? 2 * OP_MAX_INPUTS : 0;
    bool gradient = kind == PLAN_GRAD_INPUT || kind == PLAN_GRAD_OUTPUT;
    return &run->first[rest + 2 * plan_index(index) + gradient];
}

void run_take_lists(struct run *run, const struct plan_lists *lists)
{
    run->lists = run->own.lists = lists;
    run->first = arena_alloc(&run->req->room, N_LISTS, sizeof *run->first);
    memset(run->first, -1, N_LISTS * sizeof *run->first);
}

// The tensors of a list have places one after the other. NULL: this one has another, or none.
static struct place *find_listed(struct run *run, enum plan_operand_kind kind, int index)
{
    int first = run_tensor(run, kind, index) ? *run_first(run, kind, index) : -1;
    struct place *p = &run->places[first + plan_member(index)];
    return first >= 0 && p < run->places + run->n_places && p->kind == kind && p->index == index
               ? p
               : NULL;
}

struct place *run_add(struct run *run, const struct place *place)
{
    run_reserve(run, 1);
    struct place *p = &run->places[run->n_places++];
    *p = *place;
    if (p->tensor) {
        p->storage = p->tensor->storage;
        p->offset = p->tensor->offset;
        p->size = p->tensor->size;
    }
    return p;
}

struct place *run_find(struct run *run, enum plan_operand_kind kind, int index)
{
    struct place *listed = run->first ? find_listed(run, kind, index) : NULL;
    for (struct place *p = run->places; !listed && p < run->places + run->n_places; p++)
        if (p->kind == kind && p->index == index)
            return p;
    return listed;
}

struct place *run_place(struct run *run, uint32_t operand)
{
    const struct plan_operand *o = &run->bound->plan->operands[operand];
    return run_find(run, o->kind, o->index);
}

static bool is_forward(const struct run *run)
{
    return run->request->direction == PLAN_FORWARD;
}

const char *run_place_name(const struct run *run, const struct place *p, char *buf)
{
    const struct op *op = run->version->op;
    const struct op_tensor *t = run_tensor(run, p->kind, p->index);
    const char *grad = p->kind == PLAN_GRAD_INPUT || p->kind == PLAN_GRAD_OUTPUT ? "grad_" : "";
    if (t && t->list)
        snprintf(buf, RUN_NAME_SIZE, "%s%s[%d]", grad, t->name, plan_member(p->index));
    else if (t)
        snprintf(buf, RUN_NAME_SIZE, "%s%s", grad, t->name);
    if (t)
        return buf;
    bool saved = p->kind == PLAN_SAVED;
    for (int i = 0; saved && i < op->n_saved; i++)
        if (op->saved[i].temp == p->index)
            return op->saved[i].name;
    return "scratch";
}

const char *run_label(const struct run *run, const struct place *p, char out[RUN_LABEL_SIZE])
{
    char buf[RUN_NAME_SIZE];
    snprintf(out, RUN_LABEL_SIZE, "%s: %s%s", run->version->op->name,
             p->how == PLACE_GIVEN ? "" : "the tensor for ", run_place_name(run, p, buf));
    return out;
}

bool run_is_in_place(const struct run *run, const struct place *p)
{
    return is_forward(run) && p->kind == PLAN_INPUT &&
           run->version->op->inputs[plan_index(p->index)].in_place;
}

bool run_check_desc(const struct run *run, const struct place *p, const struct tensor_desc *want,
                    const char *role, struct opd_err *err)
{
    const struct tensor_desc *got = &p->tensor->desc;
    if (tensor_desc_same(got, want))
        return true;
    char came[320], expected[320], label[RUN_LABEL_SIZE];
    tensor_desc_format(got, came, sizeof came);
    tensor_desc_format(want, expected, sizeof expected);
    return opd_err_set(err, OPD_E_invalid_argument, "%s is %s, expected %s as %s",
                       run_label(run, p, label), came, expected, role);
}

// --- the plan

// A gradient that was asked for where there is none has no place.
static void drop_unused_results(struct run *run)
{
    const struct plan *plan = run->bound->plan;
    int n = 0;
    for (int i = 0; i < run->n_places; i++) {
        const struct place *p = &run->places[i];
        bool gradient = p->kind == PLAN_GRAD_INPUT; // of lists there are many
        bool used = p->how == PLACE_GIVEN || p->kind == PLAN_OUTPUT ||
                    (gradient && (run->request->wanted >> plan_index(p->index) & 1));
        for (int k = 0; k < plan->n_operands && !used && !gradient; k++)
            used = plan->operands[k].kind == p->kind && plan->operands[k].index == p->index;
        if (used)
            run->places[n++] = *p;
    }
    run->n_places = n;
}

bool run_is_alone(const struct run *run)
{
    return run->alone || run->req->broker->options.debug;
}

void run_fill_plan_request(struct run *run)
{
    device_fill_plan_request(run->device, run->request);
    run->request->checked = run_is_alone(run) && !run->request->on_cpu;
}

enum request_status run_load(struct run *run, struct opd_err *err)
{
    run->bound->used =
        !run->bound->request->checked; // else edits would be made ready for that, too
    bool ready = true;
    for (int i = 0; i < run->bound->plan->n_kernels; i++) {
        // All of them are started before any is waited for: they compile side by side.
        ready = program_ensure(run->bound->programs[i], run->req->broker->pool, run->req->conn,
                               run->req->since, err) &&
                ready;
        if (err->code)
            return REQUEST_ERROR;
    }
    if (!ready)
        compiling_wait(run->req, run->bound);
    else if (run->req->conn->compiling == run->req->since)
        compiling_end(run->req, run->bound);
    return ready ? REQUEST_ANSWERED : REQUEST_WAIT;
}

// The first run of an edited version, where that is checked: what runs later is compiled beside it.
static enum request_status load_first(struct run *run, struct bound_plan *first,
                                      struct opd_err *err)
{
    for (int i = 0; i < run->bound->plan->n_kernels; i++) {
        program_ensure(run->bound->programs[i], run->req->broker->pool, run->req->conn,
                       run->req->since, err);
        opd_err_clear(err); // the run of that build tells
    }
    run->bound->used = true;
    run->bound = first;
    enum request_status status = run_load(run, err);
    if (status != REQUEST_ERROR)
        return status;
    log_info("the first run of %s is not checked: %s", run->version->op->name, err->msg);
    opd_err_clear(err);
    version_first_over(first);
    run->bound = run->lasting;
    return run_load(run, err);
}

static enum request_status bind_plan(struct run *run, struct opd_err *err)
{
    if (!run->prepared) {
        run_fill_plan_request(run);
        run->bound = version_plan(run->version, run->device, run->request, err);
    }
    if (!run->bound)
        return REQUEST_ERROR;
    struct bound_plan *first = version_first(run->version, run->bound);
    run->lasting = run->bound;
    enum request_status status = first ? load_first(run, first, err) : run_load(run, err);
    if (status == REQUEST_ANSWERED)
        drop_unused_results(run);
    return status;
}

// --- rules that need the plan

// The tensors that the plan reads must have come.
static bool check_present(struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    for (int i = 0; i < plan->n_operands && !is_forward(run); i++) {
        const struct plan_operand *o = &plan->operands[i];
        if (o->kind != PLAN_SCRATCH && !run_place(run, (uint32_t)i))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: backward reads %s, expected its tensor, nil came",
                               run->version->op->name, o->name);
    }
    return true;
}

bool run_has(const struct run *run, enum place_how how)
{
    const struct place *p = run->places, *end = p + run->n_places;
    while (p < end && p->how != how)
        p++;
    return p < end;
}

// --- memory

static void drop_made(struct run *run)
{
    for (struct place *p = run->places; p < run->places + run->n_places; p++) {
        if (p->how != PLACE_MADE)
            continue;
        storage_unref(p->storage);
        p->storage = NULL;
    }
}

// New memory, or that of which the result is a view.
static enum alloc_result make_place(struct run *run, uint32_t operand, struct opd_err *err)
{
    const struct plan_operand *o = &run->bound->plan->operands[operand];
    if (o->kind == PLAN_INPUT)
        return ALLOC_OK;
    struct place *p = run_place(run, operand);
    bool own = o->kind == PLAN_SCRATCH || (o->kind == PLAN_SAVED && is_forward(run));
    if (!p && own)
        p = run_add(run, &(struct place){ .kind = o->kind, .index = o->index, .how = PLACE_MADE });
    if (!p || p->how != PLACE_MADE)
        return ALLOC_OK;
    p->size = tensor_desc_size(&o->desc);
    if (o->view_of < 0)
        return storage_new(&run->device->space, p->size, run->req->conn->holder, &p->storage, err);
    const struct place *base = run_find(run, is_forward(run) ? PLAN_INPUT : PLAN_GRAD_OUTPUT,
                                        o->view_of);
    p->storage = storage_ref(base->storage);
    p->offset = base->offset;
    return ALLOC_OK;
}

static enum request_status allocate(struct run *run, struct opd_err *err)
{
    enum alloc_result result = ALLOC_OK;
    for (int i = 0; i < run->bound->plan->n_operands && result == ALLOC_OK; i++)
        result = make_place(run, (uint32_t)i, err);
    if (result == ALLOC_OK)
        return REQUEST_ANSWERED;
    drop_made(run);
    if (result == ALLOC_WAIT)
        return request_wait_memory(run->req, run->device);
    opd_err_prefix(err, "%s", run->req->op);
    return REQUEST_ERROR;
}

static void make_results(struct run *run)
{
    const struct plan *plan = run->bound->plan;
    if (!run_has(run, PLACE_MADE))
        return;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        struct place *p = o->kind == PLAN_INPUT ? NULL : run_place(run, (uint32_t)i);
        if (!p || p->how != PLACE_MADE || !p->id)
            continue;
        p->tensor = tensor_new(p->storage, p->offset, &o->desc);
        request_make(run->req, p->id, p->tensor);
        run->req->made[run->req->n_made - 1].view = o->view_of >= 0;
    }
}

static void bump_versions(const struct run *run)
{
    for (const struct place *p = run->places; p < run->places + run->n_places; p++)
        if (p->size > 0 && (p->how == PLACE_INTO || run_is_in_place(run, p)))
            p->storage->version++;
}

enum request_status run_prepare(struct run *run, struct opd_err *err)
{
    enum request_status status = bind_plan(run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    if (!check_present(run, err) || !run_check_sharing(run, err))
        return REQUEST_ERROR;
    status = allocate(run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    run->command = run_command(run, err);
    if (!run->command) {
        drop_made(run);
        return REQUEST_ERROR;
    }
    make_results(run);
    bump_versions(run);
    return REQUEST_ANSWERED;
}

// --- on its way

static void note_needs(const struct run *run)
{
    struct request *req = run->req;
    if (run->lists)
        request_reserve_writes(req, (size_t)run->n_places);
    for (const struct place *p = run->places; p < run->places + run->n_places; p++) {
        uint64_t end = p->offset + p->size;
        if (p->how == PLACE_GIVEN)
            request_needs(req, p->storage, p->offset, end);
        if (p->how != PLACE_INTO && !run_is_in_place(run, p))
            continue;
        request_needs(req, p->storage, 0, 0); // that it was made
        request_writes(req, p->storage, p->offset, end);
    }
}

enum request_status run_submit(struct run *run)
{
    struct command *c = run->command;
    enum request_status status = REQUEST_ANSWERED;
    if (((struct dev_command *)(void *)c->bytes.bytes)->size == 0) {
        command_free(c);
    } else {
        if (run->req->conn->capture)
            graph_record_run(run->req->conn->capture, run);
        note_needs(run);
        run->req->bound = bound_plan_ref(run->bound);
        if (run->req->broker->clients.n_tracers > 0)
            run->req->trace = trace_begin(c, run->req->conn);
        if (run->plain && run->bound->plan->report < 0)
            request_tell(run->req, run->device, c, run->version->number);
        status = request_submit(run->req, run->device, c);
        if (run->bound != run->lasting)
            version_first_over(run->bound);
    }
    drop_made(run); // scratch goes back at once: the device runs its next user after this command
    return status;
}

void run_record(struct run *run, struct graph *g)
{
    graph_record_run(g, run);
    command_free(run->command);
    drop_made(run);
}
