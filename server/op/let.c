#include <string.h>

#include "op/reader.h"

enum { LET_MAX_NAMES = 16 };

// The value of one of a let's names: an expression, or an element of the list that serves them all.
static const struct expr *read_value(struct reader *r, const struct op_attr *list, int element)
{
    if (!list)
        return reader_expr(r);
    const char *text = arena_printf(r->arena, "%s[%d]", list->name, element);
    const struct lexer outer = r->lx;
    lex_init(&r->lx, outer.file, outer.line, text, strlen(text), outer.err);
    const struct expr *e = reader_expr(r);
    r->lx = outer;
    return e;
}

// The list attribute that stands alone behind the '=' or ',', taken: it is the values of as many of
// the n names that are left as it has elements.
static const struct op_attr *read_list(struct reader *r, int n, bool alone)
{
    struct lexer *lx = &r->lx;
    const struct token *t = &lx->token;
    const struct symbol *s = t->kind == TOKEN_NAME ? scope_find(&r->scope, t->start, t->size)
                                                   : NULL;
    const struct op_attr *a = s && s->kind == SYMBOL_ATTR ? &r->op->attrs[s->index] : NULL;
    bool ends = lex_peek(lx).kind == TOKEN_END || lex_peek(lx).punct == ',';
    if (n == 1 || !a || a->list == 0 || !ends)
        return NULL;
    lex_next(lx);
    if (a->list > n || (alone && a->list < n && !lex_is(lx, ',')))
        lex_fail(lx, "%s is a list of %d, but %s names before '=' are %d", a->name, a->list,
                 alone ? "the" : "the remaining", n);
    return a;
}

// `let NAME = EXPR`, `let A, B = EXPR, EXPR`, `let A, B = LIST`, or some of these one by one
bool let_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct symbol names[LET_MAX_NAMES];
    int n = 0;
    do {
        if (n == LET_MAX_NAMES)
            return lex_fail(lx, "more than %d names in a let", LET_MAX_NAMES);
        if (r->n_slots + n == ENV_MAX_SLOTS)
            return lex_fail(lx, "more than %d dimensions and lets", ENV_MAX_SLOTS);
        names[n] = (struct symbol){ .kind = SYMBOL_LET, .line = lx->line };
        if (!lex_name(lx, "a name", names[n].name, sizeof names[n].name))
            return false;
    } while (n++, lex_accept(lx, ','));
    if (!lex_expect(lx, '=', "'='"))
        return false;
    const struct op_attr *list = NULL;
    for (int i = 0, element = 0; i < n; i++) {
        bool next = !list || ++element == list->list;
        if (next && i > 0 && !lex_expect(lx, ',', "',' and another value"))
            return false;
        if (next)
            list = read_list(r, n - i, i == 0), element = 0;
        const struct expr *value = NULL;
        if (lx->token.kind != TOKEN_BAD)
            value = read_value(r, list, element);
        if (!value)
            return false;
        struct rule *rule = reader_rule(r, RULE_LET);
        rule->slot = r->n_slots++;
        rule->name = arena_strndup(r->arena, names[i].name, strlen(names[i].name));
        rule->expr = value;
        names[i].index = rule->slot;
        names[i].type = value->type;
    }
    for (int i = 0; i < n; i++)
        if (!scope_add(&r->scope, &names[i], lx))
            return false;
    return lex_expect_end(lx);
}
