#include <string.h>

#include "op/reader.h"

// How tensors lie in memory: `strided`, and `channels_last`, the operator that takes images whose
// dimension 1 is the last there.

bool layout_read_strided(struct reader *r)
{
    struct lexer *lx = &r->lx;
    do {
        const struct symbol *s = scope_expect_tensor(&r->scope, lx,
                                                     "the inputs that need not be "
                                                     "contiguous");
        if (!s)
            return false;
        if (s->index >= TENSOR_OUTPUT)
            return lex_fail(lx, "'%s' is no input: what an operator makes is contiguous", s->name);
        struct op_tensor *t = &r->op->inputs[s->index];
        if (t->alias[0])
            return lex_fail(lx, "'%s' has a view as result, expected to be contiguous", s->name);
        t->strided = true;
        lex_next(lx);
    } while (lx->token.kind != TOKEN_END);
    return true;
}

bool layout_read_channels_last(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct op_channels_last *last = &r->op->channels_last;
    if (last->op[0])
        return lex_fail(lx, "a second 'channels_last'");
    if (!lex_name(lx, "the operator that takes dimension 1 as the last", last->op, sizeof last->op))
        return false;
    r->channels_last_line = lx->line;
    do {
        int tensor;
        if (!reader_take_tensor(r, &tensor))
            return false;
        if (tensor < TENSOR_OUTPUT)
            last->inputs |= 1u << tensor;
        else
            last->outputs |= 1u << (tensor - TENSOR_OUTPUT);
    } while (lx->token.kind == TOKEN_NAME && !lex_is_word(lx, "when"));
    if (lex_accept_word(lx, "when") &&
        !(r->body->channels_last_when = reader_int(r, "a condition")))
        return false;
    return lex_expect_end(lx);
}

bool layout_end(struct reader *r)
{
    const struct op_channels_last *last = &r->op->channels_last;
    if (!last->op[0])
        return true;
    r->lx.line = r->channels_last_line;
    if (!last->inputs || !last->outputs)
        return lex_fail(&r->lx, "no %s is named, expected one whose dimension 1 '%s' has last",
                        last->inputs ? "output" : "input", last->op);
    if (r->op->lists)
        return lex_fail(&r->lx, "'channels_last' beside lists of tensors, expected none of them");
    if (strcmp(last->op, r->op->name) == 0)
        return lex_fail(&r->lx, "'%s' is this operator itself, expected another", last->op);
    for (int i = 0; i < r->op->n_inputs + r->op->n_outputs; i++) {
        const int output = i - r->op->n_inputs, tensor = output < 0 ? i : TENSOR_OUTPUT + output;
        if (!((output < 0 ? last->inputs >> i : last->outputs >> output) & 1))
            continue;
        const struct shape *shape = reader_find_shape(r, tensor);
        if (!shape || shape->n != 4 || shape->pack >= 0)
            return lex_fail(&r->lx, "%s is %s, expected [N, C, H, W]",
                            body_tensor_name(r->op, tensor), shape ? shape->text : "of any shape");
        if (body_tensor(r->op, tensor)->alias[0] || (output < 0 && r->op->inputs[i].in_place))
            return lex_fail(&r->lx, "%s shares its memory, which a layout cannot change",
                            body_tensor_name(r->op, tensor));
    }
    return true;
}
