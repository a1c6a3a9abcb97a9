#include "op/reader.h"

bool section_end_launch(struct reader *r)
{
    struct step *launch = r->launch;
    r->launch = NULL;
    if (!launch)
        return true;
    r->lx.line = launch->line;
    r->chained = launch->when != NULL;
    bool ok = launch->kind != STEP_LAUNCH || bind_launch(r, launch);
    r->scope.as = NULL;
    return ok;
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
