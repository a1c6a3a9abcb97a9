#include <string.h>

#include "op/reader.h"

enum { NO_SLOT = -1 };

static bool add_size(struct reader *r, struct shape_dim *dim)
{
    if (r->n_slots == ENV_MAX_SLOTS)
        return lex_fail(&r->lx, "more than %d dimensions and lets", ENV_MAX_SLOTS);
    char name[OP_MAX_NAME];
    if (!lex_name(&r->lx, "the name of a dimension", name, sizeof name))
        return false;
    dim->kind = DIM_DEFINE;
    dim->slot = r->n_slots++;
    return reader_symbol(r, name, SYMBOL_SIZE, dim->slot);
}

static bool read_pack(struct reader *r, enum shape_use use, struct shape_dim *dim)
{
    struct lexer *lx = &r->lx;
    char name[OP_MAX_NAME];
    const struct lexer at_name = *lx;
    if (!lex_name(lx, "the name of the pack, as in ...S", name, sizeof name))
        return false;
    dim->kind = DIM_PACK;
    const struct symbol *s = scope_find(&r->scope, name, strlen(name));
    if (s && s->kind != SYMBOL_PACK)
        return lex_fail(lx, "'%s' is %s, expected a pack of dimensions", name,
                        symbol_describe(s->kind));
    if (s) {
        dim->slot = s->index;
        return true;
    }
    if (use != SHAPE_INPUT) {
        struct lexer again = at_name;
        return scope_fail_unknown(&r->scope, &again, "a pack that a required input defines");
    }
    if (r->n_packs == ENV_MAX_PACKS)
        return lex_fail(lx, "more than %d packs", ENV_MAX_PACKS);
    dim->slot = r->n_packs++;
    dim->defines = true;
    return reader_symbol(r, name, SYMBOL_PACK, dim->slot);
}

// A bare name that is new, in a required input, defines a dimension.
static bool is_new_name(const struct reader *r)
{
    const struct token *name = &r->lx.token, next = lex_peek(&r->lx);
    return name->kind == TOKEN_NAME && !scope_find(&r->scope, name->start, name->size) &&
           (next.kind != TOKEN_PUNCT || next.punct == ',' || next.punct == ']');
}

static bool read_dim(struct reader *r, enum shape_use use, struct shape_dim *dim)
{
    struct lexer *lx = &r->lx;
    const char *start = lx->token.start;
    bool ok = true;
    if (lex_accept(lx, PUNCT_ELLIPSIS)) {
        ok = read_pack(r, use, dim);
    } else if (use == SHAPE_INPUT && is_new_name(r)) {
        ok = add_size(r, dim);
    } else if (use == SHAPE_OPTIONAL_INPUT && is_new_name(r)) {
        return lex_fail(lx,
                        "'%.*s' is new here, but an optional input may be absent and defines no "
                        "dimension; define it in the shape of a required one",
                        (int)lx->token.size, lx->token.start);
    } else {
        dim->kind = DIM_VALUE;
        dim->expr = reader_int(r, "a dimension");
        ok = dim->expr != NULL;
    }
    if (ok)
        dim->text = arena_strndup(r->arena, start, lex_span(lx, start));
    return ok;
}

bool shape_read(struct reader *r, enum shape_use use, struct shape *out)
{
    struct lexer *lx = &r->lx;
    struct shape_dim dims[OP_MAX_RANK];
    const char *start = lx->token.start;
    *out = (struct shape){ .pack = -1 };
    if (!lex_expect(lx, '[', "a shape: [N, C], [] or [...S]"))
        return false;
    while (!lex_is(lx, ']')) {
        if (out->n > 0 && !lex_expect(lx, ',', "',' or ']'"))
            return false;
        if (out->n == OP_MAX_RANK)
            return lex_fail(lx, "a shape of more than %d dimensions", OP_MAX_RANK);
        struct shape_dim *dim = &dims[out->n];
        *dim = (struct shape_dim){ .slot = NO_SLOT };
        if (!read_dim(r, use, dim))
            return false;
        if (dim->kind == DIM_PACK && out->pack >= 0)
            return lex_fail(lx, "a second pack in one shape, expected at most one");
        if (dim->kind == DIM_PACK)
            out->pack = out->n;
        out->n++;
    }
    lex_next(lx);
    out->text = arena_strndup(r->arena, start, lex_span(lx, start));
    out->dims = arena_copy(r->arena, dims, (size_t)out->n, sizeof *dims);
    return lex_expect_end(lx);
}

static bool read_one_shape(struct reader *r, int tensor)
{
    if (r->scope.shaped[tensor])
        return lex_fail(&r->lx, "a second shape for '%s'", body_tensor_name(r->op, tensor));
    enum shape_use use = tensor >= TENSOR_OUTPUT          ? SHAPE_RESULT
                         : r->op->inputs[tensor].optional ? SHAPE_OPTIONAL_INPUT
                                                          : SHAPE_INPUT;
    struct rule *rule = reader_rule(r, RULE_SHAPE);
    rule->tensor = tensor;
    r->scope.shaped[tensor] = true;
    return shape_read(r, use, &rule->shape);
}

bool shape_read_line(struct reader *r)
{
    int tensors[OP_MAX_INPUTS + OP_MAX_OUTPUTS], n = 0;
    do {
        if (n == OP_MAX_INPUTS + OP_MAX_OUTPUTS)
            return lex_fail(&r->lx, "more tensors than there are");
        if (!reader_take_tensor(r, &tensors[n++]))
            return false;
    } while (r->lx.token.kind == TOKEN_NAME);
    const struct lexer at_shape = r->lx;
    for (int i = 0; i < n; i++) {
        r->lx = at_shape;
        if (!read_one_shape(r, tensors[i]))
            return false;
    }
    return true;
}
