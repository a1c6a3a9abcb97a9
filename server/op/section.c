#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "op/reader.h"
#include "op/text.h"

bool section_end_launch(struct reader *r)
{
    struct step *launch = r->launch;
    r->launch = NULL;
    if (!launch)
        return true;
    r->lx.line = launch->line;
    r->chained = launch->when != NULL;
    return launch->kind != STEP_LAUNCH || bind_launch(r, launch);
}

// Is the tensor made in this section: written by one of its steps, or zeroed?
static bool is_made(const struct section *section, int tensor)
{
    for (int i = 0; i < section->n_steps; i++) {
        const struct step *step = &section->steps[i];
        if ((step->kind == STEP_ZERO || step->kind == STEP_INNER) && step->tensor == tensor)
            return true;
        if (step->kind == STEP_MATMUL && step->matmul->d.tensor == tensor)
            return true;
        for (int l = 0; l < step->n_lists; l++)
            if (step->lists[l] == tensor)
                return true;
        for (int a = 0; a < step->n_args; a++) {
            const struct argument *arg = &step->args[a];
            if (arg->param->kind != PARAM_VALUE && arg->tensor == tensor && arg->param->writes)
                return true;
        }
    }
    return false;
}

static bool check_made(struct reader *r, const struct section *section, int tensor)
{
    if (is_made(section, tensor))
        return true;
    r->lx.line = section->line;
    return lex_fail(&r->lx,
                    "no kernel of this section writes %s: none has it as a parameter that is "
                    "a pointer to non-const",
                    body_tensor_name(r->op, tensor));
}

static bool check_section(struct reader *r, const struct section *section)
{
    const struct op *op = r->op;
    r->lx.line = section->line;
    if (section->n_steps == 0)
        return lex_fail(&r->lx, "a section without kernels");
    for (int i = 0; section->backward && i < op->n_inputs; i++)
        if ((section->grads >> i & 1) && !check_made(r, section, TENSOR_GRAD_INPUT + i))
            return false;
    for (int i = 0; !section->backward && i < op->n_outputs; i++)
        if (!check_made(r, section, TENSOR_OUTPUT + i))
            return false;
    for (int i = 0; !section->backward && i < r->body->n_temps; i++)
        if (r->temps[i].saved && !check_made(r, section, TENSOR_TEMP + i))
            return false;
    return true;
}

// A gradient that is the same whatever comes is most likely a mistake; zero is none.
static void warn_section(struct reader *r, const struct section *section)
{
    bool makes = false;
    for (int i = 0; i < section->n_steps; i++)
        makes = makes || section->steps[i].kind == STEP_LAUNCH ||
                section->steps[i].kind == STEP_MATMUL || section->steps[i].kind == STEP_INNER;
    if (!section->backward || section->reads || !makes || r->op->n_outputs == 0)
        return;
    reader_warn(r, section->line,
                "no kernel of this section reads %s%s: what it makes is the same "
                "whatever gradient comes",
                body_tensor_name(r->op, TENSOR_GRAD_OUTPUT),
                r->op->n_outputs > 1 ? " or another gradient of an output" : "");
}

bool section_end(struct reader *r)
{
    struct section *section = r->section;
    if (!section_end_launch(r))
        return false;
    r->chained = false;
    if (!section)
        return true;
    if (!repeat_check_ended(r))
        return false;
    section->steps = arena_copy(r->arena, r->steps, (size_t)section->n_steps, sizeof *r->steps);
    r->body->n_steps += section->n_steps;
    r->section = NULL;
    warn_section(r, section);
    r->grads_read |= section->reads;
    return check_section(r, section);
}

static const char *device_name(int devices)
{
    return devices == ON_CPU ? "cpu" : "cuda";
}

static int read_devices(struct lexer *lx)
{
    return lex_accept_word(lx, "cpu") ? ON_CPU : lex_accept_word(lx, "cuda") ? ON_CUDA : ON_BOTH;
}

static bool start_section(struct reader *r, bool backward)
{
    int line = r->lx.line;
    if (!section_end(r))
        return false;
    r->lx.line = line;
    if (r->body->n_sections == READER_MAX_SECTIONS)
        return lex_fail(&r->lx, "more than %d sections", READER_MAX_SECTIONS);
    r->section = &r->sections[r->body->n_sections++];
    *r->section = (struct section){ .line = line,
                                    .backward = backward,
                                    .devices = (uint8_t)read_devices(&r->lx) };
    return true;
}

bool section_read_forward(struct reader *r)
{
    if (!start_section(r, false) || !lex_expect_end(&r->lx))
        return false;
    int devices = r->section->devices, twice = r->forward & devices;
    if (twice && r->forward == ON_BOTH && devices == ON_BOTH)
        return lex_fail(&r->lx, "a second 'forward', expected one");
    if (twice)
        return lex_fail(&r->lx, "a second 'forward' for %s, expected one", device_name(twice));
    r->forward |= (uint8_t)devices;
    return true;
}

static const struct section *find_maker(const struct reader *r, int input, int device)
{
    for (int i = 0; i < r->body->n_sections; i++)
        if ((r->sections[i].grads >> input & 1) && (r->sections[i].devices & device))
            return &r->sections[i];
    return NULL;
}

bool section_check_devices(struct reader *r)
{
    for (int device = ON_CPU; device <= ON_CUDA; device++) {
        int other = ON_BOTH - device;
        r->lx.line = r->sections[0].line;
        if (r->forward == other)
            return lex_fail(&r->lx, "'forward %s', but no 'forward %s'", device_name(other),
                            device_name(device));
        for (int i = 0; i < r->op->n_inputs; i++) {
            const struct section *made = find_maker(r, i, other);
            if (!made || find_maker(r, i, device))
                continue;
            r->lx.line = made->line;
            return lex_fail(&r->lx, "%s is made on %s, but in no 'backward %s' section",
                            body_tensor_name(r->op, TENSOR_GRAD_INPUT + i), device_name(other),
                            device_name(device));
        }
    }
    return true;
}

static bool read_gradient(struct reader *r)
{
    struct lexer *lx = &r->lx;
    const struct symbol *s = scope_expect(&r->scope, lx,
                                          "the gradients that this section makes, grad_NAME",
                                          "the gradient of an input");
    if (!s)
        return false;
    if (s->kind != SYMBOL_TENSOR || s->index < TENSOR_GRAD_INPUT)
        return lex_fail(lx, "'%s' is no gradient of an input, expected grad_NAME of one", s->name);
    int input = s->index - TENSOR_GRAD_INPUT;
    struct op_tensor *t = &r->op->inputs[input];
    if (find_maker(r, input, r->section->devices))
        return lex_fail(lx, "%s is made twice, expected in one section only", s->name);
    if (!reader_is_float(r, input))
        return lex_fail(lx, "%s has no floating dtype, so there is no %s", t->name, s->name);
    t->differentiable = true;
    r->section->grads |= 1u << input;
    lex_next(lx);
    return true;
}

bool section_read_backward(struct reader *r)
{
    if (!r->forward)
        return lex_fail(&r->lx, "'backward' before 'forward', expected after it");
    if (!start_section(r, true))
        return false;
    do {
        if (!read_gradient(r))
            return false;
    } while (r->lx.token.kind != TOKEN_END && !lex_is_word(&r->lx, "by"));
    return reader_by_definition(r, r->section->grads) && lex_expect_end(&r->lx);
}

struct step *section_add_step(struct reader *r, enum step_kind kind)
{
    int line = r->lx.line;
    if (!section_end_launch(r))
        return NULL;
    r->lx.line = line;
    if (r->section->n_steps == READER_MAX_STEPS) {
        lex_fail(&r->lx, "more than %d steps in a section", READER_MAX_STEPS);
        return NULL;
    }
    struct step *step = &r->steps[r->section->n_steps++];
    *step = (struct step){ .kind = kind, .line = line };
    return step;
}

bool section_check_made(struct reader *r, int t)
{
    bool backward = r->section->backward;
    bool scratch = t >= TENSOR_TEMP && t < TENSOR_GRAD_OUTPUT && !r->temps[t - TENSOR_TEMP].saved;
    bool made = backward
                    ? t >= TENSOR_GRAD_INPUT && (r->section->grads >> (t - TENSOR_GRAD_INPUT) & 1)
                    : t >= TENSOR_OUTPUT && t < TENSOR_GRAD_OUTPUT;
    return scratch || made ||
           lex_fail(&r->lx, "'%s' is not made in this section, expected %s or scratch",
                    body_tensor_name(r->op, t),
                    backward ? "one of its gradients" : "an output, saved");
}

void section_note_use(struct reader *r, int tensor)
{
    if (r->section->backward && tensor < TENSOR_TEMP)
        body_tensor(r->op, tensor)->used_backward = true;
    else if (tensor >= TENSOR_GRAD_OUTPUT && tensor < TENSOR_GRAD_INPUT)
        r->section->reads |= 1u << (tensor - TENSOR_GRAD_OUTPUT);
}

bool section_read_zero(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct step *step = section_add_step(r, STEP_ZERO);
    if (!step)
        return false;
    r->chained = false;
    const struct symbol *s = scope_expect_tensor(&r->scope, lx, "the tensor to fill with zeros");
    if (!s)
        return false;
    if (!section_check_made(r, s->index))
        return false;
    step->tensor = s->index;
    lex_next(lx);
    return lex_expect_end(lx);
}

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
           (next.punct == PUNCT2(':', ':') || (alone && is_in_code(r, t)));
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
                        lex_is(lx, '<') ||
                        (depth > 0 && lx->token.kind < TOKEN_BAD && lx->token.kind != TOKEN_END);) {
        depth += lex_is(lx, '<') - lex_is(lx, '>');
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

// A directive's name that is no name of the file: the next one on this line.
static bool is_next_word(const struct reader *r)
{
    return reader_at_launch_word(r) && !scope_find(&r->scope, r->lx.token.start, r->lx.token.size);
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
        if (s->index >= TENSOR_TEMP || !body_tensor(r->op, s->index)->list)
            return lex_fail(lx, "'%s' is a single tensor, expected a Tensor[]", s->name);
        if (n == OP_MAX_INPUTS + OP_MAX_OUTPUTS)
            return lex_fail(lx, "more than %d lists", n);
        lists[n++] = s->index;
        lex_next(lx);
    } while (lx->token.kind == TOKEN_NAME && !is_next_word(r) && !lex_is_word(lx, "by"));
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
    if (otherwise && (r->lx.token.kind == TOKEN_END || is_next_word(r)))
        return true;
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
