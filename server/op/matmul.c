
#include "op/reader.h"

static bool read_tensor(struct reader *r, int *out)
{
    struct lexer *lx = &r->lx;
    const struct symbol *s = scope_expect_tensor(&r->scope, lx,
                                                 "a tensor, or matrix(tensor, rows, cols)");
    if (!s)
        return false;
    int t = s->index;
    if (t >= TENSOR_GRAD_OUTPUT && !r->section->backward)
        return lex_fail(lx, "'%s' is a gradient, expected in a backward section only", s->name);
    if (t >= TENSOR_GRAD_INPUT && !(r->section->grads >> (t - TENSOR_GRAD_INPUT) & 1))
        return lex_fail(lx, "'%s' is not made by this section (line %d)", s->name,
                        r->section->line);
    *out = t;
    section_note_use(r, t);
    lex_next(lx);
    return true;
}

// After "matrix(": tensor, rows, cols[, stride[, offset]]).
static bool read_view(struct reader *r, struct matrix *out)
{
    struct lexer *lx = &r->lx;
    const struct expr **const parts[] = { &out->rows, &out->cols, &out->stride, &out->offset };
    static const char *const names[] = { "the number of rows", "the number of columns",
                                         "the row stride", "the offset" };
    if (!read_tensor(r, &out->tensor))
        return false;
    for (int i = 0; i < 4 && (i < 2 || lex_is(lx, ',')); i++) {
        if (!lex_expect(lx, ',', "',' (matrix(tensor, rows, cols[, row_stride[, offset]]))"))
            return false;
        *parts[i] = reader_int(r, names[i]);
        if (!*parts[i])
            return false;
    }
    return lex_expect(lx, ')', "')' after matrix(tensor, rows, cols[, row_stride[, offset]])");
}

static bool read_matrix(struct reader *r, struct matrix *out)
{
    struct lexer *lx = &r->lx;
    const char *start = lx->token.start;
    const struct lexer before = *lx;
    if (lex_accept_word(lx, "matrix") && lex_accept(lx, '(')) {
        if (!read_view(r, out))
            return false;
    } else {
        *lx = before;
        if (!read_tensor(r, &out->tensor))
            return false;
    }
    if (lex_accept(lx, '.')) {
        if (!lex_accept_word(lx, "T"))
            return lex_fail_expected(lx, "'T' after '.', for the transposed matrix");
        out->transposed = true;
    }
    out->text = arena_strndup(r->arena, start, lex_span(lx, start));
    return true;
}

// The result of a product: may this section write it?
static bool check_destination(struct reader *r, const struct matrix *d)
{
    bool in_place = d->tensor < TENSOR_OUTPUT && r->op->inputs[d->tensor].in_place &&
                    !r->section->backward;
    if (d->transposed)
        return lex_fail(&r->lx, "'%s' is transposed, expected the result as it lies in memory",
                        d->text);
    return in_place || section_check_made(r, d->tensor);
}

static bool read_bias(struct reader *r, struct matmul *m, const char *start)
{
    int bias;
    if (!lex_accept(&r->lx, '+'))
        return true;
    if (m->accumulate)
        return lex_fail(&r->lx, "'+=' and a bias, expected the bias in the first product");
    if (!read_tensor(r, &bias))
        return false;
    if (bias == m->d.tensor)
        return lex_fail(&r->lx, "the result is its own bias; expected '+='");
    m->text = arena_strndup(r->arena, start, lex_span(&r->lx, start));
    m->bias = inner_copy(r, arena_printf(r->arena, "matmul %s", m->text), m->d.tensor, bias);
    return m->bias != NULL;
}

bool matmul_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct step *step = section_add_step(r, STEP_MATMUL);
    if (!step)
        return false;
    struct matmul *m = arena_alloc(r->arena, 1, sizeof *m);
    const char *start = lx->token.start;
    step->matmul = m;
    if (!read_matrix(r, &m->d) || !check_destination(r, &m->d))
        return false;
    m->accumulate = lex_accept(lx, '+');
    if (!lex_expect(lx, '=', "'=' or '+='") || !read_matrix(r, &m->a) ||
        !lex_expect(lx, '@', "'@' and the second matrix") || !read_matrix(r, &m->b))
        return false;
    m->text = arena_strndup(r->arena, start, lex_span(lx, start));
    if (!read_bias(r, m, start))
        return false;
    r->launch = step;
    r->n_binds = 0;
    return true;
}

bool matmul_read_tf32(struct reader *r)
{
    struct matmul *m = r->launch->matmul;
    if (m->tf32)
        return lex_fail(&r->lx, "a second 'tf32' for this matmul");
    m->tf32 = true;
    return reader_optional_expr(r, &m->tf32_when);
}
