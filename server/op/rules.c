#include "op/rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/report.h"
#include "op/formula.h"
#include "op/tree.h"

static bool check_attrs(const struct plan_request *request, struct opd_err *err)
{
    for (int i = 0; i < request->op->n_attrs; i++) {
        const struct op_attr *a = &request->op->attrs[i];
        const struct op_value *v = &request->attrs[i];
        if (!v->present && !a->optional)
            return op_fail(err, "attribute %s is missing, expected a value", a->name);
        if (v->present && v->n != (a->list ? a->list : 1))
            return op_fail(err, "attribute %s has %d value%s, expected %d", a->name, v->n,
                           PLURAL_S(v->n), a->list ? a->list : 1);
        if (v->present && a->type == OP_ATTR_STR && (v->i[0] < 0 || v->i[0] >= a->n_words))
            return op_fail(err, "attribute %s is word %" PRId64 ", expected one of %d", a->name,
                           v->i[0], a->n_words);
    }
    return true;
}

static bool fail_dtype(const struct op_tensor *t, const struct op_type *type, enum opd_dtype dtype,
                       struct opd_err *err)
{
    char list[256] = "";
    for (int i = 0; i < type->n_dtypes; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", dtype_name(type->dtypes[i]));
    }
    return op_fail(err, "%s is %s, expected %s%s", t->name, dtype_name(dtype),
                   type->n_dtypes > 1 ? "one of " : "", list);
}

static bool check_strided(const struct op_tensor *t, const struct tensor_desc *d,
                          struct opd_err *err)
{
    char text[576];
    tensor_desc_format(d, text, sizeof text);
    if (!t->strided)
        return op_fail(err, "%s is %s, expected a contiguous tensor; 'strided %s' takes others",
                       t->name, text, t->name);
    return !t->in_place || !tensor_desc_overlaps(d) ||
           op_fail(err,
                   "%s is %s, whose elements overlap, expected each once: it is changed in "
                   "place",
                   t->name, text);
}

static bool check_dtypes(const struct plan_request *request, struct env *env, struct opd_err *err)
{
    const struct op *op = request->op;
    int first[OP_MAX_TYPES]; // the input that decided
    for (int t = 0; t < op->n_types; t++) {
        first[t] = -1;
        env->types[t] = op->types[t].n_dtypes ? op->types[t].dtypes[0] : OPD_DTYPE_NONE;
    }
    for (int i = 0; i < op->n_inputs; i++) {
        const struct op_tensor *t = &op->inputs[i];
        const struct op_type *type = &op->types[t->type];
        const struct tensor_desc *d = &request->inputs[i];
        if (d->dtype == OPD_DTYPE_NONE && t->optional)
            continue;
        if (d->dtype == OPD_DTYPE_NONE)
            return op_fail(err, "%s is missing, expected a tensor", t->name);
        if (!tensor_desc_check(d, err))
            return opd_err_prefix(err, "%s", t->name);
        if (d->strided && !check_strided(t, d, err))
            return false;
        if (first[t->type] >= 0 && type->n_dtypes > 1 && env->types[t->type] != d->dtype)
            return op_fail(err, "%s is %s, %s is %s; expected the same dtype", t->name,
                           dtype_name(d->dtype), op->inputs[first[t->type]].name,
                           dtype_name(env->types[t->type]));
        if (!op_type_takes(type, d->dtype))
            return fail_dtype(t, type, d->dtype, err);
        env->types[t->type] = d->dtype;
        if (first[t->type] < 0)
            first[t->type] = i;
    }
    return true;
}

static bool check_rank(const struct shape *shape, const char *name, const struct tensor_desc *d,
                       struct opd_err *err)
{
    int fixed = shape->n - (shape->pack >= 0);
    if (shape->pack < 0 ? d->rank == fixed : d->rank >= fixed)
        return true;
    char text[256];
    tensor_desc_format_shape(d->shape, d->rank, text, sizeof text);
    return op_fail(err, "%s has rank %d %s, expected rank %s%d %s", name, d->rank, text,
                   shape->pack >= 0 ? "at least " : "", fixed, shape->text);
}

// The input that gave a dimension, or a pack of them, its value. NULL: none, it is a let.
static const struct rule *find_source(const struct op_body *body, enum dim_kind kind, int slot,
                                      const struct shape_dim **out_dim)
{
    for (int i = 0; i < body->n_rules; i++) {
        const struct rule *rule = &body->rules[i];
        for (int k = 0; rule->kind == RULE_SHAPE && k < rule->shape.n; k++) {
            const struct shape_dim *dim = &rule->shape.dims[k];
            if (dim->kind == kind && dim->slot == slot && (kind == DIM_DEFINE || dim->defines)) {
                *out_dim = dim;
                return rule;
            }
        }
    }
    return NULL;
}

// Where the sizes in a dimension came from, " (S = 7 of old_h, I = 2 of input)": the argument that
// the message names need not be the one that is wrong.
struct sources {
    const struct shape_dim *dim;
    const char *name; // of that argument: its own are left out
    const struct env *env;
    uint64_t told[ENV_MAX_SLOTS / 64];
    char *out;
    size_t size, n;
};

static void add_source(struct sources *s, int slot)
{
    const struct shape_dim *from;
    const struct op *op = s->env->request->op;
    const struct rule *rule = find_source(op->body, DIM_DEFINE, slot, &from);
    if (!rule || s->n >= s->size || (s->told[slot / 64] >> slot % 64 & 1))
        return;
    const char *of = op->inputs[rule->tensor].name;
    char *end = s->out + s->n;
    s->told[slot / 64] |= UINT64_C(1) << slot % 64;
    if (strcmp(of, s->name) == 0)
        return;
    if (strcmp(from->text, s->dim->text) == 0) // its value is told already
        s->n += (size_t)snprintf(end, s->size - s->n, " (of %s", of);
    else
        s->n += (size_t)snprintf(end, s->size - s->n, "%s%s = %" PRId64 " of %s",
                                 s->n ? ", " : " (", from->text, s->env->slots[slot].i, of);
}

static void add_sources(struct sources *s, const struct node *n)
{
    if (n->kind == NODE_SLOT)
        add_source(s, n->a);
    for (int i = 0; i < n->n_args; i++)
        add_sources(s, n->args[i]);
}

static void describe_sources(const struct shape_dim *dim, const char *name, const struct env *env,
                             char *out, size_t size)
{
    const struct op *op = env->request->op;
    struct sources s = { .dim = dim, .name = name, .env = env, .out = out, .size = size };
    out[0] = '\0';
    if (dim->kind == DIM_PACK) {
        const struct shape_dim *from;
        const struct rule *rule = find_source(op->body, DIM_PACK, dim->slot, &from);
        if (rule)
            snprintf(out, size, " (of %s)", op->inputs[rule->tensor].name);
        return;
    }
    add_sources(&s, dim->expr->root);
    if (s.n > 0 && s.n < size)
        snprintf(out + s.n, size - s.n, ")");
}

static bool check_pack(const struct shape_dim *dim, const int64_t *got, int rank, const char *name,
                       struct env *env, struct opd_err *err)
{
    int64_t *pack = env->pack[dim->slot];
    if (dim->defines) {
        env->pack_rank[dim->slot] = rank;
        memcpy(pack, got, (size_t)rank * sizeof *got);
        return true;
    }
    if (rank == env->pack_rank[dim->slot] && memcmp(pack, got, (size_t)rank * sizeof *got) == 0)
        return true;
    char a[256], b[256], sources[256];
    tensor_desc_format_shape(got, rank, a, sizeof a);
    tensor_desc_format_shape(pack, env->pack_rank[dim->slot], b, sizeof b);
    describe_sources(dim, name, env, sources, sizeof sources);
    return op_fail(err, "%s has %s in its dimensions %s, expected %s%s", name, a, dim->text, b,
                   sources);
}

static bool check_dim(const struct shape_dim *dim, int64_t got, int at, const char *name,
                      struct env *env, struct opd_err *err)
{
    if (dim->kind == DIM_DEFINE) {
        env->slots[dim->slot].i = got;
        return true;
    }
    int64_t want;
    if (!expr_eval_int(dim->expr, env, &want, err))
        return false;
    if (want == got)
        return true;
    char number[32], sources[512];
    snprintf(number, sizeof number, "%" PRId64, want);
    bool plain = strcmp(number, dim->text) == 0;
    describe_sources(dim, name, env, sources, sizeof sources);
    return op_fail(err, "%s has %" PRId64 " in dimension %d, expected %s%s%s%s", name, got, at,
                   plain ? "" : dim->text, plain ? "" : " = ", number, sources);
}

static bool check_input(const struct rule *rule, struct env *env, struct opd_err *err)
{
    const struct shape *shape = &rule->shape;
    const char *name = env->request->op->inputs[rule->tensor].name;
    const struct tensor_desc *d = &env->request->inputs[rule->tensor];
    if (d->dtype == OPD_DTYPE_NONE)
        return true;
    if (!check_rank(shape, name, d, err))
        return false;
    int at = 0;
    for (int i = 0; i < shape->n; i++) {
        const struct shape_dim *dim = &shape->dims[i];
        if (dim->kind == DIM_PACK) {
            int rank = d->rank - (shape->n - 1);
            if (!check_pack(dim, d->shape + at, rank, name, env, err))
                return false;
            at += rank;
        } else {
            if (!check_dim(dim, d->shape[at], at, name, env, err))
                return false;
            at++;
        }
    }
    return true;
}

static bool make_dim(const struct shape_dim *dim, struct tensor_desc *d, const char *name,
                     const struct env *env, struct opd_err *err)
{
    int n = dim->kind == DIM_PACK ? env->pack_rank[dim->slot] : 1;
    if (d->rank + n > OP_MAX_RANK)
        return op_fail(err, "%s would have a rank above %d", name, OP_MAX_RANK);
    if (dim->kind == DIM_PACK) {
        memcpy(d->shape + d->rank, env->pack[dim->slot], (size_t)n * sizeof *d->shape);
    } else {
        int64_t size;
        if (!expr_eval_int(dim->expr, env, &size, err))
            return false;
        if (size < 0)
            return op_fail(err,
                           "%s would have %" PRId64 " in dimension %d (%s), expected 0 or more",
                           name, size, d->rank, dim->text);
        d->shape[d->rank] = size;
    }
    d->rank += n;
    return true;
}

// The shape of an output, a saved or a scratch tensor is what the rule says.
static bool make_shape(const struct rule *rule, struct env *env, struct opd_err *err)
{
    const struct op *op = env->request->op;
    const char *name = body_tensor_name(op, rule->tensor);
    struct tensor_desc *d;
    enum opd_dtype dtype;
    if (rule->tensor >= TENSOR_TEMP) {
        const struct temp *temp = &op->body->temps[rule->tensor - TENSOR_TEMP];
        d = &env->temps[rule->tensor - TENSOR_TEMP];
        dtype = temp->type < 0 ? temp->dtype : env_dtype(env, temp->type);
    } else {
        d = &env->outputs[rule->tensor - TENSOR_OUTPUT];
        dtype = env_dtype(env, op->outputs[rule->tensor - TENSOR_OUTPUT].type);
    }
    d->dtype = dtype;
    d->rank = 0;
    for (int i = 0; i < rule->shape.n; i++)
        if (!make_dim(&rule->shape.dims[i], d, name, env, err))
            return false;
    return tensor_desc_check(d, err) || opd_err_prefix(err, "%s", name);
}

static void format_value(enum expr_type type, union expr_value v, char *out, size_t size)
{
    if (type == EXPR_FLOAT)
        snprintf(out, size, "%g", v.f);
    else
        snprintf(out, size, "%" PRId64, v.i);
}

static void format_attr(const struct env *env, int attr, char *out, size_t size)
{
    const struct op_attr *a = &env->request->op->attrs[attr];
    const struct op_value *v = &env->request->attrs[attr];
    size_t n = 0;
    if (env->reads)
        env->reads->fixed |= UINT64_C(1) << attr;
    if (!v->present || a->type == OP_ATTR_STR) {
        snprintf(out, size, "%s", v->present ? a->words[v->i[0]] : "None");
        return;
    }
    for (int k = 0; k < v->n && n < size; k++) {
        char number[32];
        union expr_value value = { .i = v->i[k] };
        if (a->type == OP_ATTR_FLOAT)
            value.f = v->f[k];
        format_value(a->type == OP_ATTR_FLOAT ? EXPR_FLOAT : EXPR_INT, value, number,
                     sizeof number);
        const char *before = !a->list ? "" : k ? ", " : "[";
        const char *after = a->list && k == v->n - 1 ? "]" : "";
        n += (size_t)snprintf(out + n, size - n, "%s%s%s", before, number, after);
    }
}

static void format_piece(const struct message_piece *piece, const struct env *env, char *out,
                         size_t size)
{
    union expr_value value;
    struct opd_err ignored = { 0 };
    out[0] = '\0';
    if (piece->index)
        snprintf(out, size, "%c", REPORT_INDEX_MARK);
    else if (piece->tensor >= 0)
        tensor_desc_format(env_tensor(env, piece->tensor), out, size);
    else if (piece->attr >= 0)
        format_attr(env, piece->attr, out, size);
    else if (piece->expr && expr_eval(piece->expr, env, &value, &ignored))
        format_value(piece->expr->type, value, out, size);
    else if (piece->expr)
        snprintf(out, size, "?");
}

void rules_format_message(const struct message *message, const struct env *env, char *out,
                          size_t size)
{
    char value[512];
    out[0] = '\0';
    for (int i = 0; i < message->n; i++) {
        const struct message_piece *piece = &message->pieces[i];
        size_t n = strlen(out);
        format_piece(piece, env, value, sizeof value);
        snprintf(out + n, size - n, "%s%s", piece->text, value);
    }
}

static bool fail_require(const struct rule *rule, const struct env *env, struct opd_err *err)
{
    char text[sizeof err->msg];
    rules_format_message(&rule->message, env, text, sizeof text);
    return op_fail(err, "%s", text);
}

static bool apply_let(const struct rule *rule, struct env *env, struct opd_err *err)
{
    uint64_t reads;
    bool ok = expr_eval_again(rule->expr, env, &env->slots[rule->slot], &reads, err);
    if (env->reads)
        env->reads->slots[rule->slot] = reads;
    return ok;
}

static bool apply_rule(const struct rule *rule, struct env *env, struct opd_err *err)
{
    union expr_value value;
    uint64_t reads;
    switch (rule->kind) {
    case RULE_SHAPE:
        return rule->tensor < TENSOR_OUTPUT ? check_input(rule, env, err)
                                            : make_shape(rule, env, err);
    case RULE_LET:
        return apply_let(rule, env, err);
    case RULE_REQUIRE:
        break;
    }
    if (!expr_eval_again(rule->expr, env, &value, &reads, err))
        return false;
    bool holds = rule->expr->type == EXPR_FLOAT ? value.f != 0 : value.i != 0;
    return holds || fail_require(rule, env, err);
}

bool rules_apply(const struct plan_request *request, struct env *env, struct opd_err *err)
{
    env->request = request;
    env->wanted = 0;
    if (!check_attrs(request, err) || !check_dtypes(request, env, err))
        return false;
    for (int i = 0; i < request->op->body->n_rules; i++)
        if (!apply_rule(&request->op->body->rules[i], env, err))
            return false;
    return !request->op->body->formulas || formula_shapes(env, err);
}
