#include <inttypes.h>
#include <string.h>

#include "request/parts.h"
#include "kernels/program.h"
#include "request/run.h"

// NULL for what has no memory (absent or empty): a kernel sees it as a null pointer.
static const struct place *locate(struct run *run, uint32_t operand, struct dev_ref *out)
{
    const struct place *p = run_place(run, operand);
    return p && p->storage && storage_address(p->storage, p->offset, out) ? p : NULL;
}

static bool fill_slot(struct run *run, const struct plan_slot *from, struct dev_slot *out)
{
    struct dev_ref ref;
    const struct place *p = locate(run, from->operand, &ref);
    if (!p)
        return false;
    enum opd_dtype dtype = run->bound->plan->operands[from->operand].desc.dtype;
    const struct suballoc_block *block = p->storage->block;
    uint64_t start = ref.offset - p->offset, place = block ? storage_place(p->storage) : 0;
    *out = (struct dev_slot){ .arg_offset = from->arg_offset,
                              .region = ref.region,
                              .offset = ref.offset,
                              .size = p->size,
                              .low = start - place,
                              .high = start + (block ? block->size - place : p->storage->size),
                              .dtype = (uint16_t)dtype,
                              .written = from->writes,
                              .pad = p->offset ? 0 : (uint32_t)place };
    return true;
}

static struct dev_command *head(struct command *c)
{
    return (struct dev_command *)(void *)c->bytes.bytes;
}

static void append_zero(struct run *run, const struct plan_step *step, struct command *c)
{
    struct dev_fill fill = { .step = { DEV_STEP_FILL, sizeof fill } };
    if (!locate(run, step->operand, &fill.dst))
        return;
    fill.size = tensor_desc_size(&run->bound->plan->operands[step->operand].desc);
    buf_append(&c->bytes, &fill, sizeof fill);
    head(c)->size++;
}

static void append_launch(struct run *run, const struct plan_step *step, struct command *c)
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
    head(c)->size++;
}

static bool locate_matrix(struct run *run, const struct plan_matrix *x, struct dev_matrix *out)
{
    *out = (struct dev_matrix){ .size = x->size, .stride = x->stride, .transposed = x->transposed };
    bool found = locate(run, x->operand, &out->ref) != NULL;
    out->ref.offset += x->offset;
    return found;
}

static void append_matmul(struct run *run, const struct plan_matmul *pm, struct command *c)
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
    head(c)->size++;
}

void run_append_report(struct run *run, struct command *c)
{
    const struct plan *plan = run->bound->plan;
    struct dev_report report = { .step = { DEV_STEP_REPORT, sizeof report } };
    if (plan->report < 0 || !locate(run, (uint32_t)plan->report, &report.src))
        return;
    buf_append(&c->bytes, &report, sizeof report);
    head(c)->size++;
}

void run_append(struct run *run, struct command *c)
{
    const struct plan *plan = run->bound->plan;
    // A command that is too large is not written to its end, which may be far.
    for (int i = 0; i < plan->n_steps && c->bytes.size <= DEV_MAX_COMMAND; i++) {
        if (plan->steps[i].kind == PLAN_STEP_ZERO)
            append_zero(run, &plan->steps[i], c);
        else if (plan->steps[i].kind == PLAN_STEP_MATMUL)
            append_matmul(run, plan->steps[i].matmul, c);
        else
            append_launch(run, &plan->steps[i], c);
    }
}

bool run_check_steps(const struct run *run, uint64_t n_steps, struct opd_err *err)
{
    uint64_t limit = (uint64_t)run->req->broker->options.max_launches;
    return n_steps <= limit ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s: %" PRIu64 " launches in one request, at most %" PRIu64
                       " are allowed (--max-launches)",
                       run->version->op->name, n_steps, limit);
}

static bool check_size(const struct run *run, struct command *c, struct opd_err *err)
{
    bool fits = c->bytes.size <= DEV_MAX_COMMAND;
    uint64_t n_steps = fits ? head(c)->size : (uint64_t)run->bound->plan->n_steps;
    if (!run_check_steps(run, n_steps, err))
        return false;
    return fits || opd_err_set(err, OPD_E_invalid_argument,
                               "%s: %" PRIu64 " launches are more than one request can carry",
                               run->version->op->name, n_steps);
}

struct command *run_command(struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    struct command *c = device_new_run(run->device);
    run_append(run, c);
    run_append_report(run, c);
    if (!check_size(run, c, err)) {
        command_free(c);
        return NULL;
    }
    if (run_is_alone(run) || run->bound->request->checked)
        head(c)->id |= DEV_RUN_ALONE;
    c->deadline = run->deadline > 0 ? run->deadline : run->version->op->deadline;
    c->plan = plan;
    c->version = run->version->number;
    c->stats = run_stats_ref(run->version->of->runs);
    return c;
}
