#include <string.h>

#include "op/formula.h"
#include "op/tree.h"
#include "base/mem.h"

// --- what is taken, where truth values are known

static int find_truth(const struct formula_set *set, const struct node *n, const int8_t *known)
{
    int a = n->n_args > 0 ? find_truth(set, n->args[0], known) : -1;
    int b = n->n_args > 1 ? find_truth(set, n->args[1], known) : -1;
    switch (n->kind) {
    case NODE_CONST:
        return n->type == EXPR_TRUTH ? n->value.i != 0 : -1;
    case NODE_VALUE:
        return known ? known[n->a] : -1;
    case NODE_FORMULA:
        return find_truth(set, set->items[n->a].root, known);
    case NODE_NOT:
        return a < 0 ? -1 : !a;
    case NODE_AND:
        return a == 0 || b == 0 ? 0 : a == 1 && b == 1 ? 1 : -1;
    case NODE_OR:
        return a == 1 || b == 1 ? 1 : a == 0 && b == 0 ? 0 : -1;
    default:
        return -1;
    }
}

const struct node *formula_taken(const struct formula_set *set, const struct node *n,
                                 const int8_t *known)
{
    while (n->kind == NODE_CHOICE) {
        int truth = find_truth(set, n->args[0], known);
        if (truth < 0)
            break;
        n = n->args[truth ? 1 : 2];
    }
    return n;
}

struct walk {
    const struct formula_set *set;
    const int8_t *known;
    struct formula_reach *reach;
    int list[FORMULA_MAX], n;
};

static void reach_node(struct walk *w, const struct node *n)
{
    struct formula_reach *r = w->reach;
    n = formula_taken(w->set, n, w->known);
    if (n->kind == NODE_TENSOR && n->a < TENSOR_GRAD_INPUT) // no tangent
        r->uses.tensors |= formula_bit(n->a);
    if (n->kind == NODE_VALUE)
        r->uses.values |= UINT64_C(1) << n->a;
    if (n->kind == NODE_FORMULA && !r->formulas[n->a]) {
        r->formulas[n->a] = true;
        w->list[w->n++] = n->a;
    }
    for (int i = 0; i < n->n_args; i++)
        reach_node(w, n->args[i]);
}

// One formula after the other: as deep as they go together no stack would do.
void formula_reach(const struct formula_set *set, const struct node *root, const int8_t *known,
                   struct formula_reach *out)
{
    struct walk w = { .set = set, .known = known, .reach = out };
    reach_node(&w, root);
    while (w.n > 0)
        reach_node(&w, set->items[w.list[--w.n]].root);
}

// --- C++, and the words of the language

// The text before, between and behind the arguments of a node. Brackets are those of the text.
struct spelling {
    const char *before, *between, *behind;
};

static const struct spelling cpp[] = {
    [NODE_TO_NUMBER] = { "acc_t(", "", ")" },
    [NODE_TO_TRUTH] = { "(", "", " != 0)" },
    [NODE_NOT] = { "!", "", "" },
    [NODE_NEG] = { "- ", "", "" }, // "--" would be another operator
    [NODE_ADD] = { "", " + ", "" },
    [NODE_SUB] = { "", " - ", "" },
    [NODE_MUL] = { "", " * ", "" },
    [NODE_DIV] = { "opd::formula_divide(", ", ", ")" }, // not the language's own: see opd.cuh
    [NODE_EQ] = { "", " == ", "" },
    [NODE_NE] = { "", " != ", "" },
    [NODE_LT] = { "", " < ", "" },
    [NODE_LE] = { "", " <= ", "" },
    [NODE_GT] = { "", " > ", "" },
    [NODE_GE] = { "", " >= ", "" },
    [NODE_AND] = { "", " && ", "" },
    [NODE_OR] = { "", " || ", "" },
    [NODE_CHOICE] = { "", " ? ", "" },
    [NODE_CALL] = { "(", ", ", ")" },
    [NODE_TEST] = { "(", ", ", ")" },
};

struct writer {
    const struct formula_set *set;
    const int8_t *known; // C++ alone
    const char *(*name)(void *data, int tensor);
    void *data;
    bool is_cpp;
    struct buf *out;
};

static struct spelling find_spelling(const struct writer *w, const struct node *n)
{
    if (w->is_cpp)
        return cpp[n->kind];
    if (n->kind == NODE_DIV)
        return (struct spelling){ "", " / ", "" };
    return n->kind == NODE_TO_NUMBER ? (struct spelling){ "(", "", " ? 1 : 0)" } : cpp[n->kind];
}

static void write_leaf(const struct writer *w, const struct node *n)
{
    if (n->kind == NODE_TENSOR)
        buf_printf(w->out, "%s%s", w->is_cpp ? "v_" : "", w->name(w->data, n->a));
    else if (n->kind == NODE_FORMULA)
        buf_printf(w->out, "%s%s", w->is_cpp ? "v_" : "", w->set->items[n->a].name);
    else if (n->kind == NODE_VALUE && w->is_cpp)
        buf_printf(w->out, "c_%d", n->a);
    else if (n->kind == NODE_VALUE)
        buf_printf(w->out, "(%s)", w->set->values[n->a].text);
    else if (n->type == EXPR_TRUTH)
        buf_append_str(w->out, n->value.i ? "true" : "false");
    else
        buf_printf(w->out, w->is_cpp ? "acc_t(%.17g)" : "%.17g", n->value.f);
}

static void write_function(const struct writer *w, const struct node *n)
{
    const char *code = w->is_cpp ? formula_function_cpp(n) : formula_function(w->set, n);
    if (code)
        buf_append_str(w->out, code);
    else // the file's own
        buf_printf(w->out, "acc_t(::%s", formula_function(w->set, n));
}

static void write_node(const struct writer *w, const struct node *n)
{
    const struct node *taken = w->is_cpp ? formula_taken(w->set, n, w->known) : n;
    bool brackets = n->bracketed || taken != n;
    bool calls = taken->kind == NODE_CALL || taken->kind == NODE_TEST;
    n = taken;
    const struct spelling s = find_spelling(w, n);
    if (brackets)
        buf_append_str(w->out, "(");
    if (n->n_args == 0 && !calls)
        write_leaf(w, n);
    if (calls)
        write_function(w, n);
    if (calls && n->n_args == 0)
        buf_append_str(w->out, s.before);
    for (int i = 0; i < n->n_args; i++) {
        buf_append_str(w->out, i == 0                             ? s.before
                               : i == 2 && n->kind == NODE_CHOICE ? " : "
                                                                  : s.between);
        write_node(w, n->args[i]);
    }
    if (n->n_args > 0 || calls)
        buf_append_str(w->out, s.behind);
    if (calls && w->is_cpp && !formula_function_cpp(n))
        buf_append_str(w->out, ")");
    if (brackets)
        buf_append_str(w->out, ")");
}

void formula_spell(const struct node *n, const struct formula_set *set,
                   const char *(*name)(void *data, int tensor), void *data, struct buf *out)
{
    struct writer w = { .set = set, .name = name, .data = data, .out = out };
    write_node(&w, n);
}

static const char *name_tensor(void *data, int tensor)
{
    return body_tensor_name(data, tensor);
}

void formula_cpp(const struct node *n, const struct op *op, const struct formula_set *set,
                 const int8_t *known, struct buf *out)
{
    struct writer w = { .set = set,
                        .known = known,
                        .name = name_tensor,
                        .data = (void *)(uintptr_t)op,
                        .is_cpp = true,
                        .out = out };
    write_node(&w, n);
}
