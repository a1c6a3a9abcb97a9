#include "executor/steps.h"

#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "executor/order.h"
#include "executor/touches.h"

enum { N_REPORTS = 4 * DEV_MAX_REPORTS }; // in flight; a power of two

static bool fill_slot(struct steps *s, const struct dev_slot *slot, struct opd_err *err)
{
    device_addr base;
    if (!regions_resolve(&s->regions, (struct dev_ref){ .region = slot->region }, slot->high, &base,
                         err))
        return false;
    if (slot->low > slot->offset || slot->offset > slot->high ||
        slot->size > slot->high - slot->offset || slot->pad > slot->offset - slot->low)
        return opd_err_set(err, OPD_E_internal, "region %u has a tensor outside of its storage",
                           slot->region);
    struct backend_tensor t = { .arg_offset = slot->arg_offset,
                                .dtype = slot->dtype,
                                .pad = slot->pad,
                                .addr = base + slot->offset,
                                .size = slot->size,
                                .low = base + slot->low,
                                .high = base + slot->high };
    memcpy(s->args.bytes + slot->arg_offset, &t.addr, sizeof t.addr);
    buf_append(&s->tensors, &t, sizeof t);
    return true;
}

static bool run_launch(struct steps *s, const struct dev_launch *l, struct opd_err *err)
{
    const struct dev_slot *slots = (const struct dev_slot *)(l + 1);
    struct backend_program *program = programs_get(&s->programs, l->program);
    if (!program)
        return opd_err_set(err, OPD_E_unavailable,
                           "it could not be loaded again when the device was restarted; try again");
    s->args.size = s->tensors.size = 0;
    buf_append(&s->args, slots + l->n_slots, l->args_size);
    for (uint32_t i = 0; i < l->n_slots; i++)
        if (!fill_slot(s, &slots[i], err))
            return false;
    struct backend_launch launch = {
        .program = program,
        .shared_size = l->shared_size,
        .args = s->args.bytes,
        .args_size = l->args_size,
        .tensors = (const struct backend_tensor *)(const void *)s->tensors.bytes,
        .n_tensors = (int)l->n_slots,
        .miss = &s->miss,
    };
    memcpy(launch.grid, l->grid, sizeof launch.grid);
    memcpy(launch.block, l->block, sizeof launch.block);
    return s->ops->launch(s->be, &launch, err);
}

static bool run_fill(struct steps *s, const struct dev_fill *f, struct opd_err *err)
{
    device_addr dst;
    return regions_resolve(&s->regions, f->dst, f->size, &dst, err) &&
           s->ops->fill(s->be, dst, (uint8_t)f->byte, f->size, err);
}

static bool run_copy(struct steps *s, const struct dev_copy *c, struct opd_err *err)
{
    device_addr dst, src;
    return regions_resolve(&s->regions, c->dst, c->size, &dst, err) &&
           regions_resolve(&s->regions, c->src, c->size, &src, err) &&
           s->ops->copy(s->be, dst, src, c->size, err);
}

static bool resolve_matrix(struct steps *s, const struct dev_matrix *x, struct backend_matrix *out,
                           struct opd_err *err)
{
    *out = (struct backend_matrix){ .stride = x->stride, .transposed = x->transposed };
    return regions_resolve(&s->regions, x->ref, x->size, &out->addr, err);
}

bool steps_product(struct steps *s, const struct dev_matmul *x, struct backend_matmul *out,
                   struct opd_err *err)
{
    *out = (struct backend_matmul){
        .dtype = (enum opd_dtype)x->dtype,
        .result = (enum opd_dtype)x->result,
        .accumulate = x->accumulate,
        .tf32 = x->tf32,
        .m = x->m,
        .n = x->n,
        .k = x->k,
        .workspace = s->workspace,
    };
    if (s->blas_later)
        s->ops->blas_load(s->be);
    s->blas_later = false;
    return resolve_matrix(s, &x->d, &out->d, err) && resolve_matrix(s, &x->a, &out->a, err) &&
           resolve_matrix(s, &x->b, &out->b, err);
}

static bool run_matmul(struct steps *s, const struct dev_matmul *x, struct opd_err *err)
{
    struct backend_matmul m;
    return steps_product(s, x, &m, err) && s->ops->matmul(s->be, &m, err);
}

static bool make_places(struct steps *s, struct opd_err *err)
{
    size_t size = N_REPORTS * sizeof *s->reports;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return opd_err_errno(err, OPD_E_out_of_memory, "memory for reports of kernels");
    s->locks_reports = s->ops->host_register && s->ops->host_register(s->be, p, size);
    s->reports = p;
    return true;
}

// The places of the command's next n reports: they tell nothing until the device has.
static bool clear_places(struct steps *s, size_t n, struct opd_err *err)
{
    if (s->n_own + n > DEV_MAX_REPORTS)
        return opd_err_set(err, OPD_E_internal, "more reports than a command can have");
    for (size_t i = 0; i < n; i++)
        s->reports[(s->n_reports + i) % N_REPORTS] = 0;
    return true;
}

static void take_places(struct steps *s, size_t n)
{
    s->n_reports += n;
    s->n_own += (uint32_t)n;
}

static bool give_report(struct steps *s, const struct dev_report *r, struct opd_err *err)
{
    uint64_t *place = &s->reports[s->n_reports % N_REPORTS];
    device_addr src;
    if (!regions_resolve(&s->regions, r->src, sizeof *place, &src, err))
        return false;
    if (s->locks_reports && s->ops->report)
        return s->ops->report(s->be, s->reports, N_REPORTS, src, err);
    if (s->records) // the place would be the same each time
        return opd_err_set(err, OPD_E_unavailable, "memory for reports is not page-locked");
    return s->ops->copy(s->be, (device_addr)(uintptr_t)place, src, sizeof *place, err);
}

// Puts what kernels have reported into memory of the host, in stream order. In a graph it takes a
// place each time that is launched.
static bool run_report(struct steps *s, const struct dev_report *r, struct opd_err *err)
{
    if (!s->reports && !make_places(s, err))
        return false;
    if (s->records)
        return give_report(s, r, err);
    if (!clear_places(s, 1, err) || !give_report(s, r, err))
        return false;
    take_places(s, 1);
    return true;
}

// Host memory. Where it could not be mapped the client has its reply.
static bool find_word(struct steps *s, const struct dev_word *w)
{
    struct opd_err err = { 0 };
    device_addr addr;
    if (regions_resolve(&s->regions, w->at, sizeof *s->word, &addr, &err))
        s->word = (struct word *)(uintptr_t)addr;
    s->version = w->version;
    opd_err_clear(&err);
    return true;
}

// Before a step of a command: what came before it can be told from it, should the device fail.
static bool mark_step(struct steps *s, bool alone, struct opd_err *err)
{
    uint64_t mark = dev_mark(s->seq, s->n_begun), passed = 0;
    if ((!s->shares_marks && !alone) || !s->ops->mark(s->be, mark, err))
        return !err->code;
    while (alone && passed < mark)
        if (!s->ops->poll(s->be, &passed, err))
            return false;
    return true;
}

static bool run_step(struct steps *s, const void *step, struct opd_err *err)
{
    uint32_t type = ((const struct dev_step *)step)->type;
    switch (type) {
    case DEV_STEP_LAUNCH:
        return run_launch(s, step, err);
    case DEV_STEP_FILL:
        return run_fill(s, step, err);
    case DEV_STEP_COPY:
        return run_copy(s, step, err);
    case DEV_STEP_MATMUL:
        return run_matmul(s, step, err);
    case DEV_STEP_REPORT:
        return run_report(s, step, err);
    case DEV_STEP_WORD:
        return find_word(s, step);
    default:
        return opd_err_set(err, OPD_E_internal, "step of unknown type %u", type);
    }
}

static bool run_steps(struct steps *s, const struct dev_command *cmd, struct opd_err *err)
{
    bool alone = cmd->id & DEV_RUN_ALONE, launched = false;
    const uint8_t *at = (const uint8_t *)(cmd + 1);
    for (uint64_t i = 0; i < cmd->size; i++) {
        const struct dev_step *step = (const struct dev_step *)(const void *)at;
        if (launched && step->type == DEV_STEP_LAUNCH && !mark_step(s, alone, err))
            return false;
        launched = launched || step->type == DEV_STEP_LAUNCH;
        s->n_begun++;
        if (!run_step(s, step, err))
            return false;
        at += step->size;
    }
    return true;
}

static bool give_steps(struct steps *s, const uint8_t *at, uint64_t n, struct opd_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const struct dev_step *step = (const struct dev_step *)(const void *)at;
        if (!run_step(s, step, err))
            return false;
        at += step->size;
    }
    return true;
}

// How many steps a graph takes one after the other, where the last waits for these.
static uint32_t find_depth(const struct order *o, const struct buf *depths)
{
    const uint32_t *of = (const uint32_t *)(const void *)depths->bytes;
    uint32_t most = 0;
    for (uint32_t i = 0; i < o->n_after; i++)
        most = of[o->after[i]] > most ? of[o->after[i]] : most;
    return most + 1;
}

// The same for a graph, in which each waits for those alone that it must come after.
static bool give_in_order(struct steps *s, const uint8_t *at, uint64_t n, struct opd_err *err)
{
    struct order order = { 0 };
    struct buf ranges = { 0 }, depths = { 0 };
    uint32_t n_edges = 0, deepest = 0;
    bool good = true;
    for (uint64_t i = 0; i < n && good; i++) {
        const struct dev_step *step = (const struct dev_step *)(const void *)at;
        good = touches_of(s, step, &ranges, err);
        if (good)
            order_step(&order, (const struct order_range *)(const void *)ranges.bytes,
                       ranges.size / sizeof(struct order_range));
        good = good && s->ops->graph_step(s->be, order.after, order.n_after, err) &&
               run_step(s, step, err);
        const uint32_t depth = good ? find_depth(&order, &depths) : 0;
        buf_append(&depths, &depth, sizeof depth);
        deepest = depth > deepest ? depth : deepest;
        n_edges += order.n_after;
        at += step->size;
    }
    if (good)
        log_debug("a graph of %u steps, %u after each other, by %u edges", (unsigned)n, deepest,
                  n_edges);
    s->workspace = 0;
    buf_finish(&ranges);
    buf_finish(&depths);
    order_finish(&order);
    return good;
}

// A graph of the first steps of a command; NULL: they cannot be one.
static struct backend_graph *make_graph(struct steps *s, const uint8_t *at, uint64_t n)
{
    struct backend_graph *graph = NULL;
    struct opd_err err = { 0 }, end = { 0 };
    bool begun = s->ops->graph_begin(s->be, &err), good = begun;
    s->records = true;
    if (begun)
        good = (s->ops->graph_step ? give_in_order : give_steps)(s, at, n, &err);
    s->records = false;
    if (begun)
        good = s->ops->graph_end(s->be, &graph, &end) && good;
    if (!good) {
        log_info("calls that are replayed go one by one: %s", err.code ? err.msg : end.msg);
        if (graph)
            s->ops->graph_free(s->be, graph);
    }
    opd_err_clear(&err);
    opd_err_clear(&end);
    return good ? graph : NULL;
}

// The steps of a command before a client's word, which is another each time.
static uint64_t count_steps(const struct dev_command *cmd, size_t *out_size, size_t *out_reports)
{
    const uint8_t *start = (const uint8_t *)(cmd + 1), *at = start;
    uint64_t n = 0;
    *out_reports = 0;
    for (const struct dev_step *step; n < cmd->size; n++, at += step->size) {
        step = (const struct dev_step *)(const void *)at;
        if (step->type == DEV_STEP_WORD)
            break;
        *out_reports += step->type == DEV_STEP_REPORT;
    }
    *out_size = (size_t)(at - start);
    return n;
}

// As one launch, from the second time on.
static bool run_replay(struct steps *s, const struct dev_command *cmd, struct opd_err *err)
{
    const uint8_t *at = (const uint8_t *)(cmd + 1);
    size_t size, n_reports;
    uint64_t n = count_steps(cmd, &size, &n_reports);
    struct graphs_entry *entry = graphs_find(&s->graphs, at, size);
    if (entry && !entry->tried)
        entry->graph = make_graph(s, at, n);
    if (entry)
        entry->tried = true;
    if (!entry || !entry->graph)
        return run_steps(s, cmd, err);
    s->n_begun = 1;
    if (!clear_places(s, n_reports, err) || !s->ops->graph_launch(s->be, entry->graph, err))
        return false;
    take_places(s, n_reports);
    s->n_begun = (uint32_t)n;
    return give_steps(s, at + size, cmd->size - n, err);
}

void steps_begin(struct steps *s, uint64_t seq)
{
    s->seq = seq;
    s->n_begun = s->n_own = 0;
    s->word = NULL;
    s->miss.what = BACKEND_NO_MISS;
}

bool steps_run(struct steps *s, const struct dev_command *cmd, struct opd_err *err)
{
    bool replay = s->has_graphs && cmd->id & DEV_RUN_REPLAY && !(cmd->id & DEV_RUN_ALONE);
    return replay ? run_replay(s, cmd, err) : run_steps(s, cmd, err);
}

bool steps_wait(const struct steps *s, const struct dev_command *cmd)
{
    const uint8_t *at = (const uint8_t *)(cmd + 1);
    bool waits = false;
    for (uint64_t i = 0; s->programs.n_waiting > 0 && i < cmd->size && !waits; i++) {
        const struct dev_launch *l = (const struct dev_launch *)(const void *)at;
        waits = l->step.type == DEV_STEP_LAUNCH && programs_waits(&s->programs, l->program);
        at += l->step.size;
    }
    return waits;
}

bool steps_have_room(const struct steps *s)
{
    return s->n_reports - s->n_reported <= N_REPORTS - DEV_MAX_REPORTS;
}

uint64_t steps_report(const struct steps *s, uint32_t n, uint32_t *out_number)
{
    uint64_t report = 0;
    *out_number = 0;
    for (uint32_t i = 0; i < n && !report; i++) {
        report = s->reports[(s->n_reported + i) % N_REPORTS];
        *out_number = i;
    }
    return report;
}

void steps_reported(struct steps *s, uint32_t n)
{
    s->n_reported += n;
}

void steps_init(struct steps *s, const struct backend_ops *ops, struct backend *be)
{
    *s = (struct steps){ .ops = ops, .be = be };
    s->regions = (struct regions){ .ops = ops, .be = be };
    s->programs = (struct programs){ .ops = ops, .be = be };
    s->graphs = (struct graphs){ .ops = ops, .be = be };
}

void steps_finish(struct steps *s, bool failed)
{
    programs_finish(&s->programs);
    if (!failed)
        regions_finish(&s->regions);
    if (s->locks_reports)
        s->ops->host_unregister(s->be, s->reports);
    if (s->reports)
        munmap(s->reports, N_REPORTS * sizeof *s->reports);
    buf_finish(&s->args);
    buf_finish(&s->tensors);
}
