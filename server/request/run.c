#include "request/run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker.h"
#include "kernels/program.h"
#include "request/trace.h"

enum request_status run_bind(struct request *req, struct run *run, struct plan_request *pr,
                             struct opd_err *err)
{
    pr->op = run->version->op;
    device_fill_plan_request(run->device, pr);
    run->bound = version_plan(run->version, run->device, pr, err);
    if (!run->bound)
        return REQUEST_ERROR;
    run->bound->used = true;
    bool ready = true;
    for (int i = 0; i < run->bound->plan->n_kernels; i++) {
        // All of them are started before any is waited for: they compile side by side.
        ready = program_ensure(run->bound->programs[i], req->since, err) && ready;
        if (err->code)
            return REQUEST_ERROR;
    }
    return ready ? REQUEST_ANSWERED : REQUEST_WAIT;
}

static bool is_made(const struct run *run, const struct plan_operand *o)
{
    bool forward = run->bound->plan->direction == PLAN_FORWARD;
    if (o->view_of >= 0)
        return false;
    if (o->kind == (forward ? PLAN_OUTPUT : PLAN_GRAD_INPUT))
        return !run->into[o->index];
    return o->kind == PLAN_SCRATCH ||
           (forward && o->kind == PLAN_SAVED && !run->saved_into[o->index]);
}

static void drop_made(struct run *run)
{
    for (int i = 0; run->made && i < run->bound->plan->n_operands; i++)
        storage_unref(run->made[i]);
    free(run->made);
    run->made = NULL;
}

enum request_status run_allocate(struct request *req, struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    run->made = mem_zalloc((size_t)plan->n_operands, sizeof *run->made);
    for (int i = 0; i < plan->n_operands; i++) {
        if (!is_made(run, &plan->operands[i]))
            continue;
        enum alloc_result result = storage_new(&run->device->space,
                                               tensor_desc_size(&plan->operands[i].desc),
                                               req->conn->holder, &run->made[i], err);
        if (result == ALLOC_OK)
            continue;
        drop_made(run);
        if (result == ALLOC_WAIT)
            return request_wait_memory(req, run->device);
        opd_err_prefix(err, "%s", req->op);
        return REQUEST_ERROR;
    }
    return REQUEST_ANSWERED;
}

// The memory of an operand. NULL: it has none (absent, unwanted or empty), which a kernel sees as a
// null pointer.
static const struct storage *find_storage(const struct run *run, uint32_t operand, uint64_t *offset)
{
    const struct plan_operand *o = &run->bound->plan->operands[operand];
    bool forward = run->bound->plan->direction == PLAN_FORWARD;
    const struct storage *s = run->made[operand];
    const struct tensor *t = NULL;
    *offset = 0;
    if (!s && o->kind == PLAN_INPUT)
        t = run->inputs[o->index];
    else if (!s && o->kind == PLAN_OUTPUT)
        t = forward && run->into[o->index] ? run->into[o->index] : run->outputs[o->index];
    else if (!s && o->kind == PLAN_GRAD_OUTPUT)
        t = run->grad_outputs[o->index];
    else if (!s && o->kind == PLAN_GRAD_INPUT)
        t = run->into[o->index];
    else if (!s && o->kind == PLAN_SAVED) {
        s = run->saved[o->index];
        *offset = run->saved_offset[o->index];
    }
    if (t) {
        s = t->storage;
        *offset = t->offset;
    }
    return s && (s->block || s->import) ? s : NULL;
}

static bool locate(const struct run *run, uint32_t operand, struct dev_ref *out)
{
    uint64_t offset;
    const struct storage *s = find_storage(run, operand, &offset);
    return s && storage_address(s, offset, out);
}

static bool fill_slot(const struct run *run, const struct plan_slot *from, struct dev_slot *out)
{
    uint64_t offset;
    struct dev_ref ref;
    const struct storage *s = find_storage(run, from->operand, &offset);
    if (!s || !storage_address(s, offset, &ref))
        return false;
    const struct tensor_desc *desc = &run->bound->plan->operands[from->operand].desc;
    const struct suballoc_block *block = s->block;
    uint64_t start = ref.offset - offset, place = block ? storage_place(s) : 0;
    *out = (struct dev_slot){ .arg_offset = from->arg_offset,
                              .region = ref.region,
                              .offset = ref.offset,
                              .size = tensor_desc_size(desc),
                              .low = start - place,
                              .high = start + (block ? block->size - place : s->size),
                              .dtype = desc->dtype,
                              .pad = offset ? 0 : (uint32_t)place };
    return true;
}

static void append_zero(const struct run *run, const struct plan_step *step, struct command *c,
                        uint64_t *n_steps)
{
    struct dev_fill fill = { .step = { DEV_STEP_FILL, sizeof fill } };
    if (!locate(run, step->operand, &fill.dst))
        return;
    fill.size = tensor_desc_size(&run->bound->plan->operands[step->operand].desc);
    buf_append(&c->bytes, &fill, sizeof fill);
    ++*n_steps;
}

static void append_launch(const struct run *run, const struct plan_step *step, struct command *c,
                          uint64_t *n_steps)
{
    struct dev_launch launch = {
        .step = { .type = DEV_STEP_LAUNCH },
        .program = run->bound->programs[step->kernel]->id,
        .kernel = step->kernel,
        .shared_size = step->shared_size,
        .args_size = step->args_size,
    };
    memcpy(launch.grid, step->grid, sizeof launch.grid);
    memcpy(launch.block, step->block, sizeof launch.block);
    size_t start = c->bytes.size;
    buf_append(&c->bytes, &launch, sizeof launch);
    for (int i = 0; i < step->n_slots; i++) {
        struct dev_slot slot;
        if (!fill_slot(run, &step->slots[i], &slot))
            continue;
        buf_append(&c->bytes, &slot, sizeof slot);
        launch.n_slots++;
    }
    static const uint8_t padding[8];
    buf_append(&c->bytes, step->args, step->args_size);
    buf_append(&c->bytes, padding, (8 - step->args_size % 8) % 8);
    launch.step.size = (uint32_t)(c->bytes.size - start);
    memcpy(c->bytes.bytes + start, &launch, sizeof launch);
    ++*n_steps;
}

static bool locate_matrix(const struct run *run, const struct plan_matrix *x,
                          struct dev_matrix *out)
{
    *out = (struct dev_matrix){ .size = x->size, .stride = x->stride, .transposed = x->transposed };
    bool found = locate(run, x->operand, &out->ref);
    out->ref.offset += x->offset;
    return found;
}

static void append_matmul(const struct run *run, const struct plan_matmul *pm, struct command *c,
                          uint64_t *n_steps)
{
    struct dev_matmul m = {
        .step = { DEV_STEP_MATMUL, sizeof m },
        .dtype = pm->dtype,
        .result = pm->result,
        .accumulate = pm->accumulate,
        .tf32 = pm->tf32,
        .m = pm->m,
        .n = pm->n,
        .k = pm->k,
    };
    // All of them are somewhere: the plan drops empty products.
    if (!locate_matrix(run, &pm->d, &m.d) || !locate_matrix(run, &pm->a, &m.a) ||
        !locate_matrix(run, &pm->b, &m.b))
        return;
    buf_append(&c->bytes, &m, sizeof m);
    ++*n_steps;
}

// What the kernels may have found wrong is read back last.
static void append_report(const struct run *run, struct command *c, uint64_t *n_steps)
{
    const struct plan *plan = run->bound->plan;
    struct dev_report report = { .step = { DEV_STEP_REPORT, sizeof report } };
    if (plan->report < 0 || !locate(run, (uint32_t)plan->report, &report.src))
        return;
    buf_append(&c->bytes, &report, sizeof report);
    ++*n_steps;
}

struct command *run_command(struct broker *b, struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    struct command *c = command_new(DEV_RUN, 0, 0);
    uint64_t n_steps = 0;
    // One that is too large is not made to its end, which may be far.
    for (int i = 0; i < plan->n_steps && c->bytes.size <= DEV_MAX_COMMAND; i++) {
        if (plan->steps[i].kind == PLAN_STEP_ZERO)
            append_zero(run, &plan->steps[i], c, &n_steps);
        else if (plan->steps[i].kind == PLAN_STEP_MATMUL)
            append_matmul(run, plan->steps[i].matmul, c, &n_steps);
        else
            append_launch(run, &plan->steps[i], c, &n_steps);
    }
    append_report(run, c, &n_steps);
    if (c->bytes.size > DEV_MAX_COMMAND)
        n_steps = (uint64_t)plan->n_steps;
    uint64_t limit = (uint64_t)b->options.max_launches;
    if (c->bytes.size > DEV_MAX_COMMAND || n_steps > limit) {
        if (n_steps > limit)
            opd_err_set(err, OPD_E_invalid_argument,
                        "%s: %" PRIu64 " launches in one request, at most %" PRIu64
                        " are allowed (--max-launches)",
                        run->version->op->name, n_steps, limit);
        else
            opd_err_set(err, OPD_E_invalid_argument,
                        "%s: %" PRIu64 " launches are more than one request can carry",
                        run->version->op->name, n_steps);
        command_free(c);
        drop_made(run);
        return NULL;
    }
    ((struct dev_command *)(void *)c->bytes.bytes)->size = n_steps;
    if (run->alone || b->options.debug)
        ((struct dev_command *)(void *)c->bytes.bytes)->id |= DEV_RUN_ALONE;
    c->deadline = run->deadline > 0 ? run->deadline : run->version->op->deadline;
    c->plan = plan;
    c->version = run->version->number;
    if (!run->bound->stats)
        run->bound->stats = &registry_operator(&b->registry, run->version->op->name)->runs;
    c->stats = run->bound->stats;
    return c;
}

struct tensor *run_make_result(struct request *req, const struct run *run, int i, uint64_t id)
{
    const struct plan_operand *o = &run->bound->plan->operands[i];
    if (o->kind != PLAN_SAVED && run->into[o->index])
        return run->into[o->index];
    struct tensor *t;
    if (o->view_of >= 0) {
        bool forward = run->bound->plan->direction == PLAN_FORWARD;
        const struct tensor *base = forward ? run->inputs[o->view_of]
                                            : run->grad_outputs[o->view_of];
        t = tensor_new(base->storage, base->offset, &o->desc);
    } else {
        t = tensor_new(run->made[i], 0, &o->desc);
    }
    request_make(req, id, t);
    req->made_view[req->n_made - 1] = o->view_of >= 0;
    return t;
}

void run_bump_versions(const struct run *run)
{
    const struct op *op = run->version->op;
    bool forward = run->bound->plan->direction == PLAN_FORWARD;
    for (int i = 0; forward && i < op->n_inputs; i++)
        if (op->inputs[i].in_place && run->inputs[i])
            run->inputs[i]->storage->version++;
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        if (run->into[i])
            run->into[i]->storage->version++;
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        if (run->saved_into[i])
            run->saved_into[i]->storage->version++;
}

static void note_write(struct request *req, const struct tensor *t)
{
    if (!t)
        return;
    request_needs(req, t->storage, 0, 0); // that it was made
    request_writes(req, t->storage, t->offset, t->offset + tensor_desc_size(&t->desc));
}

static void note_needs(struct request *req, const struct run *run)
{
    const struct op *op = run->version->op;
    bool backward = run->bound->plan->direction == PLAN_BACKWARD; // forward's outputs are its own
    for (int i = 0; i < op->n_inputs; i++)
        request_needs_tensor(req, run->inputs[i]);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        if (run->saved[i] && backward)
            request_needs(req, run->saved[i], 0, run->saved[i]->size);
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        note_write(req, run->into[i]);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        note_write(req, run->saved_into[i]);
    for (int i = 0; backward && i < op->n_outputs; i++) {
        request_needs_tensor(req, run->outputs[i]);
        request_needs_tensor(req, run->grad_outputs[i]);
    }
    for (int i = 0; !backward && i < op->n_inputs; i++)
        note_write(req, op->inputs[i].in_place ? run->inputs[i] : NULL);
}

enum request_status run_submit(struct request *req, struct run *run, struct command *c)
{
    struct device *d = run->device;
    bool nothing = ((struct dev_command *)(void *)c->bytes.bytes)->size == 0;
    enum request_status status = REQUEST_ANSWERED;
    if (nothing) {
        command_free(c);
    } else {
        note_needs(req, run);
        req->bound = bound_plan_ref(run->bound);
        if (req->broker->n_tracers > 0)
            req->trace = trace_begin(c, req->conn);
        status = request_submit(req, d, c);
    }
    drop_made(run); // scratch goes back at once: the device runs its next user after this command
    return status;
}
