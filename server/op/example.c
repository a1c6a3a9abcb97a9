#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/reader.h"
#include "op/rules.h"

enum { EXAMPLE_MAX_LIST = 1024, CHECKED_VALUES = 65536 };

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

// [[2, 3], [4]]: the tensors of a list.
static bool read_descs(struct reader *r, struct example *e, int input)
{
    struct lexer *lx = &r->lx;
    struct arena *arena = &r->body->arena;
    const struct tensor_desc *of[EXAMPLE_MAX_MEMBERS];
    int n = 0;
    if (!lex_expect(lx, '[', "the shapes of a list, [[2, 3], [4]]"))
        return false;
    while (!lex_is(lx, ']')) {
        struct tensor_desc *d = arena_alloc(arena, 1, sizeof *d);
        if (n > 0 && !lex_expect(lx, ',', "',' or ']'"))
            return false;
        if (n == EXAMPLE_MAX_MEMBERS)
            return lex_fail(lx, "more than %d tensors in a list", EXAMPLE_MAX_MEMBERS);
        d->dtype = e->inputs[input].dtype;
        if (!read_desc(r, d))
            return false;
        of[n++] = d;
    }
    if (!e->lists) {
        e->lists = arena_alloc(arena, 1, sizeof *e->lists);
        memset(e->lists->n, -1, sizeof e->lists->n);
    }
    e->lists->n[input] = n;
    e->lists->of[input] = arena_copy(arena, of, (size_t)n, sizeof *of);
    lex_next(lx);
    return true;
}

static bool read_number(struct reader *r, double *out)
{
    struct lexer *lx = &r->lx;
    bool minus = lex_accept(lx, '-');
    if (lx->token.kind != TOKEN_INT && lx->token.kind != TOKEN_FLOAT)
        return lex_fail_expected(lx, "a number");
    *out = lx->token.kind == TOKEN_INT ? (double)lx->token.i : lx->token.f;
    *out = minus ? -*out : *out;
    lex_next(lx);
    return true;
}

// 0..3
static bool read_range(struct reader *r, struct example_data *d)
{
    if (!read_number(r, &d->low) ||
        !lex_expect(&r->lx, PUNCT2('.', '.'), "a range, as in 'x in 0..3'") ||
        !read_number(r, &d->high))
        return false;
    return d->low <= d->high || lex_fail(&r->lx, "a range from %g to %g is empty", d->low, d->high);
}

static void bound(struct example_data *d, double value)
{
    d->low = value < d->low ? value : d->low;
    d->high = value > d->high ? value : d->high;
}

// [0, 2, 1]: again from the first where there are more elements.
static bool read_values(struct reader *r, struct example_data *d)
{
    double list[EXAMPLE_MAX_LIST];
    struct lexer *lx = &r->lx;
    lex_next(lx);
    while (!lex_is(lx, ']')) {
        if (d->n > 0 && !lex_expect(lx, ',', "',' or ']'"))
            return false;
        if (d->n == EXAMPLE_MAX_LIST)
            return lex_fail(lx, "more than %d values", EXAMPLE_MAX_LIST);
        if (!read_number(r, &list[d->n]))
            return false;
        d->n++;
    }
    if (d->n == 0)
        return lex_fail(lx, "a list without values");
    lex_next(lx);
    d->list = arena_copy(&r->body->arena, list, (size_t)d->n, sizeof *list);
    return true;
}

// i % 3, of the element's index.
static bool read_function(struct reader *r, struct example_data *d)
{
    int outside = r->scope.n;
    struct symbol index = {
        .name = "i", .kind = SYMBOL_LET, .index = r->n_slots, .line = r->lx.line
    };
    if (r->n_slots == ENV_MAX_SLOTS)
        return lex_fail(&r->lx, "more than %d dimensions, lets and repeats", ENV_MAX_SLOTS);
    if (!scope_add(&r->scope, &index, &r->lx))
        return false;
    d->slot = r->n_slots++;
    d->value = reader_expr(r);
    r->scope.n = outside;
    return d->value != NULL;
}

// NAME in 0..3, NAME is [0, 2, 1], NAME is i % 3
static bool read_data(struct reader *r, struct example *e, const char *name)
{
    struct lexer *lx = &r->lx;
    int input = op_input_index(r->op, name);
    if (input < 0 || e->inputs[input].dtype == OPD_DTYPE_NONE)
        return lex_fail(lx, "'%s' has no shape here, expected '%s=[2, 3]' before", name, name);
    if (e->data[input])
        return lex_fail(lx, "what '%s' holds stands twice in the example", name);
    struct example_data *d = arena_alloc(&r->body->arena, 1, sizeof *d);
    e->data[input] = d;
    if (lex_accept_word(lx, "in"))
        return read_range(r, d);
    if (r->op->inputs[input].list)
        return lex_fail(lx, "'%s' is a list, expected a range for all its tensors: %s in 0..3",
                        name, name);
    lex_next(lx);
    return lex_is(lx, '[') ? read_values(r, d) : read_function(r, d);
}

static bool read_argument(struct reader *r, struct example *e)
{
    struct lexer *lx = &r->lx;
    char name[OP_MAX_NAME];
    if (!lex_name(lx, "an argument: NAME=[2, 3], NAME=VALUE or NAME in 0..3", name, sizeof name) ||
        (!lex_is_word(lx, "in") && !lex_is_word(lx, "is") && !lex_expect(lx, '=', "'='")))
        return false;
    if (lex_is_word(lx, "in") || lex_is_word(lx, "is"))
        return read_data(r, e, name);
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
    if (r->op->inputs[input].list)
        return read_descs(r, e, input);
    return read_desc(r, &e->inputs[input]);
}

bool example_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (r->body->n_examples == OP_MAX_EXAMPLES)
        return lex_fail(lx, "more than %d examples", OP_MAX_EXAMPLES);
    const struct example empty = { .line = lx->line };
    buf_append(&r->examples, &empty, sizeof empty);
    struct example *e = (struct example *)(void *)r->examples.bytes + r->body->n_examples++;
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
    out->lists = e->lists;
    memcpy(out->inputs, e->inputs, sizeof e->inputs);
    memcpy(out->attrs, e->attrs, sizeof e->attrs);
    for (int i = 0; i < op->n_inputs; i++) // which have the first dtype of their type
        if (out->inputs[i].dtype && op_type_takes(&op->types[op->inputs[i].type], dtype))
            out->inputs[i].dtype = dtype;
    return true;
}

static bool fill_values(const struct plan_request *request, const struct example_data *d, int64_t n,
                        double *values, struct opd_err *err)
{
    struct env *env = mem_zalloc(1, sizeof *env);
    bool ok = d->list || rules_apply(request, env, err);
    for (int64_t i = 0; ok && i < n; i++) {
        union expr_value value;
        if (d->list) {
            values[i] = d->list[i % d->n];
            continue;
        }
        env->slots[d->slot].i = i;
        ok = expr_eval(d->value, env, &value, err);
        values[i] = d->value->type == EXPR_FLOAT ? value.f : (double)value.i;
    }
    free(env);
    return ok;
}

bool plan_example_data(const struct plan_request *request, int k, int input, double *low,
                       double *high, double **values, struct opd_err *err)
{
    const struct example_data *d = request->op->body->examples[k].data[input];
    bool is_range = d && !d->list && !d->value;
    if (values)
        *values = NULL;
    *low = d ? d->low : 0;
    *high = d ? d->high : 0;
    if (!d || is_range || !values)
        return is_range;
    int64_t n = tensor_desc_numel(&request->inputs[input]);
    *values = mem_alloc((size_t)n * sizeof **values);
    if (fill_values(request, d, n, *values, err)) {
        struct example_data bounds = { .low = HUGE_VAL, .high = -HUGE_VAL };
        for (int64_t i = 0; i < n; i++)
            bound(&bounds, (*values)[i]);
        *low = n > 0 ? bounds.low : 0;
        *high = n > 0 ? bounds.high : 0;
        return true;
    }
    free(*values);
    *values = NULL;
    return opd_err_prefix(err, "%s:%d: the example's %s", request->op->file,
                          request->op->body->examples[k].line, request->op->inputs[input].name);
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

// Expressions fail here, not where they are asked for.
static bool check_data(struct reader *r, const struct plan_request *request, int k)
{
    for (int i = 0; i < r->op->n_inputs; i++) {
        double low, high, *values = NULL;
        bool few = tensor_desc_numel(&request->inputs[i]) <= CHECKED_VALUES;
        plan_example_data(request, k, i, &low, &high, few ? &values : NULL, r->lx.err);
        free(values);
        if (r->lx.err->code)
            return false;
    }
    return true;
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
        plan_example(r->op, k, OPD_DTYPE_NONE, &request);
        if (!check_data(r, &request, k)) // of shapes that a plan has held to be sound
            return false;
    }
    return true;
}
