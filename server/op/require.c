#include <string.h>

#include "op/reader.h"

enum { MAX_PIECES = 32 };

// The part of a message in braces: an attribute, a tensor, or an expression.
static bool read_message_value(struct reader *r, const char *text, size_t size,
                               struct message_piece *piece)
{
    struct lexer outer = r->lx;
    bool ok = true;
    lex_init(&r->lx, outer.file, outer.line, text, size, outer.err);
    const struct symbol *s = r->lx.token.kind == TOKEN_NAME && r->lx.token.size == size
                                 ? scope_find(&r->scope, text, size)
                                 : NULL;
    if (s && s->kind == SYMBOL_ATTR)
        piece->attr = s->index;
    else if (s && s->kind == SYMBOL_TENSOR && s->index < TENSOR_GRAD_OUTPUT &&
             (s->index < TENSOR_OUTPUT || r->scope.shaped[s->index]))
        piece->tensor = s->index;
    else
        ok = (piece->expr = reader_expr(r)) && lex_expect_end(&r->lx);
    r->lx = outer;
    return ok;
}

bool require_read_message(struct reader *r, bool index, struct message *out)
{
    struct message_piece pieces[MAX_PIECES];
    const char *p = r->lx.token.start, *end = p + r->lx.token.size;
    do {
        const char *open = memchr(p, '{', (size_t)(end - p));
        const char *stop = open ? open : end;
        if (out->n == MAX_PIECES)
            return lex_fail(&r->lx, "more than %d values in a message", MAX_PIECES - 1);
        struct message_piece *piece = &pieces[out->n++];
        *piece = (struct message_piece){ .attr = -1, .tensor = -1 };
        piece->text = arena_strndup(r->arena, p, (size_t)(stop - p));
        p = stop;
        if (!open)
            break;
        const char *close = memchr(open, '}', (size_t)(end - open));
        if (!close)
            return lex_fail(&r->lx, "a '{' without its '}' in the message");
        piece->index = index && close - open == 6 && memcmp(open, "{index", 6) == 0;
        if (!piece->index && !read_message_value(r, open + 1, (size_t)(close - open - 1), piece))
            return false;
        p = close + 1;
    } while (p < end);
    out->pieces = arena_copy(r->arena, pieces, (size_t)out->n, sizeof *pieces);
    lex_next(&r->lx);
    return true;
}

// A piece of the message for a name in the rule, once for each name: "OH = -1".
static bool add_named_value(struct reader *r, const struct symbol *s, struct message_piece *pieces,
                            struct message *out)
{
    const char *text = arena_printf(r->arena, "%s%s = ", out->n > 1 ? ", " : " (", s->name);
    if (s->kind != SYMBOL_SIZE && s->kind != SYMBOL_LET && s->kind != SYMBOL_ATTR)
        return true;
    for (int i = 1; i < out->n; i++)
        if (strcmp(pieces[i].text + 2, text + 2) == 0)
            return true;
    if (out->n == MAX_PIECES - 1)
        return true;
    struct message_piece *piece = &pieces[out->n++];
    *piece = (struct message_piece){ .text = text, .attr = -1, .tensor = -1 };
    return read_message_value(r, s->name, strlen(s->name), piece);
}

// The message of a rule that has none: the rule itself, and what its names are.
static bool quote_rule(struct reader *r, const struct expr *rule, struct message *out)
{
    struct message_piece pieces[MAX_PIECES];
    struct lexer lx;
    pieces[out->n++] = (struct message_piece){
        .text = arena_printf(r->arena, "requires %s", rule->text),
        .attr = -1,
        .tensor = -1,
    };
    lex_init(&lx, r->lx.file, r->lx.line, rule->text, strlen(rule->text), r->lx.err);
    for (; lx.token.kind != TOKEN_END && lx.token.kind != TOKEN_BAD; lex_next(&lx)) {
        const struct symbol *s = lx.token.kind == TOKEN_NAME
                                     ? scope_find(&r->scope, lx.token.start, lx.token.size)
                                     : NULL;
        if (s && !add_named_value(r, s, pieces, out))
            return false;
    }
    const char *close = out->n > 1 ? ")" : "";
    pieces[out->n++] = (struct message_piece){ .text = close, .attr = -1, .tensor = -1 };
    out->pieces = arena_copy(r->arena, pieces, (size_t)out->n, sizeof *pieces);
    return true;
}

bool require_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct rule *rule = reader_rule(r, RULE_REQUIRE);
    rule->expr = reader_expr(r);
    if (!rule->expr)
        return false;
    if (lex_accept(lx, ':')) {
        if (lx->token.kind != TOKEN_STRING)
            return lex_fail_expected(lx, "the message in quotes");
        return require_read_message(r, false, &rule->message) && lex_expect_end(lx);
    }
    return lex_expect_end(lx) && quote_rule(r, rule->expr, &rule->message);
}
