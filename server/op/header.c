#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "op/report.h"
#include "op/derive.h"
#include "base/hash.h"
#include "op/describe.h"
#include "op/lines.h"
#include "op/reader.h"
#include "op/show.h"
#include "base/suggest.h"
#include "op/text.h"

static bool read_op(struct reader *r)
{
    if (r->op_line)
        return lex_fail(&r->lx, "a second 'op', expected one operator in a file");
    return schema_read(r);
}

static bool read_doc(struct reader *r)
{
    struct lexer *lx = &r->lx;
    const char *p = lx->last_end; // the words are no tokens
    while (p < lx->end && isspace((unsigned char)*p))
        p++;
    if (r->doc.size > 0)
        buf_append_str(&r->doc, "\n");
    buf_append(&r->doc, p, (size_t)(lx->end - p));
    return true;
}

static bool find_attr(struct reader *r, int *out)
{
    char name[OP_MAX_NAME];
    if (!lex_name(&r->lx, "the name of a str attribute", name, sizeof name))
        return false;
    *out = op_attr_index(r->op, name);
    if (*out < 0)
        return lex_fail(&r->lx, "'%s' is no attribute", name);
    return r->op->attrs[*out].type == OP_ATTR_STR ||
           lex_fail(&r->lx, "'%s' is no str attribute, only those have words", name);
}

static bool set_str_default(struct reader *r, int attr)
{
    const char *word = r->str_defaults[attr];
    if (!word)
        return true;
    return op_attr_set_str(r->op, attr, word, strlen(word), &r->op->attrs[attr].value, r->lx.err) ||
           opd_err_prefix(r->lx.err, "%s:%d: the default", r->lx.file, r->lx.line);
}

static bool read_words(struct reader *r)
{
    enum { MAX_WORDS = 64 };
    struct lexer *lx = &r->lx;
    const char *words[MAX_WORDS];
    int attr, n = 0;
    if (!find_attr(r, &attr))
        return false;
    struct op_attr *a = &r->op->attrs[attr];
    if (a->n_words > 0)
        return lex_fail(lx, "a second 'words' for %s", a->name);
    while (lx->token.kind == TOKEN_NAME || lx->token.kind == TOKEN_STRING) {
        if (n == MAX_WORDS || lx->token.size >= OP_MAX_NAME)
            return lex_fail(lx, "more than %d words, or one of more than %d characters", MAX_WORDS,
                            OP_MAX_NAME - 1);
        words[n] = arena_strndup(r->arena, lx->token.start, lx->token.size);
        for (int i = 0; i < n; i++)
            if (strcmp(words[i], words[n]) == 0)
                return lex_fail(lx, "the word %s stands twice", words[n]);
        n++;
        lex_next(lx);
    }
    if (n == 0)
        return lex_fail_expected(lx, "the words that the attribute may be");
    a->words = arena_copy(r->arena, words, (size_t)n, sizeof *words);
    a->n_words = n;
    return lex_expect_end(lx) && set_str_default(r, attr);
}

static bool read_deadline(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (r->op->deadline > 0)
        return lex_fail(lx, "a second 'deadline'");
    bool is_int = lx->token.kind == TOKEN_INT;
    double seconds = is_int ? (double)lx->token.i : lx->token.f;
    if ((!is_int && lx->token.kind != TOKEN_FLOAT) || !(seconds > 0))
        return lex_fail_expected(lx, "seconds above 0");
    r->op->deadline = seconds;
    lex_next(lx);
    return lex_expect_end(lx);
}

static const char *read_autocast_rule(struct lexer *lx)
{
    static const char *const rules[] = { "lower", "float32", "widest" };
    enum { N_RULES = sizeof rules / sizeof *rules };
    for (int i = 0; i < N_RULES; i++)
        if (lex_accept_word(lx, rules[i]))
            return rules[i];
    if (lx->token.kind != TOKEN_NAME)
        return lex_fail_expected(lx, "lower, float32 or widest"), NULL;
    struct suggest near;
    suggest_init(&near, lx->token.start, lx->token.size);
    for (int i = 0; i < N_RULES; i++)
        suggest_add(&near, rules[i]);
    lex_fail(lx, "'%.*s' is no rule of autocast, expected lower, float32 or widest%s",
             (int)lx->token.size, lx->token.start, suggest_text(&near));
    return NULL;
}

const char *const op_autocast_devices[2] = { "cpu", "cuda" };

// `autocast RULE`, or `autocast RULE cuda`: of tensors on such a device alone.
static bool read_autocast(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct op *op = r->op;
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i].in_place || op->inputs[i].alias[0])
            return lex_fail(lx, "'autocast', but '%s' shares its memory, which a cast does not",
                            op->inputs[i].name);
    const char *rule = read_autocast_rule(lx);
    bool cpu = lex_accept_word(lx, "cpu"), cuda = !cpu && lex_accept_word(lx, "cuda");
    for (int i = 0; i < 2; i++) {
        if (i ? cpu : cuda)
            continue;
        if (op->autocast[i])
            return lex_fail(lx, "a second 'autocast' for %s", op_autocast_devices[i]);
        op->autocast[i] = rule;
    }
    return rule && lex_expect_end(lx);
}

enum place { ANYWHERE, TOP, SECTION, STEP, LAUNCH, MATMUL };

// The whole header language. To add a directive, add a row and its reader.
static const struct directive {
    const char *keyword;
    bool (*read)(struct reader *r);
    enum place place;
} directives[] = {
    { "op", read_op, TOP },
    { "doc", read_doc, TOP },
    { "dtypes", types_read_scalar, TOP },
    { "type", types_read, TOP },
    { "words", read_words, TOP },
    { "shape", shape_read_line, TOP },
    { "let", let_read, TOP },
    { "again", again_read, TOP },
    { "require", require_read, TOP },
    { "check", report_read, TOP },
    { "saved", temps_read, TOP },
    { "scratch", temps_read, TOP },
    { "formula", formula_read, ANYWHERE },
    { "sum", inner_read, SECTION },
    { "fill", inner_read, SECTION },
    { "empty", temps_read_empty, TOP },
    { "deadline", read_deadline, TOP },
    { "autocast", read_autocast, TOP },
    { "channels_last", layout_read_channels_last, TOP },
    { "strided", layout_read_strided, TOP },
    { "linear", batch_read_linear, TOP },
    { "batch", batch_read, TOP },
    { "example", example_read, TOP },
    { "view", view_read, ANYWHERE },
    { "forward", section_read_forward, ANYWHERE },
    { "backward", section_read_backward, ANYWHERE },
    { "kernel", section_read_kernel, SECTION },
    { "zero", section_read_zero, SECTION },
    { "matmul", matmul_read, SECTION },
    { "repeat", repeat_read, SECTION },
    { "end", repeat_read_end, SECTION },
    { "threads", section_read_threads, LAUNCH },
    { "chunks", section_read_chunks, LAUNCH },
    { "grid", section_read_extents, LAUNCH },
    { "block", section_read_extents, LAUNCH },
    { "shared", section_read_shared, LAUNCH },
    { "when", section_read_condition, STEP },
    { "otherwise", section_read_condition, STEP },
    { "bind", section_read_bind, LAUNCH },
    { "as", again_read_as, LAUNCH },
    { "tf32", matmul_read_tf32, MATMUL },
};

static bool check_place(struct reader *r, const struct directive *d)
{
    if (!r->op_line && d->read != read_op && d->read != read_doc)
        return lex_fail(&r->lx, "'%s' before 'op', expected the 'op' line first", d->keyword);
    if (!formula_check_alone(r))
        return false;
    if (d->place == TOP && r->section)
        return lex_fail(&r->lx, "'%s' inside a section, expected before 'forward'", d->keyword);
    if (d->place == SECTION && !r->section)
        return lex_fail(&r->lx, "'%s' outside a section, expected after 'forward' or 'backward'",
                        d->keyword);
    if (d->place == STEP && !r->launch)
        return lex_fail(&r->lx,
                        "'%s' without its kernel, expected below a 'kernel' or 'matmul' line",
                        d->keyword);
    if (d->place == LAUNCH && !(r->launch && r->launch->kind == STEP_LAUNCH))
        return lex_fail(&r->lx, "'%s' without its kernel, expected below a 'kernel' line",
                        d->keyword);
    if (d->place == MATMUL && !(r->launch && r->launch->kind == STEP_MATMUL))
        return lex_fail(&r->lx, "'%s' without its matmul, expected below a 'matmul' line",
                        d->keyword);
    return true;
}

// The row of the word that the lexer stands at.
static const struct directive *find_directive(struct reader *r)
{
    struct suggest near;
    if (r->lx.token.kind != TOKEN_NAME) {
        lex_fail_expected(&r->lx, "a directive");
        return NULL;
    }
    for (size_t i = 0; i < sizeof directives / sizeof *directives; i++)
        if (lex_is_word(&r->lx, directives[i].keyword))
            return &directives[i];
    suggest_init(&near, r->lx.token.start, r->lx.token.size);
    for (size_t i = 0; i < sizeof directives / sizeof *directives; i++)
        suggest_add(&near, directives[i].keyword);
    lex_fail(&r->lx, "unknown directive '%.*s'%s", (int)r->lx.token.size, r->lx.token.start,
             suggest_text(&near));
    return NULL;
}

static void list_launch_words(struct reader *r)
{
    for (size_t i = 0; i < sizeof directives / sizeof *directives; i++)
        if (directives[i].place >= STEP)
            r->launch_words[r->n_launch_words++] = directives[i].keyword;
}

static const char *find_semicolon(const char *from, const char *end)
{
    for (char quote = 0; from < end && (quote || *from != ';'); from++)
        if (quote ? *from == quote : *from == '"' || *from == '\'')
            quote = quote ? 0 : *from;
    return from;
}

// `shape x [N]; y [M]`: each for a reader that knows of one, whose text ends there.
static bool read_several(struct reader *r, const struct directive *d)
{
    struct lexer *lx = &r->lx;
    for (const char *end = lx->end;; lx->p = lx->end + 1) {
        lx->end = find_semicolon(lx->p, end);
        lex_next(lx);
        if (!d->read(r) || !lex_expect_end(lx))
            return false;
        if (lx->end == end)
            return true;
    }
}

// What belongs to a kernel or a product may stand on its line, behind it.
static bool read_directive(struct reader *r, const struct line *line, struct opd_err *err)
{
    lex_init(&r->lx, r->op->file, line->number, line->text, line->size, err);
    r->lx.mark = &r->mark;
    r->line = line;
    r->column = false;
    do {
        const struct directive *d = find_directive(r);
        if (!d)
            return false;
        r->keyword = d->keyword;
        if (!check_place(r, d))
            return false;
        r->lx.last_end = r->lx.p;
        if (d->read == read_doc)
            return read_doc(r);
        if (d->place == TOP)
            return read_several(r, d);
        lex_next(&r->lx);
        if (!d->read(r))
            return false;
    } while (r->launch && reader_at_launch_word(r));
    return lex_expect_end(&r->lx);
}

static bool fail_header(const struct reader *r, int line, struct opd_err *err, const char *what)
{
    return op_fail(err, "%s:%d: %s", r->op->file, line, what);
}

static bool check_tensors(const struct reader *r, struct opd_err *err)
{
    const struct op *op = r->op;
    bool known[OP_MAX_TYPES] = { false };
    for (int i = 0; i < op->n_types; i++)
        known[i] = i != TYPE_SCALAR && op->types[i].n_dtypes == 1;
    for (int i = 0; i < op->n_inputs; i++)
        known[op->inputs[i].type] = known[op->inputs[i].type] || !op->inputs[i].optional;
    for (int i = 0; i < op->n_inputs + op->n_outputs; i++) {
        bool output = i >= op->n_inputs;
        int tensor = output ? TENSOR_OUTPUT + i - op->n_inputs : i;
        const struct op_tensor *t = body_tensor(op, tensor);
        if (t->type == TYPE_SCALAR && op->types[TYPE_SCALAR].n_dtypes == 0)
            return op_fail(err, "%s:%d: no 'dtypes' line, but '%s' is of scalar_t", op->file,
                           r->op_line, t->name);
        if (!r->formulas && !r->scope.shaped[tensor])
            return op_fail(err, "%s:%d: no 'shape' line for '%s'", op->file, r->op_line, t->name);
        if (output && !known[t->type])
            return op_fail(err,
                           "%s:%d: the dtype of output '%s' is not known: no required input "
                           "has its type; give it one by a 'type' line",
                           op->file, r->op_line, t->name);
    }
    return true;
}

static bool check_words(const struct reader *r, struct opd_err *err)
{
    for (int i = 0; i < r->op->n_attrs; i++) {
        const struct op_attr *a = &r->op->attrs[i];
        if (a->type == OP_ATTR_STR && a->n_words == 0)
            return op_fail(err, "%s:%d: no 'words' line for the str attribute '%s'", r->op->file,
                           r->str_lines[i], a->name);
    }
    return true;
}

// An attribute that nothing reads is misspelt, or forgotten.
static void warn_attrs(struct reader *r)
{
    for (int i = 0; i < r->op->n_attrs; i++)
        if (!r->scope.attr_used[i])
            reader_warn(r, r->op_line,
                        "nothing reads the attribute '%s': no kernel, formula, shape or condition",
                        r->op->attrs[i].name);
}

// Of an output that nothing flows back from, where something does from another.
static void warn_gradients(struct reader *r)
{
    for (int i = 0; i < r->op->n_outputs; i++) {
        const struct op_type *type = &r->op->types[r->op->outputs[i].type];
        if (r->grads_read && !(r->grads_read >> i & 1) && dtype_is_float(type->dtypes[0]))
            reader_warn(r, r->op_line, "nothing reads %s: the gradient of %s counts for nothing",
                        body_tensor_name(r->op, TENSOR_GRAD_OUTPUT + i), r->op->outputs[i].name);
    }
}

static bool finish(struct reader *r, struct opd_err *err)
{
    int first = text_first_line(r->op->source, r->op->source_size);
    r->column = false;
    if (!r->op_line)
        return fail_header(r, first == 1 ? 1 : first + 1, err,
                           "no '//! op' line before the first line of code, expected "
                           "'//! op NAME(Tensor x, ...) -> Tensor y'");
    if (!r->forward && !r->formulas && !r->has_view)
        return fail_header(r, r->op_line, err, "no 'forward' section");
    if ((r->formulas && !formula_finish(r, err)) || !section_end(r) || !section_check_devices(r) ||
        !schema_check_lists(r) || !view_end(r) || !layout_end(r) || !batch_end(r) ||
        !report_end(r) || !check_tensors(r, err) || !check_words(r, err))
        return false;
    struct op_body *body = r->body;
    body->rules = arena_copy(r->arena, r->rules, (size_t)body->n_rules, sizeof *r->rules);
    body->sections = arena_copy(r->arena, r->sections, (size_t)body->n_sections,
                                sizeof *r->sections);
    body->checks = arena_copy(r->arena, r->checks, (size_t)body->n_checks, sizeof *r->checks);
    for (int i = body->n_temps; i < OP_MAX_TEMPS; i++)
        strcpy(r->temps[i].name, "sums"); // plan_inner.c takes those that are left
    body->temps = arena_copy(r->arena, r->temps, OP_MAX_TEMPS, sizeof *r->temps);
    body->examples = arena_copy(r->arena, r->examples.bytes, (size_t)body->n_examples,
                                sizeof *body->examples);
    for (int i = 0; i < body->n_sections; i++)
        r->op->has_backward = r->op->has_backward || body->sections[i].backward;
    for (int i = 0; r->has_view && i < r->op->n_inputs; i++)
        r->op->has_backward = r->op->has_backward || r->op->inputs[i].differentiable;
    for (int i = 0; i < body->n_temps; i++) {
        if (!body->temps[i].saved)
            continue;
        struct op_saved *saved = &r->op->saved[r->op->n_saved++];
        strcpy(saved->name, body->temps[i].name);
        saved->temp = i;
    }
    describe_rules(r);
    warn_attrs(r);
    warn_gradients(r);
    if (r->formulas) {
        derive_note_uses(r->op);
        derive_check(r);
    }
    r->op->doc = mem_strdup(buf_str(&r->doc));
    r->op->warnings = mem_strdup(buf_str(&r->warnings));
    return example_check_all(r);
}

// What has been found in the file's text with its includes gets the file's own lines.
static void place_lines(struct reader *r)
{
    int n, *lines = text_own_lines(r->op->file, r->whole, r->whole_size, &n);
    int first = text_first_line(r->whole, r->whole_size);
#define PLACE(line) ((line) = (line) >= first && (line)-first < n ? lines[(line)-first] : 0)
    for (int i = 0; i < r->n_signatures; i++) {
        struct signature *sig = &r->signatures[i];
        PLACE(sig->line);
        for (int p = 0; p < sig->n_params; p++)
            PLACE(sig->params[p].line);
    }
    for (int i = 0; i < r->n_structs; i++) {
        struct struct_definition *def = &r->structs[i];
        PLACE(def->line);
        PLACE(def->problem_line);
        for (int m = 0; m < def->n_members; m++)
            PLACE(def->members[m].param.line);
    }
#undef PLACE
    free(lines);
}

static bool read_header(struct reader *r, const char *text, size_t size, struct opd_err *err)
{
    struct op *op = r->op;
    struct line *lines;
    int n;
    if (!lines_split(op->file, text, size, r->arena, &lines, &n, err) ||
        !signature_scan(op->file, r->whole, r->whole_size, r->arena, &r->signatures,
                        &r->n_signatures, err))
        return false;
    struct_scan(r->whole, r->whole_size, r->arena, &r->structs, &r->n_structs);
    if (r->whole != text)
        place_lines(r);
    for (int i = 0; i < n; i++)
        if (!read_directive(r, &lines[i], err))
            return false;
    return finish(r, err);
}

static void show(const struct reader *r, const char *text, size_t size, struct opd_err *err)
{
    struct show_hint hint = { .word = r->mark.word, .column = r->column };
    // A launch is checked when its directives have been read, under its own line.
    if (r->mark.at && r->mark.line == r->line->number) {
        hint.at = line_place(r->line, r->mark.at);
        hint.exact = r->mark.exact;
    }
    show_mistake(err, r->op->file, text, size, &hint);
}

struct op *op_parse(const char *file, const char *text, size_t size, struct opd_err *err)
{
    return op_parse_whole(file, text, size, NULL, err);
}

struct op *op_parse_whole(const char *file, const char *text, size_t size, const char *whole,
                          struct opd_err *err)
{
    struct op *op = mem_zalloc(1, sizeof *op);
    struct reader *r = mem_zalloc(1, sizeof *r);
    struct arena arena = { 0 };
    op->body = arena_alloc(&arena, 1, sizeof *op->body);
    op->body->arena = arena;
    op->refs = 1;
    op->file = mem_strdup(file);
    op->source = mem_strndup(text, size <= OP_MAX_TEXT ? size : 0);
    op->source_size = size;
    op->hash = hash_bytes(text, size, 0);
    op->n_types = 1;
    strcpy(op->types[TYPE_SCALAR].name, "scalar_t");
    r->op = op;
    r->body = op->body;
    r->arena = &op->body->arena;
    r->body->temps = r->temps; // for names in messages, until they are kept
    r->whole = whole ? whole : text;
    r->whole_size = whole ? strlen(whole) : size;
    r->lx.file = op->file;
    r->lx.err = err;
    scope_init(&r->scope, op);
    list_launch_words(r);
    bool ok = read_header(r, text, size, err);
    if (!ok)
        show(r, text, size, err);
    buf_finish(&r->doc);
    buf_finish(&r->warnings);
    buf_finish(&r->examples);
    free(r);
    if (ok)
        return op;
    op_unref(op);
    return NULL;
}
