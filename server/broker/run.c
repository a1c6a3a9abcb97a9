#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker.h"
#include "program.h"

enum request_status run_bind(struct request *req, struct run *run, struct plan_request *pr,
                             struct opd_err *err)
{
    pr->op = run->entry->op;
    pr->on_cpu = run->device->is_cpu;
    run->bound = entry_plan(run->entry, run->device, pr, err);
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
        enum alloc_result result = storage_new(
            run->device, tensor_desc_size(&plan->operands[i].desc), &run->made[i], err);
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

// Where an operand is. False: nowhere (absent, unwanted or empty), which a kernel sees as a null
// pointer.
static bool locate(const struct run *run, uint32_t operand, struct dev_ref *out)
{
    const struct plan_operand *o = &run->bound->plan->operands[operand];
    if (run->made[operand])
        return storage_address(run->made[operand], 0, out);
    const struct tensor *t = NULL;
    switch (o->kind) {
    case PLAN_INPUT:
        t = run->inputs[o->index];
        break;
    case PLAN_OUTPUT:
        t = run->into[o->index] && run->bound->plan->direction == PLAN_FORWARD
                ? run->into[o->index]
                : run->outputs[o->index];
        break;
    case PLAN_GRAD_OUTPUT:
        t = run->grad_outputs[o->index];
        break;
    case PLAN_SAVED:
        return run->saved[o->index] &&
               storage_address(run->saved[o->index], run->saved_offset[o->index], out);
    case PLAN_GRAD_INPUT:
        t = run->into[o->index];
        break;
    default:
        break;
    }
    return t && tensor_address(t, 0, out);
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
        .shared_size = step->shared_size,
        .args_size = step->args_size,
    };
    memcpy(launch.grid, step->grid, sizeof launch.grid);
    memcpy(launch.block, step->block, sizeof launch.block);
    size_t start = c->bytes.size;
    buf_append(&c->bytes, &launch, sizeof launch);
    for (int i = 0; i < step->n_slots; i++) {
        struct dev_ref ref;
        if (!locate(run, step->slots[i].operand, &ref))
            continue;
        struct dev_slot slot = { step->slots[i].arg_offset, ref.region, ref.offset };
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

// What the kernels may have found wrong is read back last.
static void append_report(const struct run *run, struct command *c, uint64_t *n_steps)
{
    const struct plan *plan = run->bound->plan;
    struct dev_report report = { .step = { DEV_STEP_REPORT, sizeof report } };
    if (plan->report < 0 || !locate(run, (uint32_t)plan->report, &report.src))
        return;
    buf_append(&c->bytes, &report, sizeof report);
    buf_append(&c->checks, plan->checks, plan->checks_size);
    snprintf(c->op, sizeof c->op, "%s", run->entry->op->name);
    ++*n_steps;
}

static void write_label(const struct run *run, struct command *c)
{
    const struct plan *plan = run->bound->plan;
    snprintf(c->label, sizeof c->label, "%s version %d %s, kernel %s%s", run->entry->op->name,
             run->entry->version, plan->direction == PLAN_FORWARD ? "forward" : "backward",
             plan->n_kernels ? plan->kernels[0].expr : "(none)",
             plan->n_kernels > 1 ? " or a later one" : "");
}

struct command *run_command(struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    struct command *c = command_new(DEV_RUN, 0, 0);
    uint64_t n_steps = 0;
    for (int i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].kind == PLAN_STEP_ZERO)
            append_zero(run, &plan->steps[i], c, &n_steps);
        else
            append_launch(run, &plan->steps[i], c, &n_steps);
    }
    append_report(run, c, &n_steps);
    if (c->bytes.size > DEV_MAX_COMMAND) {
        opd_err_set(err, OPD_E_invalid_argument,
                    "%s: %" PRIu64 " launches are more than one request can carry",
                    run->entry->op->name, n_steps);
        command_free(c);
        drop_made(run);
        return NULL;
    }
    ((struct dev_command *)(void *)c->bytes.bytes)->size = n_steps;
    c->deadline = run->deadline;
    write_label(run, c);
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
    const struct op *op = run->entry->op;
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

static void note_needs(struct request *req, const struct run *run)
{
    const struct op *op = run->entry->op;
    for (int i = 0; i < op->n_inputs; i++)
        request_needs(req, run->inputs[i] ? run->inputs[i]->storage : NULL);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        request_needs(req, run->saved[i]);
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        request_needs(req, run->into[i] ? run->into[i]->storage : NULL);
    bool backward = run->bound->plan->direction == PLAN_BACKWARD; // forward's outputs are its own
    for (int i = 0; backward && i < op->n_outputs; i++) {
        request_needs(req, run->outputs[i] ? run->outputs[i]->storage : NULL);
        request_needs(req, run->grad_outputs[i] ? run->grad_outputs[i]->storage : NULL);
    }
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
        status = request_submit(req, d, c);
    }
    drop_made(run); // scratch goes back at once: the device runs its next user after this command
    return status;
}
