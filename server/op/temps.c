#include <string.h>

#include "op/reader.h"

// The dtype of a saved or scratch tensor, if one stands before its shape.
static bool read_temp_type(struct reader *r, struct temp *temp)
{
    struct lexer *lx = &r->lx;
    temp->type = TYPE_SCALAR;
    if (lx->token.kind != TOKEN_NAME)
        return true;
    const struct symbol *s = scope_find(&r->scope, lx->token.start, lx->token.size);
    char name[OP_MAX_NAME];
    const struct lexer at_name = *lx;
    if (!lex_name(lx, "a dtype", name, sizeof name))
        return false;
    if (s && s->kind == SYMBOL_TYPE) {
        temp->type = s->index;
        return true;
    }
    temp->type = -1;
    temp->dtype = dtype_parse(name);
    struct lexer again = at_name;
    return temp->dtype != OPD_DTYPE_NONE ||
           scope_fail_unknown(&r->scope, &again, "a dtype or type variable");
}

bool temps_read(struct reader *r)
{
    bool saved = strcmp(r->keyword, "saved") == 0;
    struct lexer *lx = &r->lx;
    int index = r->body->n_temps;
    if (index == OP_MAX_TEMPS)
        return lex_fail(lx, "more than %d saved and scratch tensors", OP_MAX_TEMPS);
    struct temp *temp = &r->temps[index];
    *temp = (struct temp){ .saved = saved };
    if (!lex_name(lx, "a name", temp->name, sizeof temp->name) || !read_temp_type(r, temp))
        return false;
    if ((temp->type == TYPE_SCALAR || temp->type == TYPE_ACC) &&
        r->op->types[TYPE_SCALAR].n_dtypes == 0)
        return lex_fail(lx, "scalar_t is not known yet; put the 'dtypes' line before");
    struct rule *rule = reader_rule(r, RULE_SHAPE);
    rule->tensor = TENSOR_TEMP + index;
    if (!shape_read(r, SHAPE_RESULT, &rule->shape))
        return false;
    r->body->n_temps++;
    r->scope.shaped[rule->tensor] = true;
    r->scope.saved[index] = saved;
    return reader_symbol(r, temp->name, SYMBOL_TENSOR, rule->tensor);
}

bool temps_read_empty(struct reader *r)
{
    struct lexer *lx = &r->lx;
    do {
        const struct symbol *s = scope_expect_tensor(&r->scope, lx,
                                                     "the results that need no zeros");
        if (!s)
            return false;
        bool saved = s->index >= TENSOR_TEMP && s->index < TENSOR_GRAD_OUTPUT &&
                     r->temps[s->index - TENSOR_TEMP].saved;
        if (!saved && !(s->index >= TENSOR_OUTPUT && s->index < TENSOR_TEMP) &&
            s->index < TENSOR_GRAD_INPUT)
            return lex_fail(lx,
                            "'%s' is no result, expected an output, saved or the gradient of an "
                            "input",
                            s->name);
        r->body->empty[s->index] = true;
        lex_next(lx);
    } while (lx->token.kind != TOKEN_END);
    return true;
}
