#include <stdio.h>
#include <string.h>

#include "op/reader.h"
#include "base/dtype.h"

// A step of elements, `formula`, `sum` or `fill`, is the only formula of an operator of its own,
// whose inputs are the tensors that it names. Its text is the step's: a mistake is found where that
// is read, and told at the step's place. plan_inner.c plans it with the section's tensors.

struct writer {
    struct reader *r;
    struct inner *in;
    int target;
    bool sums, copies, calls, uses[TENSOR_COUNT];
    char lets[OP_MAX_ATTRS][OP_MAX_NAME];
    const char *start; // of the expression
    struct buf formula, out;
};

// "grad_" belongs to the gradients of the inner operator's own inputs: another word of that length
// stands for it, in the name of a gradient or of what the file calls so.
static void write_name(const struct writer *w, int tensor, struct buf *out)
{
    const char *name = body_tensor_name(w->r->op, tensor);
    bool gradient = strncmp(name, "grad_", 5) == 0;
    buf_printf(out, "%s%s", gradient ? "opdg_" : "", gradient ? name + 5 : name);
}

static void write_target(const struct writer *w, struct buf *out)
{
    if (w->sums)
        buf_append_str(out, "opd_sum");
    else
        write_name(w, w->target, out);
}

// --- what the expression names

// Elements are found one after the other; what no plan could take is refused here.
static bool check_contiguous(struct reader *r, int tensor)
{
    return tensor >= TENSOR_OUTPUT || !r->op->inputs[tensor].strided ||
           lex_fail(&r->lx, "'%s' is strided, expected a contiguous tensor, or a kernel for it",
                    body_tensor_name(r->op, tensor));
}

static bool use_tensor(struct writer *w, const struct symbol *s)
{
    struct reader *r = w->r;
    struct inner *in = w->in;
    int t = s->index;
    if (t >= TENSOR_GRAD_OUTPUT && !r->section->backward)
        return lex_fail(&r->lx, "'%s' is a gradient, expected in a backward section only", s->name);
    if (t >= TENSOR_GRAD_INPUT && !(r->section->grads >> (t - TENSOR_GRAD_INPUT) & 1))
        return lex_fail(&r->lx, "'%s' is not made by this section (line %d)", s->name,
                        r->section->line);
    if (t == w->target && w->sums)
        return lex_fail(&r->lx, "'%s' is what the sum makes, expected other tensors", s->name);
    if (!check_contiguous(r, t))
        return false;
    in->reads_target |= t == w->target;
    if (!w->uses[t] && t != w->target) {
        if (in->n_inputs == OP_MAX_INPUTS)
            return lex_fail(&r->lx, "more than %d tensors", OP_MAX_INPUTS - 2);
        in->inputs[in->n_inputs++] = t;
    }
    w->uses[t] = true;
    section_note_use(r, t);
    write_name(w, t, &w->formula);
    return true;
}

// Dimensions and lets are attributes of the inner operator, behind the operator's own.
static bool use_number(struct writer *w, const struct symbol *s)
{
    struct inner *in = w->in;
    int i = 0;
    while (i < in->n_lets && strcmp(w->lets[i], s->name) != 0)
        i++;
    if (w->r->op->n_attrs + i == OP_MAX_ATTRS)
        return lex_fail(&w->r->lx, "more than %d attributes, dimensions and lets", OP_MAX_ATTRS);
    if (i == in->n_lets) {
        strcpy(w->lets[in->n_lets], s->name);
        struct lexer *lx = &w->r->lx, outer = *lx;
        lex_init(lx, outer.file, outer.line, s->name, strlen(s->name), outer.err);
        in->lets[in->n_lets++] = reader_expr(w->r);
        *lx = outer;
    }
    buf_append_str(&w->formula, s->name);
    return in->lets[i] != NULL;
}

static bool use_name(struct writer *w)
{
    struct reader *r = w->r;
    const struct token *t = &r->lx.token, next = lex_peek(&r->lx);
    const struct symbol *s = scope_find(&r->scope, t->start, t->size);
    bool called = next.kind == TOKEN_PUNCT && next.punct == '(';
    w->calls |= called;
    bool word = lex_is_word(&r->lx, "true") || lex_is_word(&r->lx, "false");
    if (!s && !called && !word)
        return scope_fail_unknown(&r->scope, &r->lx, "a tensor, attribute, dimension or let");
    if (s && s->kind == SYMBOL_TENSOR)
        return use_tensor(w, s);
    if (s && (s->kind == SYMBOL_SIZE || s->kind == SYMBOL_LET))
        return use_number(w, s);
    if (s && s->kind == SYMBOL_ATTR)
        r->scope.attr_used[s->index] = true;
    buf_append(&w->formula, t->start, t->size);
    return true;
}

static bool at_end(const struct writer *w, int depth)
{
    const struct lexer *lx = &w->r->lx;
    if (lx->token.kind == TOKEN_END || lx->token.kind == TOKEN_BAD)
        return true;
    if (depth > 0 || lx->token.kind != TOKEN_NAME ||
        scope_find(&w->r->scope, lx->token.start, lx->token.size))
        return false;
    return reader_at_launch_word(w->r) || (w->sums && lex_is_word(lx, "over"));
}

// The text up to the end of the expression, tensors by their names of the inner operator.
static bool take_expression(struct writer *w)
{
    struct lexer *lx = &w->r->lx;
    const char *from = w->start = lx->token.start;
    int depth = 0;
    for (; !at_end(w, depth); lex_next(lx)) {
        buf_append(&w->formula, from, (size_t)(lx->token.start - from));
        from = lx->token.start + lx->token.size;
        if (lx->token.kind == TOKEN_NAME ? !use_name(w) : false)
            return false;
        depth += lex_is(lx, '(') - lex_is(lx, ')');
        if (lx->token.kind != TOKEN_NAME)
            from = lx->token.start;
    }
    if (lx->token.kind == TOKEN_BAD)
        return false;
    if (lx->token.start == w->start)
        return lex_fail_expected(lx, "a formula");
    buf_append(&w->formula, from, (size_t)(lx->last_end - from));
    return true;
}

// --- the inner operator

static void write_dtypes(struct writer *w, const struct op_type *type)
{
    for (int i = 0; i < type->n_dtypes; i++)
        buf_printf(&w->out, " %s", dtype_name(type->dtypes[i]));
}

static void write_schema(struct writer *w)
{
    const struct op *op = w->r->op;
    buf_printf(&w->out, "//! op line%d(Tensor%s ", w->in->line, w->sums ? "" : "(a!)");
    write_target(w, &w->out);
    buf_append_str(&w->out, ", Tensor opd_like");
    for (int i = 2; i < w->in->n_inputs; i++) {
        int t = w->in->inputs[i];
        bool optional = t < TENSOR_OUTPUT && op->inputs[t].optional && !w->copies;
        buf_printf(&w->out, ", Tensor%s ", optional ? "?" : "");
        write_name(w, t, &w->out);
    }
    for (int i = 0; i < op->n_attrs; i++) {
        const struct op_attr *a = &op->attrs[i];
        char list[16] = "";
        if (a->list > 0)
            snprintf(list, sizeof list, "[%d]", a->list);
        buf_printf(&w->out, ", %s%s%s %s", op_attr_types[a->type], list, a->optional ? "?" : "",
                   a->name);
    }
    for (int i = 0; i < w->in->n_lets; i++)
        buf_printf(&w->out, ", float %s", w->lets[i]);
    buf_printf(&w->out, ") -> %s\n//! dtypes", w->sums ? "Tensor opd_all" : "()");
    write_dtypes(w, &op->types[TYPE_SCALAR]);
    buf_append_str(&w->out, "\n");
}

static bool has_type(const struct writer *w, int tensor, int type, enum opd_dtype fixed)
{
    if (tensor < TENSOR_TEMP || tensor >= TENSOR_GRAD_OUTPUT)
        return body_tensor(w->r->op, tensor)->type == type;
    const struct temp *temp = &w->r->temps[tensor - TENSOR_TEMP];
    return type < 0 ? temp->type < 0 && temp->dtype == fixed : temp->type == type;
}

// The line of a type: the beginning, and those of the tensors that have it.
static void write_type(struct writer *w, const char *begin, const struct op_type *list, int type,
                       enum opd_dtype fixed)
{
    struct buf line = { 0 };
    for (int i = 0; i < w->in->n_inputs; i++) {
        int t = i == 0 ? w->target : w->in->inputs[i];
        if (i == 1 || !has_type(w, t, type, fixed))
            continue;
        buf_append_str(&line, " ");
        if (i == 0)
            write_target(w, &line);
        else
            write_name(w, t, &line);
    }
    if (line.size > 0) {
        buf_printf(&w->out, "//! type %s", begin);
        if (list)
            write_dtypes(w, list);
        buf_printf(&w->out, " :%s\n", buf_str(&line));
    }
    buf_finish(&line);
}

static void write_types(struct writer *w)
{
    const struct op *op = w->r->op;
    for (int k = 1; k < op->n_types; k++)
        write_type(w, op->types[k].name, &op->types[k], k, OPD_DTYPE_NONE);
    write_type(w, "opd_acc_t float32 float64", NULL, TYPE_ACC, OPD_DTYPE_NONE);
    for (int d = 1; d < OPD_DTYPE_COUNT; d++)
        write_type(w, dtype_name((enum opd_dtype)d), NULL, -1, (enum opd_dtype)d);
    for (int i = 0; i < op->n_attrs; i++) {
        const struct op_attr *a = &op->attrs[i];
        if (a->n_words > 0)
            buf_printf(&w->out, "//! words %s", a->name);
        for (int k = 0; k < a->n_words; k++)
            buf_printf(&w->out, " \"%s\"%s", a->words[k], k == a->n_words - 1 ? "\n" : "");
    }
}

// The file's code, for the functions that the formula may call: without calls it is not looked at
// again for each step.
static void write_code(struct writer *w)
{
    const struct op *op = w->r->op;
    const char *line = op->source, *end = line + strlen(line);
    while (line < end) {
        size_t size = strcspn(line, "\n") + 1;
        if (strncmp(line + strspn(line, " \t"), "//!", 3) != 0)
            buf_append(&w->out, line, size - (line + size > end));
        line += size;
    }
}

// The step's mistake, which the inner operator's text shows at its own place.
static bool fail_at_step(struct writer *w, int column, struct opd_err *err)
{
    struct reader *r = w->r;
    int line = 0, at = 0;
    const char *what = err->msg + strlen(r->op->file);
    if (sscanf(what, ":%d:%d", &line, &at) != 2 || at < column)
        at = column;
    what = strstr(what, ": ");
    r->lx.token.start = w->start + (at - column);
    r->mark.exact = r->column = true;
    lex_fail(&r->lx, "%s", what ? what + 2 : err->msg);
    opd_err_clear(err);
    return false;
}

static bool make_operator(struct writer *w)
{
    struct reader *r = w->r;
    struct opd_err err = { 0 };
    if (r->op->types[TYPE_SCALAR].n_dtypes == 0)
        return lex_fail(&r->lx, "no 'dtypes' line: it says what a '%s' computes in", r->keyword);
    write_schema(w);
    write_types(w);
    struct buf begin = { 0 };
    buf_append_str(&begin, "//! formula ");
    if (w->sums)
        buf_append_str(&begin, "opd_term");
    else
        write_target(w, &begin);
    buf_append_str(&begin, " = ");
    buf_printf(&w->out, "%s%s\n", buf_str(&begin), buf_str(&w->formula));
    if (w->sums)
        buf_append_str(&w->out, "//! formula opd_all = opd_term\n"
                                "//! formula grad_opd_sum = opd_term\n");
    if (w->calls)
        write_code(w);
    w->in->op = op_parse(r->op->file, buf_str(&w->out), w->out.size, &err);
    bool ok = w->in->op || fail_at_step(w, (int)begin.size + 1, &err);
    buf_finish(&begin);
    return ok;
}

// --- the steps

// What the step makes: this section's, or changed in place.
static bool read_target(struct reader *r, int *out)
{
    const struct symbol *s = scope_expect_tensor(&r->scope, &r->lx, "the tensor to be made");
    if (!s)
        return false;
    bool in_place = s->index < TENSOR_OUTPUT && r->op->inputs[s->index].in_place &&
                    !r->section->backward;
    if (in_place ? !check_contiguous(r, s->index) : !section_check_made(r, s->index))
        return false;
    *out = s->index;
    lex_next(&r->lx);
    return true;
}

static struct inner *start(struct reader *r, int target)
{
    struct inner *in = arena_alloc(r->arena, 1, sizeof *in);
    *in = (struct inner){
        .next = r->body->inners, .line = r->lx.line, .target = target, .n_inputs = 2
    };
    r->body->inners = in; // its operator goes with the body
    return in;
}

static bool finish(struct writer *w, bool ok)
{
    ok = ok && make_operator(w);
    buf_finish(&w->formula);
    buf_finish(&w->out);
    return ok;
}

struct inner *inner_copy(struct reader *r, const char *text, int target, int from)
{
    if (!check_contiguous(r, from))
        return NULL;
    struct writer w = { .r = r, .in = start(r, target), .target = target, .copies = true };
    w.in->text = text;
    w.in->inputs[w.in->n_inputs++] = from;
    w.start = r->lx.token.start;
    write_name(&w, from, &w.formula);
    return finish(&w, true) ? w.in : NULL;
}

static bool read_over(struct writer *w)
{
    struct reader *r = w->r;
    struct inner *in = w->in;
    if (!lex_accept_word(&r->lx, "over"))
        return lex_fail_expected(&r->lx, "'over' and dimensions, as in 'sum s = x over 0'");
    if (in->n_inputs == 2)
        return lex_fail(&r->lx, "a sum of no tensor");
    do {
        if (in->n_over == OP_MAX_RANK)
            return lex_fail(&r->lx, "more than %d dimensions", OP_MAX_RANK);
        in->over[in->n_over] = reader_int(r, "over");
        if (!in->over[in->n_over++])
            return false;
    } while (lex_accept(&r->lx, ','));
    return true;
}

// `formula D = EXPR`, `sum D = EXPR over DIMS`, `fill D EXPR`
bool inner_read(struct reader *r)
{
    bool sums = strcmp(r->keyword, "sum") == 0, fills = strcmp(r->keyword, "fill") == 0;
    struct step *step = section_add_step(r, STEP_INNER);
    const char *from = r->lx.token.start;
    if (!step || !read_target(r, &step->tensor) || (!fills && !lex_expect(&r->lx, '=', "'='")))
        return false;
    if (r->lx.token.kind == TOKEN_END)
        return lex_fail_expected(&r->lx, fills ? "a number" : "a formula");
    struct writer w = {
        .r = r, .in = start(r, step->tensor), .target = step->tensor, .sums = sums
    };
    bool ok = take_expression(&w) && (!sums || read_over(&w));
    w.in->text = arena_printf(r->arena, "%s %.*s", r->keyword, (int)lex_span(&r->lx, from), from);
    const struct lexer behind = r->lx;
    if (!finish(&w, ok))
        return false;
    if (fills && w.in->n_inputs + w.in->reads_target > 2)
        return lex_fail(&r->lx, "'fill' with a tensor, expected a number; 'formula' takes tensors");
    r->lx = behind;
    step->inner = w.in;
    r->launch = step;
    r->n_binds = 0;
    return true;
}
