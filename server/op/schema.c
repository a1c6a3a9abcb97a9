#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "op/formula.h"
#include "op/reader.h"
#include "op/text.h"
#include "base/suggest.h"

static bool add_tensor(struct reader *r, const struct op_tensor *t, bool output)
{
    struct op *op = r->op;
    int *n = output ? &op->n_outputs : &op->n_inputs;
    int most = output ? OP_MAX_OUTPUTS : OP_MAX_INPUTS;
    if (*n == most)
        return lex_fail(&r->lx, "more than %d %s", most, output ? "outputs" : "tensors");
    int tensor = (output ? TENSOR_OUTPUT : TENSOR_INPUT) + *n;
    (output ? op->outputs : op->inputs)[(*n)++] = *t;
    return reader_symbol(r, t->name, SYMBOL_TENSOR, tensor);
}

// "Tensor[]"
static bool read_brackets(struct lexer *lx, struct op_tensor *t)
{
    t->list = lex_accept(lx, '[');
    if (t->list && t->alias[0])
        return lex_fail(lx, "a list of views, expected Tensor[] or Tensor(a!)[]");
    return !t->list || lex_expect(lx, ']', "']': a list of tensors, as many as come");
}

// A tensor argument, behind the word "Tensor".
static bool read_tensor(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct op_tensor t = { .type = TYPE_SCALAR };
    if (r->op->n_attrs > 0)
        return lex_fail(lx, "a tensor after an attribute, expected all tensors first");
    if (lex_accept(lx, '(')) {
        if (!lex_name(lx, "a letter, as in Tensor(a!)", t.alias, sizeof t.alias))
            return false;
        t.in_place = lex_accept(lx, '!');
        if (!lex_expect(lx, ')', t.in_place ? "')'" : "')', or '!' as in Tensor(a!)"))
            return false;
        if (t.in_place)
            t.alias[0] = '\0';
    }
    if (!read_brackets(lx, &t))
        return false;
    t.optional = lex_accept(lx, '?');
    if (!lex_name(lx, "the name of the tensor", t.name, sizeof t.name))
        return false;
    if (lex_accept(lx, '=')) {
        if (!t.optional)
            return lex_fail(lx,
                            "a default for %s, which is no optional tensor: write Tensor? %s=None",
                            t.name, t.name);
        if (!lex_accept_word(lx, "None"))
            return lex_fail_expected(lx, "None");
    }
    return add_tensor(r, &t, false);
}

// What stands for one value in a default or an example; numbers as both int and float.
struct literal {
    enum { LITERAL_NONE, LITERAL_BOOL, LITERAL_INT, LITERAL_FLOAT, LITERAL_WORD } kind;
    int64_t i;
    double f;
    struct token word;
};

static bool read_number(struct lexer *lx, struct literal *out)
{
    bool minus = lex_accept(lx, '-');
    if (lx->token.kind == TOKEN_INT) {
        int64_t i = minus ? -lx->token.i : lx->token.i;
        *out = (struct literal){ .kind = LITERAL_INT, .i = i, .f = (double)i };
    } else if (lx->token.kind == TOKEN_FLOAT) {
        *out = (struct literal){ .kind = LITERAL_FLOAT, .f = minus ? -lx->token.f : lx->token.f };
    } else {
        return lex_fail_expected(lx, "a value: a number, True, False, None, \"word\" or [1, 2]");
    }
    lex_next(lx);
    return true;
}

static bool read_literal(struct lexer *lx, struct literal *out)
{
    *out = (struct literal){ .kind = LITERAL_WORD, .word = lx->token };
    if (lex_is_word(lx, "True") || lex_is_word(lx, "False"))
        *out = (struct literal){ .kind = LITERAL_BOOL, .i = lex_is_word(lx, "True") };
    else if (lex_is_word(lx, "None"))
        *out = (struct literal){ .kind = LITERAL_NONE };
    else if (lx->token.kind != TOKEN_STRING && lx->token.kind != TOKEN_NAME)
        return read_number(lx, out);
    lex_next(lx);
    return true;
}

static bool read_list(struct lexer *lx, struct literal *values, int *n)
{
    *n = 0;
    do {
        if (*n == OP_MAX_LIST)
            return lex_fail(lx, "a list of more than %d values", OP_MAX_LIST);
        if (!read_number(lx, &values[(*n)++]))
            return false;
    } while (lex_accept(lx, ','));
    return lex_expect(lx, ']', "']' or ','");
}

static bool set_numbers(const struct op *op, int attr, const struct literal *values, int n,
                        struct op_value *v, struct opd_err *err)
{
    int64_t i[OP_MAX_LIST];
    double f[OP_MAX_LIST];
    bool all_int = true;
    for (int k = 0; k < n; k++) {
        i[k] = values[k].i;
        f[k] = values[k].f;
        all_int = all_int && values[k].kind == LITERAL_INT;
    }
    return all_int ? op_attr_set_ints(op, attr, i, n, v, err)
                   : op_attr_set_floats(op, attr, f, n, v, err);
}

bool schema_read_value(struct reader *r, int attr, struct op_value *v)
{
    struct lexer *lx = &r->lx;
    const struct op *op = r->op;
    struct literal values[OP_MAX_LIST];
    int n = 1;
    bool is_list = lex_accept(lx, '[');
    if (is_list ? !read_list(lx, values, &n) : !read_literal(lx, &values[0]))
        return false;
    if (lx->token.kind == TOKEN_BAD)
        return false;
    bool ok;
    if (values[0].kind == LITERAL_NONE)
        ok = op_attr_set_none(op, attr, v, lx->err);
    else if (values[0].kind == LITERAL_BOOL)
        ok = op_attr_set_bool(op, attr, values[0].i != 0, v, lx->err);
    else if (values[0].kind == LITERAL_WORD)
        ok = op_attr_set_str(op, attr, values[0].word.start, values[0].word.size, v, lx->err);
    else
        ok = set_numbers(op, attr, values, n, v, lx->err);
    return ok || opd_err_prefix(lx->err, "%s:%d", lx->file, lx->line);
}

// The words of a str attribute come after the schema: its default is kept till then.
static bool read_default(struct reader *r, struct op_attr *a, int attr)
{
    struct lexer *lx = &r->lx;
    if (a->type != OP_ATTR_STR || lex_is_word(lx, "None"))
        return schema_read_value(r, attr, &a->value);
    if (lx->token.kind != TOKEN_STRING)
        return lex_fail_expected(lx, "a word in quotes");
    r->str_defaults[attr] = arena_strndup(r->arena, lx->token.start, lx->token.size);
    lex_next(lx);
    return true;
}

static bool read_attr_type(struct reader *r, const struct token *word, struct op_attr *a)
{
    struct lexer *lx = &r->lx;
    struct suggest near;
    int t = 0;
    suggest_init(&near, word->start, word->size);
    suggest_add(&near, "Tensor");
    for (; t < 4 && !text_is(word->start, word->size, op_attr_types[t]); t++)
        suggest_add(&near, op_attr_types[t]);
    if (t == 4)
        return lex_fail(lx,
                        "'%.*s' is no argument type, expected Tensor, int, float, bool or str%s",
                        (int)word->size, word->start, suggest_text(&near));
    a->type = (enum op_attr_type)t;
    if (lex_accept(lx, '[')) {
        if (a->type != OP_ATTR_INT && a->type != OP_ATTR_FLOAT)
            return lex_fail(lx, "a list of %s, expected one of int or float", op_attr_types[t]);
        if (lx->token.kind != TOKEN_INT || lx->token.i < 1 || lx->token.i > OP_MAX_LIST)
            return lex_fail(lx, "a list needs its length, 1 to %d: %s[2]", OP_MAX_LIST,
                            op_attr_types[t]);
        a->list = (int)lx->token.i;
        lex_next(lx);
        if (!lex_expect(lx, ']', "']'"))
            return false;
    }
    a->optional = lex_accept(lx, '?');
    return true;
}

static bool read_attr(struct reader *r, const struct token *word)
{
    struct lexer *lx = &r->lx;
    int attr = r->op->n_attrs;
    if (attr == OP_MAX_ATTRS)
        return lex_fail(lx, "more than %d attributes", OP_MAX_ATTRS);
    struct op_attr *a = &r->op->attrs[attr];
    if (!read_attr_type(r, word, a) ||
        !lex_name(lx, "the name of the attribute", a->name, sizeof a->name))
        return false;
    r->op->n_attrs++;
    r->str_lines[attr] = lx->line;
    a->required = !lex_accept(lx, '=');
    if (!a->required && !read_default(r, a, attr))
        return false;
    return reader_symbol(r, a->name, SYMBOL_ATTR, attr);
}

static bool read_arguments(struct reader *r)
{
    struct lexer *lx = &r->lx;
    bool keyword_only = false;
    if (lex_accept(lx, ')'))
        return true;
    do {
        if (lex_accept(lx, '*')) {
            if (keyword_only)
                return lex_fail(lx, "a second '*'");
            keyword_only = true;
            continue;
        }
        const struct token word = lx->token;
        if (word.kind != TOKEN_NAME)
            return lex_fail_expected(lx, "an argument: TYPE NAME or TYPE NAME=DEFAULT");
        bool tensor = lex_is_word(lx, "Tensor");
        lex_next(lx);
        if (tensor ? !read_tensor(r) : !read_attr(r, &word))
            return false;
    } while (lex_accept(lx, ','));
    return lex_expect(lx, ')', "',' or ')'");
}

static bool read_return(struct reader *r, bool may_be_unnamed)
{
    struct lexer *lx = &r->lx;
    struct op_tensor t = { .name = "output", .type = TYPE_SCALAR };
    if (!lex_accept_word(lx, "Tensor"))
        return lex_fail_expected(lx, "Tensor");
    if (lex_accept(lx, '(')) {
        if (!lex_name(lx, "a letter, as in Tensor(a)", t.alias, sizeof t.alias))
            return false;
        if (lex_is(lx, '!'))
            return lex_fail(lx, "an alias as result: an operator in place ends with '-> ()'");
        if (!lex_expect(lx, ')', "')'"))
            return false;
    }
    if (lex_is(lx, '?'))
        return lex_fail(lx, "an optional result, expected one that is always made");
    if (!read_brackets(lx, &t))
        return false;
    bool unnamed = may_be_unnamed && lx->token.kind == TOKEN_END;
    if (!unnamed && !lex_name(lx, "the name of the output", t.name, sizeof t.name))
        return false;
    return add_tensor(r, &t, true);
}

static bool read_returns(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (!lex_accept(lx, '('))
        return read_return(r, true);
    if (lex_accept(lx, ')'))
        return true;
    do {
        if (!read_return(r, false))
            return false;
    } while (lex_accept(lx, ','));
    return lex_expect(lx, ')', "',' or ')'");
}

// The names of gradients: grad_x is one as soon as x is.
static bool add_gradients(struct reader *r)
{
    struct op *op = r->op;
    for (int i = 0; i < op->n_inputs + op->n_outputs; i++) {
        bool output = i >= op->n_inputs;
        int k = output ? i - op->n_inputs : i;
        const char *of = output ? op->outputs[k].name : op->inputs[k].name;
        if (strlen(of) + 5 >= OP_MAX_NAME)
            return lex_fail(&r->lx, "the name '%s' is too long for grad_%s", of, of);
        const char *name = arena_printf(r->arena, "grad_%s", of);
        r->body->grad_names[output ? OP_MAX_INPUTS + k : k] = name;
        if (!reader_symbol(r, name, SYMBOL_TENSOR,
                           (output ? TENSOR_GRAD_OUTPUT : TENSOR_GRAD_INPUT) + k))
            return false;
    }
    return true;
}

// The schema as one line with single blanks.
static char *fold(const char *text, size_t size)
{
    struct buf out = { 0 };
    for (size_t i = 0; i < size; i++) {
        bool blank = isspace((unsigned char)text[i]);
        if (blank && (out.size == 0 || out.bytes[out.size - 1] == ' '))
            continue;
        buf_append(&out, blank ? " " : &text[i], 1);
    }
    if (out.size > 0 && out.bytes[out.size - 1] == ' ')
        out.size--;
    char *s = mem_strdup(buf_str(&out));
    buf_finish(&out);
    return s;
}

// A derived operator's name has dots, and is what stands for its file (op_derive()).
static bool read_op_name(struct reader *r)
{
    struct lexer *lx = &r->lx;
    const char *start = lx->token.start;
    size_t size = strlen(r->op->file);
    if (strchr(r->op->file, '.') && (size_t)(lx->end - start) > size && start[size] == '(' &&
        strncmp(start, r->op->file, size) == 0 && size < OP_MAX_NAME) {
        while (lx->token.start < start + size)
            lex_next(lx);
        strcpy(r->op->name, r->op->file);
        return true;
    }
    return lex_name(lx, "the name of the operator", r->op->name, sizeof r->op->name);
}

static bool fail_list(struct reader *r, const char *what)
{
    r->lx.line = r->op_line;
    r->column = false;
    return lex_fail(&r->lx, "%s beside lists of tensors, which have none yet", what);
}

bool schema_check_lists(struct reader *r)
{
    static const char *const kinds[] = { [STEP_MATMUL] = "'matmul'",
                                         [STEP_REPEAT] = "'repeat'",
                                         [STEP_INNER] =
                                             "'formula', 'sum' and 'fill' in a section" };
    const struct op *op = r->op;
    if (!op->lists)
        return true;
    for (int i = 0; i < r->body->n_sections; i++)
        for (int k = 0; k < r->sections[i].n_steps; k++)
            if (kinds[r->sections[i].steps[k].kind])
                return fail_list(r, kinds[r->sections[i].steps[k].kind]);
    if (r->formulas && r->formulas->n_overs > 0)
        return fail_list(r, "sums over rows");
    for (int i = 0; i < r->body->n_temps; i++)
        if (r->temps[i].saved)
            return fail_list(r, "'saved'");
    if (r->has_view || r->n_batches > 0 || op->n_linear > 0)
        return fail_list(r, r->has_view ? "'view'" : op->n_linear ? "'linear'" : "'batch'");
    for (int i = 0; r->formulas && i < op->n_inputs + op->n_outputs; i++) {
        const struct op_tensor *t = i < op->n_inputs ? &op->inputs[i]
                                                     : &op->outputs[i - op->n_inputs];
        r->lx.line = r->op_line;
        if (!t->list && (t->in_place || i >= op->n_inputs))
            return lex_fail(&r->lx,
                            "formulas of lists make '%s', which is a single tensor; "
                            "expected a list",
                            t->name);
    }
    return true;
}

bool schema_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    const char *start = lx->token.start;
    r->op_line = lx->line;
    if (!read_op_name(r) || !lex_expect(lx, '(', "'(' after the operator's name") ||
        !read_arguments(r) || !lex_expect(lx, PUNCT2('-', '>'), "'->'") || !read_returns(r) ||
        !lex_expect_end(lx))
        return false;
    if (r->op->n_inputs + r->op->n_outputs == 0)
        return lex_fail(lx, "an operator without tensors");
    r->op->schema = fold(start, (size_t)(lx->end - start));
    for (int i = 0; i < r->op->n_inputs; i++)
        r->op->lists = r->op->lists || r->op->inputs[i].list;
    for (int i = 0; i < r->op->n_outputs; i++)
        if (r->op->outputs[i].list && !r->op->lists)
            return lex_fail(lx,
                            "'%s' is a list, but no input is; expected one that it is as long "
                            "as",
                            r->op->outputs[i].name);
    return add_gradients(r);
}
