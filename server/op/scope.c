#include "op/scope.h"

#include <string.h>

#include "base/suggest.h"

const char *symbol_describe(enum symbol_kind kind)
{
    static const char *const words[] = {
        [SYMBOL_SIZE] = "a dimension",
        [SYMBOL_LET] = "a let",
        [SYMBOL_PACK] = "a pack of dimensions",
        [SYMBOL_ATTR] = "an attribute",
        [SYMBOL_TENSOR] = "a tensor",
        [SYMBOL_TYPE] = "a type",
        [SYMBOL_DEVICE] = "a device",
        [SYMBOL_FORMULA] = "the name of a formula",
        [SYMBOL_CHECK] = "a check",
        [SYMBOL_AGAIN] = "the name of an 'again' line",
    };
    return words[kind];
}

const struct symbol *scope_find(const struct scope *s, const char *name, size_t size)
{
    for (int i = 0; i < s->n; i++)
        if (strncmp(s->symbols[i].name, name, size) == 0 && s->symbols[i].name[size] == '\0')
            return &s->symbols[i];
    return NULL;
}

bool scope_add(struct scope *s, const struct symbol *symbol, struct lexer *lx)
{
    const struct symbol *old = scope_find(s, symbol->name, strlen(symbol->name));
    if (old && old->line == 0)
        return lex_fail(lx, "'%s' is a name of the language, choose another", symbol->name);
    if (old)
        return lex_fail(lx, "'%s' is defined twice: it is %s since line %d", symbol->name,
                        symbol_describe(old->kind), old->line);
    if (dtype_parse(symbol->name) != OPD_DTYPE_NONE)
        return lex_fail(lx, "'%s' is a dtype, choose another name", symbol->name);
    if (s->n == SCOPE_MAX_SYMBOLS)
        return lex_fail(lx, "more than %d names", SCOPE_MAX_SYMBOLS);
    s->symbols[s->n++] = *symbol;
    return true;
}

void scope_init(struct scope *s, const struct op *op)
{
    s->op = op;
    s->n = s->n_agains = 0;
    s->as = NULL;
    s->symbols[s->n++] = (struct symbol){ "scalar_t", SYMBOL_TYPE, TYPE_SCALAR, EXPR_INT, 0 };
    s->symbols[s->n++] = (struct symbol){ "acc_t", SYMBOL_TYPE, TYPE_ACC, EXPR_INT, 0 };
    s->symbols[s->n++] = (struct symbol){ "cpu", SYMBOL_DEVICE, 1, EXPR_INT, 0 };
    s->symbols[s->n++] = (struct symbol){ "cuda", SYMBOL_DEVICE, 0, EXPR_INT, 0 };
}

bool scope_fail_unknown(const struct scope *s, struct lexer *lx, const char *what)
{
    struct suggest near;
    suggest_init(&near, lx->token.start, lx->token.size);
    for (int i = 0; i < s->n; i++)
        suggest_add(&near, s->symbols[i].name);
    return lex_fail(lx, "'%.*s' is not defined here, expected %s%s", (int)lx->token.size,
                    lx->token.start, what, suggest_text(&near));
}

const struct symbol *scope_expect(const struct scope *s, struct lexer *lx, const char *expected,
                                  const char *what)
{
    if (lx->token.kind != TOKEN_NAME) {
        lex_fail_expected(lx, expected);
        return NULL;
    }
    const struct symbol *symbol = scope_find(s, lx->token.start, lx->token.size);
    if (!symbol)
        scope_fail_unknown(s, lx, what);
    return symbol;
}

const struct symbol *scope_expect_tensor(const struct scope *s, struct lexer *lx,
                                         const char *expected)
{
    const struct symbol *symbol = scope_expect(s, lx, expected, "a tensor");
    if (!symbol || symbol->kind == SYMBOL_TENSOR)
        return symbol;
    lex_fail(lx, "'%s' is %s, expected a tensor", symbol->name, symbol_describe(symbol->kind));
    return NULL;
}
