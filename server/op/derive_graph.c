#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/derive.h"
#include "base/hash.h"
#include "base/mem.h"

void graph_finish(struct graph *g)
{
    free(g->nodes);
    free(g->table);
}

// --- nodes that are equal are one

static uint64_t hash_node(const struct node *n)
{
    struct {
        uint64_t kind, a, b;
        uint64_t args[NODE_MAX_ARGS];
    } key = { .kind = (uint64_t)n->kind << 8 | n->n_args,
              .a = (uint16_t)n->a,
              .b = (uint16_t)n->b };
    for (int i = 0; i < n->n_args; i++)
        key.args[i] = n->args[i]->size;
    if (n->kind == NODE_CONST)
        memcpy(key.args, &n->value, sizeof n->value);
    return hash_bytes(&key, sizeof key, 0);
}

static bool is_equal(const struct node *a, const struct node *b)
{
    if (a->kind != b->kind || a->type != b->type || a->n_args != b->n_args || a->a != b->a ||
        a->b != b->b)
        return false;
    if (a->kind == NODE_CONST)
        return memcmp(&a->value, &b->value, sizeof a->value) == 0;
    for (int i = 0; i < a->n_args; i++)
        if (a->args[i] != b->args[i])
            return false;
    return true;
}

static int *find_place(const struct graph *g, const struct node *n)
{
    size_t mask = (size_t)g->table_size - 1, at = hash_node(n) & mask;
    while (g->table[at] && !is_equal(g->nodes[g->table[at] - 1], n))
        at = (at + 1) & mask;
    return &g->table[at];
}

static void grow(struct graph *g)
{
    if (g->n < g->capacity)
        return;
    g->capacity = g->capacity ? 2 * g->capacity : 128;
    g->table_size = 4 * g->capacity;
    g->nodes = mem_realloc(g->nodes, (size_t)g->capacity, sizeof(struct node *));
    free(g->table);
    g->table = mem_zalloc((size_t)g->table_size, sizeof *g->table);
    for (int i = 0; i < g->n; i++)
        *find_place(g, g->nodes[i]) = i + 1;
}

static struct node *intern(struct graph *g, const struct node *proto)
{
    grow(g);
    int *place = find_place(g, proto);
    if (*place)
        return g->nodes[*place - 1];
    struct node *n = arena_copy(g->arena, proto, 1, sizeof *proto);
    n->size = (uint32_t)g->n;
    g->nodes[g->n++] = n;
    *place = g->n;
    return n;
}

struct node *graph_leaf(struct graph *g, int kind, enum expr_type type, int a)
{
    return intern(g, &(struct node){ .kind = (uint8_t)kind, .type = type, .a = (int16_t)a });
}

struct node *graph_number(struct graph *g, double value)
{
    struct node n = { .kind = NODE_CONST, .type = EXPR_FLOAT };
    n.value.f = value;
    return intern(g, &n);
}

struct node *graph_resolve(const struct graph *g, struct node *n)
{
    while (n->kind == NODE_FORMULA)
        n = g->roots[n->a];
    return n;
}

// --- what is known without computing it

static bool is_number(const struct node *n, double value)
{
    return n->kind == NODE_CONST && n->type == EXPR_FLOAT && n->value.f == value;
}

// The language has no word for an infinity or a NaN: those are left to be computed.
static struct node *fold_numbers(struct graph *g, int kind, double a, double b)
{
    double value = kind == NODE_ADD   ? a + b
                   : kind == NODE_SUB ? a - b
                   : kind == NODE_MUL ? a * b
                   : kind == NODE_DIV ? a / b
                                      : NAN;
    return isfinite(value) ? graph_number(g, value) : NULL;
}

static struct node *fold_comparison(struct graph *g, int kind, double a, double b)
{
    bool holds = kind == NODE_EQ   ? a == b
                 : kind == NODE_NE ? a != b
                 : kind == NODE_LT ? a < b
                 : kind == NODE_LE ? a <= b
                 : kind == NODE_GT ? a > b
                                   : a >= b;
    struct node n = { .kind = NODE_CONST, .type = EXPR_TRUTH };
    n.value.i = holds;
    return intern(g, &n);
}

// Numbers on the left, signs outside; nothing that would round another way, or hide a NaN.
static struct node *simplify(struct graph *g, int kind, struct node *a, struct node *b)
{
    bool numbers = b && a->kind == NODE_CONST && b->kind == NODE_CONST && a->type == EXPR_FLOAT;
    if (numbers && kind >= NODE_EQ && kind <= NODE_GE)
        return fold_comparison(g, kind, a->value.f, b->value.f);
    if (numbers)
        return fold_numbers(g, kind, a->value.f, b->value.f);
    if (kind == NODE_NEG && a->kind == NODE_NEG)
        return a->args[0];
    if (kind == NODE_NEG && a->kind == NODE_CONST)
        return graph_number(g, -a->value.f);
    if (kind == NODE_MUL && is_number(a, 1))
        return b;
    if (kind == NODE_MUL && is_number(a, -1))
        return graph_node(g, NODE_NEG, b, NULL, NULL);
    if (kind == NODE_MUL && b->kind == NODE_CONST)
        return graph_node(g, NODE_MUL, b, a, NULL);
    if ((kind == NODE_MUL || kind == NODE_DIV) && a->kind == NODE_NEG)
        return graph_node(g, NODE_NEG, graph_node(g, kind, a->args[0], b, NULL), NULL, NULL);
    if (kind == NODE_MUL && b->kind == NODE_NEG)
        return graph_node(g, NODE_NEG, graph_node(g, kind, a, b->args[0], NULL), NULL, NULL);
    if (kind == NODE_ADD && b->kind == NODE_NEG)
        return graph_node(g, NODE_SUB, a, b->args[0], NULL);
    if (kind == NODE_SUB && b->kind == NODE_NEG)
        return graph_node(g, NODE_ADD, a, b->args[0], NULL);
    if ((kind == NODE_ADD || kind == NODE_SUB) && is_number(b, 0))
        return a;
    if (kind == NODE_ADD && is_number(a, 0))
        return b;
    // A 0 is a gradient that does not come, never a number that was computed.
    if ((kind == NODE_MUL || kind == NODE_DIV) && is_number(a, 0))
        return a;
    if (kind == NODE_MUL && a->kind == NODE_CONST && b->kind == NODE_MUL &&
        b->args[0]->kind == NODE_CONST) {
        struct node *factor = fold_numbers(g, kind, a->value.f, b->args[0]->value.f);
        return factor ? graph_node(g, NODE_MUL, factor, b->args[1], NULL) : NULL;
    }
    return NULL;
}

static struct node *simplify_choice(struct graph *g, struct node *c, struct node *a, struct node *b)
{
    if (a == b)
        return a;
    if (c->kind == NODE_CONST)
        return c->value.i ? a : b;
    return c->kind == NODE_NOT ? graph_node(g, NODE_CHOICE, c->args[0], b, a) : NULL;
}

struct node *graph_node(struct graph *g, int kind, struct node *a, struct node *b, struct node *c)
{
    bool compares = kind >= NODE_EQ && kind <= NODE_GE;
    bool truth = kind == NODE_NOT || kind == NODE_TO_TRUTH || kind == NODE_TEST ||
                 kind == NODE_AND || kind == NODE_OR || compares;
    struct node n = { .kind = (uint8_t)kind,
                      .n_args = (uint8_t)(1 + (b != NULL) + (c != NULL)),
                      .type = truth                 ? EXPR_TRUTH
                              : kind == NODE_CHOICE ? b->type
                                                    : EXPR_FLOAT,
                      .args = { a, b, c } };
    struct node *known = kind == NODE_CHOICE ? simplify_choice(g, a, b, c)
                                             : simplify(g, kind, a, b);
    return known ? known : intern(g, &n);
}

// --- trees

static struct node *add_call(struct graph *g, const struct node *n, struct node *const *args)
{
    const char *name = formula_function(g->set, n);
    if (strcmp(name, "pow") == 0 && is_number(args[1], 1))
        return args[0];
    if (strcmp(name, "pow") == 0 && is_number(args[1], 2))
        return graph_node(g, NODE_MUL, args[0], args[0], NULL);
    struct node call = *n;
    call.bracketed = false;
    call.start = NULL;
    memcpy(call.args, args, sizeof call.args);
    return intern(g, &call);
}

struct node *graph_sum(struct graph *g, int kind, int over, struct node *of)
{
    struct node n = {
        .kind = (uint8_t)kind, .n_args = 1, .type = EXPR_FLOAT, .a = (int16_t)over, .args = { of }
    };
    return is_number(of, 0) ? of : intern(g, &n);
}

struct node *graph_again(struct graph *g, const struct node *n, struct node *const *args)
{
    if (n->kind == NODE_CALL || n->kind == NODE_TEST)
        return add_call(g, n, args);
    if (formula_is_sum(n))
        return graph_sum(g, n->kind, n->a, args[0]);
    return graph_node(g, n->kind, args[0], args[1], args[2]);
}

static struct node *add_tree(struct graph *g, const struct node *n, struct node *const *letters)
{
    struct node *args[NODE_MAX_ARGS] = { 0 };
    for (int i = 0; i < n->n_args; i++)
        args[i] = add_tree(g, n->args[i], letters);
    if (letters && n->kind == NODE_TENSOR)
        return letters[n->a];
    if (n->kind == NODE_FORMULA)
        return graph_add_formula(g, n->a);
    if (n->n_args == 0 && n->kind != NODE_CONST)
        return graph_leaf(g, n->kind, n->type, n->a);
    if (n->kind == NODE_CONST) {
        struct node leaf = { .kind = NODE_CONST, .type = n->type };
        leaf.value = n->value;
        return intern(g, &leaf);
    }
    return graph_again(g, n, args);
}

struct node *graph_add_rule(struct graph *g, const struct node *rule, struct node *const *letters)
{
    return add_tree(g, rule, letters);
}

struct node *graph_add_formula(struct graph *g, int index)
{
    const struct formula *items = g->set->items;
    if (!g->roots[index]) {
        struct formula_reach reach = { 0 };
        formula_reach(g->set, items[index].root, NULL, &reach);
        reach.formulas[index] = true;
        // Those that it is made of stand before it, and are not gone into again.
        for (int i = 0; i <= index; i++)
            if (reach.formulas[i] && !g->roots[i])
                g->roots[i] = add_tree(g, items[i].root, NULL);
    }
    struct node *root = g->roots[index];
    if (items[index].target >= 0 || root->n_args == 0)
        return root;
    return graph_leaf(g, NODE_FORMULA, root->type, index);
}

// --- formulas again

enum { MAX_TERM = 48 }; // nodes of a formula; what is larger gets a name

struct emitter {
    struct graph *g;
    const struct op *op;
    struct formula_set *set;
    int *uses;             // of each node, by what is emitted
    int *sizes;            // 0: not written yet
    struct node **written; // a tree, or the name of a formula
    int n_tried;           // of the names d1, d2, ...: those before are taken
    bool ok;
};

static void count_uses(const struct emitter *e, const struct node *n)
{
    if (e->uses[n->size]++ > 0 || e->written[n->size])
        return;
    for (int i = 0; i < n->n_args; i++)
        count_uses(e, n->args[i]);
}

static bool is_taken(const struct op *op, const struct formula_set *set, const char *name)
{
    size_t size = strlen(name);
    for (const char *at = op->source; (at = strstr(at, name)) != NULL; at += size)
        if (at[size] < '0' || at[size] > '9')
            return true;
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->items[i].name, name) == 0)
            return true;
    return false;
}

// A name that nothing in the operator's text has: d1, d2, ...
static void choose_name(struct emitter *e, int index, char *out, size_t size)
{
    const struct formula_set before = { .n = index, .items = e->set->items };
    do
        snprintf(out, size, "d%d", ++e->n_tried);
    while (is_taken(e->op, &before, out));
}

static struct node *make_name(struct graph *g, enum expr_type type, int index)
{
    struct node *leaf = arena_alloc(g->arena, 1, sizeof *leaf);
    *leaf = (struct node){ .kind = NODE_FORMULA, .type = type, .a = (int16_t)index };
    return leaf;
}

// A formula with that target, or without: of a new name.
static struct node *add_formula(struct emitter *e, struct node *root, int target)
{
    struct formula *f = formula_add(e->set, e->g->arena);
    int index = e->set->n - 1;
    e->ok = e->ok && f;
    if (!e->ok)
        return root;
    *f = (struct formula){ .target = target, .derived = true, .root = root };
    f->is_bool = target < 0 && root->type == EXPR_TRUTH;
    if (target >= 0)
        snprintf(f->name, sizeof f->name, "%s", body_tensor_name(e->op, target));
    else
        choose_name(e, index, f->name, sizeof f->name);
    formula_complete(e->set, f);
    return make_name(e->g, root->type, index);
}

static struct node *write_tree(struct emitter *e, const struct node *n)
{
    if (e->written[n->size])
        return e->written[n->size];
    struct node *copy = arena_copy(e->g->arena, n, 1, sizeof *n);
    int size = 1;
    for (int i = 0; i < n->n_args; i++) {
        copy->args[i] = write_tree(e, n->args[i]);
        size += e->sizes[n->args[i]->size];
    }
    copy->bracketed = n->n_args > 0 && n->kind != NODE_CALL && n->kind != NODE_TEST &&
                      !formula_is_sum(n);
    if (n->kind == NODE_CONST && n->type == EXPR_FLOAT && n->value.f < 0)
        copy->bracketed = true;
    bool named = n->n_args > 0 && (e->uses[n->size] > 1 || size > MAX_TERM || formula_is_sum(n));
    e->sizes[n->size] = named ? 1 : size;
    return e->written[n->size] = named ? add_formula(e, copy, -1) : copy;
}

bool graph_emit(struct graph *g, const struct op *op, struct formula_set *set, int n,
                struct node *const *roots, const int *targets)
{
    int before = set->n;
    struct emitter e = { .g = g, .op = op, .set = set, .ok = g->n < GRAPH_MAX_NODES };
    e.uses = mem_zalloc((size_t)g->n, sizeof *e.uses);
    e.sizes = mem_zalloc((size_t)g->n, sizeof *e.sizes);
    e.written = mem_zalloc((size_t)g->n, sizeof(struct node *));
    for (int k = 0; k < before; k++)
        if (g->roots[k] && g->roots[k]->n_args > 0 && set->items[k].target < 0) {
            e.written[g->roots[k]->size] = make_name(g, g->roots[k]->type, k);
            e.sizes[g->roots[k]->size] = 1;
        }
    for (int i = 0; i < n; i++)
        count_uses(&e, roots[i]);
    for (int i = 0; i < n && e.ok; i++)
        add_formula(&e, write_tree(&e, roots[i]), targets[i]);
    free(e.uses);
    free(e.sizes);
    free(e.written);
    if (!e.ok)
        set->n = before;
    return e.ok;
}
