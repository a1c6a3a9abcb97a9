// Steps of elements in sections: `formula`, `sum`, `fill` and the bias of a `matmul`.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/op_plan.h"

// Lines 1 to 10; the steps begin at line 11.
#define TOP                                                                                        \
    "//! op f(Tensor x, Tensor w, Tensor? b=None, *, float a=0.5, int[2] k=1) -> Tensor y\n"       \
    "//! dtypes float16 float32\n//! shape x [N, C]\n//! shape w [C, C]\n//! shape b [C]\n"        \
    "//! shape y [N, C]\n//! scratch s acc_t [N, C]\n//! scratch i int32 [C]\n"                    \
    "//! scratch r [N]\n//! forward\n"
#define CODE "\n__device__ float half_of(float x) { return x / 2; }\n"

static struct op *with(const char *steps)
{
    char text[4096];
    snprintf(text, sizeof text, TOP "%s" CODE, steps);
    return parse_text(text);
}

static struct plan_request request(const struct op *op, int64_t n, int64_t c)
{
    struct plan_request r = { .op = op };
    r.inputs[0] = (struct tensor_desc){ .dtype = OPD_DTYPE_float16, .rank = 2, .shape = { n, c } };
    r.inputs[1] = (struct tensor_desc){ .dtype = OPD_DTYPE_float16, .rank = 2, .shape = { c, c } };
    r.inputs[2] = (struct tensor_desc){ .dtype = OPD_DTYPE_float16, .rank = 1, .shape = { c } };
    for (int i = 0; i < op->n_attrs; i++)
        r.attrs[i] = op->attrs[i].value;
    return r;
}

static void test_steps(void **state)
{
    (void)state;
    struct op *op = with("//! fill i N\n//! formula s = x * a + k[1] * half_of(w) + i\n"
                         "//! formula y = s + y\n//! sum r = s * x over -1\n");
    struct plan_request r = request(op, 8, 8);
    struct plan *plan = build(&r);
    // y is read before it is made: it begins with zeros. r, which nothing gets, is made all the
    // same.
    assert_int_equal(plan->n_steps, 5);
    assert_string_equal(plan->kernels[0].expr, "opd::formula_map<line11_forward, 4>");
    assert_string_equal(plan->kernels[1].expr, "opd::formula_map<line12_forward, 4>");
    assert_int_equal(plan->steps[2].kind, PLAN_STEP_ZERO);
    assert_string_equal(plan->operands[plan->steps[2].operand].name, "y");
    assert_string_equal(plan->kernels[2].expr, "opd::formula_map<line13_forward, 4>");
    assert_string_equal(slot(plan, 1, 0), "x");
    assert_non_null(strstr(plan->kernels[1].prelude, "using scalar_t = opd::half;"));
    assert_non_null(strstr(plan->kernels[1].prelude, "struct line12_forward {"));
    assert_null(strstr(plan->kernels[1].prelude, "line13"));
    assert_null(strstr(plan->prelude, "line"));
    plan_free(plan);
    r.inputs[1].dtype = OPD_DTYPE_float32;
    opd_err_clear(&err);
    assert_null(plan_build(&r, &err));
    opd_err_clear(&err);
    op_unref(op);
}

static void test_sum(void **state)
{
    (void)state;
    struct op *op = with("//! formula y = x\n//! sum r = x * 2 over 1\n");
    struct plan_request r = request(op, 3, 100000);
    struct plan *plan = build(&r);
    // In parts, with memory for them between.
    assert_int_equal(plan->n_steps, 3);
    assert_string_equal(plan->kernels[2].expr, "opd::formula_total<acc_t, scalar_t, 4>");
    const struct plan_operand *sums = operand(plan, "sums");
    assert_non_null(sums);
    assert_int_equal(sums->kind, PLAN_SCRATCH);
    assert_int_equal(sums->desc.dtype, OPD_DTYPE_float32);
    plan_free(plan);
    r = request(op, 3, 0); // a sum of nothing
    plan = build(&r);
    assert_int_equal(plan->n_steps, 1);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_ZERO);
    plan_free(plan);
    op_unref(op);
    op = with("//! formula y = x\n//! sum r = x over 0\n");
    r = request(op, 3, 4);
    refuse(&r, "f: sum r = x over 0: r is [3], expected [4]");
    op_unref(op);
    op = with("//! formula y = x\n//! sum r = x over 2\n");
    r = request(op, 3, 4);
    refuse(&r, "f: sum r = x over 2: '2' is none of them, expected dimensions of a tensor of rank "
               "2");
    op_unref(op);
    op = with("//! formula y = x\n//! sum r = x over 1, -1\n");
    r = request(op, 3, 4);
    refuse(&r, "f: sum r = x over 1, -1: '-1' is there twice, expected dimensions of a tensor of "
               "rank 2");
    op_unref(op);
}

static void test_bias(void **state)
{
    (void)state;
    struct op *op = with("//! matmul y = x @ w + b\n");
    struct plan_request r = request(op, 30, 40);
    r.blas = true;
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_steps, 2);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_LAUNCH);
    assert_true(plan->steps[1].kind == PLAN_STEP_MATMUL && plan->steps[1].matmul->accumulate);
    plan_free(plan);
    r.inputs[2].dtype = OPD_DTYPE_NONE; // no bias, a plain product
    plan = build(&r);
    assert_int_equal(plan->n_steps, 1);
    assert_false(plan->steps[0].matmul->accumulate);
    plan_free(plan);
    op_unref(op);
    op = with("//! matmul matrix(s, N, C) = x @ w + b\n//! formula y = s");
    r = request(op, 3, 4);
    refuse(&r, "f: matmul matrix(s, N, C) = x @ w + b: b is float16 [4], expected float32 [4], as "
               "the result's rows");
    op_unref(op);
    op = with("//! matmul matrix(y, 1, C) = matrix(x, 1, C) @ w + b\n");
    r = request(op, 3, 4);
    refuse(&r, "f: matmul matrix(y, 1, C) = matrix(x, 1, C) @ w + b: a bias, but the result is a "
               "part of its tensor; expected all of it");
    op_unref(op);
}

static void test_requests(void **state)
{
    (void)state;
    struct op *op = with("//! formula y = present(b) ? x + b : x\n");
    struct plan_request r = request(op, 3, 4);
    for (int i = 0; i < 2; i++) {
        struct plan *plan = build(&r);
        assert_int_equal(plan->steps[0].n_slots, 3 - i);
        plan_free(plan);
        r.inputs[2].dtype = OPD_DTYPE_NONE;
    }
    op_unref(op);
    op = with("//! formula y = r\n");
    r = request(op, 3, 4);
    refuse(&r, "f: formula y = r: r is [3], expected a shape that broadcasts with y, which is [3, "
               "4]");
    op_unref(op);
    // A repeat has one kernel, and its counter for a number; conditions make a chain.
    op = with("//! formula y = x when N > 2\n//! fill y 3 otherwise\n//! repeat t < 3\n"
              "//! formula y = y + t\n//! end\n");
    r = request(op, 3, 4);
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_steps, 4);
    assert_int_equal(plan->n_kernels, 2);
    plan_free(plan);
    r = request(op, 1, 4);
    plan = build(&r);
    assert_int_equal(plan->n_steps, 4);
    plan_free(plan);
    op_unref(op);
}

// Two sums of a row, in parts: each with memory of its own, which a second such step takes again.
static void test_sums_of_rows(void **state)
{
    (void)state;
    struct op *op = with("//! formula y = (x - amax(x, -1)) / sum(x, -1)\n"
                         "//! formula s = (x - amax(x, -1)) / sum(x, -1)\n");
    struct plan_request r = request(op, 2, 100000);
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_steps, 10);
    for (int i = 0; i < plan->n_steps; i += 5) {
        const struct plan_step *map = &plan->steps[i + 4];
        assert_int_equal(map->n_slots, 4);
        assert_string_equal(slot(plan, i + 4, 8), "sums");
        assert_string_equal(slot(plan, i + 4, 16), "sums");
        assert_true(map->slots[1].operand != map->slots[2].operand);
    }
    int n_sums = 0;
    for (int i = 0; i < plan->n_operands; i++)
        n_sums += strcmp(plan->operands[i].name, "sums") == 0;
    assert_int_equal(n_sums, 4);
    plan_free(plan);
    op_unref(op);
}

#define BACKWARD                                                                                   \
    "//! op f(Tensor x, Tensor w) -> Tensor y\n//! dtypes float32\n//! shape x y [N, C]\n"         \
    "//! shape w [C]\n"

// What the file calls grad_h is no gradient of the step's own.
static void test_names(void **state)
{
    (void)state;
    struct op *op = parse_text(BACKWARD "//! saved h [N, C]\n//! scratch grad_h [N, C]\n"
                                        "//! forward\n//! formula h = x * w\n//! formula y = h\n"
                                        "//! backward grad_x\n//! formula grad_h = h * grad_y\n"
                                        "//! formula grad_x = grad_h * w\n");
    op_unref(op);
}

// A gradient is contiguous, whatever its input is; which no step of elements reads.
static void test_strided(void **state)
{
    (void)state;
    struct op *op = parse_text(BACKWARD "//! strided x w\n//! forward\n//! fill y 2\n"
                                        "//! backward grad_x\n//! formula grad_x = 2 * grad_y\n"
                                        "//! backward grad_w\n//! sum grad_w = grad_y over 0\n");
    struct plan_request r = { .op = op, .direction = PLAN_BACKWARD, .wanted = 3 };
    r.inputs[0] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32,
                                        .rank = 2,
                                        .shape = { 4, 5 },
                                        .strided = true,
                                        .strides = { 1, 4 } };
    r.inputs[1] = (struct tensor_desc){
        .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { 5 }, .strided = true, .strides = { 2 }
    };
    struct plan *plan = build(&r);
    assert_int_equal(plan->n_steps, 2);
    plan_free(plan);
    op_unref(op);
    refuse_text(BACKWARD "//! strided x\n//! forward\n//! formula y = w + x\n",
                "t.cu:7: 'x' is strided, expected a contiguous tensor, or a kernel for it");
    refuse_text("//! op f(Tensor(a!) x) -> ()\n//! dtypes float32\n//! shape x [N]\n"
                "//! strided x\n//! forward\n//! fill x 1\n",
                "t.cu:6: 'x' is strided, expected a contiguous tensor, or a kernel for it");
    refuse_text(BACKWARD "//! strided w\n//! forward\n//! matmul y = x @ x + w\n",
                "t.cu:7: 'w' is strided, expected a contiguous tensor, or a kernel for it");
}

static void test_mistakes(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "formula y = epx(x)", "t.cu:11:17: there is no function 'epx'; did you mean 'exp'?" },
        { "formula y = x ** 2", "t.cu:11:20: '**' is not of formulas; a power is pow(x, y)" },
        { "formula y = x + xx",
          "t.cu:11: 'xx' is not defined here, expected a tensor, attribute, dimension or let; did "
          "you mean 'x'?" },
        { "formula y =", "t.cu:11: expected a formula, got the end of the line" },
        { "formula y = when 1", "t.cu:11: expected a formula, got 'when'" },
        { "sum r = over 0", "t.cu:11: expected a formula, got 'over'" },
        { "formula y x", "t.cu:11: expected '=', got 'x'" },
        { "formula x = y",
          "t.cu:11: 'x' is not made in this section, expected an output, saved or scratch" },
        { "formula grad_x = y",
          "t.cu:11: 'grad_x' is not made in this section, expected an output, saved or scratch" },
        { "formula y = grad_y",
          "t.cu:11: 'grad_y' is a gradient, expected in a backward section only" },
        { "formula q = x", "t.cu:11: 'q' is not defined here, expected a tensor" },
        { "formula y = k", "t.cu:11:17: k is a list of 2; write k[0] for an element" },
        { "formula y = x when",
          "t.cu:11: expected a number, a name or '(', got the end of the line" },
        { "formula y = x + b", "t.cu:11:17: y reads b, which may be absent; expected present(b) ? "
                               "... : ... around it" },
        { "formula y = x block 2",
          "t.cu:11: 'block' without its kernel, expected below a 'kernel' line" },
        { "sum r = x", "t.cu:11: expected 'over' and dimensions, as in 'sum s = x over 0', got the "
                       "end of the line" },
        { "sum r = x over 1.5", "t.cu:11: over is '1.5', a float; expected an integer (floor() "
                                "makes one)" },
        { "sum r = 2 over 0", "t.cu:11: a sum of no tensor" },
        { "sum r = r * x over 1", "t.cu:11: 'r' is what the sum makes, expected other tensors" },
        { "fill y x", "t.cu:11: 'fill' with a tensor, expected a number; 'formula' takes tensors" },
        { "fill y", "t.cu:11: expected a number, got the end of the line" },
        { "matmul y += x @ w + b",
          "t.cu:11: '+=' and a bias, expected the bias in the first product" },
        { "matmul y = x @ w + y", "t.cu:11: the result is its own bias; expected '+='" },
        { "matmul y = x @ w + 1", "t.cu:11: expected a tensor, or matrix(tensor, rows, cols), got "
                                  "'1'" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        snprintf(text, sizeof text, TOP "//! %s\n" CODE, rows[i][0]);
        refuse_text(text, rows[i][1]);
    }
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! type int32 : x y\n//! shape x [N]\n"
                "//! shape y [N]\n//! forward\n//! fill y 3\n",
                "t.cu:6: no 'dtypes' line: it says what a 'fill' computes in");
    refuse_text(
        "//! op f(Tensor x) -> Tensor y\n//! dtypes int32\n//! shape x [N]\n"
        "//! shape y [N]\n//! forward\n//! formula y = x + 1\n",
        "t.cu:6:17: dtypes has int32, but formulas are computed in floating point; a tensor "
        "of another dtype needs a 'type' line");
    refuse_text(TOP "//! formula s = x\n", "t.cu:10: no kernel of this section writes y: none has "
                                           "it as a parameter that is a pointer to non-const");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_bias),         cmocka_unit_test(test_requests),
        cmocka_unit_test(test_sums_of_rows), cmocka_unit_test(test_names),
        cmocka_unit_test(test_strided),      cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
