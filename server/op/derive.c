#include "op/derive.h"

#include <stdlib.h>

#include "base/mem.h"

// The conditions under which a gradient arrives: those of `parent`, and that `condition` is
// `holds`. NULL: it always does.
struct path {
    const struct path *parent;
    const struct node *condition;
    bool holds;
    int depth;
    const struct path *next; // of all
};

struct arrival {
    const struct path *path;
    struct node *value;
};

// More conditions than these at one node are taken for none, and what does not arrive for 0.
enum { MAX_ARRIVALS = 16, ROW_CONSTANT = FORMULA_MAX_OVERS };

struct arrivals {
    int n;
    struct arrival at[MAX_ARRIVALS];
};

static const char too_large[] = "what has more than 512 formulas";

// --- what depends on the inputs

static uint32_t find_depends(const struct derive *d, const struct node *n)
{
    uint32_t inputs = 0;
    if (n->type != EXPR_FLOAT || n->kind == NODE_TO_NUMBER)
        return 0;
    if (n->kind == NODE_TENSOR)
        return n->a < TENSOR_OUTPUT ? d->inputs & 1u << n->a : 0;
    if (n->kind == NODE_FORMULA)
        return d->depends[d->graph.roots[n->a]->size];
    for (int i = n->kind == NODE_CHOICE; i < n->n_args; i++)
        inputs |= d->depends[n->args[i]->size];
    return inputs;
}

// Has a number for each element of a row, -1, or one for the row: over what it was summed.
static int find_over(const struct derive *d, const struct node *n)
{
    int over = n->kind == NODE_COUNT || formula_is_sum(n) ? n->a : ROW_CONSTANT;
    if (n->kind == NODE_TENSOR)
        return -1;
    if (n->kind == NODE_FORMULA)
        return d->over[d->graph.roots[n->a]->size];
    for (int i = 0; i < n->n_args && !formula_is_sum(n) && over >= 0; i++) {
        int own = d->over[n->args[i]->size];
        over = own < 0 || over == ROW_CONSTANT ? own : over;
    }
    return over;
}

// A condition that is known before anything is computed.
static bool find_known(const struct derive *d, const struct node *n, int *left)
{
    if (--*left < 0)
        return false;
    if (n->kind == NODE_FORMULA)
        return find_known(d, d->graph.roots[n->a], left);
    bool known = n->kind == NODE_VALUE
                     ? d->set->values[n->a].is_constant
                     : n->kind == NODE_NOT || n->kind == NODE_AND || n->kind == NODE_OR;
    for (int i = 0; i < n->n_args && known; i++)
        known = find_known(d, n->args[i], left);
    return known;
}

static bool is_known(const struct derive *d, const struct node *n)
{
    int left = FORMULA_MAX_CONDITION;
    return find_known(d, n, &left);
}

bool derive_makes_float(const struct op *op, const struct formula *f)
{
    int output = f->target - TENSOR_OUTPUT;
    return f->target >= TENSOR_OUTPUT && f->target < TENSOR_TEMP &&
           dtype_is_float(op->types[op->outputs[output].type].dtypes[0]);
}

void derive_start(struct derive *d)
{
    d->graph.arena = &d->op->body->arena;
    d->graph.set = d->set;
    for (int i = 0; i < d->set->n; i++)
        if (derive_makes_float(d->op, &d->set->items[i]))
            graph_add_formula(&d->graph, i);
    d->n = d->graph.n;
    d->depends = mem_zalloc((size_t)d->n + 1, sizeof *d->depends);
    d->over = mem_zalloc((size_t)d->n + 1, sizeof *d->over);
    for (int i = 0; i < d->n; i++) {
        d->depends[i] = find_depends(d, d->graph.nodes[i]);
        d->over[i] = (int16_t)find_over(d, d->graph.nodes[i]);
    }
    for (int i = 0; i < d->set->n; i++)
        if (derive_makes_float(d->op, &d->set->items[i]))
            d->reached |= d->depends[d->graph.roots[i]->size];
}

void derive_finish(struct derive *d)
{
    graph_finish(&d->graph);
    free(d->depends);
    free(d->over);
    free(d->arrivals);
    free(d->is_whole);
}

struct node *derive_apply(struct derive *d, struct derive_part *part, struct node *g)
{
    if (!part->rule)
        return g;
    part->letters[0] = g;
    return graph_add_rule(&d->graph, formula_rule(d->graph.arena, part->rule), part->letters);
}

int derive_find_parts(struct derive *d, struct node *n, struct derive_part *parts)
{
    int found = derive_parts(&d->graph, n, parts), kept = 0;
    if (found < 0)
        d->why = formula_function(d->set, n);
    for (int i = 0; i < found; i++)
        if (d->depends[parts[i].child->size])
            parts[kept++] = parts[i];
    return kept;
}

struct node *derive_choose(struct derive *d, const struct node *condition, struct node *a,
                           struct node *b)
{
    struct node *zero = graph_number(&d->graph, 0);
    return graph_node(&d->graph, NODE_CHOICE, d->graph.nodes[condition->size], a ? a : zero,
                      b ? b : zero);
}

struct node *derive_add(struct derive *d, struct node *a, struct node *b)
{
    return a && b ? graph_node(&d->graph, NODE_ADD, a, b, NULL) : a ? a : b;
}

// --- gradients

static const struct path *make_path(struct derive *d, const struct path *parent,
                                    const struct node *condition, bool holds)
{
    for (const struct path *p = d->paths; p; p = p->next)
        if (p->parent == parent && p->condition == condition && p->holds == holds)
            return p;
    struct path *p = arena_alloc(d->graph.arena, 1, sizeof *p);
    *p = (struct path){ parent, condition, holds, parent ? parent->depth + 1 : 1, d->paths };
    d->paths = p;
    return p;
}

static int find_path(const struct arrivals *a, const struct path *path)
{
    int i = 0;
    while (i < a->n && a->at[i].path != path)
        i++;
    return i;
}

// The arrival goes, and with it that of the other branch, if there is one: their choice arrives
// where both come from.
static void join(struct derive *d, struct arrivals *a, int i);

static void arrive(struct derive *d, struct arrivals *a, const struct path *path,
                   struct node *value)
{
    int i = find_path(a, path);
    if (i == MAX_ARRIVALS) {
        join(d, a, MAX_ARRIVALS - 1);
        arrive(d, a, path, value);
        return;
    }
    a->at[i].value = i < a->n ? derive_add(d, a->at[i].value, value) : value;
    a->at[i].path = path;
    a->n += i == a->n;
}

static void join(struct derive *d, struct arrivals *a, int i)
{
    const struct path *path = a->at[i].path;
    if (!path) // the one that always arrives
        path = a->at[i = i > 0 ? i - 1 : 1].path;
    struct node *value = a->at[i].value, *other = NULL;
    a->at[i] = a->at[--a->n];
    int k = find_path(a, make_path(d, path->parent, path->condition, !path->holds));
    if (k < a->n) {
        other = a->at[k].value;
        a->at[k] = a->at[--a->n];
    }
    arrive(d, a, path->parent,
           derive_choose(d, path->condition, path->holds ? value : other,
                         path->holds ? other : value));
}

// Both branches of a choice have arrived: nothing of them is left open.
static void join_pairs(struct derive *d, struct arrivals *a)
{
    for (int i = 0; i < a->n; i++) {
        const struct path *p = a->at[i].path;
        if (p && find_path(a, make_path(d, p->parent, p->condition, !p->holds)) < a->n) {
            join(d, a, i);
            i = -1;
        }
    }
}

// All that arrives, as one: the innermost conditions first.
static struct node *join_all(struct derive *d, struct arrivals *a)
{
    for (;;) {
        int deepest = 0;
        for (int i = 1; i < a->n; i++) {
            const struct path *p = a->at[i].path, *q = a->at[deepest].path;
            if (p && (!q || p->depth > q->depth))
                deepest = i;
        }
        if (a->n == 0)
            return graph_number(&d->graph, 0);
        if (!a->at[deepest].path)
            return a->at[0].value;
        join(d, a, deepest);
    }
}

// Of a row's number each element's gradient arrives: their sum, under no condition.
static bool arrive_summed(struct derive *d, const struct node *from, const struct node *to,
                          const struct path *path, struct node *value)
{
    int over = d->over[to->size];
    if (over < 0 || d->over[from->size] >= 0)
        return false;
    for (const struct path *p = path; p; p = p->parent)
        value = derive_choose(d, p->condition, p->holds ? value : NULL, p->holds ? NULL : value);
    arrive(d, &d->arrivals[to->size], NULL, graph_sum(&d->graph, NODE_SUM, over, value));
    return true;
}

static const char mixed[] = "a part that is chosen between a row's number and its elements";

// Of a choice that is known, and stands for the whole output, the branch has the output's shape.
static void pass_choice(struct derive *d, const struct node *n, const struct arrival *from)
{
    bool whole = is_known(d, n->args[0]);
    for (int i = 1; i <= 2; i++) {
        const struct path *path = make_path(d, from->path, n->args[0], i == 1);
        if (whole)
            d->is_whole[graph_resolve(&d->graph, n->args[i])->size] = d->is_whole[n->size];
        if (d->depends[n->args[i]->size] &&
            (whole || !arrive_summed(d, n, n->args[i], path, from->value)))
            arrive(d, &d->arrivals[n->args[i]->size], path, from->value);
    }
}

static bool is_zero(const struct node *n)
{
    return n->kind == NODE_CONST && n->value.f == 0;
}

// What a choice between it and 0 gives arrives under the choice's condition.
static void hand_on(struct derive *d, const struct node *from, const struct node *to,
                    const struct path *path, struct node *value)
{
    while (value->kind == NODE_CHOICE && (is_zero(value->args[1]) || is_zero(value->args[2]))) {
        bool holds = is_zero(value->args[2]);
        path = make_path(d, path, value->args[0], holds);
        value = value->args[holds ? 1 : 2];
    }
    if (!arrive_summed(d, from, to, path, value))
        arrive(d, &d->arrivals[to->size], path, value);
}

// A choice that is known is not of the same shape in each of its branches.
static bool is_mixed(const struct derive *d, struct node *n)
{
    n = graph_resolve(&d->graph, n);
    if (n->kind != NODE_CHOICE || !is_known(d, n->args[0]))
        return false;
    int a = d->over[n->args[1]->size], b = d->over[n->args[2]->size];
    return a != ROW_CONSTANT && b != ROW_CONSTANT && (a < 0) != (b < 0);
}

static void pass(struct derive *d, struct node *n)
{
    struct arrivals *a = &d->arrivals[n->size];
    struct derive_part parts[DERIVE_MAX_PARTS];
    join_pairs(d, a);
    if (n->kind == NODE_FORMULA)
        d->is_whole[graph_resolve(&d->graph, n)->size] |= d->is_whole[n->size];
    for (int i = 0; i < n->n_args && (n->kind != NODE_CHOICE || !d->is_whole[n->size]); i++)
        if (is_mixed(d, n->args[i]))
            d->why = mixed;
    for (int i = 0; i < a->n; i++) {
        if (n->kind == NODE_CHOICE) {
            pass_choice(d, n, &a->at[i]);
            continue;
        }
        int found = derive_find_parts(d, n, parts);
        for (int k = 0; k < found; k++)
            hand_on(d, n, parts[k].child, a->at[i].path,
                    derive_apply(d, &parts[k], a->at[i].value));
    }
}

static void pass_all(struct derive *d)
{
    d->arrivals = mem_zalloc((size_t)d->n + 1, sizeof *d->arrivals);
    d->is_whole = mem_zalloc((size_t)d->n + 1, sizeof *d->is_whole);
    for (int i = 0; i < d->set->n; i++) {
        const struct formula *f = &d->set->items[i];
        if (!derive_makes_float(d->op, f))
            continue;
        const struct node *root = d->graph.roots[i];
        struct node *g = graph_leaf(&d->graph, NODE_TENSOR, EXPR_FLOAT,
                                    f->target - TENSOR_OUTPUT + TENSOR_GRAD_OUTPUT);
        d->is_whole[root->size] = true;
        if (d->depends[root->size])
            arrive(d, &d->arrivals[root->size], NULL, g);
    }
    for (int i = d->n; i-- > 0 && !d->why && d->graph.n < GRAPH_MAX_NODES;)
        if (d->arrivals[i].n > 0 && d->graph.nodes[i]->kind != NODE_TENSOR)
            pass(d, d->graph.nodes[i]);
}

// The gradient of an input is made where that is present: it need not be asked for that.
static struct node *where_present(const struct derive *d, struct node *root, int input)
{
    const struct node *c = root->kind == NODE_CHOICE ? root->args[0] : NULL;
    const struct node *asks = c && c->kind == NODE_VALUE ? d->set->values[c->a].expr->root : NULL;
    return asks && asks->kind == NODE_HAS_TENSOR && asks->a == input ? root->args[1] : root;
}

bool derive_gradients(const struct op *op, struct formula_set *set, uint32_t inputs,
                      const char **why)
{
    struct derive d = { .op = op, .set = set, .inputs = inputs };
    struct node *roots[OP_MAX_INPUTS];
    int targets[OP_MAX_INPUTS], n = 0;
    derive_start(&d);
    pass_all(&d);
    for (int i = 0; i < op->n_inputs; i++) {
        if (!(d.reached >> i & 1))
            continue;
        struct node *x = graph_leaf(&d.graph, NODE_TENSOR, EXPR_FLOAT, i);
        targets[n] = TENSOR_GRAD_INPUT + i;
        roots[n++] = where_present(&d, join_all(&d, &d.arrivals[x->size]), i);
    }
    bool ok = !d.why && graph_emit(&d.graph, op, set, n, roots, targets);
    *why = ok ? NULL : d.why ? d.why : too_large;
    derive_finish(&d);
    return ok;
}
