// Reads its input as an operator's file. What parses is planned: its examples, and shapes made from
// them at random.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/plan.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

static uint64_t state;

static uint32_t next_random(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void check_launch(const struct plan *plan, const struct plan_step *step)
{
    CHECK(step->kernel < (uint32_t)plan->n_kernels);
    const struct plan_kernel *kernel = &plan->kernels[step->kernel];
    for (int i = 0; i < 3; i++)
        CHECK(step->grid[i] > 0 && step->block[i] > 0);
    CHECK(step->block[0] * step->block[1] * step->block[2] <= 1024);
    for (int i = 0; i < kernel->n_params; i++)
        CHECK(kernel->params[i].offset + kernel->params[i].size <= step->args_size);
    for (int i = 0; i < step->n_slots; i++) {
        static const uint8_t zero[8];
        CHECK(step->slots[i].operand < (uint32_t)plan->n_operands);
        CHECK(step->slots[i].arg_offset + 8 <= step->args_size);
        CHECK(memcmp(step->args + step->slots[i].arg_offset, zero, 8) == 0);
    }
    CHECK(strlen(kernel->expr) > 0);
}

static void check_matrix(const struct plan *plan, const struct plan_matrix *x, int64_t rows,
                         int64_t cols, enum opd_dtype dtype)
{
    CHECK(x->operand < (uint32_t)plan->n_operands);
    const struct tensor_desc *desc = &plan->operands[x->operand].desc;
    int64_t down = x->transposed ? cols : rows, across = x->transposed ? rows : cols;
    CHECK(desc->dtype == dtype && x->stride >= across && x->stride <= INT32_MAX);
    CHECK(x->size == (uint64_t)((down - 1) * x->stride + across) * dtype_size(dtype));
    CHECK(x->offset + x->size <= tensor_desc_size(desc) && x->offset % dtype_size(dtype) == 0);
}

static void check_matmul(const struct plan *plan, const struct plan_matmul *m)
{
    CHECK(m->m > 0 && m->n > 0 && m->k > 0);
    CHECK(m->m <= INT32_MAX && m->n <= INT32_MAX && m->k <= INT32_MAX);
    CHECK(dtype_is_float(m->dtype) && dtype_is_float(m->result) && !m->d.transposed);
    check_matrix(plan, &m->d, m->m, m->n, m->result);
    check_matrix(plan, &m->a, m->m, m->k, m->dtype);
    check_matrix(plan, &m->b, m->k, m->n, m->dtype);
}

static void check_plan(const struct plan *plan)
{
    struct opd_err err = { 0 };
    for (int i = 0; i < plan->n_operands; i++)
        CHECK(tensor_desc_check(&plan->operands[i].desc, &err));
    for (int i = 0; i < plan->n_steps; i++) {
        if (plan->steps[i].kind == PLAN_STEP_ZERO)
            CHECK(plan->steps[i].operand < (uint32_t)plan->n_operands);
        else if (plan->steps[i].kind == PLAN_STEP_MATMUL)
            check_matmul(plan, plan->steps[i].matmul);
        else
            check_launch(plan, &plan->steps[i]);
    }
}

static void check_same(const struct plan *a, const struct plan *b)
{
    CHECK(a->n_steps == b->n_steps && a->n_operands == b->n_operands);
    CHECK(strcmp(a->prelude, b->prelude) == 0);
    for (int i = 0; i < a->n_steps; i++) {
        const struct plan_step *x = &a->steps[i], *y = &b->steps[i];
        CHECK(x->kind == y->kind && x->kernel == y->kernel && x->args_size == y->args_size);
        CHECK(memcmp(x->grid, y->grid, sizeof x->grid) == 0 && x->shared_size == y->shared_size);
        CHECK(x->args_size == 0 || memcmp(x->args, y->args, x->args_size) == 0);
    }
}

static void check_rules(const struct op *op)
{
    for (int i = 0; i < op->n_rules; i++) {
        const struct op_rule *rule = &op->rules[i];
        CHECK(rule->kind == RULE_REQUIRE ? !rule->name : rule->name[0] != '\0');
        CHECK(rule->kind == RULE_SHAPE ? !rule->value : rule->value[0] != '\0');
        for (int k = 0; k < rule->n; k++)
            CHECK(strlen(rule->parts[k]) > 0 || (rule->kind == RULE_REQUIRE && k % 2 == 0));
    }
}

// A plan that was given other numbers is the one that is made of them.
static void try_other_numbers(const struct plan *plan, const struct plan_request *request)
{
    struct plan_request *other = mem_alloc(sizeof *other);
    struct opd_err err = { 0 };
    uint32_t fixed = plan->fixed;
    *other = *request;
    for (int i = 0; i < request->op->n_attrs; i++) {
        enum op_attr_type type = request->op->attrs[i].type;
        for (int k = 0; k < other->attrs[i].n && !(plan->fixed >> i & 1); k++) {
            if (type == OP_ATTR_INT)
                other->attrs[i].i[k] = (int64_t)((uint64_t)other->attrs[i].i[k] + next_random(9) -
                                                 4);
            else if (type == OP_ATTR_FLOAT)
                other->attrs[i].f[k] += (double)next_random(9) / 4 - 1;
        }
    }
    struct plan *revalued = plan_revalue(plan, other, &fixed);
    struct plan *built = plan_build(other, &err);
    CHECK(!revalued || built);
    if (revalued)
        check_same(revalued, built);
    plan_free(revalued);
    plan_free(built);
    opd_err_clear(&err);
    free(other);
}

static void try_plan(const struct plan_request *request)
{
    struct opd_err err = { 0 };
    struct plan *plan = plan_build(request, &err);
    CHECK(plan ? err.code == OPD_E_none : err.code != OPD_E_none && err.msg[0]);
    struct buf signature = { 0 };
    plan_signature(request, UINT32_MAX, &signature);
    buf_finish(&signature);
    if (!plan)
        return;
    check_plan(plan);
    struct plan *again = plan_build(request, &err);
    CHECK(again);
    check_same(plan, again);
    plan_free(again);
    try_other_numbers(plan, request);
    plan_free(plan);
}

static void try_directions(struct plan_request *request)
{
    request->on_cpu = next_random(2);
    request->blas = next_random(2);
    request->keep = next_random(2);
    request->direction = PLAN_FORWARD;
    try_plan(request);
    request->direction = PLAN_BACKWARD;
    request->wanted = next_random(4) ? UINT32_MAX : next_random(UINT32_MAX);
    request->grad_absent = next_random(2) ? 0 : next_random(UINT32_MAX);
    try_plan(request);
}

static int64_t random_size(void)
{
    static const int64_t sizes[] = {
        0, 1, 2, 3, 7, 64, 1000, 65536, 1 << 30, INT64_C(1) << 40, -1
    };
    return sizes[next_random(sizeof sizes / sizeof *sizes)];
}

static void change(struct plan_request *request)
{
    const struct op *op = request->op;
    for (int i = 0; i < op->n_inputs; i++) {
        struct tensor_desc *d = &request->inputs[i];
        if (next_random(4) == 0)
            d->rank = (int)next_random(OP_MAX_RANK + 2);
        if (next_random(8) == 0)
            d->dtype = (enum opd_dtype)next_random(OPD_DTYPE_COUNT);
        for (int k = 0; k < d->rank && k < OP_MAX_RANK; k++)
            if (d->shape[k] == 0 || next_random(3) == 0)
                d->shape[k] = random_size();
    }
    struct opd_err err = { 0 };
    for (int i = 0; i < op->n_attrs; i++) {
        struct op_value *v = &request->attrs[i];
        int64_t values[] = { random_size(), random_size() };
        double number = (double)values[0] * 0.37;
        if (next_random(2))
            op_attr_set_ints(op, i, values, 1 + (int)next_random(2), v, &err);
        else if (next_random(2))
            op_attr_set_floats(op, i, &number, 1, v, &err);
        else if (next_random(2))
            op_attr_set_none(op, i, v, &err);
        opd_err_clear(&err);
    }
}

// Derivatives are made, and plan as other operators do; or it is said why not.
static void try_derivatives(const struct op *op, int order)
{
    static const char *const names[] = { "backward", "tangent" };
    for (int i = 0; i < 2 && op_is_derivable(op) && order > 0; i++) {
        struct opd_err err = { 0 };
        struct op *derived = op_derive(op, names[i], &err);
        CHECK(derived ? err.code == OPD_E_none : err.code != OPD_E_none);
        if (derived) {
            check_rules(derived);
            try_derivatives(derived, order - 1);
        }
        op_unref(derived);
        opd_err_clear(&err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct opd_err err = { 0 };
    struct op *op = op_parse("fuzz.cu", (const char *)data, size, &err);
    if (!op) {
        CHECK(err.code == OPD_E_invalid_argument && strncmp(err.msg, "fuzz.cu:", 8) == 0);
        CHECK(!err.log || strcmp(err.log + strlen(err.log) - 2, "^\n") == 0);
        opd_err_clear(&err);
        return 0;
    }
    CHECK(err.code == OPD_E_none);
    check_rules(op);
    struct plan_request request = { .op = op };
    state = op->hash;
    for (int k = 0; plan_example(op, k, (enum opd_dtype)next_random(OPD_DTYPE_COUNT), &request);
         k++)
        try_directions(&request);
    for (int i = 0; i < op->n_attrs && request.attrs[i].n == 0; i++)
        request.attrs[i] = op->attrs[i].value;
    for (int round = 0; round < 8; round++) {
        change(&request);
        try_directions(&request);
    }
    try_derivatives(op, 2);
    op_unref(op);
    return 0;
}
