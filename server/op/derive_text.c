#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/derive.h"
#include "base/mem.h"

// --- what an expression of a plan reads

// `seen`: slots whose lets have been looked into; a let may be read any number of times.
static void note_expr(struct op *op, const struct node *n, bool seen[ENV_MAX_SLOTS])
{
    const struct op_body *body = op->body;
    const struct node *let = n->kind == NODE_SLOT && !seen[n->a]
                                 ? body_find_let(body->rules, body->n_rules, n->a)
                                 : NULL;
    bool names = n->kind == NODE_NUMEL || n->kind == NODE_RANK || n->kind == NODE_SIZE ||
                 n->kind == NODE_STRIDE || n->kind == NODE_HAS_TENSOR;
    if (names && n->a < TENSOR_OUTPUT)
        op->inputs[n->a].used_backward = true;
    if (let) {
        seen[n->a] = true;
        note_expr(op, let, seen);
    }
    for (int i = 0; i < n->n_args; i++)
        note_expr(op, n->args[i], seen);
}

// --- what backward reads

static uint64_t find_uses(struct op *op)
{
    const struct formula_set *set = op->body->formulas;
    uint64_t tensors = 0, values = 0;
    bool seen[ENV_MAX_SLOTS] = { false };
    for (int i = 0; i < set->n; i++)
        if (set->items[i].target >= TENSOR_GRAD_INPUT) {
            tensors |= set->items[i].uses.tensors;
            values |= set->items[i].uses.values;
        }
    for (int k = 0; k < set->n_overs; k++)
        if (set->overs[k].expr)
            note_expr(op, set->overs[k].expr->root, seen);
    for (int v = 0; v < set->n_values; v++)
        if (values >> v & 1)
            note_expr(op, set->values[v].expr->root, seen);
    return tensors;
}

static bool is_float_output(const struct op *op, int output)
{
    return dtype_is_float(op->types[op->outputs[output].type].dtypes[0]);
}

// Does backward get a tensor that tells which dtype this type stands for?
static bool is_told(const struct op *op, int type)
{
    bool told = op->types[type].n_dtypes == 1;
    for (int i = 0; i < op->n_inputs; i++)
        told = told || (op->inputs[i].type == type && op->inputs[i].used_backward);
    for (int o = 0; o < op->n_outputs; o++)
        told = told || (op->outputs[o].type == type &&
                        (op->outputs[o].used_backward || is_float_output(op, o)));
    return told;
}

void derive_note_uses(struct op *op)
{
    uint64_t tensors = find_uses(op);
    if (!op->has_backward)
        return;
    // The shape of a row is that of all inputs, unless the gradient of an output has it.
    bool shaped = op->body->formulas->n_overs == 0;
    for (int o = 0; o < op->n_outputs; o++)
        shaped = shaped || (is_float_output(op, o) && !op->body->reduced[o]);
    for (int i = 0; i < op->n_inputs; i++)
        op->inputs[i].used_backward |= !shaped || (tensors & formula_bit(i)) != 0;
    for (int o = 0; o < op->n_outputs; o++)
        op->outputs[o].used_backward |= (tensors & formula_bit(TENSOR_OUTPUT + o)) != 0;
    for (int i = 0; i < op->n_inputs; i++)
        if (!is_told(op, op->inputs[i].type))
            op->inputs[i].used_backward = true;
}

// --- the text of a derivative

struct text {
    const struct op *op;
    const struct formula_set *set;
    bool backward;
    struct formula_reach reach;
    int n_inputs, n_outputs;
    int inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS]; // tensor ids
    char names[TENSOR_COUNT][OP_MAX_NAME];
    char made[TENSOR_COUNT][OP_MAX_NAME]; // of results
    struct buf *out;
};

static bool is_word_of(const char *text, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += size) {
        bool begins = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (begins && !isalnum((unsigned char)at[size]) && at[size] != '_')
            return true;
    }
    return false;
}

static bool is_taken(const struct text *t, const char *name)
{
    bool taken = is_word_of(t->op->source, name);
    for (int i = 0; i < TENSOR_COUNT; i++)
        taken = taken || strcmp(t->names[i], name) == 0 || strcmp(t->made[i], name) == 0;
    return taken;
}

// A name that nothing else has: the derivative's letter, and the name of what it is of.
static void choose_name(const struct text *t, const char *letter, const char *of,
                        char out[OP_MAX_NAME])
{
    char name[OP_MAX_NAME];
    int n = snprintf(name, sizeof name - 8, "%s_%.48s", letter, of);
    for (int k = 2; is_taken(t, name); k++)
        snprintf(name + n, sizeof name - (size_t)n, "_%d", k);
    strcpy(out, name);
}

static const char *name_tensor(void *data, int tensor)
{
    return ((struct text *)data)->names[tensor];
}

// An input that may be absent, or the tangent of one.
static bool is_optional(const struct text *t, int tensor)
{
    bool of_input = tensor < TENSOR_OUTPUT || tensor >= TENSOR_GRAD_INPUT;
    return of_input && body_tensor(t->op, tensor)->optional;
}

// present() of those tangents, as values that the set gets more. False: there are too many.
static bool ask_tangents(struct text *t, struct formula_set *set, int present[OP_MAX_INPUTS])
{
    static const struct node no = { .kind = NODE_CONST };
    for (int i = 0; i < t->op->n_inputs; i++) {
        present[i] = -1;
        if (!t->op->inputs[i].differentiable || !t->op->inputs[i].optional)
            continue;
        if (set->n_values == FORMULA_MAX_VALUES)
            return false;
        const char *text = arena_printf(&t->op->body->arena, "present(%s)",
                                        t->names[TENSOR_GRAD_INPUT + i]);
        struct expr *e = arena_alloc(&t->op->body->arena, 1, sizeof *e);
        *e = (struct expr){ .text = text, .root = &no };
        present[i] = set->n_values;
        set->values[set->n_values++] = (struct formula_value){ text, e, true };
    }
    return true;
}

static void add_input(struct text *t, int tensor, const char *letter)
{
    const char *of = body_tensor(t->op, tensor)->name;
    if (t->n_inputs++ >= OP_MAX_INPUTS) // counted all the same: it is refused then
        return;
    t->inputs[t->n_inputs - 1] = tensor;
    if (letter)
        choose_name(t, letter, of, t->names[tensor]);
    else
        strcpy(t->names[tensor], of);
}

static void add_output(struct text *t, int tensor, const char *letter)
{
    if (t->n_outputs++ < OP_MAX_OUTPUTS)
        t->outputs[t->n_outputs - 1] = tensor;
    choose_name(t, letter, body_tensor(t->op, tensor)->name, t->made[tensor]);
}

static void list_backward(struct text *t)
{
    const struct op *op = t->op;
    for (int o = 0; o < op->n_outputs; o++)
        if (is_float_output(op, o))
            add_input(t, TENSOR_GRAD_OUTPUT + o, "g");
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i].used_backward)
            add_input(t, i, NULL);
    for (int o = 0; o < op->n_outputs; o++)
        if (op->outputs[o].used_backward)
            add_input(t, TENSOR_OUTPUT + o, NULL);
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i].differentiable)
            add_output(t, TENSOR_GRAD_INPUT + i, "d");
}

static void list_tangent(struct text *t)
{
    const struct op *op = t->op;
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i].differentiable)
            add_input(t, TENSOR_GRAD_INPUT + i, "t");
    for (int i = 0; i < op->n_inputs; i++)
        add_input(t, i, NULL);
    for (int o = 0; o < op->n_outputs; o++)
        if (is_float_output(op, o))
            add_output(t, TENSOR_OUTPUT + o, "t");
}

// The last formula of that target: the set may have the operator's own for it, too.
static int find_last(const struct formula_set *set, int target)
{
    int i = set->n - 1;
    while (set->items[i].target != target)
        i--;
    return i;
}

static void mark_formulas(struct text *t)
{
    for (int k = 0; k < t->n_outputs; k++) {
        int i = find_last(t->set, t->outputs[k]);
        t->reach.formulas[i] = true;
        formula_reach(t->set, t->set->items[i].root, NULL, &t->reach);
    }
}

// What stands in the schema beside the tensors, up to the closing bracket.
static void write_attrs(struct text *t)
{
    const char *p = strchr(t->op->schema, '('), *item = p + 1;
    int depth = 0;
    char quote = '\0';
    do {
        if (quote ? *p == quote : *p == '"' || *p == '\'')
            quote = quote ? '\0' : *p;
        if (quote)
            continue;
        depth += (*p == '(' || *p == '[') - (*p == ')' || *p == ']');
        if (depth > 1 || (depth == 1 && *p != ','))
            continue;
        item += *item == ' ';
        if (p > item && strncmp(item, "Tensor", 6) != 0)
            buf_printf(t->out, ", %.*s", (int)(p - item), item);
        item = p + 1;
    } while (p++, depth > 0);
}

static void write_schema(struct text *t, const char *name)
{
    struct buf *out = t->out;
    buf_printf(out, "//! op      %s(", name);
    for (int i = 0; i < t->n_inputs; i++)
        buf_printf(out, "%sTensor%s %s", i ? ", " : "", is_optional(t, t->inputs[i]) ? "?" : "",
                   t->names[t->inputs[i]]);
    write_attrs(t);
    buf_printf(out, ") -> %s", t->n_outputs > 1 ? "(" : "");
    for (int o = 0; o < t->n_outputs; o++)
        buf_printf(out, "%sTensor %s", o ? ", " : "", t->made[t->outputs[o]]);
    buf_printf(out, "%s\n", t->n_outputs > 1 ? ")" : "");
}

static void write_dtypes(struct buf *out, const struct op_type *type)
{
    for (int i = 0; i < type->n_dtypes; i++)
        buf_printf(out, " %s", dtype_name(type->dtypes[i]));
}

static void write_types(struct text *t)
{
    const struct op *op = t->op;
    buf_append_str(t->out, "//! dtypes ");
    write_dtypes(t->out, &op->types[TYPE_SCALAR]);
    buf_append_str(t->out, "\n");
    for (int k = 1; k < op->n_types; k++) {
        struct buf line = { 0 };
        for (int i = 0; i < t->n_inputs + t->n_outputs; i++) {
            int tensor = i < t->n_inputs ? t->inputs[i] : t->outputs[i - t->n_inputs];
            if (body_tensor(op, tensor)->type == k)
                buf_printf(&line, " %s", i < t->n_inputs ? t->names[tensor] : t->made[tensor]);
        }
        if (line.size > 0) {
            buf_printf(t->out, "//! type    %s", op->types[k].name);
            write_dtypes(t->out, &op->types[k]);
            buf_printf(t->out, " :%s\n", buf_str(&line));
        }
        buf_finish(&line);
    }
}

static void write_words(struct text *t)
{
    for (int i = 0; i < t->op->n_attrs; i++) {
        const struct op_attr *a = &t->op->attrs[i];
        if (a->type != OP_ATTR_STR)
            continue;
        buf_printf(t->out, "//! words   %s", a->name);
        for (int w = 0; w < a->n_words; w++)
            buf_printf(t->out, " \"%s\"", a->words[w]);
        buf_append_str(t->out, "\n");
    }
}

static bool reads_slot(const struct node *n, int slot)
{
    bool reads = n->kind == NODE_SLOT && n->a == slot;
    for (int i = 0; i < n->n_args && !reads; i++)
        reads = reads_slot(n->args[i], slot);
    return reads;
}

// Those lets that are needed: a let reads none but those before it.
static void write_lets(struct text *t)
{
    const struct op_body *body = t->op->body;
    bool needed[OP_MAX_RULES] = { false };
    for (int i = body->n_rules; i-- > 0;) {
        const struct rule *let = &body->rules[i];
        if (let->kind != RULE_LET)
            continue;
        for (int v = 0; v < t->set->n_values; v++)
            needed[i] |= (t->reach.uses.values >> v & 1) &&
                         reads_slot(t->set->values[v].expr->root, let->slot);
        for (int k = 0; k < t->set->n_overs; k++)
            needed[i] |= t->set->overs[k].expr &&
                         reads_slot(t->set->overs[k].expr->root, let->slot);
        for (int k = i + 1; k < body->n_rules; k++)
            needed[i] |= needed[k] && reads_slot(body->rules[k].expr->root, let->slot);
    }
    for (int i = 0; i < body->n_rules; i++)
        if (needed[i])
            buf_printf(t->out, "//! let     %s = %s\n", body->rules[i].name,
                       body->rules[i].expr->text);
}

static void write_formulas(struct text *t)
{
    for (int i = 0; i < t->set->n; i++) {
        const struct formula *f = &t->set->items[i];
        if (!t->reach.formulas[i])
            continue;
        buf_printf(t->out, "//! formula %s = ", f->target < 0 ? f->name : t->made[f->target]);
        formula_spell(f->root, t->set, name_tensor, t, t->out);
        buf_append_str(t->out, "\n");
    }
}

// The operator's own functions: its text without directives.
static void write_source(struct text *t)
{
    const char *line = t->op->source;
    while (*line) {
        size_t size = strcspn(line, "\n");
        if (strncmp(line + strspn(line, " \t"), "//!", 3) != 0)
            buf_append(t->out, line, size);
        buf_append_str(t->out, "\n");
        line += size + (line[size] == '\n');
    }
}

static void write_all(struct text *t, const char *name)
{
    buf_printf(t->out, "// Derived from %s.\n//\n", t->op->file);
    write_schema(t, name);
    buf_printf(t->out, "//! doc     The %s of %s.\n",
               t->backward ? "gradients of the inputs" : "tangents of the outputs", t->op->name);
    write_types(t);
    write_words(t);
    if (t->op->deadline > 0)
        buf_printf(t->out, "//! deadline %g\n", t->op->deadline);
    write_lets(t);
    write_formulas(t);
    if (t->set->calls_device)
        write_source(t);
}

bool op_is_derivable(const struct op *op)
{
    bool changes = false;
    for (int i = 0; i < op->n_inputs; i++)
        changes = changes || op->inputs[i].in_place;
    return op->body->formulas && op->has_backward && !changes && !op->body->opaque && !op->lists;
}

static struct op *derive(struct text *t, const char *name, struct opd_err *err)
{
    struct formula_set set = *t->op->body->formulas; // what it gets more is not seen by that
    t->set = &set;
    if (t->backward)
        list_backward(t);
    else
        list_tangent(t);
    int present[OP_MAX_INPUTS];
    const char *why = NULL;
    if ((!t->backward &&
         !(ask_tangents(t, &set, present) && derive_tangents(t->op, &set, present, &why))) ||
        t->n_inputs > OP_MAX_INPUTS || t->n_outputs > OP_MAX_OUTPUTS ||
        strlen(name) >= OP_MAX_NAME) {
        opd_err_set(err, OPD_E_not_found, "there is no '%s': %s%s", name,
                    why ? why : "it would be too large", why ? " cannot be differentiated" : "");
        return NULL;
    }
    mark_formulas(t);
    write_all(t, name);
    return op_parse(name, buf_str(t->out), t->out->size, err);
}

struct op *op_derive(const struct op *op, const char *what, struct opd_err *err)
{
    bool backward = strcmp(what, "backward") == 0;
    char name[2 * OP_MAX_NAME];
    snprintf(name, sizeof name, "%s.%s", op->name, what);
    if ((!backward && strcmp(what, "tangent") != 0) || !op_is_derivable(op)) {
        opd_err_set(err, OPD_E_not_found, "there is no operator '%s': %s", name,
                    op_is_derivable(op)
                        ? "the derivatives of one are .backward and .tangent"
                        : "only operators of formulas have derivatives that are operators");
        return NULL;
    }
    struct buf text = { 0 };
    struct text *t = mem_zalloc(1, sizeof *t);
    // What the derivative is made with goes when it is there, not with the operator.
    struct arena kept = op->body->arena;
    op->body->arena = (struct arena){ 0 };
    t->op = op;
    t->backward = backward;
    t->out = &text;
    struct op *derived = derive(t, name, err);
    arena_finish(&op->body->arena);
    op->body->arena = kept;
    free(t);
    buf_finish(&text);
    return derived;
}
