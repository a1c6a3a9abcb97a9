#include "op/formula.h"
#include "op/formula_hint.h"

#include <stdio.h>
#include <string.h>

#include "op/reader.h"
#include "op/suggest.h"

// A str attribute and a string become a truth value when they are compared.
enum kind { NUMBER, TRUTH, WORD, STRING };

struct part {
    enum kind kind;
    size_t start;       // in the code
    struct token token; // WORD, STRING
};

struct formula_parser {
    struct reader *r;
    struct lexer *lx;
    struct formula_set *set;
    struct formula *f;
    struct buf code;
    int depth, n_terms;
};

static bool parse_choice(struct formula_parser *p, struct part *out);

// Fails at that token.
#define FAIL_AT(p, at, ...) ((p)->lx->token = (at), point(p), lex_fail((p)->lx, __VA_ARGS__))

static void point(struct formula_parser *p)
{
    if (p->lx->mark && p->lx->err->code == OPD_E_none)
        p->lx->mark->exact = true;
}

// --- the code

static void insert(struct formula_parser *p, size_t at, const char *text)
{
    size_t n = strlen(text);
    buf_reserve(&p->code, n);
    memmove(p->code.bytes + at + n, p->code.bytes + at, p->code.size - at);
    memcpy(p->code.bytes + at, text, n);
    p->code.size += n;
}

static bool need_value(struct formula_parser *p, const struct part *part)
{
    if (part->kind == STRING)
        return FAIL_AT(p, part->token,
                       "the string \"%.*s\" stands alone, expected a comparison of a str attribute "
                       "with it (== or !=)",
                       (int)part->token.size, part->token.start);
    if (part->kind == WORD)
        return FAIL_AT(p, part->token,
                       "'%.*s' is a str attribute, expected a comparison with one of its words "
                       "(== or !=)",
                       (int)part->token.size, part->token.start);
    return true;
}

// Up to `end` the code is the part's.
static bool need_kind(struct formula_parser *p, struct part *part, enum kind kind, size_t end)
{
    if (!need_value(p, part))
        return false;
    if (part->kind != kind) {
        insert(p, end, kind == TRUTH ? " != 0)" : ")");
        insert(p, part->start, kind == TRUTH ? "(" : "acc_t(");
        part->kind = kind;
    }
    return true;
}

static bool need_number(struct formula_parser *p, struct part *part)
{
    return need_kind(p, part, NUMBER, p->code.size);
}

static bool need_truth(struct formula_parser *p, struct part *part)
{
    return need_kind(p, part, TRUTH, p->code.size);
}

// --- what is read

// Adds a value under its text; the same text is the same value.
static bool use_value(struct formula_parser *p, const char *text, bool is_constant)
{
    struct formula_set *set = p->set;
    int k = 0;
    while (k < set->n_values && strcmp(set->values[k].text, text) != 0)
        k++;
    if (k == FORMULA_MAX_VALUES)
        return lex_fail(p->lx, "more than %d attributes and lets in the formulas",
                        FORMULA_MAX_VALUES);
    if (k == set->n_values) {
        struct expr_place place = reader_place(p->r);
        struct lexer lx;
        text = arena_strndup(p->r->arena, text, strlen(text)); // a symbol's goes with the reader
        lex_init(&lx, p->lx->file, p->lx->line, text, strlen(text), p->lx->err);
        const struct expr *e = expr_parse(&lx, &place);
        if (!e || !lex_expect_end(&lx)) {
            p->lx->token.kind = TOKEN_BAD;
            return false;
        }
        set->values[set->n_values++] = (struct formula_value){ text, e, is_constant };
    }
    p->f->uses.values |= UINT64_C(1) << k;
    buf_printf(&p->code, "c_%d", k);
    return true;
}

static bool read_attr(struct formula_parser *p, const struct token *name, const struct op_attr *a,
                      struct part *out)
{
    out->kind = a->type == OP_ATTR_STR ? WORD : a->type == OP_ATTR_BOOL ? TRUTH : NUMBER;
    out->token = *name;
    if (a->optional)
        return FAIL_AT(p, *name, "%s may be None, expected an attribute that always has a value",
                       a->name);
    if (out->kind == WORD)
        return true;
    if (a->list == 0)
        return use_value(p, a->name, out->kind == TRUTH);
    struct lexer *lx = p->lx;
    if (!lex_accept(lx, '['))
        return FAIL_AT(p, *name, "%s is a list of %d; write %s[0] for an element", a->name, a->list,
                       a->name);
    if (lx->token.kind != TOKEN_INT || lx->token.i >= a->list)
        return FAIL_AT(p, lx->token, "%s[...] needs a number from 0 to %d", a->name, a->list - 1);
    int element = (int)lx->token.i;
    lex_next(lx);
    return lex_expect(lx, ']', "']'") &&
           use_value(p, arena_printf(p->r->arena, "%s[%d]", a->name, element), false);
}

static bool read_tensor(struct formula_parser *p, const struct token *name, int tensor)
{
    const char *text = body_tensor_name(p->r->op, tensor);
    bool forward = p->f->target >= 0 && p->f->target < TENSOR_GRAD_INPUT;
    if (tensor >= TENSOR_GRAD_INPUT)
        return FAIL_AT(p, *name,
                       "%s is made by a formula, expected what formulas are made from; give the "
                       "common part a name of its own",
                       text);
    if (tensor >= TENSOR_OUTPUT && forward)
        return FAIL_AT(p, *name,
                       "%s is %s, which only formulas of gradients may use; give the common part a "
                       "name of its own",
                       text, tensor < TENSOR_TEMP ? "an output" : "the gradient of an output");
    if (tensor < TENSOR_OUTPUT && p->r->op->inputs[tensor].in_place &&
        p->f->target >= TENSOR_GRAD_INPUT)
        return FAIL_AT(p, *name, "%s is changed by forward, so no gradient can be made from it",
                       text);
    p->f->uses.tensors |= formula_bit(tensor);
    buf_printf(&p->code, "v_%s", text);
    return true;
}

static bool read_formula(struct formula_parser *p, const struct token *name, int index,
                         struct part *out)
{
    const struct formula *g = &p->set->items[index];
    const struct op *op = p->r->op;
    if (p->f->target >= 0 && p->f->target < TENSOR_GRAD_INPUT &&
        (g->uses.tensors & FORMULA_BACKWARD))
        return FAIL_AT(p, *name,
                       "%s is made from outputs or gradients, which only formulas of gradients may "
                       "use",
                       g->name);
    for (int i = 0; i < op->n_inputs; i++)
        if (p->f->target >= TENSOR_GRAD_INPUT && op->inputs[i].in_place &&
            (g->uses.tensors & formula_bit(i)))
            return FAIL_AT(p, *name,
                           "%s is made from %s, which is changed by forward, so no gradient can be "
                           "made from it",
                           g->name, op->inputs[i].name);
    p->f->uses.tensors |= g->uses.tensors;
    p->f->uses.values |= g->uses.values;
    p->f->uses.formulas |= g->uses.formulas | UINT64_C(1) << index;
    out->kind = g->is_bool ? TRUTH : NUMBER;
    buf_printf(&p->code, "v_%s", g->name);
    return true;
}

// Fails if the token is of another language, and formulas have it by other means.
static bool check_foreign(struct formula_parser *p, const struct token t)
{
    bool symbol = t.kind == TOKEN_NAME || t.kind == TOKEN_PUNCT;
    const char *hint = symbol ? formula_hint_symbol(t.start, t.size) : NULL;
    return !hint || FAIL_AT(p, t, "'%.*s' is not of formulas; %s", (int)t.size, t.start, hint);
}

static bool read_symbol(struct formula_parser *p, const struct token *name, struct part *out)
{
    const struct symbol *s = scope_find(&p->r->scope, name->start, name->size);
    bool is_true = name->size == 4 && memcmp(name->start, "true", 4) == 0;
    if (!s && (is_true || (name->size == 5 && memcmp(name->start, "false", 5) == 0))) {
        out->kind = TRUTH;
        buf_append_str(&p->code, is_true ? "true" : "false");
        return true;
    }
    if (!s && (!check_foreign(p, *name) || (lex_is(p->lx, '.') && !check_foreign(p, p->lx->token))))
        return false;
    if (!s) {
        p->lx->token = *name;
        point(p);
        return scope_fail_unknown(&p->r->scope, p->lx,
                                  "a tensor, attribute, let or an earlier formula");
    }
    switch (s->kind) {
    case SYMBOL_ATTR:
        return read_attr(p, name, &p->r->op->attrs[s->index], out);
    case SYMBOL_LET:
        return use_value(p, s->name, false);
    case SYMBOL_TENSOR:
        return read_tensor(p, name, s->index);
    case SYMBOL_FORMULA:
        return read_formula(p, name, s->index, out);
    default:
        return FAIL_AT(p, *name, "'%s' is %s, expected a tensor, attribute, let or formula",
                       s->name, symbol_describe(s->kind));
    }
}

// --- functions

static const struct function {
    const char *name;
    int n_args;
    const char *code; // NULL: the same name
    bool is_test;
} functions[] = {
    { "abs", 1, "fabs", false },     { "acos", 1, NULL, false },
    { "acosh", 1, NULL, false },     { "asin", 1, NULL, false },
    { "asinh", 1, NULL, false },     { "atan", 1, NULL, false },
    { "atan2", 2, NULL, false },     { "atanh", 1, NULL, false },
    { "cbrt", 1, NULL, false },      { "ceil", 1, NULL, false },
    { "copysign", 2, NULL, false },  { "cos", 1, NULL, false },
    { "cosh", 1, NULL, false },      { "erf", 1, NULL, false },
    { "erfc", 1, NULL, false },      { "exp", 1, "opd::formula_exp<scalar_t>", false },
    { "exp10", 1, NULL, false },     { "exp2", 1, NULL, false },
    { "expm1", 1, NULL, false },     { "fabs", 1, NULL, false },
    { "fdim", 2, NULL, false },      { "floor", 1, NULL, false },
    { "fma", 3, NULL, false },       { "fmax", 2, NULL, false },
    { "fmin", 2, NULL, false },      { "fmod", 2, NULL, false },
    { "hypot", 2, NULL, false },     { "isfinite", 1, NULL, true },
    { "isinf", 1, NULL, true },      { "isnan", 1, NULL, true },
    { "lgamma", 1, NULL, false },    { "log", 1, NULL, false },
    { "log10", 1, NULL, false },     { "log1p", 1, NULL, false },
    { "log2", 1, NULL, false },      { "max", 2, "fmax", false },
    { "min", 2, "fmin", false },     { "normcdf", 1, NULL, false },
    { "pow", 2, NULL, false },       { "rcbrt", 1, "opd::formula_rcbrt", false },
    { "remainder", 2, NULL, false }, { "rint", 1, NULL, false },
    { "round", 1, NULL, false },     { "rsqrt", 1, NULL, false },
    { "signbit", 1, NULL, true },    { "sin", 1, NULL, false },
    { "sinh", 1, NULL, false },      { "sqrt", 1, NULL, false },
    { "tan", 1, NULL, false },       { "tanh", 1, NULL, false },
    { "tgamma", 1, NULL, false },    { "trunc", 1, NULL, false },
};

static const struct function *find_function(struct formula_parser *p, const struct token *name)
{
    struct suggest near;
    char text[OP_MAX_NAME + 32];
    suggest_init(&near, name->start, name->size);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const struct function *fn = &functions[i];
        if (strlen(fn->name) == name->size && memcmp(fn->name, name->start, name->size) == 0)
            return fn;
        suggest_add(&near, fn->name);
    }
    const char *hint = formula_hint_function(name->start, name->size);
    FAIL_AT(p, *name, "there is no function '%.*s'%s%s", (int)name->size, name->start,
            hint ? "; " : "", hint ? hint : suggest_text(&near, text, sizeof text));
    return NULL;
}

static bool read_call(struct formula_parser *p, const struct token *name, struct part *out)
{
    const struct function *fn = find_function(p, name);
    if (!fn)
        return false;
    buf_printf(&p->code, "%s(", fn->code ? fn->code : fn->name);
    int n = 0;
    while (!lex_is(p->lx, ')')) {
        struct part arg;
        if (n > 0 && !lex_expect(p->lx, ',', "',' or ')'"))
            return false;
        if (n > 0)
            buf_append_str(&p->code, ", ");
        if (!parse_choice(p, &arg) || !need_number(p, &arg))
            return false;
        n++;
    }
    if (n != fn->n_args)
        return FAIL_AT(p, *name, "'%s' with %d arguments, expected %d", fn->name, n, fn->n_args);
    lex_next(p->lx);
    buf_append_str(&p->code, ")");
    out->kind = fn->is_test ? TRUTH : NUMBER;
    return true;
}

// --- the grammar

static bool parse_primary(struct formula_parser *p, struct part *out)
{
    struct lexer *lx = p->lx;
    const struct token token = lx->token;
    *out = (struct part){ .kind = NUMBER, .start = p->code.size, .token = token };
    if (++p->n_terms > FORMULA_MAX_TERMS)
        return lex_fail(lx, "more than %d terms; use a formula of its own for a part of it",
                        FORMULA_MAX_TERMS);
    if (token.kind == TOKEN_INT || token.kind == TOKEN_FLOAT) {
        double value = token.kind == TOKEN_INT ? (double)token.i : token.f;
        buf_printf(&p->code, "acc_t(%.17g)", value);
        lex_next(lx);
        return true;
    }
    if (token.kind == TOKEN_STRING) {
        out->kind = STRING;
        lex_next(lx);
        return true;
    }
    if (token.kind == TOKEN_NAME) {
        lex_next(lx);
        return lex_accept(lx, '(') ? read_call(p, &token, out)
                                   : lx->token.kind != TOKEN_BAD && read_symbol(p, &token, out);
    }
    if (lex_is(lx, '*') && token.start[-1] == '*')
        return FAIL_AT(p, token, "'**' is not of formulas; a power is pow(x, y)");
    if (!lex_accept(lx, '('))
        return lex_fail_expected(lx, "a number, a name or '('");
    buf_append_str(&p->code, "(");
    if (!parse_choice(p, out) || !need_value(p, out) || !lex_expect(lx, ')', "')'"))
        return false;
    out->start--; // the bracket
    buf_append_str(&p->code, ")");
    return true;
}

static bool parse_unary(struct formula_parser *p, struct part *out)
{
    bool is_not = lex_is(p->lx, '!');
    if (!is_not && !lex_is(p->lx, '-'))
        return parse_primary(p, out);
    if (++p->depth > EXPR_MAX_DEPTH)
        return lex_fail(p->lx, "the formula is nested more than %d deep", EXPR_MAX_DEPTH);
    size_t start = p->code.size;
    buf_append_str(&p->code, is_not ? "!" : "- "); // "--" would be another operator
    lex_next(p->lx);
    if (!parse_unary(p, out) || !(is_not ? need_truth(p, out) : need_number(p, out)))
        return false;
    p->depth--;
    out->start = start;
    return true;
}

static const struct binary {
    int punct, precedence;
    enum kind operand, result;
    const char *code;
} binaries[] = {
    { PUNCT2('|', '|'), 1, TRUTH, TRUTH, " || " },
    { PUNCT2('&', '&'), 2, TRUTH, TRUTH, " && " },
    { PUNCT2('=', '='), 3, NUMBER, TRUTH, " == " },
    { PUNCT2('!', '='), 3, NUMBER, TRUTH, " != " },
    { '<', 4, NUMBER, TRUTH, " < " },
    { PUNCT2('<', '='), 4, NUMBER, TRUTH, " <= " },
    { '>', 4, NUMBER, TRUTH, " > " },
    { PUNCT2('>', '='), 4, NUMBER, TRUTH, " >= " },
    { '+', 5, NUMBER, NUMBER, " + " },
    { '-', 5, NUMBER, NUMBER, " - " },
    { '*', 6, NUMBER, NUMBER, " * " },
    { '/', 6, NUMBER, NUMBER, ", " },
};

static const struct binary *find_binary(const struct formula_parser *p)
{
    for (size_t i = 0; p->lx->token.kind == TOKEN_PUNCT && i < sizeof binaries / sizeof *binaries;
         i++)
        if (binaries[i].punct == p->lx->token.punct)
            return &binaries[i];
    return NULL;
}

static bool compare_words(struct formula_parser *p, const struct binary *op, struct part *left,
                          const struct part *right)
{
    const struct token *word = left->kind == WORD ? &left->token : &right->token;
    const struct token *string = left->kind == WORD ? &right->token : &left->token;
    const char *text = arena_printf(p->r->arena, "%.*s%s\"%.*s\"", (int)word->size, word->start,
                                    op->code, (int)string->size, string->start);
    left->kind = TRUTH;
    return use_value(p, text, true);
}

static bool parse_binary(struct formula_parser *p, int precedence, struct part *left)
{
    if (!parse_unary(p, left))
        return false;
    const struct binary *op;
    while ((op = find_binary(p)) && op->precedence >= precedence) {
        struct part right;
        bool words = left->kind == WORD || left->kind == STRING;
        if (!words && !need_kind(p, left, op->operand, p->code.size))
            return false;
        if (words && op->precedence != 3)
            return need_value(p, left);
        lex_next(p->lx);
        if (!words)
            buf_append_str(&p->code, op->code);
        if (!parse_binary(p, op->precedence + 1, &right))
            return false;
        if (words && left->kind != right.kind && (right.kind == WORD || right.kind == STRING)) {
            if (!compare_words(p, op, left, &right))
                return false;
            continue;
        }
        if (!need_value(p, left) || !need_kind(p, &right, op->operand, p->code.size))
            return false;
        if (op->punct == '/') { // not the language's own: see opd.cuh
            insert(p, left->start, "opd::formula_divide(");
            buf_append_str(&p->code, ")");
        }
        left->kind = op->result;
    }
    return true;
}

// cond ? a : b
static bool parse_branches(struct formula_parser *p, struct part *out)
{
    struct part a, b;
    if (!need_truth(p, out))
        return false;
    buf_append_str(&p->code, " ? ");
    if (!parse_choice(p, &a) || !need_value(p, &a))
        return false;
    size_t a_end = p->code.size;
    if (!lex_expect(p->lx, ':', "':' of '?'"))
        return false;
    buf_append_str(&p->code, " : ");
    if (!parse_choice(p, &b) || !need_value(p, &b))
        return false;
    if (a.kind != b.kind && (!need_number(p, &b) || !need_kind(p, &a, NUMBER, a_end)))
        return false;
    out->kind = a.kind;
    return true;
}

static bool parse_choice(struct formula_parser *p, struct part *out)
{
    if (++p->depth > EXPR_MAX_DEPTH)
        return lex_fail(p->lx, "the formula is nested more than %d deep", EXPR_MAX_DEPTH);
    if (!parse_binary(p, 1, out) || !check_foreign(p, p->lx->token) ||
        (lex_accept(p->lx, '?') && !parse_branches(p, out)))
        return false;
    p->depth--;
    return true;
}

static bool check_brackets(struct formula_parser *p, struct token first)
{
    int depth = 0, most = 0;
    for (size_t i = 0; i < p->code.size; i++) {
        depth += (p->code.bytes[i] == '(') - (p->code.bytes[i] == ')');
        most = depth > most ? depth : most;
    }
    return most <= FORMULA_MAX_BRACKETS ||
           FAIL_AT(p, first,
                   "the formula is nested too deeply; use one of its own for a part of it");
}

bool formula_parse(struct reader *r, struct formula_set *set, struct formula *f)
{
    struct formula_parser p = { .r = r, .lx = &r->lx, .set = set, .f = f };
    const struct token first = r->lx.token;
    struct part part;
    bool ok = parse_choice(&p, &part) && need_value(&p, &part) && lex_expect_end(p.lx) &&
              p.lx->token.kind != TOKEN_BAD;
    if (ok && f->target >= 0)
        ok = need_number(&p, &part);
    if (ok)
        ok = check_brackets(&p, first);
    if (ok) {
        f->is_bool = part.kind == TRUTH;
        f->code = arena_strndup(r->arena, (const char *)p.code.bytes, p.code.size);
    }
    buf_finish(&p.code);
    return ok;
}
