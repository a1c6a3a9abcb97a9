#include <string.h>

#include "op/expr_parser.h"
#include "op/suggest.h"

// The tensor that the lexer stands at, by its name.
static bool parse_tensor(struct parser *p, int *out)
{
    struct lexer *lx = p->lx;
    const struct expr_place *place = p->place;
    const struct symbol *s = scope_expect_tensor(place->scope, lx, "the name of a tensor");
    if (!s)
        return false;
    if (s->index >= TENSOR_GRAD_OUTPUT && !place->in_backward)
        return lex_fail(lx, "'%s' is a gradient, expected in a backward section only", s->name);
    *out = s->index;
    lex_next(lx);
    return true;
}

static bool parse_type(struct parser *p, int *out)
{
    struct lexer *lx = p->lx;
    const struct symbol *s = scope_expect(p->place->scope, lx, "the name of a type",
                                          "a type variable");
    if (!s)
        return false;
    if (s->kind != SYMBOL_TYPE)
        return lex_fail(lx, "'%s' is %s, expected a type variable", s->name,
                        symbol_describe(s->kind));
    *out = s->index;
    lex_next(lx);
    return true;
}

static bool parse_dtype(struct parser *p, enum opd_dtype *out)
{
    char name[OP_MAX_NAME];
    const struct token token = p->lx->token;
    if (!lex_name(p->lx, "a dtype", name, sizeof name))
        return false;
    *out = dtype_parse(name);
    if (*out == OPD_DTYPE_NONE)
        return lex_fail(p->lx, "'%.*s' is no dtype", (int)token.size, token.start);
    return true;
}

static bool call_about_tensor(struct parser *p, int kind, struct term *out)
{
    int tensor;
    *out = (struct term){ .kind = TERM_INT };
    if (!parse_tensor(p, &tensor))
        return false;
    // The size of what has no shape yet is not known.
    bool gradient = tensor >= TENSOR_GRAD_OUTPUT;
    if (!gradient && tensor >= TENSOR_OUTPUT && !p->place->scope->shaped[tensor])
        return lex_fail(p->lx, "the shape of this tensor is not known yet; put its 'shape' before");
    if (kind != CODE_SIZE)
        return expr_emit(p, kind, tensor, 0, 1);
    struct term dim;
    return lex_expect(p->lx, ',', "','") && expr_parse_ternary(p, &dim) &&
           expr_need_int(p, &dim, "the dimension of size()") && expr_emit(p, kind, tensor, 0, 0);
}

static bool call_numel(struct parser *p, struct term *out)
{
    return call_about_tensor(p, CODE_NUMEL, out);
}

static bool call_rank(struct parser *p, struct term *out)
{
    return call_about_tensor(p, CODE_RANK, out);
}

static bool call_size(struct parser *p, struct term *out)
{
    return call_about_tensor(p, CODE_SIZE, out);
}

static bool call_present(struct parser *p, struct term *out)
{
    *out = (struct term){ .kind = TERM_INT };
    const struct token *token = &p->lx->token;
    const struct symbol *s = token->kind == TOKEN_NAME
                                 ? scope_find(p->place->scope, token->start, token->size)
                                 : NULL;
    if (s && s->kind == SYMBOL_ATTR) {
        lex_next(p->lx);
        return expr_emit(p, CODE_HAS_ATTR, s->index, 0, 1);
    }
    int tensor;
    if (!parse_tensor(p, &tensor))
        return false;
    if (tensor >= TENSOR_OUTPUT)
        return lex_fail(p->lx, "present() is about inputs and attributes; use wanted() here");
    return expr_emit(p, CODE_HAS_TENSOR, tensor, 0, 1);
}

static bool call_wanted(struct parser *p, struct term *out)
{
    int tensor;
    *out = (struct term){ .kind = TERM_INT };
    if (!p->place->in_section)
        return lex_fail(p->lx, "wanted() is known inside forward and backward only");
    if (!parse_tensor(p, &tensor))
        return false;
    bool saved = tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT &&
                 p->place->scope->saved[tensor - TENSOR_TEMP];
    if (saved && !p->place->in_backward)
        return expr_emit(p, CODE_KEEP, 0, 0, 1);
    if (tensor < TENSOR_GRAD_INPUT)
        return lex_fail(p->lx, "wanted() is about gradients of inputs, in a backward section, and "
                               "about saved tensors, in forward");
    return expr_emit(p, CODE_HAS_TENSOR, tensor, 0, 1);
}

static bool call_is(struct parser *p, struct term *out)
{
    int type;
    enum opd_dtype dtype;
    *out = (struct term){ .kind = TERM_INT };
    return parse_type(p, &type) && lex_expect(p->lx, ',', "','") && parse_dtype(p, &dtype) &&
           expr_emit(p, CODE_IS_TYPE, type, (int)dtype, 1);
}

static bool call_sizeof(struct parser *p, struct term *out)
{
    int type;
    *out = (struct term){ .kind = TERM_INT };
    return parse_type(p, &type) && expr_emit(p, CODE_SIZEOF, type, 0, 1);
}

static bool call_floor(struct parser *p, struct term *out)
{
    if (!expr_parse_ternary(p, out) || !expr_need_number(p, out))
        return false;
    bool is_float = out->kind == TERM_FLOAT;
    out->kind = TERM_INT;
    return !is_float || expr_emit(p, CODE_FLOOR, 0, 0, 0);
}

static bool call_pow2(struct parser *p, struct term *out)
{
    return expr_parse_ternary(p, out) && expr_need_int(p, out, "the argument of pow2()") &&
           expr_emit(p, CODE_POW2, 0, 0, 0);
}

static bool call_pair(struct parser *p, int kind, struct term *out)
{
    struct term right;
    return expr_parse_ternary(p, out) && lex_expect(p->lx, ',', "','") &&
           expr_parse_ternary(p, &right) && expr_combine(p, kind, out, &right);
}

static bool call_cdiv(struct parser *p, struct term *out)
{
    return call_pair(p, CODE_CDIV, out);
}

static bool call_min(struct parser *p, struct term *out)
{
    return call_pair(p, CODE_MIN, out);
}

static bool call_max(struct parser *p, struct term *out)
{
    return call_pair(p, CODE_MAX, out);
}

static bool parse_float(struct parser *p, struct term *out)
{
    if (!expr_parse_ternary(p, out) || !expr_need_number(p, out))
        return false;
    bool is_int = out->kind == TERM_INT;
    out->kind = TERM_FLOAT;
    return !is_int || expr_emit(p, CODE_TO_FLOAT, 0, 0, 0);
}

static bool call_pow(struct parser *p, struct term *out)
{
    struct term power;
    return parse_float(p, out) && lex_expect(p->lx, ',', "','") && parse_float(p, &power) &&
           expr_combine(p, CODE_POW, out, &power);
}

static const struct function {
    const char *name;
    bool (*parse)(struct parser *p, struct term *out);
} functions[] = {
    { "cdiv", call_cdiv },     { "min", call_min },   { "max", call_max },
    { "floor", call_floor },   { "pow2", call_pow2 }, { "numel", call_numel },
    { "rank", call_rank },     { "size", call_size }, { "present", call_present },
    { "wanted", call_wanted }, { "is", call_is },     { "sizeof", call_sizeof },
    { "pow", call_pow },
};

bool expr_parse_call(struct parser *p, const struct token *name, struct term *out)
{
    struct suggest near;
    char text[OP_MAX_NAME + 32];
    suggest_init(&near, name->start, name->size);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const struct function *f = &functions[i];
        suggest_add(&near, f->name);
        if (strlen(f->name) != name->size || memcmp(f->name, name->start, name->size) != 0)
            continue;
        p->parens++;
        bool ok = f->parse(p, out) && expr_need_number(p, out) &&
                  lex_expect(p->lx, ')', "')' after the arguments of the function");
        p->parens--;
        return ok;
    }
    return lex_fail(p->lx, "there is no function '%.*s'%s", (int)name->size, name->start,
                    suggest_text(&near, text, sizeof text));
}
