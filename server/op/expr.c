#include <string.h>

#include "op/expr_parser.h"

struct binary {
    int punct, precedence, kind;
};

static const struct binary binaries[] = {
    { PUNCT2('|', '|'), 1, CODE_JUMP_IF_KEEP },
    { PUNCT2('&', '&'), 2, CODE_JUMP_IF_NOT_KEEP },
    { PUNCT2('=', '='), 3, CODE_EQ },
    { PUNCT2('!', '='), 3, CODE_NE },
    { '<', 4, CODE_LT },
    { PUNCT2('<', '='), 4, CODE_LE },
    { '>', 4, CODE_GT },
    { PUNCT2('>', '='), 4, CODE_GE },
    { '+', 5, CODE_ADD },
    { '-', 5, CODE_SUB },
    { '*', 6, CODE_MUL },
    { '/', 6, CODE_DIV },
    { '%', 6, CODE_MOD },
};

static void patch_jump(struct parser *p, int jump)
{
    p->code[jump].a = (int16_t)p->n;
}

static bool parse_attr(struct parser *p, const struct symbol *s, struct term *out)
{
    const struct op_attr *a = &p->place->scope->op->attrs[s->index];
    int element = 0;
    if (a->list > 0) {
        if (!lex_accept(p->lx, '['))
            return lex_fail(p->lx, "%s is a list of %d; write %s[0] for an element", a->name,
                            a->list, a->name);
        if (p->lx->token.kind != TOKEN_INT || p->lx->token.i >= a->list)
            return lex_fail(p->lx, "%s[...] needs a number from 0 to %d", a->name, a->list - 1);
        element = (int)p->lx->token.i;
        lex_next(p->lx);
        if (!lex_expect(p->lx, ']', "']'"))
            return false;
    }
    bool is_float = a->type == OP_ATTR_FLOAT;
    out->kind = is_float ? TERM_FLOAT : a->type == OP_ATTR_STR ? TERM_WORD : TERM_INT;
    out->attr = s->index;
    return expr_emit(p, is_float ? CODE_ATTR_FLOAT : CODE_ATTR_INT, s->index, element, 1);
}

static bool parse_name(struct parser *p, struct term *out)
{
    struct lexer *lx = p->lx;
    const struct token name = lx->token;
    const struct symbol *s = scope_find(p->place->scope, name.start, name.size);
    struct lexer after = *lx;
    lex_next(lx);
    if (lex_accept(lx, '('))
        return expr_parse_call(p, &name, out);
    if (lx->token.kind == TOKEN_BAD)
        return false;
    bool is_true = name.size == 4 && memcmp(name.start, "true", 4) == 0;
    if (is_true || (name.size == 5 && memcmp(name.start, "false", 5) == 0))
        return expr_emit_const(p, (union expr_value){ .i = is_true });
    if (!s)
        return scope_fail_unknown(p->place->scope, &after, "a dimension, let or attribute");
    switch (s->kind) {
    case SYMBOL_SIZE:
    case SYMBOL_LET:
        out->kind = s->type == EXPR_FLOAT ? TERM_FLOAT : TERM_INT;
        return expr_emit(p, CODE_SLOT, s->index, 0, 1);
    case SYMBOL_DEVICE:
        return expr_emit(p, CODE_ON_CPU, s->index, 0, 1);
    case SYMBOL_ATTR:
        return parse_attr(p, s, out);
    default:
        return lex_fail(lx, "'%s' is %s, expected a number%s", s->name, symbol_describe(s->kind),
                        s->kind == SYMBOL_TENSOR ? "; use numel(), rank() or size() of it" : "");
    }
}

static bool parse_primary(struct parser *p, struct term *out)
{
    struct lexer *lx = p->lx;
    *out = (struct term){ .kind = TERM_INT };
    switch (lx->token.kind) {
    case TOKEN_INT:
    case TOKEN_FLOAT: {
        union expr_value value = { .i = lx->token.i };
        if (lx->token.kind == TOKEN_FLOAT) {
            value.f = lx->token.f;
            out->kind = TERM_FLOAT;
        }
        lex_next(lx);
        return expr_emit_const(p, value);
    }
    case TOKEN_STRING:
        *out = (struct term){ .kind = TERM_STRING, .string = lx->token };
        lex_next(lx);
        return true;
    case TOKEN_NAME:
        return parse_name(p, out);
    default:
        break;
    }
    if (!lex_accept(lx, '('))
        return lex_fail_expected(lx, "a number, a name or '('");
    p->parens++;
    bool ok = expr_parse_ternary(p, out) && lex_expect(lx, ')', "')'");
    p->parens--;
    return ok;
}

static bool parse_unary(struct parser *p, struct term *out)
{
    bool is_not = lex_is(p->lx, '!');
    if (!is_not && !lex_is(p->lx, '-'))
        return parse_primary(p, out);
    if (++p->depth > EXPR_MAX_DEPTH)
        return lex_fail(p->lx, "the expression is nested more than %d deep", EXPR_MAX_DEPTH);
    lex_next(p->lx);
    bool ok = parse_unary(p, out);
    p->depth--;
    if (!ok)
        return false;
    if (is_not)
        return expr_need_bool(p, out) && expr_emit(p, CODE_NOT, 0, 0, 0);
    return expr_need_number(p, out) &&
           expr_emit(p, out->kind == TERM_FLOAT ? CODE_NEG_FLOAT : CODE_NEG_INT, 0, 0, 0);
}

static const struct binary *find_binary(const struct parser *p)
{
    bool angle = lex_is(p->lx, '>') || lex_is(p->lx, PUNCT2('>', '='));
    if (p->lx->token.kind != TOKEN_PUNCT || (angle && p->place->angle_closes && p->parens == 0))
        return NULL;
    for (size_t i = 0; i < sizeof binaries / sizeof *binaries; i++)
        if (binaries[i].punct == p->lx->token.punct)
            return &binaries[i];
    return NULL;
}

static bool parse_binary(struct parser *p, int precedence, struct term *left)
{
    if (!parse_unary(p, left))
        return false;
    const struct binary *op;
    while ((op = find_binary(p)) && op->precedence >= precedence) {
        struct term right;
        int jump = p->n;
        bool logic = op->precedence <= 2;
        lex_next(p->lx);
        if (logic && (!expr_need_bool(p, left) || (jump = p->n, !expr_emit(p, op->kind, 0, 0, -1))))
            return false;
        if (!parse_binary(p, op->precedence + 1, &right))
            return false;
        if (!logic && !expr_combine(p, op->kind, left, &right))
            return false;
        if (logic && !expr_need_bool(p, &right))
            return false;
        if (logic)
            patch_jump(p, jump);
    }
    return true;
}

// cond ? a : b. The type of a is known before that of b: a place is left to convert it.
static bool parse_choice(struct parser *p, struct term *out)
{
    struct term other;
    if (!expr_need_bool(p, out))
        return false;
    int to_other = p->n;
    if (!expr_emit(p, CODE_JUMP_IF_NOT, 0, 0, -1) || !expr_parse_ternary(p, out) ||
        !expr_need_number(p, out))
        return false;
    int convert = p->n;
    if (!expr_emit(p, CODE_NOP, 0, 0, 0) || !lex_expect(p->lx, ':', "':' of '?'"))
        return false;
    int to_end = p->n;
    if (!expr_emit(p, CODE_JUMP, 0, 0, -1))
        return false;
    patch_jump(p, to_other);
    if (!expr_parse_ternary(p, &other) || !expr_need_number(p, &other))
        return false;
    if (out->kind != other.kind) {
        if (out->kind == TERM_INT)
            p->code[convert].kind = CODE_TO_FLOAT;
        else if (!expr_emit(p, CODE_TO_FLOAT, 0, 0, 0))
            return false;
        out->kind = TERM_FLOAT;
    }
    patch_jump(p, to_end);
    return true;
}

bool expr_parse_ternary(struct parser *p, struct term *out)
{
    if (++p->depth > EXPR_MAX_DEPTH)
        return lex_fail(p->lx, "the expression is nested more than %d deep", EXPR_MAX_DEPTH);
    bool ok = parse_binary(p, 1, out) && (!lex_accept(p->lx, '?') || parse_choice(p, out));
    p->depth--;
    return ok;
}

const struct expr *expr_parse(struct lexer *lx, const struct expr_place *place)
{
    struct parser p = { .lx = lx, .place = place };
    struct term term;
    const char *start = lx->token.start;
    if (!expr_parse_ternary(&p, &term) || !expr_need_number(&p, &term) ||
        lx->token.kind == TOKEN_BAD)
        return NULL;
    struct expr *e = arena_alloc(place->arena, 1, sizeof *e);
    struct expr_code *code = arena_alloc(place->arena, (size_t)p.n, sizeof *code);
    memcpy(code, p.code, (size_t)p.n * sizeof *code);
    e->text = arena_strndup(place->arena, start, lex_span(lx, start));
    e->file = place->scope->op->file;
    e->line = lx->line;
    e->type = term.kind == TERM_FLOAT ? EXPR_FLOAT : EXPR_INT;
    e->n_code = p.n;
    e->code = code;
    return e;
}

const struct expr *expr_parse_int(struct lexer *lx, const struct expr_place *place,
                                  const char *what)
{
    const struct expr *e = expr_parse(lx, place);
    if (!e)
        return NULL;
    if (e->type == EXPR_INT)
        return e;
    lex_fail(lx, "%s is '%s', a float; expected an integer (floor() makes one)", what, e->text);
    return NULL;
}
