#include <string.h>

#include "op/derive.h"

// 1 / cosh(x)^2, where cosh overflows too; of both signs the same, and smooth at 0.
#define E_OF_X "exp(2 * fmin(x, -x))"
#define SECH2 "(4 * " E_OF_X " / ((1 + " E_OF_X ") * (1 + " E_OF_X ")))"

static const char *const functions[][DERIVE_MAX_PARTS] = {
#define ONE(name, cpp, host, ...) { __VA_ARGS__ },
#define TWO ONE
#define THREE ONE
#define TEST(name, host) { NULL },
#include "op/functions.def"
};

// The same of operators; NULL: g itself is handed on.
static const struct {
    int kind;
    const char *rules[DERIVE_MAX_PARTS];
} operators[] = {
    { NODE_NEG, { "-g" } },
    { NODE_ADD, { NULL, NULL } },
    { NODE_SUB, { NULL, "-g" } },
    { NODE_MUL, { "g * y", "g * x" } },
    { NODE_DIV, { "g / y", "-(g / y) * r" } },
    { NODE_SUM, { NULL } },
    // Shared by all that are the largest, as amax of PyTorch does; y counts them.
    { NODE_AMAX, { "x == r ? g / y : 0" } },
    { NODE_AMIN, { "x == r ? g / y : 0" } },
};

static const char *const *find_rules(const struct node *n)
{
    if (n->kind == NODE_CALL) // not the file's own, and known
        return n->a >= 0 && functions[n->a][0] ? functions[n->a] : NULL;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (operators[i].kind == n->kind)
            return operators[i].rules;
    return NULL;
}

static bool is_call(const struct graph *g, const struct node *n, const char *name)
{
    return n->kind == NODE_CALL && strcmp(formula_function(g->set, n), name) == 0;
}

static bool is_one(const struct node *n)
{
    return n->kind == NODE_CONST && n->value.f == 1;
}

// The exp(x) of 1 + exp(x), or of 1 + 1 / exp(x). NULL: it is another term.
static struct node *find_exp(const struct graph *g, struct node *n, bool *inverse)
{
    n = graph_resolve(g, n);
    if (n->kind != NODE_ADD)
        return NULL;
    struct node *a = graph_resolve(g, n->args[0]), *b = graph_resolve(g, n->args[1]);
    struct node *e = is_one(a) ? b : is_one(b) ? a : n;
    *inverse = e->kind == NODE_DIV && is_one(graph_resolve(g, e->args[0]));
    e = *inverse ? graph_resolve(g, e->args[1]) : e;
    return is_call(g, e, "exp") ? e : NULL;
}

static struct derive_part make_part(struct node *child, const char *rule, struct node *r)
{
    struct derive_part part = { .child = child, .rule = rule };
    part.letters[4] = r;
    return part;
}

// Where exp(x) overflows, or is nothing beside 1, its derivative and that of what it stands in are
// 0 times infinity, or their digits are lost; so a / (1 + exp(x)), log(1 + exp(x)) and
// log1p(exp(x)) go straight to x, by e / (1 + e). Of a logarithm that is all there is: it is
// written so that it is right where e is infinite and where it is 0, and that it is one of these
// terms itself, of 1 / e in place of e. A quotient has its 1 / (1 + e) at hand. Neither chooses by
// what is true half of the time, which processors cannot foresee. 0: it is none of these.
static int find_logistic(struct graph *g, struct node *n, struct derive_part *parts)
{
    bool divides = n->kind == NODE_DIV, inverse = false;
    struct node *w = divides ? n->args[1] : n->kind == NODE_CALL ? n->args[0] : NULL, *e = NULL;
    if (w && (divides || is_call(g, n, "log")))
        e = find_exp(g, w, &inverse);
    else if (w && is_call(g, n, "log1p") && is_call(g, graph_resolve(g, w), "exp"))
        e = graph_resolve(g, w);
    if (!e)
        return 0;
    parts[0] = make_part(e->args[0],
                         divides   ? inverse ? "(g * r) * (1 / (1 + e))"
                                             : "-(g * r) * (e >= y ? 1 : e * (1 / y))"
                         : inverse ? "-g * (1 / (1 + e))"
                                   : "g * (1 / (1 + 1 / e))",
                         n);
    parts[0].letters[2] = w;
    parts[0].letters[5] = e;
    if (!divides)
        return 1;
    parts[1] = make_part(n->args[0], "g / y", n);
    parts[1].letters[2] = w;
    return 2;
}

// How many of a row are what amax or amin gives.
static struct node *count_same(struct graph *g, struct node *n)
{
    struct node *same = graph_node(g, NODE_EQ, n->args[0], n, NULL);
    return graph_sum(g, NODE_SUM, n->a, graph_node(g, NODE_TO_NUMBER, same, NULL, NULL));
}

int derive_parts(struct graph *g, struct node *n, struct derive_part parts[DERIVE_MAX_PARTS])
{
    int found = 0;
    if (n->kind == NODE_FORMULA) {
        parts[0] = make_part(g->roots[n->a], NULL, n);
        return 1;
    }
    if (n->n_args == 0 || n->kind == NODE_TO_NUMBER)
        return 0;
    found = find_logistic(g, n, parts);
    if (found > 0)
        return found;
    const char *const *rules = find_rules(n);
    if (!rules)
        return -1;
    for (int i = 0; i < n->n_args; i++) {
        if (rules[i] && !rules[i][0])
            continue;
        parts[found] = make_part(n->args[i], rules[i], n);
        for (int k = 0; k < n->n_args && k < 3; k++)
            parts[found].letters[1 + k] = n->args[k];
        if (n->kind == NODE_AMAX || n->kind == NODE_AMIN)
            parts[found].letters[2] = count_same(g, n);
        found++;
    }
    return found;
}
