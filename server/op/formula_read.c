#include <stdio.h>
#include <string.h>

#include "op/derive.h"
#include "op/reader.h"
#include "op/tree.h"
#include "base/suggest.h"

bool formula_check_alone(struct reader *r)
{
    static const char *const others[] = { "shape",   "saved",    "scratch", "check",  "view",
                                          "forward", "backward", "batch",   "linear", "strided" };
    for (size_t i = 0; r->formulas && i < sizeof others / sizeof *others; i++)
        if (strcmp(r->keyword, others[i]) == 0)
            return lex_fail(&r->lx,
                            "'%s' beside 'formula' (line %d): an operator has formulas, and "
                            "shapes that follow from them, or shapes and kernels",
                            r->keyword, r->formulas->items[0].line);
    return true;
}

static bool has_formula(const struct reader *r, int target)
{
    return formula_find(r->formulas, target) >= 0;
}

// The nearest of the gradients of inputs, and of the results, that have no formula yet.
static const char *suggest_target(const struct reader *r, const char *name, bool gradient,
                                  struct suggest *near)
{
    const struct op *op = r->op;
    suggest_init(near, name, strlen(name));
    for (int i = 0; i < op->n_inputs; i++) {
        if (!has_formula(r, TENSOR_GRAD_INPUT + i))
            suggest_add(near, body_tensor_name(op, TENSOR_GRAD_INPUT + i));
        if (!gradient && op->inputs[i].in_place && !has_formula(r, i))
            suggest_add(near, op->inputs[i].name);
    }
    for (int o = 0; !gradient && o < op->n_outputs; o++)
        if (!has_formula(r, TENSOR_OUTPUT + o))
            suggest_add(near, op->outputs[o].name);
    return suggest_text(near);
}

// The name of an intermediate may not begin with grad_: a misspelt gradient would silently be None.
static bool check_intermediate(struct reader *r, const struct formula *f, const struct token *name)
{
    struct suggest near;
    if (strncmp(f->name, "grad_", 5) != 0)
        return true;
    r->lx.token = *name;
    r->mark.exact = true;
    return lex_fail(&r->lx,
                    "'%s' is the gradient of no input, expected grad_ of one, or another name for "
                    "an intermediate%s",
                    f->name, suggest_target(r, f->name, true, &near));
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
    f->at = token.start;
    if (!s)
        return check_intermediate(r, f, &token);
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
    if (s->index >= TENSOR_GRAD_INPUT && !reader_is_float(r, s->index - TENSOR_GRAD_INPUT))
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
    if (r->section)
        return inner_read(r);
    r->column = true; // a formula may be long
    for (int i = 0; i < r->op->n_inputs; i++)
        if (r->op->inputs[i].strided)
            return lex_fail(lx, "'formula' beside 'strided %s': formulas take contiguous inputs",
                            r->op->inputs[i].name);
    if (r->has_view || r->body->n_temps > 0)
        return lex_fail(lx, "'formula' beside %s: an operator has formulas, or shapes and kernels",
                        r->has_view             ? "'view'"
                        : r->body->n_checks > 0 ? "'check'"
                                                : "'saved' and 'scratch'");
    for (int t = 0; t < TENSOR_TEMP; t++)
        if (r->scope.shaped[t])
            return lex_fail(lx, "'formula' beside 'shape': the shapes of an operator with formulas "
                                "follow from them");
    if (!r->formulas) {
        r->formulas = arena_alloc(r->arena, 1, sizeof *r->formulas);
        if (!signature_functions(r->whole, r->whole_size, r->arena, &r->formulas->device,
                                 &r->formulas->n_device, NODE_MAX_ARGS))
            return lex_fail(lx, "more than %d __device__ functions", SIGNATURE_MAX_KERNELS);
    }
    struct formula *f = formula_add(r->formulas, r->arena);
    if (!f)
        return lex_fail(lx, "more than %d formulas", FORMULA_MAX);
    f->line = lx->line;
    f->from = r->line;
    if (!find_target(r, f) || !lex_expect(lx, '=', "'='") || !formula_parse(r, r->formulas, f))
        return false;
    if (f->target >= TENSOR_GRAD_INPUT)
        r->op->inputs[f->target - TENSOR_GRAD_INPUT].differentiable = true;
    return f->target >= 0 ||
           reader_symbol(r, f->name, SYMBOL_FORMULA, (int)(f - r->formulas->items));
}

// --- once all lines have been read

// An intermediate that nothing uses is misspelt, where it is made or where it is used.
static bool check_used(struct reader *r)
{
    const struct formula_set *set = r->formulas;
    struct formula_reach reach = { 0 };
    for (int i = 0; i < set->n; i++)
        formula_reach(set, set->items[i].root, NULL, &reach);
    for (int i = 0; i < set->n; i++) {
        const struct formula *f = &set->items[i];
        struct suggest near;
        if (f->target >= 0 || reach.formulas[i])
            continue;
        r->line = f->from;
        r->lx.line = f->line;
        r->lx.token.start = f->at;
        r->mark.exact = r->column = true;
        return lex_fail(&r->lx, "no formula uses '%s'%s", f->name,
                        suggest_target(r, f->name, false, &near));
    }
    return true;
}

// The place of present(INPUT) among the values. -1: nothing asks for it.
static int find_present(const struct formula_set *set, int input)
{
    for (int v = 0; v < set->n_values; v++) {
        const struct node *n = set->values[v].expr->root;
        if (n->kind == NODE_HAS_TENSOR && n->a == input)
            return v;
    }
    return -1;
}

// What is read of an input that may be absent must be chosen by present().
static bool check_optional(const struct reader *r, int input, struct opd_err *err)
{
    const struct formula_set *set = r->formulas;
    int8_t known[FORMULA_MAX_VALUES];
    int present = find_present(set, input);
    memset(known, -1, sizeof known);
    if (present >= 0)
        known[present] = 0;
    for (int i = 0; i < set->n; i++) {
        const struct formula *f = &set->items[i];
        struct formula_reach reach = { 0 };
        if (f->target < 0 || f->target == input || f->target == TENSOR_GRAD_INPUT + input)
            continue;
        formula_reach(set, f->root, known, &reach);
        if (reach.uses.tensors & formula_bit(input))
            return op_fail(err,
                           "%s:%d: %s reads %s, which may be absent; expected present(%s) ? "
                           "... : ... around it",
                           r->op->file, f->line, f->name, r->op->inputs[input].name,
                           r->op->inputs[input].name);
    }
    return true;
}

static bool check_op(const struct reader *r, struct opd_err *err)
{
    const struct op *op = r->op;
    for (int i = 0; i < op->n_inputs; i++) {
        const struct op_tensor *t = &op->inputs[i];
        if (t->optional && !check_optional(r, i, err))
            return false;
        if (t->in_place && !has_formula(r, i))
            return op_fail(err, "%s:%d: no formula for '%s', which is changed in place", op->file,
                           r->op_line, t->name);
    }
    for (int o = 0; o < op->n_outputs; o++)
        if (!has_formula(r, TENSOR_OUTPUT + o))
            return op_fail(err, "%s:%d: no formula for output '%s'", op->file, r->op_line,
                           op->outputs[o].name);
    const struct op_type *type = &op->types[TYPE_SCALAR];
    for (int d = 0; d < type->n_dtypes; d++)
        if (!dtype_is_float(type->dtypes[d]))
            return op_fail(err,
                           "%s:%d: dtypes has %s, but formulas are computed in floating point; "
                           "a tensor of another dtype needs a 'type' line",
                           op->file, r->op_line, dtype_name(type->dtypes[d]));
    return type->n_dtypes > 0 ||
           op_fail(err, "%s:%d: no 'dtypes' line: it says what formulas are computed in", op->file,
                   r->op_line);
}

// Inputs whose gradients are to be derived: those that can have one, where none is written, of an
// operator that leaves what they are made of as it was.
static uint32_t find_underived(const struct reader *r)
{
    const struct op *op = r->op;
    uint32_t inputs = 0;
    for (int i = 0; i < op->n_inputs; i++) {
        if (op->inputs[i].in_place || has_formula(r, TENSOR_GRAD_INPUT + i))
            return 0;
        if (reader_is_float(r, i))
            inputs |= 1u << i;
    }
    return inputs;
}

// All at once, so that they share what they can; where that fails, those that can be.
static void derive_all(struct reader *r)
{
    uint32_t inputs = find_underived(r);
    const char *why = NULL;
    if (inputs && derive_gradients(r->op, r->formulas, inputs, &why))
        inputs = 0;
    for (int i = 0; i < r->op->n_inputs; i++)
        if ((inputs >> i & 1) && !derive_gradients(r->op, r->formulas, 1u << i, &why))
            reader_warn(r, r->op_line,
                        "%s has no gradient: %s cannot be differentiated; write a formula for "
                        "grad_%s, or leave it so",
                        r->op->inputs[i].name, why, r->op->inputs[i].name);
    for (int k = 0; k < r->formulas->n; k++) {
        struct formula *f = &r->formulas->items[k];
        f->line = f->derived ? r->op_line : f->line;
        if (f->target >= TENSOR_GRAD_INPUT)
            r->op->inputs[f->target - TENSOR_GRAD_INPUT].differentiable = true;
    }
}

static void add_temp(struct reader *r, const char *of)
{
    struct temp *temp = &r->temps[r->body->n_temps];
    *temp = (struct temp){ .type = TYPE_ACC };
    if (of)
        snprintf(temp->name, sizeof temp->name, "sums_%.50s", of);
    else
        snprintf(temp->name, sizeof temp->name, "sums_of_rows_%d", r->body->n_temps);
    r->body->n_temps++;
}

bool formula_finish(struct reader *r, struct opd_err *err)
{
    struct op *op = r->op;
    if (!check_used(r) || !check_op(r, err))
        return false;
    derive_all(r);
    for (int i = 0; i < r->formulas->n; i++) {
        const struct formula *f = &r->formulas->items[i];
        if (f->target < TENSOR_GRAD_INPUT)
            continue;
        op->has_backward = true;
        uint32_t reads = 0;
        for (int k = 0; k < op->n_outputs; k++)
            if (f->uses.tensors & formula_bit(TENSOR_GRAD_OUTPUT + k))
                reads |= 1u << k;
        if (!reads && f->uses.tensors)
            reader_warn(r, f->line,
                        "%s is made without the gradient of an output: it is the same "
                        "whatever comes",
                        body_tensor_name(op, f->target));
        r->grads_read |= reads;
    }
    // Sums may be made in two steps, with something in between; so may those of rows.
    for (int i = 0; i < op->n_inputs; i++)
        add_temp(r, op->inputs[i].name);
    if (r->formulas->n_overs > 0)
        while (r->body->n_temps < OP_MAX_TEMPS)
            add_temp(r, NULL);
    r->body->n_steps = 1 + 2 * op->n_inputs + 2 * OP_MAX_TEMPS * (r->formulas->n_overs > 0);
    for (int o = 0; o < op->n_outputs; o++)
        r->body->reduced[o] = formula_reduced(
            r->arena, op, r->formulas,
            &r->formulas->items[formula_find(r->formulas, TENSOR_OUTPUT + o)]);
    r->body->formulas = r->formulas;
    return true;
}
