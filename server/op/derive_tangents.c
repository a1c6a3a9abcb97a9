#include "op/derive.h"

#include <stdlib.h>

#include "base/mem.h"

// The tangent of an input: 0 where that is not there.
static struct node *tangent_of(struct graph *g, int input, const int *present)
{
    struct node *tangent = graph_leaf(g, NODE_TENSOR, EXPR_FLOAT, TENSOR_GRAD_INPUT + input);
    if (present[input] < 0)
        return tangent;
    struct node *asked = graph_leaf(g, NODE_VALUE, EXPR_TRUTH, present[input]);
    return graph_node(g, NODE_CHOICE, asked, tangent, graph_number(g, 0));
}

// --- by the gradients: each is linear in those of the outputs. With the tangent of its input in
// place of one of these, and 0 for the others, it is its part of that output's tangent.

struct exchange {
    struct graph *graph;
    int input, output;
    struct node *tangent; // of that input
    struct node **made;   // by node
};

static struct node *exchange(struct exchange *e, struct node *n)
{
    const struct formula_set *set = e->graph->set;
    struct node *args[NODE_MAX_ARGS] = { 0 };
    if (n->kind == NODE_TENSOR && n->a >= TENSOR_GRAD_OUTPUT)
        return n->a == TENSOR_GRAD_OUTPUT + e->output ? e->tangent : graph_number(e->graph, 0);
    if (n->kind == NODE_TENSOR && n->a >= TENSOR_OUTPUT)
        return graph_add_formula(e->graph, formula_find(set, n->a));
    if (n->kind == NODE_FORMULA && (set->items[n->a].uses.tensors & FORMULA_BACKWARD))
        return exchange(e, e->graph->roots[n->a]);
    if (n->n_args == 0)
        return n;
    if (e->made[n->size])
        return e->made[n->size];
    for (int i = 0; i < n->n_args; i++)
        args[i] = exchange(e, n->args[i]);
    return e->made[n->size] = graph_again(e->graph, n, args);
}

static struct node *add_tangent(struct graph *g, struct node *sum, struct node *gradient, int input,
                                int output, const int *present)
{
    struct exchange e = { .graph = g, .input = input, .output = output };
    e.tangent = tangent_of(g, input, present);
    e.made = mem_zalloc((size_t)g->n, sizeof *e.made);
    struct node *part = exchange(&e, gradient);
    free(e.made);
    return sum ? graph_node(g, NODE_ADD, sum, part, NULL) : part;
}

// --- through sums: from the tangents of the arguments, each by the rule of its gradient

// The tangent of a node whose arguments have theirs. NULL: it is 0.
static struct node *make_tangent(struct derive *d, struct node *n, struct node *const *made,
                                 const int *present)
{
    struct derive_part parts[DERIVE_MAX_PARTS];
    struct node *sum = NULL;
    if (!d->depends[n->size])
        return NULL;
    if (n->kind == NODE_TENSOR)
        return tangent_of(&d->graph, n->a, present);
    if (n->kind == NODE_CHOICE)
        return derive_choose(d, n->args[0], made[n->args[1]->size], made[n->args[2]->size]);
    int found = derive_find_parts(d, n, parts);
    for (int i = 0; i < found; i++) {
        struct node *part = made[parts[i].child->size];
        if (!part)
            continue;
        part = derive_apply(d, &parts[i], part);
        sum = derive_add(d, sum,
                         formula_is_sum(n) ? graph_sum(&d->graph, NODE_SUM, n->a, part) : part);
    }
    return sum;
}

static bool push_all(const struct op *op, struct formula_set *set, const int *present,
                     const char **why)
{
    struct derive d = { .op = op, .set = set };
    struct node *roots[OP_MAX_OUTPUTS];
    int targets[OP_MAX_OUTPUTS], n = 0;
    for (int i = 0; i < op->n_inputs; i++)
        d.inputs |= (uint32_t)op->inputs[i].differentiable << i;
    derive_start(&d);
    struct node **made = mem_zalloc((size_t)d.n + 1, sizeof(struct node *));
    for (int i = 0; i < d.n && !d.why && d.graph.n < GRAPH_MAX_NODES; i++)
        made[i] = make_tangent(&d, d.graph.nodes[i], made, present);
    for (int k = 0; k < set->n; k++) {
        if (!derive_makes_float(op, &set->items[k]))
            continue;
        struct node *t = made[d.graph.roots[k]->size];
        targets[n] = set->items[k].target;
        roots[n++] = t ? t : graph_number(&d.graph, 0);
    }
    free(made);
    bool ok = !d.why && graph_emit(&d.graph, op, set, n, roots, targets);
    *why = d.why;
    derive_finish(&d);
    return ok;
}

bool derive_tangents(const struct op *op, struct formula_set *set, const int *present,
                     const char **why)
{
    *why = NULL;
    if (set->n_overs > 0)
        return push_all(op, set, present, why);
    struct graph g = { .arena = &op->body->arena, .set = set };
    struct node *roots[OP_MAX_OUTPUTS];
    int targets[OP_MAX_OUTPUTS], n = 0, n_formulas = set->n;
    for (int k = 0; k < n_formulas; k++) {
        struct node *sum = NULL;
        if (!derive_makes_float(op, &set->items[k]))
            continue;
        for (int i = 0; i < n_formulas && g.n < GRAPH_MAX_NODES; i++)
            if (set->items[i].target >= TENSOR_GRAD_INPUT)
                sum = add_tangent(&g, sum, graph_add_formula(&g, i),
                                  set->items[i].target - TENSOR_GRAD_INPUT,
                                  set->items[k].target - TENSOR_OUTPUT, present);
        targets[n] = set->items[k].target;
        roots[n++] = sum ? sum : graph_number(&g, 0);
    }
    bool ok = graph_emit(&g, op, set, n, roots, targets);
    graph_finish(&g);
    return ok;
}
