
#include <string.h>

#include "op/tree.h"

// --- names

struct node *expr_attr(struct parser *p, const struct token *name, int index)
{
    struct lexer *lx = p->lx;
    const struct op_attr *a = &p->place->scope->op->attrs[index];
    int element = 0;
    if (a->list > 0) {
        if (!lex_accept(lx, '['))
            return TREE_FAIL(p, name, "%s is a list of %d; write %s[0] for an element", a->name,
                             a->list, a->name);
        const struct token token = lx->token;
        if (token.kind != TOKEN_INT || token.i >= a->list)
            return TREE_FAIL(p, &token, "%s[...] needs a number from 0 to %d", a->name,
                             a->list - 1);
        element = (int)token.i;
        lex_next(lx);
        if (!lex_expect(lx, ']', "']'"))
            return NULL;
    }
    enum expr_type type = a->type == OP_ATTR_FLOAT ? EXPR_FLOAT
                          : a->type == OP_ATTR_STR ? EXPR_WORD
                                                   : EXPR_INT;
    p->place->scope->attr_used[index] = true;
    return tree_leaf(p, NODE_ATTR, type, index, element, name);
}

// A dimension or let, or what stands for it.
static struct node *read_slot(struct parser *p, const struct token *name, const struct symbol *s,
                              struct again *again)
{
    const struct again_value *v = again ? again_find(again, s->index) : NULL;
    if (!v)
        return tree_leaf(p, NODE_SLOT, s->type, s->index, 0, name);
    p->n_again += v->terms;
    if (p->n_again > AGAIN_MAX_TERMS)
        return TREE_FAIL(p, name,
                         "with all that '%s' is made of, the expression has more than %d steps",
                         s->name, AGAIN_MAX_TERMS);
    struct node *n = tree_node(p, v->node->kind, s->type, name, NULL, NULL);
    memcpy(n->args, v->node->args,
           v->node->n_args > 0 ? v->node->n_args * sizeof *n->args : sizeof n->value);
    n->n_args = v->node->n_args;
    n->a = v->node->a;
    n->b = v->node->b;
    return n;
}

// NAME.LET
static struct node *read_again(struct parser *p, struct again *again)
{
    if (!lex_expect(p->lx, '.', "'.' and a dimension or let"))
        return NULL;
    const struct token name = p->lx->token;
    const struct symbol *s = scope_expect(p->place->scope, p->lx, "a dimension or let",
                                          "a dimension or let");
    if (!s)
        return NULL;
    if (s->kind != SYMBOL_SIZE && s->kind != SYMBOL_LET)
        return TREE_FAIL(p, &name, "'%s' is %s, expected a dimension or let", s->name,
                         symbol_describe(s->kind));
    lex_next(p->lx);
    return read_slot(p, &name, s, again);
}

static struct node *read_name(struct parser *p, const struct token *name)
{
    const struct scope *scope = p->place->scope;
    const struct symbol *s = scope_find(scope, name->start, name->size);
    if (!s) {
        p->lx->token = *name;
        scope_fail_unknown(scope, p->lx, "a dimension, let or attribute");
        return NULL;
    }
    switch (s->kind) {
    case SYMBOL_SIZE:
    case SYMBOL_LET:
        return read_slot(p, name, s, scope->as);
    case SYMBOL_AGAIN:
        return read_again(p, scope->agains[s->index]);
    case SYMBOL_DEVICE:
        return tree_leaf(p, NODE_ON_CPU, EXPR_TRUTH, s->index, 0, name);
    case SYMBOL_ATTR:
        return expr_attr(p, name, s->index);
    default:
        return TREE_FAIL(p, name, "'%s' is %s, expected a number%s", s->name,
                         symbol_describe(s->kind),
                         s->kind == SYMBOL_TENSOR ? "; use numel(), rank() or size() of it" : "");
    }
}

// --- functions

// Letters of what functions take: a value becomes an argument of the node, anything else one of
// its own numbers.
enum {
    NUMBER = 'n',
    INTEGER = 'i',
    FLOAT = 'f',
    TENSOR = 't',
    TYPE = 'y',
    DTYPE = 'd',
    PRESENT = 'p',
    WANTED = 'w'
};

static const struct function functions[] = {
    { "cdiv", "nn", NODE_CDIV, NULL },       { "min", "nn", NODE_MIN, NULL },
    { "max", "nn", NODE_MAX, NULL },         { "floor", "n", NODE_FLOOR, NULL },
    { "pow2", "i", NODE_POW2, NULL },        { "numel", "t", NODE_NUMEL, NULL },
    { "rank", "t", NODE_RANK, NULL },        { "size", "ti", NODE_SIZE, NULL },
    { "present", "p", NODE_HAS_ATTR, NULL }, { "wanted", "w", NODE_HAS_TENSOR, NULL },
    { "is", "yd", NODE_IS_TYPE, NULL },      { "sizeof", "y", NODE_SIZEOF, NULL },
    { "pow", "ff", NODE_POW, NULL },         { "fits32", "i", NODE_FITS32, NULL },
    { "stride", "ti", NODE_STRIDE, NULL },   { "gcd", "ii", NODE_GCD, NULL },
};

// The tensor whose name the lexer stands at.
static bool read_tensor(struct parser *p, struct node *call)
{
    const struct symbol *s = scope_expect_tensor(p->place->scope, p->lx, "the name of a tensor");
    if (!s)
        return false;
    if (s->index >= TENSOR_GRAD_OUTPUT && !p->place->in_backward)
        return lex_fail(p->lx, "'%s' is a gradient, expected in a backward section only", s->name);
    call->a = (int16_t)s->index;
    lex_next(p->lx);
    return true;
}

// A tensor whose shape is known: a gradient has that of something.
static bool read_shaped(struct parser *p, struct node *call)
{
    if (!read_tensor(p, call))
        return false;
    return call->a < TENSOR_OUTPUT || call->a >= TENSOR_GRAD_OUTPUT ||
           p->place->scope->shaped[call->a] ||
           lex_fail(p->lx, "the shape of this tensor is not known yet; put its 'shape' before");
}

static bool read_present(struct parser *p, struct node *call)
{
    const struct token *token = &p->lx->token;
    const struct symbol *s = token->kind == TOKEN_NAME
                                 ? scope_find(p->place->scope, token->start, token->size)
                                 : NULL;
    if (s && s->kind == SYMBOL_ATTR) {
        call->a = (int16_t)s->index;
        p->place->scope->attr_used[s->index] = true;
        lex_next(p->lx);
        return true;
    }
    call->kind = NODE_HAS_TENSOR;
    return read_tensor(p, call) &&
           (call->a < TENSOR_OUTPUT ||
            lex_fail(p->lx, "present() is about inputs and attributes; use wanted() here"));
}

struct node *expr_present(struct parser *p, const struct token *name)
{
    struct node *call = tree_node(p, NODE_HAS_ATTR, EXPR_INT, name, NULL, NULL);
    call->n_args = 0;
    return read_present(p, call) ? call : NULL;
}

static bool read_wanted(struct parser *p, struct node *call)
{
    const struct expr_place *place = p->place;
    if (!place->in_section)
        return lex_fail(p->lx, "wanted() is known inside forward and backward only");
    if (!read_tensor(p, call))
        return false;
    bool saved = call->a >= TENSOR_TEMP && call->a < TENSOR_GRAD_OUTPUT &&
                 place->scope->saved[call->a - TENSOR_TEMP];
    if (saved && !place->in_backward)
        call->kind = NODE_KEEP;
    return call->kind == NODE_KEEP || call->a >= TENSOR_GRAD_INPUT ||
           lex_fail(p->lx, "wanted() is about gradients of inputs, in a backward section, and "
                           "about saved tensors, in forward");
}

static bool read_type(struct parser *p, struct node *call)
{
    const struct symbol *s = scope_expect(p->place->scope, p->lx, "the name of a type",
                                          "a type variable");
    if (!s)
        return false;
    if (s->kind != SYMBOL_TYPE)
        return lex_fail(p->lx, "'%s' is %s, expected a type variable", s->name,
                        symbol_describe(s->kind));
    call->a = (int16_t)s->index;
    lex_next(p->lx);
    return true;
}

static bool read_dtype(struct parser *p, struct node *call)
{
    char name[OP_MAX_NAME];
    if (!lex_name(p->lx, "a dtype", name, sizeof name))
        return false;
    call->b = (int16_t)dtype_parse(name);
    return call->b != OPD_DTYPE_NONE || lex_fail(p->lx, "'%s' is no dtype", name);
}

static bool read_value(struct parser *p, const struct function *f, int letter, struct node *call)
{
    struct node *n = tree_parse(p);
    n = letter == FLOAT ? tree_float(p, n) : tree_number(p, n);
    if (n && letter == INTEGER && n->type != EXPR_INT)
        return TREE_FAIL(p, n, "the %s of %s() is a float, expected an integer",
                         f->args[0] == INTEGER ? "argument" : "dimension", f->name);
    call->args[call->n_args++] = n;
    return n != NULL;
}

static bool read_argument(struct parser *p, const struct function *f, int letter, struct node *call)
{
    switch (letter) {
    case TENSOR:
        return read_shaped(p, call);
    case PRESENT:
        return read_present(p, call);
    case WANTED:
        return read_wanted(p, call);
    case TYPE:
        return read_type(p, call);
    case DTYPE:
        return read_dtype(p, call);
    default:
        return read_value(p, f, letter, call);
    }
}

// fits32(a, b, ...): each of them, up to the first that does not.
static struct node *read_more_fits(struct parser *p, const struct function *f,
                                   const struct token *name, struct node *all)
{
    while (all && lex_accept(p->lx, ',')) {
        struct node *next = tree_node(p, f->kind, EXPR_TRUTH, name, NULL, NULL);
        next->n_args = 0;
        all = read_value(p, f, INTEGER, next) ? tree_combine(p, NODE_AND, name, all, next) : NULL;
    }
    return all;
}

// min(a, b, c) is min(min(a, b), c).
static struct node *read_another(struct parser *p, const struct function *f,
                                 const struct token *name, struct node *call)
{
    struct node *first = tree_combine(p, f->kind, name, call->args[0], call->args[1]);
    call->n_args = 1;
    call->args[0] = first;
    return first && read_value(p, f, NUMBER, call) ? call : NULL;
}

static struct node *read_call(struct parser *p, const struct token *name)
{
    const struct function *f = tree_function(p, functions, sizeof functions / sizeof *functions,
                                             name, NULL);
    struct node *call = f ? tree_node(p, f->kind, EXPR_INT, name, NULL, NULL) : NULL;
    if (!call)
        return NULL;
    int open = p->n_open;
    call->n_args = 0;
    p->parens++;
    for (int i = 0; f->args[i]; i++) {
        p->n_open = open + call->n_args;
        if ((i > 0 && !lex_expect(p->lx, ',', "','")) || !read_argument(p, f, f->args[i], call))
            return NULL;
    }
    p->n_open = open;
    if (f->kind == NODE_FITS32) {
        call->type = EXPR_TRUTH;
        call = read_more_fits(p, f, name, call);
    }
    while ((f->kind == NODE_MIN || f->kind == NODE_MAX) && lex_accept(p->lx, ','))
        if (!(call = read_another(p, f, name, call)))
            return NULL;
    p->parens--;
    if (!call || !lex_expect(p->lx, ')', "')' after the arguments of the function"))
        return NULL;
    if (call->n_args == 2 && f->kind != NODE_FITS32)
        return tree_combine(p, f->kind, name, call->args[0], call->args[1]);
    return f->kind == NODE_FLOOR && call->args[0]->type == EXPR_INT ? call->args[0] : call;
}

// --- expressions

static bool check_token(struct parser *p, const struct token *token)
{
    (void)p, (void)token;
    return true;
}

static const struct dialect dialect = {
    .noun = "expression",
    .number = EXPR_INT,
    .max_terms = EXPR_MAX_TERMS,
    .max_open = EXPR_MAX_OPEN,
    .too_many = "the expression is too long, expected at most 512 steps",
    .too_deep = "the expression is nested too deeply; use a let for a part of it",
    .read_name = read_name,
    .read_call = read_call,
    .check_token = check_token,
};

const struct expr *expr_new(const struct parser *p, const struct node *root, const char *text)
{
    struct expr *e = arena_alloc(p->place->arena, 1, sizeof *e);
    *e = (struct expr){ .text = text,
                        .file = p->lx->file,
                        .line = p->lx->line,
                        .type = root->type == EXPR_FLOAT ? EXPR_FLOAT : EXPR_INT,
                        .root = root };
    return e;
}

const struct expr *expr_parse(struct lexer *lx, const struct expr_place *place)
{
    struct parser p = { .lx = lx, .place = place, .dialect = &dialect };
    const char *start = lx->token.start;
    const struct node *root = tree_number(&p, tree_parse(&p));
    if (!root || lx->token.kind == TOKEN_BAD)
        return NULL;
    return expr_new(&p, root, arena_strndup(place->arena, start, lex_span(lx, start)));
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
