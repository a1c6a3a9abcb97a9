#include <string.h>

#include "op/reader.h"

static bool read_list(struct reader *r, const char *what, int64_t list[OP_MAX_RANK], int *n)
{
    struct lexer *lx = &r->lx;
    *n = 0;
    if (!lex_expect(lx, '[', what))
        return false;
    while (!lex_is(lx, ']')) {
        if (*n > 0 && !lex_expect(lx, ',', "',' or ']'"))
            return false;
        if (lx->token.kind != TOKEN_INT)
            return lex_fail_expected(lx, "a size");
        if (*n == OP_MAX_RANK)
            return lex_fail(lx, "a shape of more than %d dimensions", OP_MAX_RANK);
        list[(*n)++] = lx->token.i;
        lex_next(lx);
    }
    lex_next(lx);
    return true;
}

// [2, 3], or with its strides, [2, 3]:[1, 2].
static bool read_desc(struct reader *r, struct tensor_desc *d)
{
    struct lexer *lx = &r->lx;
    int n;
    if (!read_list(r, "a shape, [2, 3]", d->shape, &d->rank))
        return false;
    d->strided = lex_accept(lx, ':');
    if (!d->strided)
        return true;
    if (!read_list(r, "strides behind ':', [2, 3]:[1, 2]", d->strides, &n))
        return false;
    if (n != d->rank)
        return lex_fail(lx, "%d strides of %d dimensions, expected one for each", n, d->rank);
    if (!tensor_desc_check(d, lx->err))
        return opd_err_prefix(lx->err, "%s:%d", lx->file, lx->line);
    tensor_desc_simplify(d);
    return true;
}

static bool read_argument(struct reader *r, struct example *e)
{
    struct lexer *lx = &r->lx;
    char name[OP_MAX_NAME];
    if (!lex_name(lx, "an argument: NAME=[2, 3] or NAME=VALUE", name, sizeof name) ||
        !lex_expect(lx, '=', "'='"))
        return false;
    int input = op_input_index(r->op, name), attr = op_attr_index(r->op, name);
    if (attr >= 0)
        return schema_read_value(r, attr, &e->attrs[attr]);
    if (input < 0)
        return lex_fail(lx, "'%s' is no argument of %s", name, r->op->name);
    if (e->inputs[input].dtype != OPD_DTYPE_NONE)
        return lex_fail(lx, "'%s' stands twice in the example", name);
    const struct op_type *type = &r->op->types[r->op->inputs[input].type];
    if (type->n_dtypes == 0)
        return lex_fail(lx, "the dtype of '%s' is not known yet; put the 'dtypes' line before",
                        name);
    e->inputs[input].dtype = type->dtypes[0];
    return read_desc(r, &e->inputs[input]);
}

bool example_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (r->body->n_examples == OP_MAX_EXAMPLES)
        return lex_fail(lx, "more than %d examples", OP_MAX_EXAMPLES);
    struct example *e = &r->examples[r->body->n_examples++];
    *e = (struct example){ .line = lx->line };
    for (int i = 0; i < r->op->n_attrs; i++)
        e->attrs[i] = r->op->attrs[i].value;
    while (lx->token.kind == TOKEN_NAME)
        if (!read_argument(r, e))
            return false;
    return lex_expect_end(lx);
}

bool plan_example(const struct op *op, int k, enum opd_dtype dtype, struct plan_request *out)
{
    if (k < 0 || k >= op->body->n_examples)
        return false;
    const struct example *e = &op->body->examples[k];
    *out = (struct plan_request){ .op = op, .direction = PLAN_FORWARD };
    memcpy(out->inputs, e->inputs, sizeof e->inputs);
    memcpy(out->attrs, e->attrs, sizeof e->attrs);
    for (int i = 0; i < op->n_inputs; i++) // which have the first dtype of their type
        if (out->inputs[i].dtype && op_type_takes(&op->types[op->inputs[i].type], dtype))
            out->inputs[i].dtype = dtype;
    return true;
}

int plan_example_dtypes(const struct op *op, bool all, enum opd_dtype out[OPD_DTYPE_COUNT])
{
    bool seen[OPD_DTYPE_COUNT] = { false };
    bool scalar_alone = !all && op->types[TYPE_SCALAR].n_dtypes > 0;
    int n = 0, n_types = scalar_alone ? TYPE_SCALAR + 1 : op->n_types;
    for (int t = 0; t < n_types; t++)
        for (int i = 0; op->types[t].name[0] && i < op->types[t].n_dtypes; i++) {
            enum opd_dtype dtype = op->types[t].dtypes[i];
            if (!seen[dtype])
                out[n++] = dtype;
            seen[dtype] = true;
        }
    if (n == 0)
        out[n++] = OPD_DTYPE_NONE;
    return n;
}

uint32_t plan_gradients(const struct plan_request *request)
{
    uint32_t all = 0;
    for (int i = 0; i < request->op->n_inputs; i++)
        if (request->op->inputs[i].differentiable && dtype_is_float(request->inputs[i].dtype))
            all |= 1u << i;
    return all;
}

static bool check_plan(const struct plan_request *request, int line, struct opd_err *err)
{
    struct plan *plan = plan_build(request, err);
    plan_free(plan);
    return plan || opd_err_prefix(err, "%s:%d: the example does not plan", request->op->file, line);
}

bool example_check_all(struct reader *r)
{
    for (int k = 0; k < r->body->n_examples; k++) {
        struct plan_request request;
        int line = r->body->examples[k].line;
        plan_example(r->op, k, OPD_DTYPE_NONE, &request);
        for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
            request.on_cpu = on_cpu;
            request.direction = PLAN_FORWARD;
            request.keep = r->op->has_backward;
            if (!check_plan(&request, line, r->lx.err))
                return false;
            request.direction = PLAN_BACKWARD;
            request.wanted = plan_gradients(&request);
            if (r->op->has_backward && !check_plan(&request, line, r->lx.err))
                return false;
        }
    }
    return true;
}
