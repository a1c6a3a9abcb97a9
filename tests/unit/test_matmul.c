// The steps `matmul` and `repeat`: how a file says them, and what a plan makes of them.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_text.h"

#define TOP                                                                                        \
    "//! op f(Tensor x, Tensor w, Tensor(a!) p, Tensor? o=None, *, int n=1, int at=0) "            \
    "-> (Tensor y, Tensor z)\n"                                                                    \
    "//! dtypes float16 float32 float64 int32\n"                                                   \
    "//! shape x [A, B]\n//! shape w [C, D]\n//! shape p [...P]\n//! shape o [A, B]\n"             \
    "//! shape y [A, C]\n//! shape z [A, C]\n"                                                     \
    "//! saved s acc_t [A, C]\n//! scratch v [A, C]\n" // lines 1 to 10
#define CODE                                                                                       \
    "__global__ void k(const scalar_t *x, scalar_t *y, scalar_t *z, acc_t *s, int64_t t) {}\n"     \
    "__global__ void whole(scalar_t *z, acc_t *s) {}\n"                                            \
    "__global__ void both(scalar_t *y, scalar_t *z, acc_t *s) {}\n"                                \
    "__global__ void back(scalar_t *grad_x) {}\n"

static struct opd_err err;

// Lines of the forward section; line 12 is the first.
static void refuse_lines(const char *lines, const char *message)
{
    char text[4096];
    snprintf(text, sizeof text, TOP "//! forward\n%s" CODE, lines);
    refuse_text(text, message);
}

static void test_mistakes(void **state)
{
    (void)state;
    refuse_lines("//! matmul\n",
                 "t.cu:12: expected a tensor, or matrix(tensor, rows, cols), got the end of the "
                 "line");
    refuse_lines("//! matmul yy = x @ w\n",
                 "t.cu:12: 'yy' is not defined here, expected a tensor; did you mean 'y'?");
    refuse_lines("//! matmul A = x @ w\n", "t.cu:12: 'A' is a dimension, expected a tensor");
    refuse_lines("//! matmul x = x @ w\n",
                 "t.cu:12: 'x' is not made in this section, expected an output, saved or scratch");
    refuse_lines("//! matmul y.T = x @ w\n",
                 "t.cu:12: 'y.T' is transposed, expected the result as it lies in memory");
    refuse_lines("//! matmul y = x * w\n", "t.cu:12: expected '@' and the second matrix, got '*'");
    refuse_lines("//! matmul y - x @ w\n", "t.cu:12: expected '=' or '+=', got '-'");
    refuse_lines("//! matmul y = x @ w.t\n",
                 "t.cu:12: expected 'T' after '.', for the transposed matrix, got 't'");
    refuse_lines("//! matmul y = x @ w.T p\n", "t.cu:12: expected the end of the line, got 'p'");
    refuse_lines("//! matmul y = x @ matrix(w, 1)\n",
                 "t.cu:12: expected ',' (matrix(tensor, rows, cols[, row_stride[, offset]])), got "
                 "')'");
    refuse_lines("//! matmul y = x @ matrix(w, 1, 2, 3, 4, 5)\n",
                 "t.cu:12: expected ')' after matrix(tensor, rows, cols[, row_stride[, "
                 "offset]]), got ','");
    refuse_lines("//! matmul y = x @ matrix(w, 1, 0.5)\n",
                 "t.cu:12: the number of columns is '0.5', a float; expected an integer (floor() "
                 "makes one)");
    refuse_lines("//! matmul y = x @ grad_y\n",
                 "t.cu:12: 'grad_y' is a gradient, expected in a backward section only");
    refuse_lines("//! matmul y = x @ w.T\n//! grid 3\n",
                 "t.cu:13: 'grid' without its kernel, expected below a 'kernel' line");
    refuse_lines("//! kernel k\n//! tf32\n",
                 "t.cu:13: 'tf32' without its matmul, expected below a 'matmul' line");
    refuse_lines("//! matmul y = x @ w.T\n//! tf32\n//! tf32\n",
                 "t.cu:14: a second 'tf32' for this matmul");
    refuse_lines("//! matmul y = x @ w.T\n",
                 "t.cu:11: no kernel of this section writes z: none has it as a parameter that is "
                 "a pointer to non-const");
    refuse_text(
        TOP "//! forward\n//! kernel both\n//! backward grad_x\n//! matmul grad_w = x @ w\n" CODE,
        "t.cu:14: 'grad_w' is not made by this section (line 13)");
    refuse_text(TOP
                "//! forward\n//! kernel both\n//! backward grad_x\n//! matmul s = x @ w\n" CODE,
                "t.cu:14: 's' is not made in this section, expected one of its gradients or "
                "scratch");
    refuse_text(TOP "//! matmul y = x @ w\n",
                "t.cu:11: 'matmul' outside a section, expected after 'forward' or 'backward'");
}

static void test_repeat_mistakes(void **state)
{
    (void)state;
    refuse_lines("//! repeat 3\n",
                 "t.cu:12: expected the name of a counter, as in 'repeat t < T', got '3'");
    refuse_lines("//! repeat t = 3\n", "t.cu:12: expected '<', as in 'repeat t < T', got '='");
    refuse_lines("//! repeat A < 3\n",
                 "t.cu:12: 'A' is defined twice: it is a dimension since line 3");
    refuse_lines("//! repeat t < 0.5\n",
                 "t.cu:12: repeat is '0.5', a float; expected an integer (floor() makes one)");
    refuse_lines("//! repeat t < n\n//! end\n",
                 "t.cu:13: 'repeat' without steps, expected 'kernel', 'matmul' or 'zero' before "
                 "its 'end'");
    refuse_lines("//! end\n", "t.cu:12: 'end' without its 'repeat'");
    refuse_lines("//! repeat t < n\n//! kernel k\n", "t.cu:12: 'repeat' without its 'end'");
    refuse_lines("//! repeat t < n\n//! repeat u < n\n",
                 "t.cu:13: 'repeat' inside the one of line 12, expected its 'end' first");
    refuse_lines("//! repeat t < n\n//! kernel k\n//! end\n//! kernel k\n",
                 "t.cu:16: kernel 'k' has parameter 't', which names no tensor, size, let or "
                 "attribute (or add \"bind t = ...\")");
    refuse_lines("//! kernel whole\n//! when n\n//! repeat t < n\n//! kernel k\n//! otherwise\n",
                 "t.cu:16: 'otherwise', but the step before is no kernel with a 'when'");
    refuse_lines("//! repeat t < n\n//! kernel k\n//! when n\n//! end\n//! kernel k\n"
                 "//! otherwise\n",
                 "t.cu:17: 'otherwise', but the step before is no kernel with a 'when'");
}

// An operator of these lines, and a request with x [3, 4], w [5, 4], p [60]; all float32, on the
// CPU.
static struct op *parse_lines(const char *lines)
{
    char text[4096];
    snprintf(text, sizeof text, TOP "//! forward\n%s" CODE, lines);
    return parse_text(text);
}

static struct plan_request ask(const struct op *op, bool blas)
{
    struct plan_request r = { .op = op, .blas = blas, .on_cpu = true, .keep = true };
    r.inputs[0] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 2, .shape = { 3, 4 } };
    r.inputs[1] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 2, .shape = { 5, 4 } };
    r.inputs[2] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { 60 } };
    for (int i = 0; i < op->n_attrs; i++)
        r.attrs[i] = op->attrs[i].value;
    return r;
}

static struct plan *build(const struct plan_request *r)
{
    opd_err_clear(&err);
    struct plan *plan = plan_build(r, &err);
    if (!plan)
        fail_msg("%s", err.msg);
    return plan;
}

static void refuse_plan(const char *lines, int64_t n, const char *message)
{
    struct op *op = parse_lines(lines);
    struct plan_request r = ask(op, true);
    r.attrs[0].i[0] = n;
    opd_err_clear(&err);
    assert_null(plan_build(&r, &err));
    assert_int_equal(err.code, OPD_E_invalid_argument);
    assert_string_equal(err.msg, message);
    op_unref(op);
}

static const char *name_of(const struct plan *plan, const struct plan_matrix *x)
{
    return plan->operands[x->operand].name;
}

static void test_tf32_where_it_is_allowed(void **state)
{
    (void)state;
    struct op *op = parse_lines("//! matmul y = x @ w.T tf32 n > 1 when n > 0\n//! kernel whole\n");
    struct plan_request r = ask(op, true);
    for (int64_t n = 1; n <= 2; n++) {
        r.attrs[0].i[0] = n;
        struct plan *plan = build(&r);
        assert_true(plan->steps[0].matmul->tf32 == (n > 1));
        plan_free(plan);
    }
    op_unref(op);
}

static void test_plan_of_a_product(void **state)
{
    (void)state;
    struct op *op = parse_lines("//! matmul y = x @ w.T\n//! tf32\n//! kernel whole\n");
    struct plan_request r = ask(op, true);
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_steps, 2);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_MATMUL);
    const struct plan_matmul *m = plan->steps[0].matmul;
    assert_true(m->tf32 && !m->accumulate && m->dtype == OPD_DTYPE_float32);
    assert_true(m->m == 3 && m->n == 5 && m->k == 4 && m->result == OPD_DTYPE_float32);
    assert_string_equal(name_of(plan, &m->d), "y");
    assert_string_equal(name_of(plan, &m->a), "x");
    assert_string_equal(name_of(plan, &m->b), "w");
    assert_true(m->b.transposed && !m->a.transposed && m->b.stride == 4 && m->b.size == 80);
    plan_free(plan);

    r.blas = false; // a launch of the common header's kernel
    plan = build(&r);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_LAUNCH);
    assert_string_equal(plan->kernels[0].expr, "opd::matmul<float, float, false, true>");
    assert_int_equal(plan->kernels[0].n_params, 13);
    assert_int_equal(plan->steps[0].args_size, 100);
    assert_int_equal(plan->steps[0].n_slots, 3);
    assert_true(plan->steps[0].grid[0] == 1 && plan->steps[0].block[0] == 1);
    plan_free(plan);
    op_unref(op);
}

// How a GPU makes x [m, k] @ w [n, k].T, where it has a library: "" by that, else by which kernel.
static void check_kernel(const struct op *op, int64_t m, int64_t n, int64_t k, const char *expr,
                         uint32_t blocks)
{
    struct plan_request r = ask(op, true);
    r.on_cpu = false;
    r.inputs[0].shape[0] = m, r.inputs[1].shape[0] = n;
    r.inputs[0].shape[1] = r.inputs[1].shape[1] = k;
    struct plan *plan = build(&r);
    bool launches = plan->steps[0].kind == PLAN_STEP_LAUNCH;
    assert_string_equal(launches ? plan->kernels[0].expr : "", expr);
    assert_int_equal(launches ? plan->steps[0].grid[0] : 0, blocks);
    plan_free(plan);
}

static void test_small_products(void **state)
{
    (void)state;
    static const char alone[] = "opd::matmul_small<float, float, false, true, 1>",
                      warp[] = "opd::matmul_small<float, float, false, true, 32>";
    struct op *op = parse_lines("//! matmul y = x @ w.T\n//! kernel whole\n");
    check_kernel(op, 3, 5, 4, alone, 1);
    check_kernel(op, 900, 64, 2, alone, 225);
    check_kernel(op, 900, 64, 1, "", 0);
    check_kernel(op, 1 << 8, 1 << 8, 16, alone, 1 << 8);
    check_kernel(op, 1 << 8, (1 << 8) + 1, 16, "", 0);
    check_kernel(op, 900, 64, 17, "", 0);
    check_kernel(op, 900, 3, 64, warp, 338);
    check_kernel(op, 1 << 10, 8, 512, warp, 1 << 10);
    check_kernel(op, 1 << 10, 8, 513, "", 0);
    check_kernel(op, 1 << 10, 9, 512, "", 0);
    check_kernel(op, (1 << 10) + 1, 8, 512, "", 0);
    check_kernel(op, 1 << 10, 1, 64, "", 0);
    check_kernel(op, 1 << 20, 1 << 10, 2, "", 0);
    op_unref(op);
    op = parse_lines("//! matmul y = matrix(x, 64, 900).T @ matrix(w, 64, 3)\n//! kernel whole\n");
    check_kernel(op, 900, 3, 64, "", 0); // whose terms lie apart
    op_unref(op);
}

// The kinds of a plan's steps: matmul, launch, zero.
static void check_kinds(const char *lines, int64_t n, const char *kinds)
{
    struct op *op = parse_lines(lines);
    struct plan_request r = ask(op, true);
    r.attrs[0].i[0] = n;
    struct plan *plan = build(&r);
    char got[64] = "";
    for (int i = 0; i < plan->n_steps && i < 60; i++)
        got[i] = "lzm"[plan->steps[i].kind];
    if (strcmp(got, kinds) != 0)
        fail_msg("%s, n = %d: %s, expected %s", lines, (int)n, got, kinds);
    plan_free(plan);
    op_unref(op);
}

static void test_what_is_made(void **state)
{
    (void)state;
    // A part of a result: the rest of it is zero, and it is made once.
    check_kinds("//! matmul matrix(y, 3, 1, 5, n) = x @ matrix(w, 4, 1)\n//! kernel whole\n", 1,
                "zml");
    check_kinds("//! matmul matrix(y, 3, 1, 5) = x @ matrix(w, 4, 1)\n"
                "//! matmul matrix(y, 3, 1, 5, 1) = x @ matrix(w, 4, 1)\n//! kernel whole\n",
                1, "zmml");
    check_kinds("//! matmul matrix(y, 3, 5) = x @ w.T\n//! kernel whole\n", 1, "ml"); // all of it
    check_kinds("//! matmul matrix(v, 3, 1, 5) = x @ matrix(w, 4, 1)\n//! kernel both\n", 1, "ml");
    check_kinds("//! zero y\n//! matmul y = x @ w.T\n//! kernel whole\n", 1, "ml");
    check_kinds("//! zero y\n//! matmul y += x @ w.T\n//! kernel whole\n", 1, "zml");
    check_kinds("//! kernel both\n//! matmul y += x @ w.T\n", 1, "lm");
    check_kinds("//! matmul matrix(p, 3, 5) += x @ w.T\n//! kernel both\n", 1, "ml");
    // No terms: zeros, by a kernel; no elements: nothing.
    check_kinds("//! matmul y = matrix(x, 3, 0) @ matrix(w, 0, 5)\n//! kernel whole\n", 1, "ll");
    check_kinds("//! matmul y = matrix(x, 3, 0, 0) @ matrix(w, 0, 5)\n//! kernel whole\n", 1, "ll");
    check_kinds("//! kernel both\n//! matmul y += matrix(x, 3, 0) @ matrix(w, 0, 5)\n", 1, "l");
    check_kinds("//! matmul matrix(v, 0, 5) = matrix(x, 0, 4) @ w.T\n//! kernel both\n", 1, "l");
    // Conditions.
    const char *chain = "//! matmul y = x @ w.T\n//! when n > 2\n//! kernel both\n//! otherwise\n"
                        "//! kernel whole\n";
    check_kinds(chain, 3, "ml");
    check_kinds(chain, 1, "ll");
}

static void test_requests(void **state)
{
    (void)state;
    const char *more = "//! kernel both\n";
    char lines[512];
#define REFUSE(text, message)                                                                      \
    snprintf(lines, sizeof lines, "//! matmul %s\n%s", text, more);                                \
    refuse_plan(lines, 1, "f: matmul " text message)
    REFUSE("v = x @ w", ": float32 [3, 5] = float32 [3, 4] @ float32 [5, 4], expected as many "
                        "columns of the first as rows of the second");
    REFUSE("v = w @ x.T", ": float32 [3, 5] = float32 [5, 4] @ float32 [3, 4].T, expected a result "
                          "of the rows of the first and the columns of the second");
    REFUSE("v = p @ x", ": p is float32 [60], expected rank 2, or matrix(p, rows, cols)");
    REFUSE("v = o @ w.T", ": o is not there; expected a 'when' with present()");
    REFUSE("v = matrix(x, 3, 4, 4, n) @ w.T",
           ": matrix(x, 3, 4, 4, n) has 3 rows of 4, 4 apart, from element 1 on: that ends beyond "
           "the 12 elements of x");
    REFUSE("v = matrix(x, 3, 4, 3) @ w.T", ": '3' is 3, expected at least 4");
    REFUSE("v = matrix(x, 3, 4, 4, 0 - n) @ w.T", ": '0 - n' is -1, expected at least 0");
    REFUSE("v = matrix(x, 0 - n, 4) @ w.T", ": '0 - n' is -1, expected at least 0");
    REFUSE("v = matrix(x, 3, 4, 4611686018427387904) @ w.T",
           ": matrix(x, 3, 4, 4611686018427387904) has 3 rows of 4, 4611686018427387904 apart, "
           "from element 0 on: that ends beyond the 12 elements of x");
    REFUSE("v += x @ w.T",
           ": '+=', but no step before it has made the result; expected one, or 'zero'");
    REFUSE("matrix(p, 3, 5) = x @ matrix(p, 4, 5, 5, 14)",
           ": the result overlaps an operand, expected other memory");
#undef REFUSE
    // Beside each other, and one after the other, they do not overlap.
    check_kinds("//! matmul matrix(p, 3, 5, 10) = x @ matrix(p, 4, 5, 10, 5)\n//! kernel both\n", 1,
                "ml");
    check_kinds("//! matmul matrix(p, 3, 5) = x @ matrix(p, 4, 5, 5, 15)\n//! kernel both\n", 1,
                "ml");
}

static void test_dtypes(void **state)
{
    (void)state;
    struct op *op = parse_lines(
        "//! matmul y = x @ w.T\n//! matmul s = x @ w.T\n//! kernel whole\n");
    struct plan_request r = ask(op, true);
    for (int i = 0; i < 3; i++)
        r.inputs[i].dtype = OPD_DTYPE_float16;
    r.on_cpu = false;
    struct plan *plan = build(&r);
    assert_int_equal(plan->steps[0].matmul->result, OPD_DTYPE_float16);
    assert_int_equal(plan->steps[1].matmul->result, OPD_DTYPE_float32);
    plan_free(plan);
    r.on_cpu = true; // whose library has no 16 bits
    plan = build(&r);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_LAUNCH);
    assert_string_equal(plan->kernels[1].expr, "opd::matmul<opd::half, float, false, true>");
    plan_free(plan);
    for (int i = 0; i < 3; i++)
        r.inputs[i].dtype = OPD_DTYPE_int32;
    opd_err_clear(&err);
    assert_null(plan_build(&r, &err));
    assert_string_equal(err.msg,
                        "f: matmul y = x @ w.T: int32 [3, 5] = int32 [3, 4] @ int32 [5, 4].T, "
                        "expected the same floating dtype for both operands");
    op_unref(op);
}

static void test_unwanted_gradients(void **state)
{
    (void)state;
    struct op *op = parse_text(TOP "//! forward\n//! kernel both\n//! backward grad_x grad_w\n"
                                   "//! matmul grad_x = grad_y @ w\n"
                                   "//! matmul grad_w = grad_y.T @ x\n"
                                   "//! matmul grad_w += grad_z.T @ x\n" CODE);
    assert_true(op->inputs[0].used_backward && op->inputs[1].used_backward);
    assert_false(op->inputs[2].used_backward || op->outputs[0].used_backward);
    struct plan_request r = ask(op, true);
    r.direction = PLAN_BACKWARD;
    static const int n_steps[] = { 0, 1, 2, 3 };
    for (uint32_t wanted = 1; wanted < 4; wanted++) {
        r.wanted = wanted;
        struct plan *plan = build(&r);
        assert_int_equal(plan->n_steps, n_steps[wanted]);
        plan_free(plan);
    }
    r.grad_absent = 2; // of z: zeros, made for the product that reads them
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_steps, 4);
    assert_int_equal(plan->steps[2].kind, PLAN_STEP_ZERO);
    plan_free(plan);
    op_unref(op);
}

static void test_repeat(void **state)
{
    (void)state;
    const char *loop = "//! repeat t < n\n//! kernel k\n//! grid t + 1\n//! when t != 1\n"
                       "//! matmul matrix(v, 1, 5, 5, t) = matrix(x, 1, 4, 4, t) @ w.T\n"
                       "//! otherwise\n//! end\n//! kernel both\n";
    check_kinds(loop, 3, "lmll");
    check_kinds(loop, 0, "zzzl");
    // What was made before it stays, also where it would begin with zeros.
    const char *again = "//! kernel both\n//! repeat t < n\n//! zero y\n//! kernel k\n"
                        "//! grid 1\n//! end\n";
    check_kinds(again, 0, "l");
    check_kinds(again, 2, "lzlzl");
    struct op *op = parse_lines(loop);
    struct plan_request r = ask(op, true);
    r.attrs[0].i[0] = 3;
    struct plan *plan = build(&r);
    assert_true(plan->steps[0].grid[0] == 1 && plan->steps[2].grid[0] == 3);
    int64_t t = -1; // after four pointers
    memcpy(&t, plan->steps[2].args + 32, sizeof t);
    assert_int_equal(t, 2);
    assert_int_equal(plan->steps[1].matmul->a.offset, 4);
    assert_int_equal(plan->n_kernels, 2);
    plan_free(plan);
    op_unref(op);

    // What only a loop that is not entered would have made is zero.
    check_kinds("//! repeat t < n\n//! kernel k\n//! end\n", 0, "zzz");
    check_kinds("//! repeat t < n\n//! kernel k\n//! matmul y = x @ w.T\n//! end\n", 0, "zzz");
    check_kinds("//! kernel both\n//! repeat t < n\n//! zero y\n//! kernel k\n//! end\n", 2,
                "lzlzl");
    refuse_plan(loop, -1, "f: repeat: 'n' is -1, expected 0 to 65536 (t.cu:12)");
    refuse_plan(loop, 65537, "f: repeat: 'n' is 65537, expected 0 to 65536 (t.cu:12)");
    refuse_plan("//! repeat t < n\n//! kernel k\n//! when 0\n//! zero y\n//! zero y\n//! zero y\n"
                "//! zero y\n//! end\n//! kernel both\n",
                60000,
                "f: repeat: 5 steps 60000 times, expected at most 262144 altogether (t.cu:12)");
    refuse_plan("//! repeat t < n\n//! kernel k\n//! grid 1\n//! kernel k\n//! grid 1\n//! end\n",
                32769,
                "f: more than 65536 launches in one request, which is the most there may be");
}

static void test_repeat_instantiations(void **state)
{
    (void)state;
    const char *text = TOP "//! forward\n//! repeat t < n\n//! kernel i<t>\n//! end\n"
                           "template <int T> __global__ void i(scalar_t *y, scalar_t *z, acc_t *s) "
                           "{}\n";
    struct op *op = parse_text(text);
    struct plan_request r = ask(op, false);
    r.attrs[0].i[0] = 1024;
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_kernels, 1024);
    assert_string_equal(plan->kernels[1000].expr, "i<1000>");
    plan_free(plan);
    r.attrs[0].i[0] = 1025;
    opd_err_clear(&err);
    assert_null(plan_build(&r, &err));
    assert_string_equal(err.msg, "f: more than 1024 instantiations of kernels in one request, "
                                 "which is the most there may be");
    op_unref(op);
}

// A thousand steps of three launches are planned in milliseconds.
static void test_planning_is_quick(void **state)
{
    (void)state;
    struct op *op = parse_lines("//! kernel both\n//! repeat t < n\n"
                                "//! matmul v = matrix(p, 3, 4, 4, t % 4) @ w.T\n"
                                "//! kernel k\n//! matmul v += x @ w.T\n//! end\n");
    struct plan_request r = ask(op, false);
    r.attrs[0].i[0] = 1000;
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    struct plan *plan = build(&r);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    print_message("1000 steps of 3 launches: %.2f ms\n", ms);
    assert_int_equal(plan->n_steps, 3001);
    assert_true(ms < 100); // some 1; sanitized, some 10
    plan_free(plan);
    op_unref(op);
}

static void test_signature(void **state)
{
    (void)state;
    struct op *op = parse_lines("//! matmul y = x @ w.T\n//! kernel whole\n");
    struct plan_request r = ask(op, true);
    struct buf with = { 0 }, without = { 0 };
    plan_signature(&r, UINT32_MAX, &with);
    r.blas = false;
    plan_signature(&r, UINT32_MAX, &without);
    assert_true(with.size != without.size || memcmp(with.bytes, without.bytes, with.size) != 0);
    buf_finish(&with);
    buf_finish(&without);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_repeat_mistakes),
        cmocka_unit_test(test_plan_of_a_product),
        cmocka_unit_test(test_tf32_where_it_is_allowed),
        cmocka_unit_test(test_small_products),
        cmocka_unit_test(test_what_is_made),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_repeat),
        cmocka_unit_test(test_unwanted_gradients),
        cmocka_unit_test(test_repeat_instantiations),
        cmocka_unit_test(test_planning_is_quick),
        cmocka_unit_test(test_signature),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    opd_err_clear(&err);
    return failed;
}
