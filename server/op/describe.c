#include "op/describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "op/tree.h"

struct describer {
    const struct op *op;
    struct arena *arena;
    const char *slot_names[ENV_MAX_SLOTS], *pack_names[ENV_MAX_PACKS];
    bool slot_needed[ENV_MAX_SLOTS], tensor_needed[TENSOR_COUNT];
};

// --- expressions, in postfix notation

static const char *const operators[] = {
    [NODE_TO_FLOAT] = "float()",
    [NODE_TO_TRUTH] = "bool()",
    [NODE_NOT] = "!",
    [NODE_NEG] = "neg()",
    [NODE_FLOOR] = "floor()",
    [NODE_POW2] = "pow2()",
    [NODE_FITS32] = "fits32()",
    [NODE_ADD] = "+",
    [NODE_SUB] = "-",
    [NODE_MUL] = "*",
    [NODE_DIV] = "/",
    [NODE_MOD] = "%",
    [NODE_CDIV] = "cdiv()",
    [NODE_GCD] = "gcd()",
    [NODE_MIN] = "min()",
    [NODE_MAX] = "max()",
    [NODE_POW] = "pow()",
    [NODE_EQ] = "==",
    [NODE_NE] = "!=",
    [NODE_LT] = "<",
    [NODE_LE] = "<=",
    [NODE_GT] = ">",
    [NODE_GE] = ">=",
    [NODE_AND] = "&&",
    [NODE_OR] = "||",
    [NODE_CHOICE] = "?:",
};

static void write_constant(const struct node *n, struct buf *out)
{
    char text[40];
    if (n->type != EXPR_FLOAT) {
        buf_printf(out, "%" PRId64, n->value.i);
        return;
    }
    snprintf(text, sizeof text, "%.17g", n->value.f);
    buf_printf(out, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

static const char *type_name(const struct op *op, int type)
{
    return type == TYPE_ACC ? "acc_t" : op->types[type].name;
}

static void write_leaf(const struct describer *d, const struct node *n, struct buf *out)
{
    const struct op_attr *attrs = d->op->attrs;
    switch (n->kind) {
    case NODE_CONST:
        write_constant(n, out);
        break;
    case NODE_SLOT:
        buf_append_str(out, d->slot_names[n->a]);
        break;
    case NODE_ATTR:
        buf_append_str(out, attrs[n->a].name);
        if (attrs[n->a].list)
            buf_printf(out, "[%d]", n->b);
        break;
    case NODE_HAS_ATTR:
        buf_printf(out, "present(%s)", attrs[n->a].name);
        break;
    case NODE_HAS_TENSOR:
        buf_printf(out, "present(%s)", body_tensor_name(d->op, n->a));
        break;
    case NODE_IS_TYPE:
        buf_printf(out, "is(%s,%s)", type_name(d->op, n->a), dtype_name((enum opd_dtype)n->b));
        break;
    case NODE_SIZEOF:
        buf_printf(out, "sizeof(%s)", type_name(d->op, n->a));
        break;
    case NODE_ON_CPU:
        buf_append_str(out, n->a ? "cpu" : "cuda");
        break;
    case NODE_NUMEL:
        buf_printf(out, "numel(%s)", body_tensor_name(d->op, n->a));
        break;
    default:
        buf_printf(out, "rank(%s)", body_tensor_name(d->op, n->a));
    }
}

static void write_node(const struct describer *d, const struct node *n, struct buf *out)
{
    for (int i = 0; i < n->n_args; i++)
        write_node(d, n->args[i], out);
    if (out->size > 0)
        buf_append_str(out, " ");
    if (n->n_args == 0)
        write_leaf(d, n, out);
    else if (n->kind == NODE_SIZE || n->kind == NODE_STRIDE)
        buf_printf(out, "%s(%s)", n->kind == NODE_SIZE ? "size" : "stride",
                   body_tensor_name(d->op, n->a));
    else
        buf_append_str(out, n->kind == NODE_DIV && n->type == EXPR_INT ? "//" : operators[n->kind]);
}

static const char *keep(const struct describer *d, struct buf *text)
{
    const char *kept = arena_strndup(d->arena, (const char *)text->bytes, text->size);
    text->size = 0;
    return kept;
}

static const char *write_expr(const struct describer *d, const struct expr *e)
{
    struct buf text = { 0 };
    write_node(d, e->root, &text);
    const char *kept = keep(d, &text);
    buf_finish(&text);
    return kept;
}

// --- what is needed

static void need(struct describer *d, const struct node *n)
{
    if (n->kind == NODE_SLOT)
        d->slot_needed[n->a] = true;
    if (n->kind == NODE_NUMEL || n->kind == NODE_RANK || n->kind == NODE_SIZE)
        d->tensor_needed[n->a] = true;
    for (int i = 0; i < n->n_args; i++)
        need(d, n->args[i]);
}

static bool is_needed(const struct describer *d, const struct rule *rule)
{
    if (rule->kind == RULE_LET)
        return d->slot_needed[rule->slot];
    return rule->kind == RULE_REQUIRE || rule->tensor < TENSOR_TEMP ||
           d->op->body->temps[rule->tensor - TENSOR_TEMP].saved || d->tensor_needed[rule->tensor];
}

// And all that the rule reads. Rules are visited from the last one up: names come before their use.
static void need_rule(struct describer *d, const struct rule *rule)
{
    for (int i = 0; rule->kind == RULE_SHAPE && i < rule->shape.n; i++)
        if (rule->shape.dims[i].kind == DIM_VALUE)
            need(d, rule->shape.dims[i].expr->root);
    if (rule->kind != RULE_SHAPE)
        need(d, rule->expr->root);
    for (int i = 0; rule->kind == RULE_REQUIRE && i < rule->message.n; i++) {
        const struct message_piece *piece = &rule->message.pieces[i];
        if (piece->expr)
            need(d, piece->expr->root);
        if (piece->tensor >= 0)
            d->tensor_needed[piece->tensor] = true;
    }
}

// --- rules

static void describe_shape(const struct describer *d, const struct rule *rule, struct op_rule *out)
{
    const char *dims[OP_MAX_RANK];
    out->name = body_tensor_name(d->op, rule->tensor);
    if (rule->tensor >= TENSOR_TEMP) {
        const struct temp *temp = &d->op->body->temps[rule->tensor - TENSOR_TEMP];
        out->type = temp->type < 0 ? dtype_name(temp->dtype) : type_name(d->op, temp->type);
    }
    for (int i = 0; i < rule->shape.n; i++) {
        const struct shape_dim *dim = &rule->shape.dims[i];
        dims[i] = dim->kind == DIM_VALUE ? write_expr(d, dim->expr)
                  : dim->kind == DIM_DEFINE
                      ? d->slot_names[dim->slot]
                      : arena_printf(d->arena, "...%s", d->pack_names[dim->slot]);
    }
    out->n = rule->shape.n;
    out->parts = arena_copy(d->arena, dims, (size_t)out->n, sizeof *dims);
}

static void describe_message(const struct describer *d, const struct message *m,
                             struct op_rule *out)
{
    const char **parts = arena_alloc(d->arena, 2 * (size_t)m->n, sizeof *parts);
    struct buf text = { 0 };
    for (int i = 0; i < m->n; i++) {
        const struct message_piece *piece = &m->pieces[i];
        buf_append_str(&text, piece->text);
        if (!piece->expr && piece->attr < 0 && piece->tensor < 0)
            continue;
        parts[out->n++] = keep(d, &text);
        parts[out->n++] = piece->expr        ? write_expr(d, piece->expr)
                          : piece->attr >= 0 ? d->op->attrs[piece->attr].name
                                             : body_tensor_name(d->op, piece->tensor);
    }
    if (text.size > 0)
        parts[out->n++] = keep(d, &text);
    buf_finish(&text);
    out->parts = parts;
}

static void describe_rule(const struct describer *d, const struct rule *rule, struct op_rule *out)
{
    out->kind = rule->kind;
    if (rule->kind == RULE_SHAPE) {
        describe_shape(d, rule, out);
        return;
    }
    out->value = write_expr(d, rule->expr);
    if (rule->kind == RULE_LET)
        out->name = d->slot_names[rule->slot];
    else
        describe_message(d, &rule->message, out);
}

static void name_slots(struct describer *d, const struct scope *scope)
{
    for (int i = 0; i < scope->n; i++) {
        const struct symbol *s = &scope->symbols[i];
        if (s->kind == SYMBOL_SIZE || s->kind == SYMBOL_LET)
            d->slot_names[s->index] = arena_strndup(d->arena, s->name, strlen(s->name));
        else if (s->kind == SYMBOL_PACK)
            d->pack_names[s->index] = s->name;
    }
}

void describe_rules(struct reader *r)
{
    struct describer d = { .op = r->op, .arena = r->arena };
    const struct op_body *body = r->body;
    bool needed[OP_MAX_RULES] = { false };
    struct op_rule *rules = arena_alloc(r->arena, (size_t)body->n_rules, sizeof *rules);
    name_slots(&d, &r->scope);
    for (int o = 0; o < r->op->n_outputs; o++)
        if (body->reduced[o])
            need(&d, body->reduced[o]->root);
    if (body->channels_last_when)
        need(&d, body->channels_last_when->root);
    for (int i = body->n_rules - 1; i >= 0; i--) {
        needed[i] = is_needed(&d, &body->rules[i]);
        if (needed[i])
            need_rule(&d, &body->rules[i]);
    }
    for (int i = 0; i < body->n_rules; i++)
        if (needed[i])
            describe_rule(&d, &body->rules[i], &rules[r->op->n_rules++]);
    r->op->rules = rules;
    for (int o = 0; o < r->op->n_outputs; o++)
        if (body->reduced[o])
            r->op->outputs[o].reduced = write_expr(&d, body->reduced[o]);
    if (body->channels_last_when)
        r->op->channels_last.when = write_expr(&d, body->channels_last_when);
    r->op->broadcasts = body->formulas != NULL;
}
