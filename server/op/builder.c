#include "op/builder.h"

#include <string.h>

#include "base/mem.h"

bool builder_is_fresh(const struct builder *b, int tensor)
{
    if (b->env.request->direction == PLAN_FORWARD)
        return tensor >= TENSOR_OUTPUT && tensor < TENSOR_GRAD_OUTPUT;
    const struct temp *temps = b->env.request->op->body->temps;
    return tensor >= TENSOR_GRAD_INPUT || (tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT &&
                                           !temps[tensor - TENSOR_TEMP].saved);
}

bool builder_is_result(const struct builder *b, int tensor)
{
    const struct plan_request *request = b->env.request;
    const struct op *op = request->op;
    if (request->direction == PLAN_BACKWARD)
        return tensor >= TENSOR_GRAD_INPUT && (b->env.wanted >> (tensor - TENSOR_GRAD_INPUT) & 1);
    if (tensor >= TENSOR_TEMP && tensor < TENSOR_TEMP + op->body->n_temps)
        return op->body->temps[tensor - TENSOR_TEMP].saved && request->keep;
    return tensor >= TENSOR_OUTPUT && tensor < TENSOR_OUTPUT + op->n_outputs;
}

static uint32_t add_operand(struct builder *b, const struct plan_operand *o)
{
    struct plan *plan = b->plan;
    size_t n = (size_t)plan->n_operands;
    if (n == b->operands_capacity) { // of lists
        const struct plan_operand *old = plan->operands;
        b->operands_capacity *= 2;
        plan->operands = arena_alloc(b->arena, b->operands_capacity, sizeof *plan->operands);
        memcpy(plan->operands, old, n * sizeof *old);
    }
    plan->operands[plan->n_operands++] = *o;
    return (uint32_t)n;
}

uint32_t builder_operand(struct builder *b, int tensor)
{
    const struct plan_request *request = b->env.request;
    if (b->operand_of[tensor] >= 0)
        return (uint32_t)b->operand_of[tensor];
    struct plan_operand o = {
        .name = body_tensor_name(request->op, tensor),
        .desc = *env_tensor(&b->env, tensor),
        .view_of = -1,
    };
    if (tensor >= TENSOR_GRAD_INPUT) {
        o.desc.strided = false;
        o.kind = PLAN_GRAD_INPUT;
        o.index = tensor - TENSOR_GRAD_INPUT;
        if (!env_has_tensor(&b->env, tensor) || // thrown away
            (b->parted && !request->op->inputs[o.index].list)) {
            o.kind = PLAN_SCRATCH;
            o.index += OP_MAX_TEMPS + OP_MAX_OUTPUTS;
        }
    } else if (tensor >= TENSOR_GRAD_OUTPUT) {
        o.index = tensor - TENSOR_GRAD_OUTPUT;
        o.kind = PLAN_GRAD_OUTPUT;
        if (request->grad_absent >> o.index & 1) {
            o.kind = PLAN_SCRATCH;
            o.index += OP_MAX_TEMPS;
        }
    } else if (tensor >= TENSOR_TEMP) {
        o.index = tensor - TENSOR_TEMP;
        bool saved = request->op->body->temps[o.index].saved;
        bool kept = request->direction == PLAN_BACKWARD || request->keep;
        o.kind = saved && kept ? PLAN_SAVED : PLAN_SCRATCH;
    } else if (tensor >= TENSOR_OUTPUT) {
        o.kind = PLAN_OUTPUT;
        o.index = tensor - TENSOR_OUTPUT;
    } else {
        o.kind = PLAN_INPUT;
        o.index = tensor;
    }
    if (b->whole && builder_is_member(b, tensor))
        o.index += PLAN_MEMBER * b->member;
    b->operand_of[tensor] = b->plan->n_operands;
    return add_operand(b, &o);
}

void builder_clear_read(struct builder *b, int tensor)
{
    const struct op_body *body = b->env.request->op->body;
    bool scratch = tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT &&
                   !body->temps[tensor - TENSOR_TEMP].saved;
    if (builder_is_fresh(b, tensor) && !scratch && !b->covered[tensor] && !b->touched[tensor] &&
        !body->empty[tensor])
        b->pending[tensor] = env_has_tensor(&b->env, tensor);
}

void builder_note_values(struct builder *b, const struct packed *packed)
{
    for (int i = 0; i < packed->n_values; i++)
        buf_append(&b->values, &(struct plan_value){ b->plan->n_steps, packed->values[i] },
                   sizeof(struct plan_value));
}

bool builder_add_step(struct builder *b, const struct plan_step *step)
{
    size_t n = (size_t)b->plan->n_steps;
    if (n == PLAN_MAX_STEPS)
        return op_fail(b->err,
                       "more than %d launches in one request, which is the most there may be",
                       PLAN_MAX_STEPS);
    if (n == b->steps_capacity) {
        b->steps_capacity = n ? 2 * n : 16;
        b->steps = mem_realloc(b->steps, b->steps_capacity, sizeof *b->steps);
    }
    b->steps[n] = *step;
    b->plan->n_steps++;
    return true;
}

bool builder_zero(struct builder *b, int tensor)
{
    b->pending[tensor] = false;
    b->covered[tensor] = true;
    if (tensor_desc_numel(env_tensor(&b->env, tensor)) == 0)
        return true;
    struct plan_step step = { .kind = PLAN_STEP_ZERO, .operand = builder_operand(b, tensor) };
    return builder_add_step(b, &step);
}

static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool builder_add_kernel(struct builder *b, const struct plan_param *params, int n_params,
                        const char *expr, int line, uint32_t *out)
{
    struct plan *plan = b->plan;
    for (int i = plan->n_kernels; i-- > 0;)
        if (strcmp(plan->kernels[i].expr, expr) == 0 &&
            is_same_text(plan->kernels[i].prelude, b->prelude)) {
            *out = (uint32_t)i;
            return true;
        }
    size_t n = (size_t)plan->n_kernels;
    if (n == PLAN_MAX_KERNELS)
        return op_fail(b->err,
                       "more than %d instantiations of kernels in one request, which is the "
                       "most there may be",
                       PLAN_MAX_KERNELS);
    if (n == b->kernels_capacity) {
        struct plan_kernel *old = plan->kernels;
        b->kernels_capacity = n ? 2 * n : 16;
        plan->kernels = arena_alloc(b->arena, b->kernels_capacity, sizeof *plan->kernels);
        if (n)
            memcpy(plan->kernels, old, n * sizeof *old);
    }
    *out = (uint32_t)n;
    plan->kernels[plan->n_kernels++] = (struct plan_kernel){
        .expr = arena_copy(b->arena, expr, strlen(expr) + 1, 1),
        .prelude = b->prelude ? arena_copy(b->arena, b->prelude, strlen(b->prelude) + 1, 1) : NULL,
        .line = line,
        .n_params = n_params,
        .params = arena_copy(b->arena, params, (size_t)n_params, sizeof *params),
    };
    return true;
}

bool builder_add_launch(struct builder *b, struct plan_step *step, const struct packed *packed,
                        const char *expr, int line)
{
    if (!builder_add_kernel(b, packed->params, packed->n_params, expr, line, &step->kernel))
        return false;
    step->args_size = packed->size;
    step->args = arena_copy(b->arena, packed->bytes, packed->size, 1);
    step->n_slots = packed->n_slots;
    step->slots = arena_copy(b->arena, packed->slots, (size_t)packed->n_slots, sizeof *step->slots);
    for (int i = 0; i < step->n_slots; i++) {
        int tensor = (int)step->slots[i].operand;
        if (b->pending[tensor] && !builder_zero(b, tensor))
            return false;
        step->slots[i].operand = builder_operand(b, tensor);
    }
    builder_note_values(b, packed);
    return builder_add_step(b, step);
}
