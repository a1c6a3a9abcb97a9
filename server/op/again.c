#include <string.h>

#include "op/reader.h"
#include "op/tree.h"

// `again BACK : H, OH = OH, H`: what BACK.ROWS is, or ROWS behind `as BACK`. No value is kept for
// it: its tree is the let's, with other trees in it for what it reads.

// The node with what stands for names in it, itself where there is nothing; adds its terms, which
// are as good as any other where they are too many: whoever uses it fails.
static const struct node *replace(const struct again *a, const struct node *n, unsigned *terms)
{
    if (n->kind == NODE_SLOT && a->of[n->a].node) {
        *terms += a->of[n->a].terms;
        *terms = *terms > AGAIN_MAX_TERMS ? AGAIN_MAX_TERMS + 1 : *terms;
        return a->of[n->a].node;
    }
    const struct node *args[NODE_MAX_ARGS];
    bool same = true;
    ++*terms;
    for (int i = 0; i < n->n_args; i++) {
        args[i] = replace(a, n->args[i], terms);
        same = same && args[i] == n->args[i];
    }
    if (same)
        return n;
    struct node *copy = arena_copy(a->reader->arena, n, 1, sizeof *n);
    memcpy(copy->args, args, (size_t)n->n_args * sizeof *args);
    return copy;
}

const struct again_value *again_find(struct again *a, int slot)
{
    const struct reader *r = a->reader;
    for (; a->n_rules < r->body->n_rules; a->n_rules++) {
        const struct rule *rule = &r->rules[a->n_rules];
        unsigned terms = 0;
        if (rule->kind != RULE_LET || a->of[rule->slot].node)
            continue;
        const struct node *n = replace(a, rule->expr->root, &terms);
        if (n != rule->expr->root)
            a->of[rule->slot] = (struct again_value){ n, terms };
    }
    return a->of[slot].node ? &a->of[slot] : NULL;
}

static const struct symbol *expect_number(struct reader *r)
{
    const struct symbol *s = scope_expect(&r->scope, &r->lx, "a dimension or let",
                                          "a dimension or let");
    if (!s || s->kind == SYMBOL_SIZE || s->kind == SYMBOL_LET)
        return s;
    lex_fail(&r->lx, "'%s' is %s, expected a dimension or let", s->name, symbol_describe(s->kind));
    return NULL;
}

// `again NAME : A, B = EXPR, EXPR`
bool again_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct symbol symbol = { .kind = SYMBOL_AGAIN, .index = r->scope.n_agains, .line = lx->line };
    const struct symbol *names[AGAIN_MAX_NAMES];
    int n = 0;
    if (r->scope.n_agains == SCOPE_MAX_AGAINS)
        return lex_fail(lx, "more than %d lines of 'again'", SCOPE_MAX_AGAINS);
    if (!lex_name(lx, "a name", symbol.name, sizeof symbol.name) ||
        !lex_expect(lx, ':', "':' and the names that are to have other values"))
        return false;
    do {
        if (n == AGAIN_MAX_NAMES)
            return lex_fail(lx, "more than %d names in a line of 'again'", AGAIN_MAX_NAMES);
        names[n] = expect_number(r);
        for (int i = 0; i < n && names[n]; i++)
            if (names[i] == names[n])
                return lex_fail(lx, "'%s' stands twice", names[n]->name);
        if (!names[n++])
            return false;
        lex_next(lx);
    } while (lex_accept(lx, ','));
    if (!lex_expect(lx, '=', "'='"))
        return false;
    struct again *a = arena_alloc(r->arena, 1, sizeof *a);
    struct again_value values[AGAIN_MAX_NAMES] = { 0 };
    a->reader = r;
    for (int i = 0; i < n; i++) {
        const struct expr *e = i > 0 && !lex_expect(lx, ',', "',' and another value")
                                   ? NULL
                                   : reader_expr(r);
        if (!e)
            return false;
        if (e->type != names[i]->type)
            return lex_fail(lx, "'%s' is %s, but '%s' is %s; expected the same", e->text,
                            e->type == EXPR_FLOAT ? "a float" : "an integer", names[i]->name,
                            e->type == EXPR_FLOAT ? "an integer" : "a float");
        values[i].node = replace(a, e->root, &values[i].terms); // nothing yet: it counts them
    }
    for (int i = 0; i < n; i++)
        a->of[names[i]->index] = values[i];
    r->scope.agains[r->scope.n_agains++] = a;
    return scope_add(&r->scope, &symbol, lx) && lex_expect_end(lx);
}

// `as NAME`: what follows of this launch, and what its kernel takes by name
bool again_read_as(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (r->scope.as)
        return lex_fail(lx, "a second 'as' for this kernel");
    const struct symbol *s = scope_expect(&r->scope, lx, "the name of an 'again' line",
                                          "the name of an 'again' line");
    if (!s)
        return false;
    if (s->kind != SYMBOL_AGAIN)
        return lex_fail(lx, "'%s' is %s, expected the name of an 'again' line", s->name,
                        symbol_describe(s->kind));
    r->scope.as = r->scope.agains[s->index];
    lex_next(lx);
    return true;
}
