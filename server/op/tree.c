#include "op/tree.h"

#include <stddef.h>

#include "base/suggest.h"
#include "op/text.h"

void tree_point(struct parser *p, const char *start)
{
    p->lx->token.start = start;
    if (p->lx->mark && p->lx->err->code == OPD_E_none)
        p->lx->mark->exact = true;
}

static struct node *new_node(struct parser *p, int kind, enum expr_type type,
                             const struct token *at, int n_args)
{
    size_t size = n_args > 0 ? sizeof(struct node)
                             : offsetof(struct node, value) + sizeof(union expr_value);
    struct node *n = arena_alloc(p->place->arena, 1, size);
    n->kind = (uint8_t)kind;
    n->n_args = (uint8_t)n_args;
    n->type = type;
    n->start = at->start;
    n->size = (uint32_t)at->size;
    return n;
}

struct node *tree_leaf(struct parser *p, int kind, enum expr_type type, int a, int b,
                       const struct token *at)
{
    struct node *n = new_node(p, kind, type, at, 0);
    n->a = (int16_t)a;
    n->b = (int16_t)b;
    return n;
}

struct node *tree_node(struct parser *p, int kind, enum expr_type type, const struct token *at,
                       struct node *left, struct node *right)
{
    struct node *n = new_node(p, kind, type, at, right ? 2 : 1);
    n->args[0] = left;
    n->args[1] = right;
    return n;
}

// --- types

static struct token word_of(const struct node *n)
{
    return (struct token){ .start = n->start, .size = n->size };
}

// A node that converts another, and stands where that does.
static struct node *convert(struct parser *p, int kind, enum expr_type type, struct node *n)
{
    struct token at = word_of(n);
    return tree_node(p, kind, type, &at, n, NULL);
}

// A word alone is its number in an expression, and nothing in a formula.
struct node *tree_value(struct parser *p, struct node *n)
{
    if (!n)
        return NULL;
    if (n->type == EXPR_STRING)
        return TREE_FAIL(p, n,
                         "the string \"%.*s\" stands alone, expected a comparison of a str "
                         "attribute with it (== or !=)",
                         (int)n->size, n->start);
    if (n->type == EXPR_WORD && p->dialect->number == EXPR_FLOAT)
        return TREE_FAIL(p, n,
                         "'%.*s' is a str attribute, expected a comparison with one of its words "
                         "(== or !=)",
                         (int)n->size, n->start);
    if (n->type == EXPR_WORD)
        n->type = EXPR_INT;
    return n;
}

struct node *tree_number(struct parser *p, struct node *n)
{
    n = tree_value(p, n);
    if (!n || n->type != EXPR_TRUTH)
        return n;
    if (p->dialect->number == EXPR_FLOAT)
        return convert(p, NODE_TO_NUMBER, EXPR_FLOAT, n);
    n->type = EXPR_INT;
    return n;
}

struct node *tree_float(struct parser *p, struct node *n)
{
    n = tree_number(p, n);
    return n && n->type == EXPR_INT ? convert(p, NODE_TO_FLOAT, EXPR_FLOAT, n) : n;
}

static struct node *tree_truth(struct parser *p, struct node *n)
{
    n = tree_value(p, n);
    return n && n->type != EXPR_TRUTH ? convert(p, NODE_TO_TRUTH, EXPR_TRUTH, n) : n;
}

// Both operands made numbers, and floats where one of them is. False with the error.
static bool unify(struct parser *p, struct node **left, struct node **right)
{
    *left = tree_number(p, *left);
    *right = *left ? tree_number(p, *right) : NULL;
    if (*right && (*left)->type != (*right)->type) {
        *left = tree_float(p, *left);
        *right = tree_float(p, *right);
    }
    return *right != NULL;
}

static struct node *find_word(struct parser *p, const struct op_attr *a, const struct node *string)
{
    struct suggest near;
    int word = op_attr_word(a, string->start, string->size, &near);
    if (word >= 0) {
        struct token at = word_of(string);
        struct node *n = tree_leaf(p, NODE_CONST, EXPR_INT, 0, 0, &at);
        n->value.i = word;
        return n;
    }
    if (a->n_words == 0)
        return TREE_FAIL(p, string,
                         "the words of %s are not known yet; put its 'words' line before", a->name);
    return TREE_FAIL(p, string, "\"%.*s\" is none of the words of %s%s", (int)string->size,
                     string->start, a->name, suggest_text(&near));
}

static struct node *compare_words(struct parser *p, int kind, const struct token *at,
                                  struct node *word, const struct node *string)
{
    struct node *index = find_word(p, &p->place->scope->op->attrs[word->a], string);
    if (!index)
        return NULL;
    struct node *test = tree_node(p, kind, EXPR_TRUTH, at, word, index);
    return p->dialect->add_test ? p->dialect->add_test(p, test, word, string) : test;
}

struct node *tree_combine(struct parser *p, int kind, const struct token *at, struct node *left,
                          struct node *right)
{
    if (!left || !right)
        return NULL;
    bool words = (left->type == EXPR_WORD && right->type == EXPR_STRING) ||
                 (left->type == EXPR_STRING && right->type == EXPR_WORD);
    bool swap = left->type == EXPR_STRING;
    if (words && (kind == NODE_EQ || kind == NODE_NE))
        return compare_words(p, kind, at, swap ? right : left, swap ? left : right);
    if (words && p->dialect->number != EXPR_FLOAT)
        return TREE_FAIL(p, at, "words can be compared by == and != only");
    if (kind == NODE_AND || kind == NODE_OR) {
        left = tree_truth(p, left);
        right = left ? tree_truth(p, right) : NULL;
        return right ? tree_node(p, kind, EXPR_TRUTH, at, left, right) : NULL;
    }
    if (!unify(p, &left, &right))
        return NULL;
    if (left->type == EXPR_FLOAT && (kind == NODE_MOD || kind == NODE_CDIV))
        return TREE_FAIL(p, at, "%s needs integers, got a float",
                         kind == NODE_MOD ? "'%'" : "cdiv");
    bool compares = kind >= NODE_EQ && kind <= NODE_GE;
    return tree_node(p, kind, compares ? EXPR_TRUTH : left->type, at, left, right);
}

// --- the grammar

static struct node *read_number(struct parser *p, const struct token *token)
{
    bool is_float = token->kind == TOKEN_FLOAT || p->dialect->number == EXPR_FLOAT;
    struct node *n = tree_leaf(p, NODE_CONST, is_float ? EXPR_FLOAT : EXPR_INT, 0, 0, token);
    if (!is_float)
        n->value.i = token->i;
    else
        n->value.f = token->kind == TOKEN_FLOAT ? token->f : (double)token->i;
    return n;
}

static struct node *read_name(struct parser *p, const struct token *name)
{
    bool is_true = text_is(name->start, name->size, "true");
    if (lex_accept(p->lx, '('))
        return p->dialect->read_call(p, name);
    if (p->lx->token.kind == TOKEN_BAD)
        return NULL;
    if (!is_true && !text_is(name->start, name->size, "false"))
        return p->dialect->read_name(p, name);
    struct node *n = tree_leaf(p, NODE_CONST, EXPR_TRUTH, 0, 0, name);
    n->value.i = is_true;
    return n;
}

static struct node *read_brackets(struct parser *p)
{
    p->parens++;
    struct node *n = tree_parse(p);
    if (!n || !lex_expect(p->lx, ')', "')'"))
        return NULL;
    p->parens--;
    n->bracketed = true;
    return n;
}

static struct node *read_primary(struct parser *p)
{
    const struct token token = p->lx->token;
    if (++p->n_terms > p->dialect->max_terms)
        return lex_fail(p->lx, "%s", p->dialect->too_many), NULL;
    if (p->n_open >= p->dialect->max_open)
        return lex_fail(p->lx, "%s", p->dialect->too_deep), NULL;
    if (lex_accept(p->lx, '('))
        return read_brackets(p);
    if (token.kind < TOKEN_NAME || token.kind > TOKEN_STRING)
        return !p->dialect->check_token(p, &token)
                   ? NULL
                   : (lex_fail_expected(p->lx, "a number, a name or '('"), NULL);
    lex_next(p->lx);
    if (token.kind == TOKEN_NAME)
        return read_name(p, &token);
    return token.kind == TOKEN_STRING ? tree_leaf(p, NODE_CONST, EXPR_STRING, 0, 0, &token)
                                      : read_number(p, &token);
}

static bool enter(struct parser *p)
{
    return ++p->depth <= EXPR_MAX_DEPTH ||
           lex_fail(p->lx, "the %s is nested more than %d deep", p->dialect->noun, EXPR_MAX_DEPTH);
}

static struct node *read_unary(struct parser *p)
{
    const struct token at = p->lx->token;
    bool is_not = lex_is(p->lx, '!');
    if (!is_not && !lex_is(p->lx, '-'))
        return read_primary(p);
    if (!enter(p))
        return NULL;
    lex_next(p->lx);
    struct node *n = read_unary(p);
    p->depth--;
    n = is_not ? tree_truth(p, n) : tree_number(p, n);
    return n ? tree_node(p, is_not ? NODE_NOT : NODE_NEG, n->type, &at, n, NULL) : NULL;
}

static const struct binary {
    int punct, precedence, kind;
} binaries[] = {
    { PUNCT2('|', '|'), 1, NODE_OR },
    { PUNCT2('&', '&'), 2, NODE_AND },
    { PUNCT2('=', '='), 3, NODE_EQ },
    { PUNCT2('!', '='), 3, NODE_NE },
    { '<', 4, NODE_LT },
    { PUNCT2('<', '='), 4, NODE_LE },
    { '>', 4, NODE_GT },
    { PUNCT2('>', '='), 4, NODE_GE },
    { '+', 5, NODE_ADD },
    { '-', 5, NODE_SUB },
    { '*', 6, NODE_MUL },
    { '/', 6, NODE_DIV },
    { '%', 6, NODE_MOD },
};

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

static struct node *read_binary(struct parser *p, int precedence)
{
    struct node *left = read_unary(p);
    const struct binary *op;
    while (left && (op = find_binary(p)) && op->precedence >= precedence) {
        const struct token at = p->lx->token;
        bool waits = op->precedence > 2; // the left side of && and || is done with
        if (!p->dialect->check_token(p, &at))
            return NULL;
        lex_next(p->lx);
        p->n_open += waits;
        struct node *right = read_binary(p, op->precedence + 1);
        p->n_open -= waits;
        left = tree_combine(p, op->kind, &at, left, right);
    }
    return left;
}

// The branches of a choice, behind its '?' at `at`.
static struct node *read_branches(struct parser *p, const struct token *at, struct node *condition)
{
    condition = tree_truth(p, condition);
    struct node *a = condition ? tree_value(p, tree_parse(p)) : NULL;
    if (!a || !lex_expect(p->lx, ':', "':' of '?'"))
        return NULL;
    struct node *b = tree_value(p, tree_parse(p));
    if (!b || (a->type != b->type && !unify(p, &a, &b)))
        return NULL;
    struct node *n = tree_node(p, NODE_CHOICE, a->type, at, condition, a);
    n->args[2] = b;
    n->n_args = 3;
    return n;
}

struct node *tree_parse(struct parser *p)
{
    if (!enter(p))
        return NULL;
    struct node *n = read_binary(p, 1);
    const struct token at = p->lx->token;
    if (!n || !p->dialect->check_token(p, &at))
        return NULL;
    if (lex_accept(p->lx, '?'))
        n = read_branches(p, &at, n);
    p->depth--;
    return n;
}

const struct function *tree_function(struct parser *p, const struct function *table, size_t n,
                                     const struct token *name, const char *hint)
{
    struct suggest near;
    suggest_init(&near, name->start, name->size);
    for (size_t i = 0; i < n; i++) {
        if (text_is(name->start, name->size, table[i].name))
            return &table[i];
        suggest_add(&near, table[i].name);
    }
    (void)TREE_FAIL(p, name, "there is no function '%.*s'%s%s", (int)name->size, name->start,
                    hint ? "; " : "", hint ? hint : suggest_text(&near));
    return NULL;
}
