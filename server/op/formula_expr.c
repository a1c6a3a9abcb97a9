#include <assert.h>
#include <string.h>

#include "op/formula.h"
#include "op/reader.h"
#include "op/text.h"
#include "op/tree.h"

// What formulas have in its place.
static const char *hint_symbol(const char *text, size_t size)
{
    static const struct {
        const char *text, *hint;
    } table[] = {
        { "%", "the rest of a division is fmod(x, y)" },
        { "^", "a power is pow(x, y)" },
        { "if", "a choice is condition ? a : b" },
        { "and", "write &&" },
        { "or", "write ||" },
        { "not", "write !" },
        { ".", "a function is called by its name alone, exp(x)" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (text_is(text, size, table[i].text))
            return table[i].hint;
    return NULL;
}

// The parser's data: the formula that is read, and all of the file.
struct reading {
    struct formula_set *set;
    struct formula *f;
    int n_sums; // inside of which the parser is
};

// --- what is read

// A value that the kernel gets, known by its text: the same text is the same value.
static struct node *use_value(struct parser *p, const struct node *n, enum expr_type type,
                              const char *text)
{
    const struct reading *reading = p->data;
    struct formula_set *set = reading->set;
    struct token at = { .start = n->start, .size = n->size };
    int k = 0;
    while (k < set->n_values && strcmp(set->values[k].text, text) != 0)
        k++;
    if (k == FORMULA_MAX_VALUES)
        return TREE_FAIL(p, n, "more than %d attributes and lets in the formulas",
                         FORMULA_MAX_VALUES);
    if (k == set->n_values) {
        text = arena_strndup(p->place->arena, text,
                             strlen(text)); // a symbol's goes with the reader
        set->values[set->n_values++] = (struct formula_value){ text, expr_new(p, n, text),
                                                               type == EXPR_TRUTH };
    }
    reading->f->uses.values |= UINT64_C(1) << k;
    return tree_leaf(p, NODE_VALUE, type, k, 0, &at);
}

static struct node *read_attr(struct parser *p, const struct token *name, const struct symbol *s)
{
    const struct op_attr *a = &p->place->scope->op->attrs[s->index];
    if (a->optional)
        return TREE_FAIL(p, name, "%s may be None, expected an attribute that always has a value",
                         a->name);
    struct node *n = expr_attr(p, name, s->index);
    if (!n || n->type == EXPR_WORD)
        return n;
    if (a->list > 0)
        return use_value(p, n, EXPR_FLOAT, arena_printf(p->place->arena, "%s[%d]", a->name, n->b));
    return use_value(p, n, a->type == OP_ATTR_BOOL ? EXPR_TRUTH : EXPR_FLOAT, a->name);
}

static struct node *add_test(struct parser *p, struct node *test, const struct node *word,
                             const struct node *string)
{
    return use_value(p, test, EXPR_TRUTH,
                     arena_printf(p->place->arena, "%.*s %.*s \"%.*s\"", (int)word->size,
                                  word->start, (int)test->size, test->start, (int)string->size,
                                  string->start));
}

static struct node *read_tensor(struct parser *p, const struct token *name, int tensor)
{
    const struct op *op = p->place->scope->op;
    struct formula *f = ((const struct reading *)p->data)->f;
    const char *text = body_tensor_name(op, tensor);
    bool forward = f->target >= 0 && f->target < TENSOR_GRAD_INPUT;
    if (tensor >= TENSOR_GRAD_INPUT)
        return TREE_FAIL(p, name,
                         "%s is made by a formula, expected what formulas are made from; give the "
                         "common part a name of its own",
                         text);
    if (tensor >= TENSOR_OUTPUT && forward)
        return TREE_FAIL(p, name,
                         "%s is %s, which only formulas of gradients may use; give the common part "
                         "a name of its own",
                         text, tensor < TENSOR_TEMP ? "an output" : "the gradient of an output");
    if (tensor < TENSOR_OUTPUT && op->inputs[tensor].in_place && f->target >= TENSOR_GRAD_INPUT)
        return TREE_FAIL(p, name, "%s is changed by forward, so no gradient can be made from it",
                         text);
    f->uses.tensors |= formula_bit(tensor);
    return tree_leaf(p, NODE_TENSOR, EXPR_FLOAT, tensor, 0, name);
}

static struct node *read_formula(struct parser *p, const struct token *name, int index)
{
    const struct op *op = p->place->scope->op;
    const struct reading *reading = p->data;
    const struct formula *g = &reading->set->items[index];
    struct formula *f = reading->f;
    if (f->target >= 0 && f->target < TENSOR_GRAD_INPUT && (g->uses.tensors & FORMULA_BACKWARD))
        return TREE_FAIL(p, name,
                         "%s is made from outputs or gradients, which only formulas of gradients "
                         "may use",
                         g->name);
    for (int i = 0; i < op->n_inputs; i++)
        if (f->target >= TENSOR_GRAD_INPUT && op->inputs[i].in_place &&
            (g->uses.tensors & formula_bit(i)))
            return TREE_FAIL(p, name,
                             "%s is made from %s, which is changed by forward, so no gradient can "
                             "be made from it",
                             g->name, op->inputs[i].name);
    f->uses.tensors |= g->uses.tensors;
    f->uses.values |= g->uses.values;
    return tree_leaf(p, NODE_FORMULA, g->is_bool ? EXPR_TRUTH : EXPR_FLOAT, index, 0, name);
}

// A token of another language is refused, with what formulas have in its place.
static bool check_token(struct parser *p, const struct token *t)
{
    bool symbol = t->kind == TOKEN_NAME || t->kind == TOKEN_PUNCT;
    const char *hint = symbol ? hint_symbol(t->start, t->size) : NULL;
    if (lex_is(p->lx, '*') && t->start[-1] == '*')
        return TREE_FAIL(p, t, "'**' is not of formulas; a power is pow(x, y)");
    return !hint || TREE_FAIL(p, t, "'%.*s' is not of formulas; %s", (int)t->size, t->start, hint);
}

static struct node *read_name(struct parser *p, const struct token *name)
{
    const struct scope *scope = p->place->scope;
    const struct symbol *s = scope_find(scope, name->start, name->size);
    if (!s) {
        if (!check_token(p, name) || (lex_is(p->lx, '.') && !check_token(p, &p->lx->token)))
            return NULL;
        p->lx->token = *name;
        tree_point(p, name->start);
        scope_fail_unknown(scope, p->lx, "a tensor, attribute, let or an earlier formula");
        return NULL;
    }
    switch (s->kind) {
    case SYMBOL_ATTR:
        return read_attr(p, name, s);
    case SYMBOL_LET:
        return use_value(p, tree_leaf(p, NODE_SLOT, s->type, s->index, 0, name), EXPR_FLOAT,
                         s->name);
    case SYMBOL_TENSOR:
        return read_tensor(p, name, s->index);
    case SYMBOL_FORMULA:
        return read_formula(p, name, s->index);
    default:
        return TREE_FAIL(p, name, "'%s' is %s, expected a tensor, attribute, let or formula",
                         s->name, symbol_describe(s->kind));
    }
}

// --- functions

// The file's own function of that name. -1: there is none.
static int find_device(const struct reading *reading, const struct token *name)
{
    const struct formula_set *set = reading ? reading->set : NULL;
    for (int i = 0; set && i < set->n_device; i++)
        if (text_is(name->start, name->size, set->device[i].name))
            return i;
    return -1;
}

// The tensor or attribute that may be absent: a truth value that is compiled in.
static struct node *read_present(struct parser *p, const struct token *name)
{
    const char *start = p->lx->token.start;
    struct node *n = expr_present(p, name);
    if (!n)
        return NULL;
    const char *text = arena_printf(p->place->arena, "present(%.*s)", (int)lex_span(p->lx, start),
                                    start);
    return lex_expect(p->lx, ')', "')'") ? use_value(p, n, EXPR_TRUTH, text) : NULL;
}

// Behind the first argument of a sum, up to its ')': the dimensions. -1: it failed.
static int read_over(struct parser *p, bool all)
{
    struct formula_set *set = ((const struct reading *)p->data)->set;
    struct formula_over over = { .text = "" };
    const char *start = p->lx->token.start;
    if (!all) {
        over.expr = expr_parse_int(p->lx, p->place, "what is summed over");
        if (!over.expr)
            return -1;
        over.is_slice = lex_accept(p->lx, ':');
        over.text = arena_strndup(p->place->arena, start, lex_span(p->lx, start));
    }
    int i = 0;
    while (i < set->n_overs && strcmp(set->overs[i].text, over.text) != 0)
        i++;
    if (i == FORMULA_MAX_OVERS) {
        lex_fail(p->lx, "sums over more than %d kinds of dimensions", FORMULA_MAX_OVERS);
        return -1;
    }
    if (i == set->n_overs)
        set->overs[set->n_overs++] = over;
    return lex_expect(p->lx, ')', "')'") ? i : -1;
}

// sum, mean, amax, amin of (X), (X, -1) or (X, -N:); count of (), (-1) or (-N:).
static struct node *read_sum(struct parser *p, const struct token *name)
{
    static const struct {
        const char *name;
        int kind;
    } kinds[] = { { "sum", NODE_SUM },
                  { "mean", NODE_DIV },
                  { "amax", NODE_AMAX },
                  { "amin", NODE_AMIN },
                  { "count", NODE_COUNT } };
    size_t i = 0;
    while (!text_is(name->start, name->size, kinds[i].name))
        i++;
    struct node *x = NULL;
    struct reading *reading = p->data;
    if (++reading->n_sums > FORMULA_MAX_NESTED)
        return TREE_FAIL(p, name, "sums nested more than %d deep; give the inner one a formula",
                         FORMULA_MAX_NESTED);
    if (kinds[i].kind != NODE_COUNT && !(x = tree_number(p, tree_parse(p))))
        return NULL;
    reading->n_sums--;
    int over = read_over(p, x ? !lex_accept(p->lx, ',') : lex_is(p->lx, ')'));
    if (over < 0)
        return NULL;
    struct node *count = tree_leaf(p, NODE_COUNT, EXPR_FLOAT, over, 0, name);
    if (!x)
        return count;
    int kind = kinds[i].kind == NODE_DIV ? NODE_SUM : kinds[i].kind;
    struct node *sum = tree_node(p, kind, EXPR_FLOAT, name, x, NULL);
    sum->a = (int16_t)over;
    if (kinds[i].kind != NODE_DIV)
        return sum;
    struct node *mean = tree_node(p, NODE_DIV, EXPR_FLOAT, name, sum, count);
    mean->bracketed = true;
    return mean;
}

static bool is_sum(const struct token *name)
{
    static const char *const names[] = { "sum", "mean", "amax", "amin", "count" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (text_is(name->start, name->size, names[i]))
            return true;
    return false;
}

static struct node *read_args(struct parser *p, const struct token *name, struct node *call,
                              int least, int most)
{
    int n = 0;
    for (; !lex_is(p->lx, ')'); n++) {
        if (n > 0 && !lex_expect(p->lx, ',', "',' or ')'"))
            return NULL;
        struct node *arg = tree_number(p, tree_parse(p));
        if (!arg)
            return NULL;
        if (n < most)
            call->args[n] = arg;
    }
    if (n < least || n > most)
        return TREE_FAIL(p, name, "'%.*s' with %d arguments, expected %d", (int)name->size,
                         name->start, n, n < least ? least : most);
    call->n_args = (uint8_t)n;
    lex_next(p->lx);
    return call;
}

static struct node *read_call(struct parser *p, const struct token *name)
{
    const struct reading *reading = p->data;
    int device = find_device(reading, name), index;
    if (device >= 0) {
        const struct function_signature *own = &reading->set->device[device];
        struct node *call = tree_node(p, NODE_CALL, EXPR_FLOAT, name, NULL, NULL);
        call->a = (int16_t)(-1 - device);
        reading->set->calls_device = p->place->scope->op->body->opaque = true;
        return read_args(p, name, call, own->least, own->most);
    }
    if (reading && text_is(name->start, name->size, "present"))
        return read_present(p, name);
    if (reading && is_sum(name))
        return read_sum(p, name);
    const struct function *f = formula_find_function(p, name, &index);
    if (!f)
        return NULL;
    struct node *call = tree_node(p, f->kind, f->kind == NODE_TEST ? EXPR_TRUTH : EXPR_FLOAT, name,
                                  NULL, NULL);
    call->a = (int16_t)index;
    if (reading && strcmp(f->name, "digamma") == 0)
        p->place->scope->op->body->opaque = true;
    int expected = (int)strlen(f->args);
    return read_args(p, name, call, expected, expected);
}

// --- a line

static bool check_brackets(const struct buf *code)
{
    int depth = 0, most = 0;
    for (size_t i = 0; i < code->size; i++) {
        depth += (code->bytes[i] == '(') - (code->bytes[i] == ')');
        most = depth > most ? depth : most;
    }
    return most <= FORMULA_MAX_BRACKETS;
}

static const struct dialect dialect = {
    .noun = "formula",
    .number = EXPR_FLOAT,
    .max_terms = FORMULA_MAX_TERMS,
    .max_open = FORMULA_MAX_TERMS,
    .too_many = "more than 1000 terms; use a formula of its own for a part of it",
    .read_name = read_name,
    .read_call = read_call,
    .add_test = add_test,
    .check_token = check_token,
};

bool formula_parse(struct reader *r, struct formula_set *set, struct formula *f)
{
    struct reading reading = { .set = set, .f = f };
    struct expr_place place = reader_place(r);
    struct parser p = { .lx = &r->lx, .place = &place, .dialect = &dialect, .data = &reading };
    const struct token first = r->lx.token;
    struct buf code = { 0 };
    struct node *n = tree_value(&p, tree_parse(&p));
    if (n && f->target >= TENSOR_GRAD_INPUT &&
        !reader_by_definition(r, 1u << (f->target - TENSOR_GRAD_INPUT)))
        return false;
    if (!n || !lex_expect_end(p.lx) || p.lx->token.kind == TOKEN_BAD)
        return false;
    f->is_bool = n->type == EXPR_TRUTH && f->target < 0;
    f->root = f->is_bool ? n : tree_number(&p, n);
    formula_cpp(f->root, &(struct formula_names){ .op = r->op, .set = set }, &code);
    bool ok = check_brackets(&code) ||
              TREE_FAIL(&p, &first,
                        "the formula is nested too deeply; use one of its own for a part of it");
    buf_finish(&code);
    return ok;
}

// --- what is not read from a line

struct formula *formula_add(struct formula_set *set, struct arena *arena)
{
    if (set->n == FORMULA_MAX)
        return NULL;
    if (set->n % 16 == 0) {
        struct formula *more = arena_alloc(arena, (size_t)set->n + 16, sizeof *more);
        if (set->n > 0)
            memcpy(more, set->items, (size_t)set->n * sizeof *more);
        set->items = more;
    }
    struct formula *f = &set->items[set->n++];
    *f = (struct formula){ .target = -1 };
    return f;
}

int formula_find(const struct formula_set *set, int target)
{
    int i = 0;
    while (i < set->n && set->items[i].target != target)
        i++;
    return i < set->n ? i : -1;
}

static void note_uses(const struct node *n, const struct formula_set *set,
                      struct formula_uses *uses)
{
    if (n->kind == NODE_TENSOR && n->a < TENSOR_GRAD_INPUT) // no tangent
        uses->tensors |= formula_bit(n->a);
    if (n->kind == NODE_VALUE)
        uses->values |= UINT64_C(1) << n->a;
    if (n->kind == NODE_FORMULA) {
        uses->tensors |= set->items[n->a].uses.tensors;
        uses->values |= set->items[n->a].uses.values;
    }
    for (int i = 0; i < n->n_args; i++)
        note_uses(n->args[i], set, uses);
}

void formula_complete(const struct formula_set *set, struct formula *f)
{
    note_uses(f->root, set, &f->uses);
}

static struct node *read_letter(struct parser *p, const struct token *name)
{
    const char *at = name->size == 1 ? strchr(FORMULA_LETTERS, *name->start) : NULL;
    return at ? tree_leaf(p, NODE_TENSOR, EXPR_FLOAT, (int)(at - FORMULA_LETTERS), 0, name) : NULL;
}

const struct node *formula_rule(struct arena *arena, const char *text)
{
    struct dialect rules = dialect;
    struct opd_err err = { 0 };
    struct lexer lx;
    struct expr_place place = { .arena = arena };
    struct parser p = { .lx = &lx, .place = &place, .dialect = &rules };
    rules.read_name = read_letter;
    lex_init(&lx, "a rule", 1, text, strlen(text), &err);
    const struct node *root = tree_number(&p, tree_parse(&p));
    assert(root && !err.code);
    opd_err_clear(&err);
    return root;
}
