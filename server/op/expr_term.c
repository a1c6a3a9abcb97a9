#include <string.h>

#include "op/expr_parser.h"
#include "op/suggest.h"

bool expr_emit(struct parser *p, int kind, int a, int b, int effect)
{
    if (p->n == EXPR_MAX_CODE)
        return lex_fail(p->lx, "the expression is too long, expected at most %d steps",
                        EXPR_MAX_CODE);
    p->stack += effect;
    if (p->stack > EXPR_MAX_STACK)
        return lex_fail(p->lx, "the expression is nested too deeply; use a let for a part of it");
    p->code[p->n++] = (struct expr_code){ (uint8_t)kind, (uint8_t)b, (int16_t)a, { 0 } };
    return true;
}

bool expr_emit_const(struct parser *p, union expr_value value)
{
    if (!expr_emit(p, CODE_CONST, 0, 0, 1))
        return false;
    p->code[p->n - 1].value = value;
    return true;
}

// A number it must be now.
bool expr_need_number(struct parser *p, struct term *t)
{
    if (t->kind == TERM_STRING)
        return lex_fail(
            p->lx,
            "the string \"%.*s\" stands alone, expected a comparison of a str attribute "
            "with it (== or !=)",
            (int)t->string.size, t->string.start);
    if (t->kind == TERM_WORD)
        t->kind = TERM_INT;
    return true;
}

bool expr_need_int(struct parser *p, struct term *t, const char *what)
{
    if (!expr_need_number(p, t))
        return false;
    return t->kind == TERM_INT || lex_fail(p->lx, "%s is a float, expected an integer", what);
}

bool expr_need_bool(struct parser *p, struct term *t)
{
    if (!expr_need_number(p, t))
        return false;
    int kind = t->kind == TERM_FLOAT ? CODE_BOOL_FLOAT : CODE_BOOL_INT;
    t->kind = TERM_INT;
    return expr_emit(p, kind, 0, 0, 0);
}

// Makes both operands of the same type.
static bool unify(struct parser *p, struct term *left, struct term *right)
{
    if (!expr_need_number(p, left) || !expr_need_number(p, right))
        return false;
    if (left->kind == right->kind)
        return true;
    int kind = left->kind == TERM_INT ? CODE_TO_FLOAT_UNDER : CODE_TO_FLOAT;
    left->kind = right->kind = TERM_FLOAT;
    return expr_emit(p, kind, 0, 0, 0);
}

static bool push_word(struct parser *p, int attr, const struct token *string)
{
    const struct op_attr *a = &p->place->scope->op->attrs[attr];
    struct suggest near;
    char text[OP_MAX_NAME + 32];
    suggest_init(&near, string->start, string->size);
    for (int i = 0; i < a->n_words; i++) {
        if (strlen(a->words[i]) == string->size &&
            memcmp(a->words[i], string->start, string->size) == 0)
            return expr_emit_const(p, (union expr_value){ .i = i });
        suggest_add(&near, a->words[i]);
    }
    if (a->n_words == 0)
        return lex_fail(p->lx, "the words of %s are not known yet; put its 'words' line before",
                        a->name);
    return lex_fail(p->lx, "\"%.*s\" is none of the words of %s%s", (int)string->size,
                    string->start, a->name, suggest_text(&near, text, sizeof text));
}

static bool compare_words(struct parser *p, int kind, struct term *left, struct term *right)
{
    const struct term *word = left->kind == TERM_WORD ? left : right;
    const struct term *string = left->kind == TERM_STRING ? left : right;
    if (kind != CODE_EQ && kind != CODE_NE)
        return lex_fail(p->lx, "words can be compared by == and != only");
    return push_word(p, word->attr, &string->string) && expr_emit(p, kind, 0, 0, -1);
}

bool expr_combine(struct parser *p, int kind, struct term *left, struct term *right)
{
    if ((left->kind == TERM_WORD && right->kind == TERM_STRING) ||
        (left->kind == TERM_STRING && right->kind == TERM_WORD)) {
        bool ok = compare_words(p, kind, left, right);
        *left = (struct term){ .kind = TERM_INT };
        return ok;
    }
    if (!unify(p, left, right))
        return false;
    bool is_float = left->kind == TERM_FLOAT;
    if (is_float && (kind == CODE_MOD || kind == CODE_CDIV))
        return lex_fail(p->lx, "%s needs integers, got a float", kind == CODE_MOD ? "'%'" : "cdiv");
    if (kind >= CODE_EQ && kind <= CODE_GE)
        left->kind = TERM_INT;
    return expr_emit(p, is_float ? kind + CODE_FLOAT : kind, 0, 0, -1);
}
