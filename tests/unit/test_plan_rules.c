// plan: what the lines of a header make of it: shapes, types, saved tensors, kernels to choose
// from, checks, views.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/report.h"
#include "unit/op_plan.h"

static void test_packs(void **state)
{
    (void)state;
    struct op *op = small(
        "//! shape x [...S, C]\n//! shape m [...S]\n//! shape y [C, ...S, C * 2]\n", PLAIN);
    struct plan_request r = ask(op, 2, 5, 7, 5);
    struct plan *plan = build(&r);
    char text[64];
    tensor_desc_format(&plan->operands[0].desc, text, sizeof text);
    assert_string_equal(text, "float32 [7, 5, 14]");
    plan_free(plan);
    r = ask(op, 2, 5, 7, 6);
    refuse(&r, "f: m has [6] in its dimensions ...S, expected [5] (of x)");
    r = ask(op, 0, 0, 0, 6);
    refuse(&r, "f: x has rank 0 [], expected rank at least 1 [...S, C]");
    r = ask(op, 16, 1, 1, 1);
    for (int i = 0; i < 16; i++)
        r.inputs[0].shape[i] = 1;
    r.inputs[1] = r.inputs[0];
    r.inputs[1].rank = 15;
    refuse(&r, "f: y would have a rank above 16");
    op_unref(op);
}

// Which of the arguments that do not fit is wrong, nobody can tell: the message names them all.
static void test_sources(void **state)
{
    (void)state;
    struct op *op = small("//! shape x [N, C]\n//! let K = N\n//! shape m [K, 2*N + C, N]\n"
                          "//! shape y [N]\n",
                          PLAIN);
    struct plan_request r = ask(op, 2, 5, 7, 1);
    r.inputs[1] = r.inputs[0];
    r.inputs[1].rank = 3;
    r.inputs[1].shape[1] = 18;
    r.inputs[1].shape[2] = 5;
    refuse(&r, "f: m has 18 in dimension 1, expected 2*N + C = 17 (N = 5 of x, C = 7 of x)");
    r.inputs[1].shape[1] = 17;
    r.inputs[1].shape[2] = 6;
    refuse(&r, "f: m has 6 in dimension 2, expected N = 5 (of x)");
    r.inputs[1].shape[0] = 6;
    refuse(&r, "f: m has 6 in dimension 0, expected K = 5");
    op_unref(op);
    op = small("//! shape x [N, N]\n//! shape m [P]\n//! shape y [N]\n", PLAIN);
    r = ask(op, 2, 5, 7, 1);
    refuse(&r, "f: x has 7 in dimension 1, expected N = 5");
    op_unref(op);
}

static void test_results(void **state)
{
    (void)state;
    struct op *op = small("//! shape x [N]\n//! shape m [P]\n//! shape y [N - P]\n", PLAIN);
    struct plan_request r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: y would have -1 in dimension 0 (N - P), expected 0 or more");
    op_unref(op);
    op = small("//! shape x [N]\n//! shape m [P]\n//! shape y [N * 70368744177664, 4]\n", PLAIN);
    r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: y: shape [140737488355328, 4]: float32 elements take 2^48 bytes or more");
    op_unref(op);
    op = small(SHAPES "//! require n < 3 : \"{x} {s} {o} {n + 1} {a}{y}\"", PLAIN);
    r = ask(op, 1, 2, 0, 3);
    r.attrs[0].i[0] = 4;
    refuse(&r, "f: float32 [2] one None 5 0.5float32 [2]");
    op_unref(op);
    op = small(SHAPES "//! require s == \"two\" || n > 5", PLAIN);
    r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: requires s == \"two\" || n > 5 (s = one, n = 1)");
    op_unref(op);
    op = small(SHAPES,
               "//! forward\n//! kernel k\n//! when n > 1\n__global__ void k(float *y) {}\n");
    r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: no kernel makes y for this request: no 'when' of t.cu holds");
    r.inputs[0].shape[0] = 0;
    plan_free(build(&r));
    r.direction = PLAN_BACKWARD;
    refuse(&r, "f: it has no backward");
    op_unref(op);
}

static void test_types(void **state)
{
    (void)state;
    struct op *op = small("//! type index_t int64 int32 : m\n" SHAPES, PLAIN);
    struct plan_request r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: m is float32, expected one of int64, int32");
    r.inputs[1].dtype = OPD_DTYPE_int32;
    struct plan *plan = build(&r);
    assert_string_equal(plan->prelude,
                        "using scalar_t = float;\nusing acc_t = float;\nusing index_t = int;\n");
    plan_free(plan);
    op_unref(op);
    op = small("//! type int64 : m\n" SHAPES, PLAIN);
    r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: m is float32, expected int64");
    op_unref(op);
}

static void test_saved(void **state)
{
    (void)state;
    struct op *op = small(
        SHAPES "//! saved g float32 [P, 2]",
        "//! forward\n//! kernel k<wanted(g)>\n//! backward grad_x\n//! kernel b\n"
        "template <int K> __global__ void k(float *y, float *g) {}\n"
        "__global__ void b(float *grad_x, const float *g, const float *grad_y) {}\n");
    struct plan_request r = ask(op, 1, 2, 0, 3);
    struct plan *plan = build(&r);
    assert_string_equal(plan->kernels[0].expr, "k<0>");
    assert_int_equal(operand(plan, "g")->kind, PLAN_SCRATCH);
    plan_free(plan);
    r.keep = true;
    plan = build(&r);
    assert_string_equal(plan->kernels[0].expr, "k<1>");
    assert_int_equal(operand(plan, "g")->kind, PLAN_SAVED);
    plan_free(plan);
    r.direction = PLAN_BACKWARD;
    r.wanted = 1;
    plan = build(&r);
    assert_int_equal(operand(plan, "g")->kind, PLAN_SAVED);
    plan_free(plan);
    r.inputs[0].dtype = r.inputs[1].dtype = OPD_DTYPE_int32;
    refuse(&r, "f: x is int32, expected a floating dtype for a gradient");
    op_unref(op);
}

static void test_chain(void **state)
{
    (void)state;
    struct op *op = small(
        SHAPES "//! scratch t float32 [3]\n//! scratch u float32 [3]",
        "//! forward\n//! zero t\n//! zero u\n//! kernel k<1>\n//! when n == 1\n//! kernel k<2>\n"
        "//! otherwise n == 2\n//! kernel k<3>\n//! otherwise\n//! kernel both\n//! when cuda\n"
        "//! kernel k<1>\n"
        "template <int N> __global__ void k(float *y) {}\n"
        "__global__ void both(float *y, float *t) {}\n");
    static const char *const first[] = { "k<1>", "k<2>", "k<3>" };
    for (int n = 1; n <= 3; n++) {
        struct plan_request r = ask(op, 1, 2, 0, 3);
        r.attrs[0].i[0] = n;
        struct plan *plan = build(&r);
        assert_string_equal(plan->kernels[plan->steps[0].kernel].expr, first[n - 1]);
        // The scratch that is used is zeroed right before; the unused one does not exist.
        assert_int_equal(plan->n_steps, 4);
        assert_int_equal(plan->steps[1].kind, PLAN_STEP_ZERO);
        assert_string_equal(plan->kernels[plan->steps[2].kernel].expr, "both");
        assert_string_equal(plan->kernels[plan->steps[3].kernel].expr, "k<1>");
        assert_int_equal(plan->n_kernels, n == 1 ? 2 : 3); // one for each instantiation
        assert_null(operand(plan, "u"));
        plan_free(plan);
        r.on_cpu = true;
        plan = build(&r);
        assert_int_equal(plan->n_steps, 2);
        plan_free(plan);
    }
    op_unref(op);
}

static const char picking[] =
    "//! op      pick(Tensor x, *, int k=3) -> Tensor y\n"
    "//! dtypes  float32\n"
    "//! shape   x [N]\n"
    "//! shape   y [N]\n"
    "//! check   first : \"at {index} of {N}\"\n"
    "//! check   second : \"k is {k}: {index}, {index}\"\n"
    "//! forward\n"
    "//!   kernel pick\n"
    "__global__ void pick(const float *x, float *y, opd::report_t *report, int N) {}\n";

static void expect_report(const struct plan *plan, uint64_t key, const char *message)
{
    struct buf out = { 0 };
    report_explain(plan->checks, plan->checks_size, key, &out);
    assert_string_equal(buf_str(&out), message);
    buf_finish(&out);
}

static void test_checks(void **state)
{
    (void)state;
    struct op *op = parse_text(picking);
    struct plan_request request = { .op = op, .inputs = { { OPD_DTYPE_float32, 1, { 5 } } } };
    request.attrs[0] = op->attrs[0].value;
    struct plan *plan = plan_build(&request, &err);
    assert_non_null(plan);
    assert_int_equal(plan->n_steps, 2); // the report is zeroed first
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_ZERO);
    assert_int_equal(plan->steps[0].operand, plan->report);
    assert_int_equal(tensor_desc_size(&plan->operands[plan->report].desc), 8);
    assert_non_null(strstr(plan->prelude, "enum { first = 0 };"));
    const uint64_t limit = UINT64_C(1) << 57;
    expect_report(plan, UINT64_C(63) << 58 | (limit - 4), "at 4 of 5");
    expect_report(plan, UINT64_C(63) << 58 | (limit + 7), "at -7 of 5");
    expect_report(plan, UINT64_C(62) << 58 | limit, "k is 3: 0, 0");
    const char *none = "a check of a kernel failed whose number is none of the header's";
    expect_report(plan, UINT64_C(61) << 58 | limit, none);
    expect_report(plan, 1, none);
    plan_free(plan);
    request.inputs[0].shape[0] = 0; // nothing is launched
    plan = plan_build(&request, &err);
    assert_int_equal(plan->report, -1);
    plan_free(plan);
    op_unref(op);
}

static void test_views(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op flat(Tensor(a) self) -> Tensor(a)\n"
                               "//! dtypes float32\n"
                               "//! shape self [...S]\n"
                               "//! shape output [numel(self)]\n"
                               "//! view output self\n");
    struct plan_request request = { .op = op, .inputs = { { OPD_DTYPE_float32, 2, { 2, 3 } } } };
    struct plan *plan = plan_build(&request, &err);
    assert_int_equal(plan->n_steps, 0);
    assert_int_equal(plan->n_operands, 1);
    assert_int_equal(plan->operands[0].view_of, 0);
    plan_free(plan);
    request.direction = PLAN_BACKWARD;
    request.wanted = 1;
    plan = plan_build(&request, &err);
    assert_int_equal(plan->operands[0].kind, PLAN_GRAD_INPUT);
    assert_int_equal(plan->operands[0].view_of, 0);
    assert_int_equal(plan->operands[0].desc.rank, 2);
    plan_free(plan);
    request.grad_absent = 1;
    plan = plan_build(&request, &err);
    assert_int_equal(plan->n_steps, 1);
    assert_int_equal(plan->operands[0].view_of, -1);
    plan_free(plan);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packs),   cmocka_unit_test(test_sources),
        cmocka_unit_test(test_results), cmocka_unit_test(test_types),
        cmocka_unit_test(test_saved),   cmocka_unit_test(test_chain),
        cmocka_unit_test(test_checks),  cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
