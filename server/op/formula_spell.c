#include <stdlib.h>
#include <string.h>

#include "op/formula.h"
#include "op/tree.h"
#include "base/mem.h"

// --- what is taken, where truth values are known

// 1, 0, or -1: it is not known. `left`: nodes that may still be looked at, the same ones whatever
// is known: what is refused is refused when the file is read.
static int find_truth(const struct formula_set *set, const struct node *n, const int8_t *known,
                      int *left)
{
    if (n->type != EXPR_TRUTH || --*left < 0)
        return -1;
    if (n->kind == NODE_CONST)
        return n->value.i != 0;
    if (n->kind == NODE_VALUE)
        return known ? known[n->a] : -1;
    if (n->kind == NODE_FORMULA)
        return find_truth(set, set->items[n->a].root, known, left);
    if (n->kind != NODE_NOT && n->kind != NODE_AND && n->kind != NODE_OR)
        return -1;
    int a = find_truth(set, n->args[0], known, left);
    int b = n->n_args > 1 ? find_truth(set, n->args[1], known, left) : a;
    int decides = n->kind == NODE_OR; // whatever the other is
    if (n->kind == NODE_NOT)
        return a < 0 ? -1 : !a;
    return a == decides || b == decides ? decides : a < 0 || b < 0 ? -1 : !decides;
}

static const struct node *find_taken(const struct formula_set *set, const struct node *n,
                                     const int8_t *known)
{
    while (n->kind == NODE_CHOICE) {
        int left = FORMULA_MAX_CONDITION, truth = find_truth(set, n->args[0], known, &left);
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

static void reach_sum(struct walk *w, const struct node *n)
{
    struct formula_reach *r = w->reach;
    for (int i = 0; i < r->n_sums && i < FORMULA_MAX_SUMS; i++)
        if (formula_is_same(w->set, r->sums[i], n))
            return;
    if (r->n_sums++ < FORMULA_MAX_SUMS)
        r->sums[r->n_sums - 1] = n;
}

static void reach_node(struct walk *w, const struct node *n)
{
    struct formula_reach *r = w->reach;
    n = find_taken(w->set, n, w->known);
    if (formula_is_sum(n) || n->kind == NODE_COUNT)
        r->overs |= (uint8_t)(1 << n->a);
    if (formula_is_sum(n))
        reach_sum(w, n);
    if (formula_is_sum(n) && r->outside)
        return;
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

bool formula_is_same(const struct formula_set *set, const struct node *a, const struct node *b)
{
    bool same = a->kind == b->kind && a->n_args == b->n_args && a->a == b->a && a->b == b->b;
    if (same && a->kind == NODE_CONST)
        return memcmp(&a->value, &b->value, sizeof a->value) == 0;
    for (int i = 0; i < a->n_args && same; i++)
        same = formula_is_same(set, a->args[i], b->args[i]);
    return same;
}

static enum formula_level most(enum formula_level a, enum formula_level b)
{
    return a > b ? a : b;
}

// The output that the tensor is, or whose gradient it is. -1: it is an input.
static int find_output(int bit)
{
    return bit < TENSOR_OUTPUT ? -1 : bit < TENSOR_TEMP ? bit - TENSOR_OUTPUT : bit - TENSOR_TEMP;
}

enum formula_level formula_level(const struct op *op, const struct formula_set *set,
                                 const struct node *root, const int8_t *known)
{
    struct formula_reach *reach = mem_zalloc(1, sizeof *reach);
    reach->outside = true;
    formula_reach(set, root, known, reach);
    enum formula_level level = reach->n_sums > 0 ? LEVEL_ROW : LEVEL_CONSTANT;
    for (int bit = 0; bit < 64 && level < LEVEL_ELEMENT; bit++) {
        int output = find_output(bit);
        if (!(reach->uses.tensors >> bit & 1))
            continue;
        int made = output < 0 ? -1 : formula_find(set, TENSOR_OUTPUT + output);
        level = most(level, made < 0 ? LEVEL_ELEMENT
                                     : formula_level(op, set, set->items[made].root, known));
        if (made >= 0 && level == LEVEL_CONSTANT)
            level = LEVEL_ELEMENT;
    }
    free(reach);
    return level;
}

const char *formula_join(const struct node *sum)
{
    return sum->kind == NODE_SUM    ? "opd::formula_add"
           : sum->kind == NODE_AMAX ? "opd::formula_extreme<1>"
                                    : "opd::formula_extreme<-1>";
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
    [NODE_SUM] = { "sum(", "", ")" },
    [NODE_AMAX] = { "amax(", "", ")" },
    [NODE_AMIN] = { "amin(", "", ")" },
    [NODE_COUNT] = { "", "", "" },
};

struct writer {
    const struct formula_set *set;
    const struct formula_names *names; // C++ alone
    const char *(*name)(void *data, int tensor);
    void *data;
    bool is_cpp;
    struct buf *out;
};

static bool calls_own(const struct node *n)
{
    bool own = (n->kind == NODE_CALL || n->kind == NODE_TEST) && !formula_function_cpp(n);
    for (int i = 0; i < n->n_args && !own; i++)
        own = calls_own(n->args[i]);
    return own;
}

// Sums are a row's; formulas that are named may be anything.
static bool reads_elements(const struct node *n)
{
    bool reads = n->kind == NODE_TENSOR || n->kind == NODE_FORMULA;
    for (int i = 0; i < n->n_args && !reads && !formula_is_sum(n); i++)
        reads = reads_elements(n->args[i]);
    return reads;
}

// A choice that each element makes for itself: both branches are computed, since threads that
// branch wait for one another, element by element. A function of the file's own may have been
// written for what the condition lets through.
static bool is_computed_whole(const struct node *n)
{
    return n->kind == NODE_CHOICE && reads_elements(n->args[0]) && !calls_own(n->args[1]) &&
           !calls_own(n->args[2]);
}

static struct spelling find_spelling(const struct writer *w, const struct node *n)
{
    if (w->is_cpp && is_computed_whole(n))
        return (struct spelling){ "opd::formula_choose(", ", ", ")" };
    if (w->is_cpp)
        return cpp[n->kind];
    if (n->kind == NODE_DIV)
        return (struct spelling){ "", " / ", "" };
    return n->kind == NODE_TO_NUMBER ? (struct spelling){ "(", "", " ? 1 : 0)" } : cpp[n->kind];
}

static bool write_sum(const struct writer *w, const struct node *n)
{
    const struct formula_names *names = w->names;
    for (int i = 0; w->is_cpp && i < names->n_sums; i++)
        if (formula_is_same(w->set, names->sums[i], n)) {
            buf_printf(w->out, "s_%d", i);
            return true;
        }
    return false;
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
    else if (n->kind == NODE_COUNT)
        buf_printf(w->out, w->is_cpp ? "row_count" : "count(%s)", w->set->overs[n->a].text);
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
    const struct node *taken = w->is_cpp ? find_taken(w->set, n, w->names->known) : n;
    bool brackets = n->bracketed || taken != n;
    bool calls = taken->kind == NODE_CALL || taken->kind == NODE_TEST;
    n = taken;
    if (formula_is_sum(n) && write_sum(w, n))
        return;
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
        bool is_other = i == 2 && strcmp(s.between, " ? ") == 0;
        buf_append_str(w->out, i == 0 ? s.before : is_other ? " : " : s.between);
        write_node(w, n->args[i]);
    }
    if (formula_is_sum(n) && w->set->overs[n->a].text[0])
        buf_printf(w->out, ", %s", w->set->overs[n->a].text);
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

void formula_cpp(const struct node *n, const struct formula_names *names, struct buf *out)
{
    struct writer w = { .set = names->set,
                        .names = names,
                        .name = name_tensor,
                        .data = (void *)(uintptr_t)names->op,
                        .is_cpp = true,
                        .out = out };
    write_node(&w, n);
}
