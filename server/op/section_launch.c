#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "op/reader.h"
#include "op/text.h"

// `kernel`, and what stands below it: of how a kernel is launched.

static bool is_directive(const char *text, const char *at)
{
    while (at > text && at[-1] != '\n')
        at--;
    at += strspn(at, " \t");
    return strncmp(at, "//!", 3) == 0;
}

// A name of the kernels' own: of a function or a type.
static bool is_in_code(const struct reader *r, const struct token *t)
{
    const char *end = r->whole + r->whole_size;
    for (const char *at = r->whole; (at = memmem(at, (size_t)(end - at), t->start, t->size));
         at += t->size)
        if ((at == r->whole || !text_is_word_char(at[-1])) &&
            (at + t->size == end || !text_is_word_char(at[t->size])) && !is_directive(r->whole, at))
            return true;
    return false;
}

// Whether the word stands before *at, which is moved to where it begins.
static bool step_back(const char *begin, const char **at, const char *word)
{
    const char *end = *at;
    size_t n = strlen(word);
    while (end > begin && isspace((unsigned char)end[-1]))
        end--;
    bool is = end < *at && (size_t)(end - begin) >= n && memcmp(end - n, word, n) == 0 &&
              (end - n == begin || !text_is_word_char(end[-(ptrdiff_t)n - 1]));
    *at = is ? end - n : *at;
    return is;
}

// The name of an enum of the code's, "MODE" of "enum class MODE": `MODE(1)` is a value of it.
static bool is_enum(const struct reader *r, const struct token *t)
{
    const char *end = r->whole + r->whole_size;
    for (const char *at = r->whole; (at = memmem(at, (size_t)(end - at), t->start, t->size));
         at += t->size) {
        const char *before = at;
        if (!step_back(r->whole, &before, "class"))
            step_back(r->whole, &before, "struct");
        if (step_back(r->whole, &before, "enum") &&
            (at + t->size == end || !text_is_word_char(at[t->size])))
            return true;
    }
    return false;
}

// A template argument that is passed on as it stands: a type word, a type variable, true, false, a
// name of the code's.
static bool is_verbatim(const struct reader *r)
{
    const struct token *t = &r->lx.token;
    if (t->kind != TOKEN_NAME)
        return false;
    const struct symbol *s = scope_find(&r->scope, t->start, t->size);
    if (s)
        return s->kind == SYMBOL_TYPE;
    const struct token next = lex_peek(&r->lx);
    if (lex_is_word(&r->lx, "true") || lex_is_word(&r->lx, "false") ||
        lex_is_word(&r->lx, "const") || cnumber_is_word(t->start, t->size))
        return true;
    bool alone = next.punct == ',' || next.punct == '<' || next.punct == '>';
    return next.kind == TOKEN_PUNCT &&
           (next.punct == PUNCT2(':', ':') || (alone && is_in_code(r, t)) ||
            (next.punct == '(' && is_enum(r, t)));
}

static bool read_template_arg(struct reader *r, struct template_arg *arg)
{
    struct lexer *lx = &r->lx;
    const char *start = lx->token.start;
    *arg = (struct template_arg){ 0 };
    if (!is_verbatim(r)) {
        struct expr_place place = reader_place(r);
        place.angle_closes = true;
        arg->expr = expr_parse_int(lx, &place, "a template argument");
        return arg->expr != NULL;
    }
    for (int depth = 0; lx->token.kind == TOKEN_NAME || lex_is(lx, PUNCT2(':', ':')) ||
                        lex_is(lx, '<') || lex_is(lx, '(') ||
                        (depth > 0 && lx->token.kind < TOKEN_BAD && lx->token.kind != TOKEN_END);) {
        depth += lex_is(lx, '<') + lex_is(lx, '(') - lex_is(lx, '>') - lex_is(lx, ')');
        lex_next(lx);
    }
    while (lex_accept(lx, '*'))
        ;
    arg->text = arena_strndup(r->arena, start, lex_span(lx, start));
    return true;
}

static bool read_template_args(struct reader *r, struct step *step)
{
    struct lexer *lx = &r->lx;
    struct template_arg args[OP_MAX_TEMPLATE_ARGS];
    step->is_template = true;
    while (!lex_is(lx, '>')) {
        if (step->n_template_args > 0 && !lex_expect(lx, ',', "',' or '>'"))
            return false;
        if (step->n_template_args == OP_MAX_TEMPLATE_ARGS)
            return lex_fail(lx, "more than %d template arguments", OP_MAX_TEMPLATE_ARGS);
        if (!read_template_arg(r, &args[step->n_template_args++]))
            return false;
    }
    lex_next(lx);
    step->template_args = arena_copy(r->arena, args, (size_t)step->n_template_args, sizeof *args);
    return true;
}

bool section_read_kernel(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct step *step = section_add_step(r, STEP_LAUNCH);
    if (!step)
        return false;
    r->launch = step;
    r->n_binds = 0;
    const char *start = lx->token.start;
    do {
        if (lx->token.kind != TOKEN_NAME)
            return lex_fail_expected(lx, "the name of a kernel");
        lex_next(lx);
    } while (lex_accept(lx, PUNCT2(':', ':')));
    step->name = arena_strndup(r->arena, start, lex_span(lx, start));
    return !lex_accept(lx, '<') || read_template_args(r, step);
}

static bool fail_grid_and_threads(struct reader *r)
{
    return lex_fail(&r->lx, "'grid' and '%s' for one kernel, expected one of them",
                    r->launch->chunk ? "chunks" : "threads");
}

bool section_read_threads(struct reader *r)
{
    struct step *launch = r->launch;
    if (launch->threads)
        return lex_fail(&r->lx, "a second 'threads' for this kernel");
    if (launch->n_grid > 0 || launch->chunk)
        return fail_grid_and_threads(r);
    launch->threads = reader_int(r, "threads");
    if (!launch->threads || !lex_accept_word(&r->lx, "by"))
        return launch->threads != NULL;
    if (launch->n_block > 0)
        return lex_fail(&r->lx, "'block' and 'by' for one kernel, expected one of them");
    launch->block[launch->n_block++] = reader_int(r, "by");
    return launch->block[0] != NULL;
}

// `chunks LIST ... by N`
bool section_read_chunks(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct step *launch = r->launch;
    int lists[OP_MAX_INPUTS + OP_MAX_OUTPUTS], n = 0;
    if (launch->chunk || launch->threads || launch->n_grid > 0)
        return lex_fail(lx, "'chunks' beside %s, expected one of them for a kernel",
                        launch->chunk     ? "'chunks'"
                        : launch->threads ? "'threads'"
                                          : "'grid'");
    do {
        const struct symbol *s = scope_expect_tensor(&r->scope, lx, "a list of tensors");
        if (!s)
            return false;
        if (!body_is_list(r->op, s->index))
            return lex_fail(lx, "'%s' is a single tensor, expected a Tensor[]", s->name);
        if (n == OP_MAX_INPUTS + OP_MAX_OUTPUTS)
            return lex_fail(lx, "more than %d lists", n);
        lists[n++] = s->index;
        if (s->index < TENSOR_GRAD_INPUT)
            section_note_use(r, s->index);
        lex_next(lx);
    } while (lx->token.kind == TOKEN_NAME && !reader_at_next_word(r) && !lex_is_word(lx, "by"));
    if (!lex_accept_word(lx, "by"))
        return lex_fail_expected(lx, "another list, or 'by' and the elements of a block");
    launch->chunk = reader_int(r, "by");
    launch->lists = arena_copy(r->arena, lists, (size_t)n, sizeof *lists);
    launch->n_lists = n;
    return launch->chunk != NULL;
}

bool section_read_extents(struct reader *r)
{
    bool grid = strcmp(r->keyword, "grid") == 0;
    const struct expr **out = grid ? r->launch->grid : r->launch->block;
    int *n = grid ? &r->launch->n_grid : &r->launch->n_block;
    if (*n > 0)
        return lex_fail(&r->lx, "a second '%s' for this kernel", r->keyword);
    if (grid && (r->launch->threads || r->launch->chunk))
        return fail_grid_and_threads(r);
    do {
        if (*n == 3)
            return lex_fail(&r->lx, "a fourth extent in '%s', expected one to three", r->keyword);
        out[*n] = reader_int(r, r->keyword);
        if (!out[(*n)++])
            return false;
    } while (lex_accept(&r->lx, ','));
    return true;
}

bool section_read_shared(struct reader *r)
{
    if (r->launch->shared)
        return lex_fail(&r->lx, "a second 'shared' for this kernel");
    r->launch->shared = reader_int(r, "shared");
    return r->launch->shared != NULL;
}

bool section_read_condition(struct reader *r)
{
    bool otherwise = strcmp(r->keyword, "otherwise") == 0;
    if (r->launch->when || r->launch->otherwise)
        return lex_fail(&r->lx,
                        "a second condition for this kernel, expected one 'when' or 'otherwise'");
    if (otherwise && !r->chained)
        return lex_fail(&r->lx, "'otherwise', but the step before is no kernel with a 'when'");
    r->launch->otherwise = otherwise;
    if (otherwise)
        return reader_optional_expr(r, &r->launch->when);
    r->launch->when = reader_expr(r);
    return r->launch->when != NULL;
}

// A parameter, or a member of one: p.sizes[1].
static bool read_path(struct lexer *lx, char *out, size_t size)
{
    char name[OP_MAX_NAME];
    size_t n = 0;
    if (!lex_name(lx, "the name of a kernel parameter", name, sizeof name))
        return false;
    n += (size_t)snprintf(out, size, "%s", name);
    while (n < size && (lex_is(lx, '.') || lex_is(lx, '['))) {
        if (lex_accept(lx, '.')) {
            if (!lex_name(lx, "the name of a member", name, sizeof name))
                return false;
            n += (size_t)snprintf(out + n, size - n, ".%s", name);
            continue;
        }
        lex_next(lx);
        if (lx->token.kind != TOKEN_INT)
            return lex_fail_expected(lx, "the number of an element");
        n += (size_t)snprintf(out + n, size - n, "[%" PRId64 "]", lx->token.i);
        lex_next(lx);
        if (!lex_expect(lx, ']', "']'"))
            return false;
    }
    return n < size || lex_fail(lx, "the path of a member is longer than %zu characters", size - 1);
}

static bool check_room(struct reader *r)
{
    return r->n_binds < READER_MAX_BINDS ||
           lex_fail(&r->lx, "more than %d binds for a kernel", READER_MAX_BINDS);
}

static bool read_bound(struct reader *r, struct bind *bind)
{
    struct lexer *lx = &r->lx;
    const struct symbol *s = lx->token.kind == TOKEN_NAME
                                 ? scope_find(&r->scope, lx->token.start, lx->token.size)
                                 : NULL;
    if (s && s->kind == SYMBOL_TENSOR) {
        bind->tensor = s->index;
        lex_next(lx);
    } else {
        bind->expr = reader_expr(r);
    }
    r->n_binds++;
    return bind->expr || bind->tensor >= 0;
}

// `bind p.sizes = H, W`: what was bound is the first of several elements.
static bool read_elements(struct reader *r)
{
    char name[sizeof r->binds->name - 8];
    size_t n = strlen(r->binds[r->n_binds - 1].name);
    if (n >= sizeof name)
        return lex_fail(&r->lx, "the path of a member is longer than %zu characters", sizeof name);
    memcpy(name, r->binds[r->n_binds - 1].name, n + 1);
    for (int i = 0; i == 0 || lex_accept(&r->lx, ','); i++) {
        struct bind *bind = &r->binds[i ? r->n_binds : r->n_binds - 1];
        if (i && !check_room(r))
            return false;
        if (i)
            *bind = (struct bind){ .line = r->lx.line, .tensor = -1 };
        snprintf(bind->name, sizeof bind->name, "%s[%d]", name, i);
        if (i && !read_bound(r, bind))
            return false;
    }
    return true;
}

bool section_read_bind(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (!check_room(r))
        return false;
    struct bind *bind = &r->binds[r->n_binds];
    *bind = (struct bind){ .line = lx->line, .tensor = -1 };
    if (!read_path(lx, bind->name, sizeof bind->name) || !lex_expect(lx, '=', "'='"))
        return false;
    for (int i = 0; i < r->n_binds; i++)
        if (strcmp(r->binds[i].name, bind->name) == 0)
            return lex_fail(lx, "'%s' is bound twice", bind->name);
    return read_bound(r, bind) && (!lex_is(lx, ',') || read_elements(r));
}
