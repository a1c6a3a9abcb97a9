#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "op/builder.h"

// opd::matmul in opd.cuh, the kernel of products that no library makes: threads of a block, and the
// part of the result that a block makes, on a GPU and on the CPU.
enum { GPU_BLOCK = 256, GPU_ROWS = 64, GPU_COLS = 64, CPU_BLOCK = 1, CPU_ROWS = 48, CPU_COLS = 64 };

// What opd::matmul_small takes, which there is on a GPU only: for few terms a thread for each
// element of the result, for few columns a warp. cuBLASLt took 1.05 to 2 times as long on an H100.
enum {
    FEW_TERMS = 16,
    FEW_MULTIPLICATIONS = 1 << 20,
    FEW_COLUMNS = 8,
    FEW_ELEMENTS = 1 << 13,
    FEW_TERMS_OF_WARP = 512,
    WARP = 32,
};

// A matrix in memory, before it is transposed; in elements.
struct shape_of_matrix {
    int64_t rows, cols, stride, offset;
    bool transposed;
};

static bool fail(const struct builder *b, const struct matmul *m, const char *text)
{
    return op_fail(b->err, "matmul %s: %s", m->text, text);
}

static bool eval_part(struct builder *b, const struct matmul *m, const struct expr *e, int64_t low,
                      int64_t *out)
{
    if (!e)
        return true;
    if (!expr_eval_int(e, &b->env, out, b->err))
        return opd_err_prefix(b->err, "matmul %s", m->text);
    if (*out >= low)
        return true;
    return op_fail(b->err, "matmul %s: '%s' is %" PRId64 ", expected at least %" PRId64, m->text,
                   e->text, *out, low);
}

static bool check_inside(struct builder *b, const struct matmul *m, const struct matrix *x,
                         const struct shape_of_matrix *s)
{
    const struct tensor_desc *t = env_tensor(&b->env, x->tensor);
    int64_t numel = x->tensor < TENSOR_OUTPUT
                        ? (int64_t)(tensor_desc_size(t) / dtype_size(t->dtype))
                        : tensor_desc_numel(t);
    int64_t end = s->offset, last = 0;
    bool overflow = false;
    if (s->rows > 0 && s->cols > 0)
        overflow = __builtin_mul_overflow(s->rows - 1, s->stride, &last) ||
                   __builtin_add_overflow(last, s->cols, &last) ||
                   __builtin_add_overflow(last, end, &end);
    if (!overflow && end <= numel)
        return true;
    return op_fail(b->err,
                   "matmul %s: %s has %" PRId64 " rows of %" PRId64 ", %" PRId64
                   " apart, from element %" PRId64 " on: that ends beyond the %" PRId64
                   " elements of %s",
                   m->text, x->text, s->rows, s->cols, s->stride, s->offset, numel,
                   body_tensor_name(b->env.request->op, x->tensor));
}

// A tensor of rank 2 as it lies in memory: by rows, or, transposed, by columns.
static bool eval_strided(struct builder *b, const struct matmul *m, const struct matrix *x,
                         struct shape_of_matrix *out)
{
    int64_t row = env_stride(&b->env, x->tensor, 0), col = env_stride(&b->env, x->tensor, 1);
    if (col != 1 && out->cols > 1 && x != &m->d) {
        int64_t rows = out->rows, stride = row;
        out->rows = out->cols;
        out->cols = rows;
        row = col;
        col = stride;
        out->transposed = !out->transposed;
    }
    out->stride = row > out->cols || out->rows > 1 ? row : out->cols;
    if ((col == 1 || out->cols <= 1) && out->stride >= out->cols)
        return true;
    char text[576];
    tensor_desc_format(env_tensor(&b->env, x->tensor), text, sizeof text);
    return op_fail(b->err, "matmul %s: %s is %s, expected its %s one after the other in memory",
                   m->text, x->text, text, x == &m->d ? "rows" : "rows, or its columns,");
}

static bool eval_matrix(struct builder *b, const struct matmul *m, const struct matrix *x,
                        struct shape_of_matrix *out)
{
    const struct tensor_desc *t = env_tensor(&b->env, x->tensor);
    char text[320];
    if (!env_has_tensor(&b->env, x->tensor))
        return op_fail(b->err, "matmul %s: %s is not there; expected a 'when' with %s", m->text,
                       x->text, x->tensor >= TENSOR_GRAD_INPUT ? "wanted()" : "present()");
    if (!x->rows && t->rank != 2) {
        tensor_desc_format(t, text, sizeof text);
        return op_fail(b->err, "matmul %s: %s is %s, expected rank 2, or matrix(%s, rows, cols)",
                       m->text, x->text, text, x->text);
    }
    *out = (struct shape_of_matrix){ .rows = t->shape[0],
                                     .cols = t->rank > 1 ? t->shape[1] : 1,
                                     .transposed = x->transposed };
    if (!eval_part(b, m, x->rows, 0, &out->rows) || !eval_part(b, m, x->cols, 0, &out->cols))
        return false;
    out->stride = out->cols;
    if (x->tensor < TENSOR_OUTPUT && t->strided && !x->rows && !eval_strided(b, m, x, out))
        return false;
    if (!eval_part(b, m, x->stride, out->cols, &out->stride) ||
        !eval_part(b, m, x->offset, 0, &out->offset))
        return false;
    if (out->stride == 0) // of rows without elements; libraries take no less than 1
        out->stride = 1;
    return check_inside(b, m, x, out);
}

// Fails with the operands as they came: "float32 [16, 160] @ float32 [128, 384].T".
static bool fail_operands(const struct builder *b, const struct matmul *m,
                          const struct shape_of_matrix shapes[3], const char *expected)
{
    const struct matrix *const x[] = { &m->d, &m->a, &m->b };
    char text[3][128];
    for (int i = 0; i < 3; i++)
        snprintf(text[i], sizeof text[i], "%s [%" PRId64 ", %" PRId64 "]%s",
                 dtype_name(env_tensor(&b->env, x[i]->tensor)->dtype), shapes[i].rows,
                 shapes[i].cols, shapes[i].transposed ? ".T" : "");
    return op_fail(b->err, "matmul %s: %s %s %s @ %s, expected %s", m->text, text[0],
                   m->accumulate ? "+=" : "=", text[1], text[2], expected);
}

static bool check_dtypes(const struct builder *b, const struct matmul *m,
                         const struct shape_of_matrix shapes[3], struct plan_matmul *out)
{
    enum opd_dtype other = env_tensor(&b->env, m->b.tensor)->dtype;
    out->dtype = env_tensor(&b->env, m->a.tensor)->dtype;
    out->result = env_tensor(&b->env, m->d.tensor)->dtype;
    if (!dtype_is_float(out->dtype) || out->dtype != other)
        return fail_operands(b, m, shapes, "the same floating dtype for both operands");
    bool wider = dtype_size(out->dtype) == 2 && out->result == OPD_DTYPE_float32;
    return out->result == out->dtype || wider ||
           fail_operands(b, m, shapes,
                         dtype_size(out->dtype) == 2 ? "a result of the same dtype, or float32"
                                                     : "a result of the same dtype");
}

static bool check_shapes(const struct builder *b, const struct matmul *m,
                         const struct shape_of_matrix s[3], struct plan_matmul *out)
{
    int64_t k = s[2].transposed ? s[2].cols : s[2].rows;
    out->m = s[1].transposed ? s[1].cols : s[1].rows;
    out->k = s[1].transposed ? s[1].rows : s[1].cols;
    out->n = s[2].transposed ? s[2].rows : s[2].cols;
    if (out->k != k)
        return fail_operands(b, m, s, "as many columns of the first as rows of the second");
    return (out->m == s[0].rows && out->n == s[0].cols) ||
           fail_operands(b, m, s,
                         "a result of the rows of the first and the columns of the second");
}

// Have two matrices of one tensor no element in common? True where that is sure.
static bool are_apart(const struct shape_of_matrix *x, const struct shape_of_matrix *y)
{
    int64_t x_end = x->offset + (x->rows - 1) * x->stride + x->cols;
    int64_t y_end = y->offset + (y->rows - 1) * y->stride + y->cols;
    if (x_end <= y->offset || y_end <= x->offset)
        return true;
    int64_t x_first = x->offset % x->stride, y_first = y->offset % x->stride;
    return x->stride == y->stride && x_first + x->cols <= x->stride &&
           y_first + y->cols <= x->stride &&
           (x_first + x->cols <= y_first || y_first + y->cols <= x_first);
}

static bool check_overlap(const struct builder *b, const struct matmul *m,
                          const struct shape_of_matrix s[3])
{
    if ((m->a.tensor == m->d.tensor && !are_apart(&s[0], &s[1])) ||
        (m->b.tensor == m->d.tensor && !are_apart(&s[0], &s[2])))
        return fail(b, m, "the result overlaps an operand, expected other memory");
    return true;
}

static bool is_whole(const struct builder *b, const struct matrix *x,
                     const struct shape_of_matrix *s)
{
    return (s->stride == s->cols || s->rows == 1) &&
           s->rows * s->cols == tensor_desc_numel(env_tensor(&b->env, x->tensor));
}

// The result's memory before the product: zeros where something of it would stay as it was.
static bool prepare_result(struct builder *b, const struct matmul *m,
                           const struct shape_of_matrix *s)
{
    int t = m->d.tensor;
    bool whole = is_whole(b, &m->d, s);
    if (m->accumulate && builder_is_fresh(b, t) && !b->covered[t] && !b->pending[t] &&
        !b->touched[t])
        return fail(b, m,
                    "'+=', but no step before it has made the result; expected one, or "
                    "'zero'");
    b->touched[t] = true;
    if (!m->accumulate && whole) {
        b->pending[t] = false;
        b->covered[t] = true;
        return true;
    }
    bool stale = !whole && builder_is_fresh(b, t) && builder_is_result(b, t) && !b->covered[t];
    return !(b->pending[t] || stale) || builder_zero(b, t);
}

static bool set_matrix(struct builder *b, const struct matrix *x, const struct shape_of_matrix *s,
                       struct plan_matrix *out)
{
    uint64_t size = dtype_size(env_tensor(&b->env, x->tensor)->dtype);
    if (b->pending[x->tensor] && !builder_zero(b, x->tensor))
        return false;
    *out = (struct plan_matrix){
        .operand = builder_operand(b, x->tensor),
        .transposed = s->transposed,
        .offset = (uint64_t)s->offset * size,
        .stride = s->stride,
    };
    if (s->rows > 0 && s->cols > 0)
        out->size = (uint64_t)((s->rows - 1) * s->stride + s->cols) * size;
    return true;
}

static void pack(struct packed *p, int64_t value, uint32_t size)
{
    memcpy(packed_put(p, size, size), &value, size);
    p->params[p->n_params++] = (struct plan_param){ .offset = p->size - size, .size = size };
}

// The parameters of opd::matmul: three addresses, then numbers.
static void pack_arguments(struct packed *p, const struct matmul *m, const struct plan_matmul *pm)
{
    const struct plan_matrix *const x[] = { &pm->d, &pm->a, &pm->b };
    const int tensors[] = { m->d.tensor, m->a.tensor, m->b.tensor };
    const int64_t sizes[] = { pm->m, pm->n, pm->k };
    packed_start(p);
    for (int i = 0; i < 3; i++) {
        pack(p, 0, 8);
        p->slots[p->n_slots++] = (struct plan_slot){ .arg_offset = p->size - 8,
                                                     .operand = (uint32_t)tensors[i],
                                                     .reads = i > 0 };
    }
    for (int i = 0; i < 3; i++)
        pack(p, sizes[i], 8);
    for (int i = 0; i < 3; i++)
        pack(p, x[i]->stride, 8);
    for (int i = 0; i < 3; i++)
        pack(p, (int64_t)(x[i]->offset / dtype_size(i ? pm->dtype : pm->result)), 8);
    pack(p, pm->accumulate, 4);
}

// The threads for each element where the product is small, else 0. A product of one term, and of
// one column, is as fast by a library.
static int lanes_of_small(const struct builder *b, const struct plan_matmul *pm)
{
    int64_t numel = 0, all = 0;
    if (b->env.request->on_cpu || dtype_size(pm->dtype) == 2 ||
        __builtin_mul_overflow(pm->m, pm->n, &numel) || __builtin_mul_overflow(numel, pm->k, &all))
        return 0;
    if (pm->k > 1 && pm->k <= FEW_TERMS && all <= FEW_MULTIPLICATIONS)
        return 1;
    // Neighbouring threads read neighbouring elements.
    return pm->n > 1 && pm->n <= FEW_COLUMNS && numel <= FEW_ELEMENTS && pm->k > FEW_TERMS &&
                   pm->k <= FEW_TERMS_OF_WARP && !pm->a.transposed && pm->b.transposed
               ? WARP
               : 0;
}

static bool add_own_kernel(struct builder *b, const struct step *step, const struct plan_matmul *pm)
{
    bool on_cpu = b->env.request->on_cpu;
    int lanes = lanes_of_small(b, pm);
    int64_t rows = on_cpu ? CPU_ROWS : GPU_ROWS, cols = on_cpu ? CPU_COLS : GPU_COLS;
    int64_t down = (pm->m - 1) / rows + 1, across = (pm->n - 1) / cols + 1, blocks;
    char expr[128], lanes_text[16] = "";
    struct plan_step launch = { .kind = PLAN_STEP_LAUNCH,
                                .grid = { 0, 1, 1 },
                                .block = { on_cpu ? CPU_BLOCK : GPU_BLOCK, 1, 1 } };
    if (__builtin_mul_overflow(down, across, &blocks) || blocks > INT32_MAX)
        return fail(b, step->matmul, "the result is too large");
    if (lanes > 0) {
        blocks = (pm->m * pm->n * lanes - 1) / GPU_BLOCK + 1;
        snprintf(lanes_text, sizeof lanes_text, ", %d", lanes);
    }
    launch.grid[0] = (uint32_t)blocks;
    snprintf(expr, sizeof expr, "opd::matmul%s<%s, %s, %s, %s%s>", lanes > 0 ? "_small" : "",
             dtype_type(pm->dtype), dtype_type(pm->result), pm->a.transposed ? "true" : "false",
             pm->b.transposed ? "true" : "false", lanes_text);
    pack_arguments(&b->packed, step->matmul, pm);
    return builder_add_launch(b, &launch, &b->packed, expr, step->line);
}

// The CPU's BLAS knows no 16-bit dtypes; a kernel, which converts what it packs, is as fast.
static bool fits_blas(const struct builder *b, const struct plan_matmul *pm)
{
    const struct plan_request *request = b->env.request;
    if (!request->blas || (request->on_cpu && dtype_size(pm->dtype) == 2))
        return false;
    return lanes_of_small(b, pm) == 0 && pm->k > 0 && pm->m <= INT32_MAX && pm->n <= INT32_MAX &&
           pm->k <= INT32_MAX && pm->a.stride <= INT32_MAX && pm->b.stride <= INT32_MAX &&
           pm->d.stride <= INT32_MAX;
}

void builder_drop(struct builder *b, int t)
{
    if (builder_is_fresh(b, t) && !b->covered[t])
        b->pending[t] = env_has_tensor(&b->env, t);
}

// The product is added to the bias, which stands in each row before: so it is rounded once.
static bool add_bias(struct builder *b, const struct matmul *m, const struct shape_of_matrix *s,
                     struct plan_matmul *pm)
{
    const struct inner *in = m->bias;
    const struct tensor_desc *d = env_tensor(&b->env, m->d.tensor),
                             *from = env_tensor(&b->env, in->inputs[2]);
    char text[320];
    if (!env_has_tensor(&b->env, in->inputs[2]))
        return true;
    tensor_desc_format(from, text, sizeof text);
    if (!is_whole(b, &m->d, s))
        return fail(b, m, "a bias, but the result is a part of its tensor; expected all of it");
    if (from->rank != 1 || from->shape[0] != s->cols || from->dtype != d->dtype)
        return op_fail(b->err,
                       "matmul %s: %s is %s, expected %s [%" PRId64 "], as the result's rows",
                       m->text, body_tensor_name(b->env.request->op, in->inputs[2]), text,
                       dtype_name(d->dtype), s->cols);
    struct plan_request request = { .op = in->op, .on_cpu = b->env.request->on_cpu };
    memcpy(request.attrs, b->env.request->attrs, sizeof request.attrs);
    request.inputs[0] =
        (struct tensor_desc){ .dtype = d->dtype, .rank = 2, .shape = { s->rows, s->cols } };
    request.inputs[1].dtype = b->env.types[TYPE_SCALAR];
    request.inputs[2] = *from;
    pm->accumulate = true;
    return builder_inner_with(b, in, &request);
}

bool builder_matmul(struct builder *b, const struct step *step)
{
    const struct matmul *m = step->matmul;
    struct plan_matmul pm = { .accumulate = m->accumulate, .tf32 = m->tf32 };
    struct shape_of_matrix s[3];
    if (m->d.tensor >= TENSOR_GRAD_INPUT && !env_has_tensor(&b->env, m->d.tensor))
        return true; // nobody wants it
    if (!eval_matrix(b, m, &m->d, &s[0]) || !eval_matrix(b, m, &m->a, &s[1]) ||
        !eval_matrix(b, m, &m->b, &s[2]) || !check_dtypes(b, m, s, &pm) ||
        !check_shapes(b, m, s, &pm) ||
        (m->tf32_when && !expr_eval_bool(m->tf32_when, &b->env, &pm.tf32, b->err)))
        return false;
    if (pm.m == 0 || pm.n == 0) {
        builder_drop(b, m->d.tensor);
        return true;
    }
    if (m->bias && !add_bias(b, m, &s[0], &pm))
        return false;
    // The memory is made ready before the operands are looked at: that of one that is pending too.
    if ((pm.k > 0 && !check_overlap(b, m, s)) || !prepare_result(b, m, &s[0]))
        return false;
    if (pm.k == 0 && pm.accumulate)
        return true;
    if (!set_matrix(b, &m->a, &s[1], &pm.a) || !set_matrix(b, &m->b, &s[2], &pm.b) ||
        !set_matrix(b, &m->d, &s[0], &pm.d))
        return false;
    if (!fits_blas(b, &pm))
        return add_own_kernel(b, step, &pm);
    struct plan_step one = { .kind = PLAN_STEP_MATMUL };
    one.matmul = arena_copy(b->arena, &pm, 1, sizeof pm);
    return builder_add_step(b, &one);
}
