#include <string.h>

#include "op/reader.h"

// `view OUTPUT INPUT`: the output is the input's memory in another shape, and so are the gradients.

static bool take_name(struct reader *r, const char *what, int from, int to, int *out)
{
    struct lexer *lx = &r->lx;
    const struct symbol *s = scope_expect(&r->scope, lx, what, what);
    if (!s)
        return false;
    if (s->kind != SYMBOL_TENSOR || s->index < from || s->index >= to)
        return lex_fail(lx, "'%s' is not %s", s->name, what);
    *out = s->index - from;
    lex_next(lx);
    return true;
}

bool view_read(struct reader *r)
{
    struct op *op = r->op;
    struct lexer *lx = &r->lx;
    int output, input;
    if (!take_name(r, "an output", TENSOR_OUTPUT, TENSOR_TEMP, &output) ||
        !take_name(r, "an input", TENSOR_INPUT, TENSOR_OUTPUT, &input) || !lex_expect_end(lx))
        return false;
    struct op_tensor *o = &op->outputs[output], *i = &op->inputs[input];
    if (!o->alias[0] || strcmp(o->alias, i->alias) != 0)
        return lex_fail(lx, "'%s' and '%s' are not said to share memory: write Tensor(a) for both",
                        o->name, i->name);
    if (i->optional || i->in_place)
        return lex_fail(lx, "'%s' is %s, expected a plain Tensor(%s)", i->name,
                        i->optional ? "optional" : "changed in place", i->alias);
    for (int k = 0; k < op->n_outputs; k++)
        if (op->outputs[k].is_view && (k == output || op->outputs[k].view_of == input))
            return lex_fail(lx, "a second view of '%s'", k == output ? o->name : i->name);
    o->is_view = true;
    o->view_of = input;
    i->differentiable = reader_is_float(r, input);
    r->has_view = true;
    return true;
}

bool view_end(struct reader *r)
{
    const struct op *op = r->op;
    r->lx.line = r->op_line;
    for (int k = 0; k < op->n_inputs + op->n_outputs; k++) {
        bool output = k >= op->n_inputs;
        int of = output ? TENSOR_OUTPUT + k - op->n_inputs : k;
        const struct op_tensor *t = body_tensor(op, of);
        if (t->alias[0] && !r->has_view)
            return lex_fail(&r->lx, "'%s' is Tensor(%s), but no 'view' line says of what", t->name,
                            t->alias);
        if (output && r->has_view && !t->is_view)
            return lex_fail(&r->lx,
                            "'%s' has no 'view' line; all outputs of such an operator are views",
                            t->name);
        if (t->is_view && t->type != op->inputs[t->view_of].type)
            return lex_fail(&r->lx, "'%s' and '%s', of which it is a view, have different types",
                            t->name, op->inputs[t->view_of].name);
    }
    if (r->has_view && r->forward)
        return lex_fail(&r->lx,
                        "'view' and 'forward', expected one of them: a view has no kernels");
    for (int i = 0; r->has_view && i < r->body->n_temps; i++)
        return lex_fail(&r->lx, "'%s' in an operator of views, which has no kernels",
                        r->temps[i].name);
    return true;
}
