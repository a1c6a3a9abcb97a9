#include <stdio.h>
#include <string.h>

#include "op/builder.h"
#include "op/formula.h"

// Steps of elements: the plan of an operator of formulas, with the tensors of the section for its
// own, becomes a part of the plan at hand.

static bool fail_absent(const struct builder *b, const struct inner *in, int tensor)
{
    return op_fail(b->err, "%s: %s is not there; expected a 'when' with %s", in->text,
                   body_tensor_name(b->env.request->op, tensor),
                   tensor >= TENSOR_GRAD_INPUT ? "wanted()" : "present()");
}

// A gradient is contiguous, whatever its input is.
static struct tensor_desc find_desc(const struct builder *b, int tensor)
{
    struct tensor_desc d = *env_tensor(&b->env, tensor);
    d.strided = d.strided && tensor < TENSOR_OUTPUT;
    return d;
}

static bool set_inputs(struct builder *b, const struct inner *in, struct plan_request *request)
{
    request->inputs[0] = find_desc(b, in->target);
    request->inputs[1].dtype = b->env.types[TYPE_SCALAR];
    for (int i = 2; i < in->n_inputs; i++) {
        int t = in->inputs[i];
        if (env_has_tensor(&b->env, t))
            request->inputs[i] = find_desc(b, t);
        else if (!in->op->inputs[i].optional)
            return fail_absent(b, in, t);
    }
    return true;
}

static bool set_attrs(struct builder *b, const struct inner *in, struct plan_request *request)
{
    int n = b->env.request->op->n_attrs;
    memcpy(request->attrs, b->env.request->attrs, sizeof request->attrs);
    for (int i = 0; i < in->n_lets; i++) {
        union expr_value v;
        if (!expr_eval(in->lets[i], &b->env, &v, b->err))
            return opd_err_prefix(b->err, "%s", in->text);
        double f = in->lets[i]->type == EXPR_FLOAT ? v.f : (double)v.i;
        request->attrs[n + i] = (struct op_value){ .present = true, .n = 1, .f = { f } };
    }
    return true;
}

// The result of a sum as the inner operator has it: 1 where it is summed.
static bool set_summed(struct builder *b, const struct inner *in, struct plan_request *request)
{
    struct tensor_desc all = formula_common_shape(request->inputs + 2, in->n_inputs - 2);
    struct tensor_desc left = { .dtype = request->inputs[0].dtype }, kept;
    all.dtype = left.dtype;
    const struct tensor_desc own = request->inputs[0];
    bool summed[OP_MAX_RANK] = { false };
    for (int i = 0; i < in->n_over; i++) {
        int64_t d;
        if (!expr_eval_int(in->over[i], &b->env, &d, b->err))
            return opd_err_prefix(b->err, "%s", in->text);
        d += d < 0 ? all.rank : 0;
        if (d < 0 || d >= all.rank || summed[d])
            return op_fail(b->err, "%s: '%s' is %s, expected dimensions of a tensor of rank %d",
                           in->text, in->over[i]->text,
                           d >= 0 && d < all.rank ? "there twice" : "none of them", all.rank);
        summed[d] = true;
    }
    kept = all;
    for (int d = 0; d < all.rank; d++)
        if (summed[d])
            kept.shape[d] = 1;
        else
            left.shape[left.rank++] = all.shape[d];
    char is[320], expected[320];
    tensor_desc_format_shape(own.shape, own.rank, is, sizeof is);
    tensor_desc_format_shape(left.shape, left.rank, expected, sizeof expected);
    request->inputs[0] = kept;
    return tensor_desc_same(&own, &left) || tensor_desc_same(&own, &kept) ||
           op_fail(b->err, "%s: %s is %s, expected %s", in->text,
                   body_tensor_name(b->env.request->op, in->target), is, expected);
}

// Memory for sums and their parts: a scratch tensor of the plan's, known by its shape, which those
// of this step before have not taken.
static int find_room(struct builder *b, const struct tensor_desc *desc, const int *taken, int n)
{
    for (int i = b->env.request->op->body->n_temps; i < OP_MAX_TEMPS; i++) {
        struct tensor_desc *room = &b->env.temps[i];
        bool is_free = room->dtype == OPD_DTYPE_NONE || tensor_desc_same(room, desc);
        for (int k = 0; k < n; k++)
            is_free = is_free && taken[k] != TENSOR_TEMP + i;
        if (is_free) {
            *room = *desc;
            return TENSOR_TEMP + i;
        }
    }
    op_fail(b->err, "more than %d saved and scratch tensors, and sums in parts", OP_MAX_TEMPS);
    return -1;
}

static int find_tensor(struct builder *b, const struct inner *in, const struct plan_operand *o,
                       const int *taken, int n)
{
    if (o->kind == PLAN_SCRATCH)
        return find_room(b, &o->desc, taken, n);
    return o->kind == PLAN_INPUT && o->index > 1 ? in->inputs[o->index] : in->target;
}

// The file is compiled with the kernel, and may name types and checks that the step does without.
static void write_prelude(const struct builder *b, const char *own, struct buf *out)
{
    const char *file = b->plan->prelude;
    if (strncmp(own, file, strlen(file)) != 0)
        buf_append_str(out, file);
    buf_append_str(out, own);
}

static bool add_launch(struct builder *b, const struct inner *in, const struct plan *plan,
                       const struct plan_step *from, const int *tensors)
{
    const struct plan_kernel *k = &plan->kernels[from->kernel];
    struct packed *p = &b->packed;
    struct plan_step step = { .kind = PLAN_STEP_LAUNCH, .shared_size = from->shared_size };
    memcpy(step.grid, from->grid, sizeof step.grid);
    memcpy(step.block, from->block, sizeof step.block);
    packed_start(p);
    p->size = from->args_size;
    p->n_params = k->n_params;
    p->n_slots = from->n_slots;
    memcpy(p->bytes, from->args, from->args_size);
    memcpy(p->params, k->params, (size_t)k->n_params * sizeof *k->params);
    for (int i = 0; i < from->n_slots; i++)
        p->slots[i] = (struct plan_slot){ .arg_offset = from->slots[i].arg_offset,
                                          .operand = (uint32_t)tensors[from->slots[i].operand],
                                          .reads = !from->slots[i].writes,
                                          .writes = from->slots[i].writes };
    struct buf prelude = { 0 };
    write_prelude(b, k->prelude, &prelude);
    b->prelude = buf_str(&prelude);
    bool ok = builder_add_launch(b, &step, p, k->expr, in->line);
    b->prelude = NULL;
    buf_finish(&prelude);
    return ok;
}

static bool add_steps(struct builder *b, const struct inner *in, const struct plan *plan)
{
    int tensors[TENSOR_COUNT];
    for (int i = 0; i < plan->n_operands; i++) {
        tensors[i] = find_tensor(b, in, &plan->operands[i], tensors, i);
        if (tensors[i] < 0)
            return false;
    }
    for (int i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        if (step->kind == PLAN_STEP_ZERO ? !builder_zero(b, tensors[step->operand])
                                         : !add_launch(b, in, plan, step, tensors))
            return false;
    }
    return true;
}

// What is read of a result that nothing has written yet begins with zeros; what is made as a whole
// needs none.
static void prepare(struct builder *b, const struct inner *in)
{
    for (int i = 2; i < in->n_inputs; i++)
        builder_clear_read(b, in->inputs[i]);
    if (in->reads_target)
        builder_clear_read(b, in->target);
    else
        b->pending[in->target] = false;
}

// By the text of the step, not by the name of its operator.
static bool fail_inner(const struct builder *b, const struct inner *in)
{
    size_t n = strlen(in->op->name) + 2;
    memmove(b->err->msg, b->err->msg + n, strlen(b->err->msg + n) + 1);
    return opd_err_prefix(b->err, "%s", in->text);
}

bool builder_inner_with(struct builder *b, const struct inner *in, struct plan_request *request)
{
    struct plan *plan = plan_build(request, b->err);
    if (!plan)
        return fail_inner(b, in);
    b->reads.fixed = UINT32_MAX; // its values are values here, whatever they come from
    prepare(b, in);
    bool ok = add_steps(b, in, plan);
    plan_free(plan);
    b->covered[in->target] = true;
    return ok;
}

bool builder_inner(struct builder *b, const struct step *step)
{
    const struct inner *in = step->inner;
    struct plan_request request = { .op = in->op, .on_cpu = b->env.request->on_cpu };
    if (!env_has_tensor(&b->env, in->target))
        return in->target >= TENSOR_GRAD_INPUT || fail_absent(b, in, in->target);
    if (!set_inputs(b, in, &request) || !set_attrs(b, in, &request))
        return false;
    if (in->n_over > 0) {
        request.direction = PLAN_BACKWARD;
        request.wanted = 1;
        if (!set_summed(b, in, &request))
            return false;
    }
    return builder_inner_with(b, in, &request);
}
