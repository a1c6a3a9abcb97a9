#include "op/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct expr_place reader_place(struct reader *r)
{
    return (struct expr_place){
        .scope = &r->scope,
        .arena = r->arena,
        .in_section = r->section != NULL,
        .in_backward = r->section && r->section->backward,
    };
}

const struct expr *reader_expr(struct reader *r)
{
    struct expr_place place = reader_place(r);
    return expr_parse(&r->lx, &place);
}

const struct expr *reader_int(struct reader *r, const char *what)
{
    struct expr_place place = reader_place(r);
    return expr_parse_int(&r->lx, &place, what);
}

bool reader_at_launch_word(const struct reader *r)
{
    for (int i = 0; i < r->n_launch_words; i++)
        if (lex_is_word(&r->lx, r->launch_words[i]))
            return true;
    return false;
}

bool reader_at_next_word(const struct reader *r)
{
    return reader_at_launch_word(r) && !scope_find(&r->scope, r->lx.token.start, r->lx.token.size);
}

bool reader_optional_expr(struct reader *r, const struct expr **out)
{
    *out = NULL;
    if (r->lx.token.kind == TOKEN_END || reader_at_next_word(r))
        return true;
    *out = reader_expr(r);
    return *out != NULL;
}

bool reader_symbol(struct reader *r, const char *name, enum symbol_kind kind, int index)
{
    struct symbol s = { .kind = kind, .index = index, .line = r->lx.line };
    strncpy(s.name, name, sizeof s.name - 1);
    return scope_add(&r->scope, &s, &r->lx);
}

bool reader_take_tensor(struct reader *r, int *out)
{
    struct lexer *lx = &r->lx;
    const struct symbol *s = scope_expect(&r->scope, lx, "the name of an input or output",
                                          "an input or output");
    if (!s)
        return false;
    if (s->kind != SYMBOL_TENSOR || s->index >= TENSOR_TEMP)
        return lex_fail(lx, "'%s' is %s, expected an input or output", s->name,
                        s->kind == SYMBOL_TENSOR ? "no argument or result of the operator"
                                                 : symbol_describe(s->kind));
    *out = s->index;
    lex_next(lx);
    return true;
}

bool reader_by_definition(struct reader *r, uint32_t inputs)
{
    bool by = lex_accept_word(&r->lx, "by");
    if (by && !lex_accept_word(&r->lx, "definition"))
        return lex_fail_expected(&r->lx, "'definition'");
    for (int i = 0; by && i < r->op->n_inputs; i++)
        r->op->inputs[i].by_definition |= inputs >> i & 1;
    return true;
}

struct rule *reader_rule(struct reader *r, enum rule_kind kind)
{
    struct rule *rule = &r->rules[r->body->n_rules++];
    *rule = (struct rule){ .kind = kind, .line = r->lx.line };
    return rule;
}

bool reader_is_float(const struct reader *r, int input)
{
    const struct op_type *type = &r->op->types[r->op->inputs[input].type];
    for (int i = 0; i < type->n_dtypes; i++)
        if (dtype_is_float(type->dtypes[i]))
            return true;
    return false;
}

void reader_warn(struct reader *r, int line, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    buf_printf(&r->warnings, "%s%s:%d: %s", r->warnings.size ? "\n" : "", r->op->file, line, text);
}

const struct shape *reader_find_shape(const struct reader *r, int tensor)
{
    for (int i = 0; i < r->body->n_rules; i++)
        if (r->rules[i].kind == RULE_SHAPE && r->rules[i].tensor == tensor)
            return &r->rules[i].shape;
    return NULL;
}
