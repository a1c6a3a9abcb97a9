#include <stdio.h>
#include <string.h>

#include "formula.h"
#include "reader.h"

static bool fail_mixed(struct reader *r, const char *keyword)
{
    return lex_fail(&r->lx,
                    "'%s' beside 'formula' (line %d): an operator has formulas, and shapes that "
                    "follow from them, or shapes and kernels",
                    keyword, r->formulas->items[0].line);
}

bool formula_check_alone(struct reader *r, const char *keyword)
{
    static const char *const others[] = { "shape", "saved",   "scratch", "check",
                                          "view",  "forward", "backward" };
    for (size_t i = 0; r->formulas && i < sizeof others / sizeof *others; i++)
        if (strcmp(keyword, others[i]) == 0)
            return fail_mixed(r, keyword);
    return true;
}

static bool has_float(const struct op *op, const struct op_tensor *t)
{
    const struct op_type *type = &op->types[t->type];
    for (int i = 0; i < type->n_dtypes; i++)
        if (dtype_is_float(type->dtypes[i]))
            return true;
    return false;
}

// Outputs, inputs in place and gradients of inputs are targets; a new name is an intermediate.
static bool find_target(struct reader *r, struct formula *f)
{
    struct lexer *lx = &r->lx;
    const struct token token = lx->token;
    if (!lex_name(lx, "a name: an output, grad_ of an input, or a new one", f->name,
                  sizeof f->name))
        return false;
    const struct symbol *s = scope_find(&r->scope, token.start, token.size);
    f->target = -1;
    if (!s)
        return true;
    const struct token next = lx->token;
    lx->token = token;
    r->mark.exact = true;
    if (s->kind != SYMBOL_TENSOR)
        return lex_fail(lx, "'%s' is %s%s, expected an output, grad_ of an input, or a new name",
                        s->name, symbol_describe(s->kind),
                        s->kind == SYMBOL_FORMULA ? " already" : "");
    f->target = s->index;
    if (s->index < TENSOR_OUTPUT && !r->op->inputs[s->index].in_place)
        return lex_fail(lx,
                        "%s is an input, expected an output, grad_ of an input, or a new name; to "
                        "change it write Tensor(a!) %s",
                        s->name, s->name);
    if (s->index >= TENSOR_GRAD_OUTPUT && s->index < TENSOR_GRAD_INPUT)
        return lex_fail(lx, "%s is given to backward, expected grad_ of an input", s->name);
    if (s->index >= TENSOR_GRAD_INPUT &&
        !has_float(r->op, &r->op->inputs[s->index - TENSOR_GRAD_INPUT]))
        return lex_fail(lx, "%s has no floating dtype, so there is no %s",
                        r->op->inputs[s->index - TENSOR_GRAD_INPUT].name, s->name);
    for (int i = 0; i < r->formulas->n - 1; i++)
        if (r->formulas->items[i].target == s->index)
            return lex_fail(lx, "a second formula for %s, the first is at line %d", s->name,
                            r->formulas->items[i].line);
    r->mark.exact = false;
    lx->token = next;
    return true;
}

bool formula_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    r->column = true; // a formula may be long
    if (r->section || r->has_view || r->body->n_temps > 0)
        return lex_fail(lx, "'formula' beside %s: an operator has formulas, or shapes and kernels",
                        r->section              ? "'forward'"
                        : r->has_view           ? "'view'"
                        : r->body->n_checks > 0 ? "'check'"
                                                : "'saved' and 'scratch'");
    for (int t = 0; t < TENSOR_TEMP; t++)
        if (r->scope.shaped[t])
            return lex_fail(lx, "'formula' beside 'shape': the shapes of an operator with formulas "
                                "follow from them");
    if (!r->formulas)
        r->formulas = arena_alloc(r->arena, 1, sizeof *r->formulas);
    if (r->formulas->n == FORMULA_MAX)
        return lex_fail(lx, "more than %d formulas", FORMULA_MAX);
    struct formula *f = &r->formulas->items[r->formulas->n++];
    f->line = lx->line;
    if (!find_target(r, f) || !lex_expect(lx, '=', "'='") || !formula_parse(r, r->formulas, f))
        return false;
    if (f->target >= TENSOR_GRAD_INPUT)
        r->op->inputs[f->target - TENSOR_GRAD_INPUT].differentiable = true;
    return f->target >= 0 ||
           reader_symbol(r, f->name, SYMBOL_FORMULA, (int)(f - r->formulas->items));
}

// --- once all lines have been read

static bool has_formula(const struct reader *r, int target)
{
    for (int i = 0; i < r->formulas->n; i++)
        if (r->formulas->items[i].target == target)
            return true;
    return false;
}

static bool check_op(const struct reader *r, struct opd_err *err)
{
    const struct op *op = r->op;
    for (int i = 0; i < op->n_inputs; i++) {
        const struct op_tensor *t = &op->inputs[i];
        if (t->optional)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s:%d: '%s' is optional, but formulas are of tensors that are "
                               "always there",
                               op->file, r->op_line, t->name);
        if (t->in_place && !has_formula(r, i))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s:%d: no formula for '%s', which is changed in place", op->file,
                               r->op_line, t->name);
    }
    for (int o = 0; o < op->n_outputs; o++)
        if (!has_formula(r, TENSOR_OUTPUT + o))
            return opd_err_set(err, OPD_E_invalid_argument, "%s:%d: no formula for output '%s'",
                               op->file, r->op_line, op->outputs[o].name);
    const struct op_type *type = &op->types[TYPE_SCALAR];
    for (int d = 0; d < type->n_dtypes; d++)
        if (!dtype_is_float(type->dtypes[d]))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s:%d: dtypes has %s, but formulas are computed in floating point; "
                               "a tensor of another dtype needs a 'type' line",
                               op->file, r->op_line, dtype_name(type->dtypes[d]));
    return type->n_dtypes > 0 ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s:%d: no 'dtypes' line: it says what formulas are computed in", op->file,
                       r->op_line);
}

bool formula_finish(struct reader *r, struct opd_err *err)
{
    struct op *op = r->op;
    if (!check_op(r, err))
        return false;
    for (int i = 0; i < r->formulas->n; i++) {
        const struct formula *f = &r->formulas->items[i];
        if (f->target < TENSOR_GRAD_INPUT)
            continue;
        op->has_backward = true;
        for (int k = 0; k < op->n_inputs; k++)
            op->inputs[k].used_backward |= (f->uses.tensors & formula_bit(k)) != 0;
        for (int k = 0; k < op->n_outputs; k++)
            op->outputs[k].used_backward |= (f->uses.tensors & formula_bit(TENSOR_OUTPUT + k)) != 0;
    }
    // Sums may be made in two steps, with something in between.
    for (int i = 0; i < op->n_inputs; i++) {
        struct temp *temp = &r->temps[r->body->n_temps++];
        *temp = (struct temp){ .type = TYPE_ACC };
        snprintf(temp->name, sizeof temp->name, "sums_%.50s", op->inputs[i].name);
    }
    r->body->n_steps = 1 + 2 * op->n_inputs;
    r->body->formulas = r->formulas;
    return true;
}
