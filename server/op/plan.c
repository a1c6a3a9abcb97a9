#include "op/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "op/builder.h"
#include "op/rules.h"
#include "op/report.h"
#include "op/formula.h"
#include "base/mem.h"

static bool add_steps(struct builder *b, const struct section *section, int from, int to);

// The body of a loop that is not entered: each of its launches is as an empty one.
static void drop_repeat(struct builder *b, const struct step *body, int n)
{
    for (int i = 0; i < n; i++) {
        const struct step *step = &body[i];
        if (step->kind == STEP_LAUNCH)
            builder_drop_launch(b, step);
        else if (step->kind == STEP_ZERO)
            b->pending[step->tensor] = !b->covered[step->tensor] &&
                                       env_has_tensor(&b->env, step->tensor);
        else
            builder_drop(b,
                         step->kind == STEP_INNER ? step->inner->target : step->matmul->d.tensor);
    }
}

static bool add_repeat(struct builder *b, const struct section *section, int at)
{
    const struct step *step = &section->steps[at];
    int64_t times;
    if (!expr_eval_int(step->repeat, &b->env, &times, b->err))
        return false;
    if (times < 0 || times > PLAN_MAX_STEPS)
        return op_fail(b->err, "repeat: '%s' is %" PRId64 ", expected 0 to %d (%s:%d)",
                       step->repeat->text, times, PLAN_MAX_STEPS, step->repeat->file, step->line);
    b->n_repeated += times * step->n_body;
    if (b->n_repeated > PLAN_MAX_REPEATED)
        return op_fail(b->err,
                       "repeat: %d steps %" PRId64 " times, expected at most %d altogether "
                       "(%s:%d)",
                       step->n_body, times, PLAN_MAX_REPEATED, step->repeat->file, step->line);
    if (times == 0)
        drop_repeat(b, step + 1, step->n_body);
    for (int64_t t = 0; t < times; t++) {
        b->env.slots[step->slot].i = t;
        b->reads.slots[step->slot] = READS_PLACE;
        if (!add_steps(b, section, at + 1, at + 1 + step->n_body))
            return false;
    }
    return true;
}

static bool add_steps(struct builder *b, const struct section *section, int from, int to)
{
    bool matched = false; // a kernel of the present chain has run
    for (int i = from; i < to; i++) {
        const struct step *step = &section->steps[i];
        bool holds = true;
        if (step->kind == STEP_ZERO) {
            b->pending[step->tensor] = env_has_tensor(&b->env, step->tensor);
            continue;
        }
        if (step->kind == STEP_REPEAT) {
            if (!add_repeat(b, section, i))
                return false;
            i += step->n_body;
            matched = false;
            continue;
        }
        if (!step->otherwise)
            matched = false;
        if (matched)
            continue;
        if (step->when && !expr_eval_bool(step->when, &b->env, &holds, b->err))
            return false;
        if (!holds)
            continue;
        matched = true;
        if (step->kind == STEP_MATMUL  ? !builder_matmul(b, step)
            : step->kind == STEP_INNER ? !builder_inner(b, step)
                                       : !builder_launch(b, section, step))
            return false;
    }
    return true;
}

// Of lists each step, with the chain that it begins, runs for all places before the next one does;
// what belongs to no list runs once.
static bool add_listed(struct builder *b, const struct section *section)
{
    for (int from = 0, to; from < section->n_steps; from = to) {
        to = from + 1;
        while (to < section->n_steps && section->steps[to].otherwise)
            to++;
        int n = builder_is_listed(b, &section->steps[from], to - from) ? b->n_members : 1;
        for (int k = 0; k < n; k++)
            if (!builder_set_member(b, k) || !add_steps(b, section, from, to))
                return false;
        if (!builder_end_chunks(b))
            return false;
    }
    return true;
}

struct mapped {
    struct builder *b;
    struct buf text; // what the next kernel is compiled with
    size_t common;   // of that, what all are
};

static bool add_formula_launch(void *data, const struct formula_launch *launch)
{
    struct mapped *m = data;
    struct builder *b = m->b;
    struct plan_step step = { .kind = PLAN_STEP_LAUNCH,
                              .grid = { launch->grid[0], launch->grid[1], 1 },
                              .block = { launch->block, 1, 1 },
                              .copies = launch->copied >= 0 };
    if (step.copies)
        step.operand = builder_operand(b, launch->copied);
    b->prelude = buf_str(&m->text);
    bool ok = builder_add_launch(b, &step, &launch->packed, launch->kernel, launch->line);
    b->prelude = NULL;
    m->text.size = m->common;
    for (int i = 0; i < launch->n_written; i++)
        b->covered[launch->written[i]] = true;
    return ok;
}

// Launches of formulas. Each kernel is compiled with its own text alone, so that it is compiled
// once, whatever the others of its plan are.
static bool add_formulas(struct builder *b)
{
    struct mapped m = { .b = b };
    if (b->whole)
        return builder_map_formulas(b);
    buf_append_str(&m.text, b->plan->prelude);
    if (b->env.request->op->body->formulas->calls_device)
        buf_append_str(&m.text, PLAN_BEHIND_SOURCE);
    m.common = m.text.size;
    bool ok = formula_plan(&b->env, &m.text, add_formula_launch, &m, b->err);
    buf_finish(&m.text);
    for (int t = TENSOR_OUTPUT; t < TENSOR_COUNT; t++)
        b->pending[t] = builder_is_result(b, t) && !b->covered[t]; // sums of nothing
    return ok;
}

// No result is left with what the memory held before.
static bool finish_results(struct builder *b)
{
    for (int t = TENSOR_OUTPUT; t < TENSOR_COUNT; t++) {
        if (!builder_is_result(b, t))
            continue;
        bool saved = t >= TENSOR_TEMP && t < TENSOR_GRAD_OUTPUT;
        if ((b->pending[t] || (saved && !b->covered[t])) && !builder_zero(b, t))
            return false;
        if (!b->covered[t] && tensor_desc_numel(env_tensor(&b->env, t)) > 0)
            return op_fail(b->err, "no kernel makes %s for this request: no 'when' of %s holds",
                           body_tensor_name(b->env.request->op, t), b->env.request->op->file);
    }
    return true;
}

static void write_prelude(struct builder *b)
{
    const struct op *op = b->env.request->op;
    struct buf text = { 0 };
    report_write_names(op, &text);
    for (int t = 0; t < op->n_types; t++) {
        enum opd_dtype dtype = b->env.types[t];
        if (!op->types[t].name[0] || dtype == OPD_DTYPE_NONE)
            continue;
        buf_printf(&text, "using %s = %s;\n", op->types[t].name, dtype_type(dtype));
        if (t == TYPE_SCALAR)
            buf_printf(&text, "using acc_t = %s;\n", dtype_acc(dtype));
    }
    b->plan->prelude = arena_copy(b->arena, buf_str(&text), text.size + 1, 1);
    buf_finish(&text);
}

static bool check_numel(const struct builder *b, int output)
{
    const struct plan_request *request = b->env.request;
    const struct op_tensor *o = &request->op->outputs[output];
    const struct tensor_desc *base = &request->inputs[o->view_of];
    char text[320], of[320];
    if (tensor_desc_numel(&b->env.outputs[output]) == tensor_desc_numel(base))
        return true;
    tensor_desc_format(&b->env.outputs[output], text, sizeof text);
    tensor_desc_format(base, of, sizeof of);
    return op_fail(b->err, "%s is %s, a view of %s, which is %s; expected as many elements",
                   o->name, text, request->op->inputs[o->view_of].name, of);
}

// Operators of views have no kernels: what they give lies where what they take does.
static bool build_views(struct builder *b)
{
    const struct plan_request *request = b->env.request;
    for (int o = 0; o < request->op->n_outputs; o++) {
        if (!request->op->outputs[o].is_view)
            continue;
        int input = request->op->outputs[o].view_of;
        if (!check_numel(b, o))
            return false;
        if (request->direction == PLAN_FORWARD) {
            b->plan->operands[builder_operand(b, TENSOR_OUTPUT + o)].view_of = input;
            b->covered[TENSOR_OUTPUT + o] = true;
        } else if (b->env.wanted >> input & 1) {
            bool absent = request->grad_absent >> o & 1;
            if (absent && !builder_zero(b, TENSOR_GRAD_INPUT + input))
                return false;
            if (!absent)
                b->plan->operands[builder_operand(b, TENSOR_GRAD_INPUT + input)].view_of = o;
            b->covered[TENSOR_GRAD_INPUT + input] = true;
        }
    }
    return true;
}

static bool build_steps(struct builder *b)
{
    const struct plan_request *request = b->env.request;
    const struct op_body *body = request->op->body;
    bool backward = request->direction == PLAN_BACKWARD;
    for (int t = TENSOR_OUTPUT; t < TENSOR_COUNT; t++)
        if (builder_is_result(b, t))
            builder_operand(b, t);
    if (body->n_checks > 0)
        b->pending[body->report] = true;
    for (int o = 0; backward && o < request->op->n_outputs; o++)
        b->pending[TENSOR_GRAD_OUTPUT + o] = request->grad_absent >> o & 1;
    if (!build_views(b) || (body->formulas && !add_formulas(b)))
        return false;
    for (int i = 0; i < body->n_sections; i++) {
        const struct section *section = &body->sections[i];
        if (section->backward != backward || (backward && !(section->grads & b->env.wanted)) ||
            !(section->devices & (request->on_cpu ? ON_CPU : ON_CUDA)))
            continue;
        if (b->whole ? !add_listed(b, section) : !add_steps(b, section, 0, section->n_steps))
            return false;
    }
    if (body->n_checks > 0 && b->operand_of[body->report] >= 0) {
        b->plan->report = b->operand_of[body->report];
        b->plan->checks = report_texts(&b->env, b->arena, &b->plan->checks_size);
    }
    for (int k = 1; k < b->n_members; k++)
        if (!builder_set_member(b, k) || !finish_results(b))
            return false;
    return (!b->whole || builder_set_member(b, 0)) && finish_results(b) && builder_join_parts(b);
}

uint32_t builder_wanted(const struct plan_request *request)
{
    uint32_t wanted = 0;
    if (request->direction != PLAN_BACKWARD)
        return 0;
    for (int i = 0; i < request->op->n_inputs; i++)
        if (request->op->inputs[i].differentiable && request->inputs[i].dtype != OPD_DTYPE_NONE)
            wanted |= request->wanted & 1u << i;
    return wanted;
}

static bool check_gradients(const struct builder *b)
{
    const struct plan_request *request = b->env.request;
    for (int i = 0; i < request->op->n_inputs; i++)
        if ((b->env.wanted >> i & 1) && !dtype_is_float(request->inputs[i].dtype))
            return op_fail(b->err, "%s is %s, expected a floating dtype for a gradient",
                           request->op->inputs[i].name, dtype_name(request->inputs[i].dtype));
    return true;
}

// Of empty lists: what all tensors share has no gradient of them.
static bool build_nothing(struct builder *b)
{
    for (int i = 0; i < b->env.request->op->n_inputs; i++)
        if ((b->env.wanted >> i & 1) && !builder_zero(b, TENSOR_GRAD_INPUT + i))
            return false;
    b->plan->steps = arena_copy(b->arena, b->steps, (size_t)b->plan->n_steps, sizeof *b->steps);
    return true;
}

static bool build(struct builder *b, const struct plan_request *request)
{
    if (request->direction == PLAN_BACKWARD && !request->op->has_backward)
        return op_fail(b->err, "it has no backward");
    b->operands_capacity = TENSOR_COUNT;
    b->plan->operands = arena_alloc(b->arena, TENSOR_COUNT, sizeof *b->plan->operands);
    memset(b->operand_of, -1, sizeof b->operand_of);
    if (request->op->lists ? !builder_start_lists(b, request)
                           : !rules_apply(request, &b->env, b->err))
        return false;
    b->env.request = b->whole && b->n_members == 0 ? request : b->env.request;
    b->env.wanted = builder_wanted(request);
    if (!check_gradients(b))
        return false;
    if (b->whole && b->n_members == 0)
        return build_nothing(b);
    write_prelude(b);
    if (!build_steps(b))
        return false;
    b->plan->steps = arena_copy(b->arena, b->steps, (size_t)b->plan->n_steps, sizeof *b->steps);
    for (int i = 0; i < b->plan->n_kernels; i++)
        if (!b->plan->kernels[i].prelude)
            b->plan->kernels[i].prelude = b->plan->prelude;
    for (int i = 0; request->checked && i < b->plan->n_kernels; i++) {
        char *prelude = plan_checked_prelude(b->plan, i);
        b->plan->kernels[i].prelude = arena_copy(b->arena, prelude, strlen(prelude) + 1, 1);
        free(prelude);
    }
    return true;
}

// Each operand once, however often the kernels come back to it.
static uint64_t count_bytes(const struct plan *plan)
{
    uint64_t n = 0;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct tensor_desc *desc = &plan->operands[i].desc;
        if (plan->operands[i].kind != PLAN_SCRATCH && i != plan->report)
            n += (uint64_t)tensor_desc_numel(desc) * dtype_size(desc->dtype);
    }
    return n;
}

// By the schema: what a run makes, and what is changed in place.
static bool is_written(const struct plan *plan, const struct plan_operand *o)
{
    bool forward = plan->direction == PLAN_FORWARD;
    switch (o->kind) {
    case PLAN_INPUT:
        return forward && plan->op->inputs[plan_index(o->index)].in_place;
    case PLAN_OUTPUT:
    case PLAN_SAVED:
        return forward;
    case PLAN_GRAD_OUTPUT:
        return false;
    case PLAN_SCRATCH:
    case PLAN_GRAD_INPUT:
        break;
    }
    return true;
}

static void note_writes(struct plan *plan)
{
    for (struct plan_step *step = plan->steps; step < plan->steps + plan->n_steps; step++)
        for (int i = 0; i < step->n_slots; i++) {
            struct plan_slot *slot = &step->slots[i];
            if (!slot->reads && is_written(plan, &plan->operands[slot->operand]))
                slot->writes = true;
        }
}

struct plan *plan_build(const struct plan_request *request, struct opd_err *err)
{
    struct owned_plan *owned = mem_zalloc(1, sizeof *owned);
    struct builder *b = mem_zalloc(1, sizeof *b);
    owned->plan.op = op_ref((struct op *)(uintptr_t)request->op);
    owned->plan.direction = request->direction;
    owned->plan.report = -1;
    b->plan = &owned->plan;
    b->arena = &owned->arena;
    b->err = err;
    b->env.reads = &b->reads;
    bool ok = build(b, request);
    owned->plan.bytes = ok ? count_bytes(&owned->plan) : 0;
    if (ok)
        note_writes(&owned->plan);
    owned->plan.fixed = (uint32_t)b->reads.fixed;
    owned->n_values = (int)(b->values.size / sizeof *owned->values);
    owned->values = arena_copy(b->arena, b->values.bytes, (size_t)owned->n_values,
                               sizeof *owned->values);
    free(b->steps);
    buf_finish(&b->values);
    builder_finish_lists(b);
    free(b);
    if (ok)
        return &owned->plan;
    plan_free(&owned->plan);
    opd_err_prefix(err, "%s", request->op->name);
    return NULL;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    struct owned_plan *owned = (struct owned_plan *)plan;
    op_unref(plan->op);
    arena_finish(&owned->arena);
    free(owned);
}

static void sign_value(const struct op_attr *a, const struct op_value *v, bool fixed,
                       struct buf *out)
{
    size_t n = v->present ? (size_t)v->n : 0;
    bool is_number = a->type == OP_ATTR_FLOAT || a->type == OP_ATTR_INT;
    bool without = is_number && !fixed && n > 0;
    buf_append(out, &(uint8_t){ (uint8_t)(without ? n | 0x80 : n) }, 1);
    if (without)
        return;
    if (a->type == OP_ATTR_FLOAT)
        buf_append(out, v->f, n * sizeof *v->f);
    else
        buf_append(out, v->i, n * sizeof *v->i);
}

static inline void sign_desc(const struct tensor_desc *d, struct buf *out)
{
    size_t rank = d->dtype == OPD_DTYPE_NONE || d->rank < 0 ? 0 : (size_t)d->rank;
    rank = rank < OP_MAX_RANK ? rank : OP_MAX_RANK;
    buf_append(out, &(uint8_t){ (uint8_t)d->dtype }, 1);
    buf_append(out, &(uint8_t){ (uint8_t)(rank | d->strided << 7) }, 1);
    buf_append(out, d->shape, rank * sizeof *d->shape);
    if (d->strided)
        buf_append(out, d->strides, rank * sizeof *d->strides);
}

void plan_signature(const struct plan_request *request, uint32_t fixed, struct buf *out)
{
    const struct op *op = request->op;
    bool backward = request->direction == PLAN_BACKWARD;
    uint32_t outputs = (uint32_t)((UINT64_C(1) << op->n_outputs) - 1);
    uint8_t flags = (uint8_t)(backward | request->on_cpu << 1 | (!backward && request->keep) << 2 |
                              request->blas << 3 | request->checked << 4 | request->long_args << 5);
    uint32_t wanted = builder_wanted(request);
    uint32_t absent = backward ? request->grad_absent & outputs : 0;
    buf_append(out, &op->hash, sizeof op->hash);
    buf_append(out, &flags, sizeof flags);
    buf_append(out, &wanted, sizeof wanted);
    buf_append(out, &absent, sizeof absent);
    for (int i = 0; i < op->n_inputs; i++)
        sign_desc(&request->inputs[i], out);
    for (int i = 0; i < op->n_attrs; i++)
        sign_value(&op->attrs[i], &request->attrs[i], fixed >> i & 1, out);
    for (int i = 0; request->lists && i < op->n_inputs; i++) {
        buf_append(out, &request->lists->n[i], sizeof request->lists->n[i]);
        for (int k = 0; k < request->lists->n[i]; k++)
            sign_desc(request->lists->of[i][k], out);
    }
}
