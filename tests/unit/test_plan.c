// plan: of an operator that has everything, forward and backward, to the last byte; and requests
// that do not fit it.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_plan.h"

static const char depthwise[] =
    "//! op      depthwise_conv2d(Tensor input, Tensor weight, Tensor? bias=None, *, \\\n"
    "//!           int[2] stride=1, int[2] padding=0, int[2] dilation=1) -> Tensor output\n"
    "//! dtypes  float16 bfloat16 float32 float64\n"
    "//! shape   input [N, C, H, W]\n"
    "//! shape   weight [CM, 1, KH, KW]\n"
    "//! require C > 0 && CM % C == 0 : \"weight has {CM} channels in dimension 0, input has {C}; "
    "expected [{C}*M, 1, KH, KW]\"\n"
    "//! let     M = CM / C\n"
    "//! shape   bias [CM]\n"
    "//! require stride[0] > 0 && stride[1] > 0\n"
    "//! let     OH = (H + 2*padding[0] - dilation[0]*(KH - 1) - 1) / stride[0] + 1\n"
    "//! let     OW = (W + 2*padding[1] - dilation[1]*(KW - 1) - 1) / stride[1] + 1\n"
    "//! require OH > 0 && OW > 0\n"
    "//! shape   output [N, CM, OH, OW]\n"
    "//! scratch partial acc_t [8, CM]\n"
    "//! example input=[2,3,9,11] weight=[6,1,3,3] bias=[6] stride=2 padding=1\n"
    "//! example input=[2,3,9,11] weight=[3,1,1,9] stride=[2,1]\n"
    "//! forward\n"
    "//!   kernel  depthwise_forward<scalar_t, KH, KW, stride[0]>\n"
    "//!   when    KH <= 7 && KW <= 7\n"
    "//!   grid    cdiv(numel(output), 128)\n"
    "//!   block   128\n"
    "//!   shared  KH * KW * 4\n"
    "//!   bind    n = numel(output)\n"
    "//!   kernel  depthwise_forward_any<scalar_t>\n"
    "//!   otherwise\n"
    "//!   bind    n = numel(output)\n"
    "//! backward grad_input\n"
    "//!   kernel depthwise_backward_input<scalar_t>\n"
    "//! backward grad_weight grad_bias\n"
    "//!   zero   grad_weight\n"
    "//!   zero   grad_bias\n"
    "//!   kernel depthwise_backward_weight<scalar_t>\n"
    "//!   grid   C, 2\n"
    "template <typename T, int KH, int KW, int S> __global__ void depthwise_forward(\n"
    "    const T *input, const T *weight, const T *bias, T *output, int64_t n, int H, int W) {}\n"
    "template <typename T> __global__ void depthwise_forward_any(\n"
    "    const T *input, const T *weight, const T *bias, T *output, int64_t n, int M) {}\n"
    "template <typename T> __global__ void depthwise_backward_input(\n"
    "    const T *grad_output, const T *weight, T *grad_input) {}\n"
    "template <typename T> __global__ void depthwise_backward_weight(\n"
    "    const T *grad_output, const T *input, T *grad_weight, T *grad_bias, acc_t *partial) {}\n";

static struct plan_request example(const struct op *op, int k, enum opd_dtype dtype)
{
    struct plan_request request;
    assert_true(plan_example(op, k, dtype, &request));
    return request;
}

static void test_forward(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request request = example(op, 0, OPD_DTYPE_float16);
    struct plan *plan = build(&request);
    assert_int_equal(op->refs, 2);
    assert_int_equal(plan->n_operands, 4);
    assert_int_equal(plan->operands[0].kind, PLAN_OUTPUT);
    char text[64];
    tensor_desc_format(&plan->operands[0].desc, text, sizeof text);
    assert_string_equal(text, "float16 [2, 6, 5, 6]");
    assert_int_equal(plan->n_kernels, 1);
    assert_string_equal(plan->kernels[0].expr, "depthwise_forward<scalar_t, 3, 3, 2>");
    assert_int_equal(plan->kernels[0].line, 18);
    assert_int_equal(plan->n_steps, 1);
    const struct plan_step *s = &plan->steps[0];
    assert_true(s->grid[0] == 3 && s->grid[1] == 1 && s->grid[2] == 1);
    assert_true(s->block[0] == 128 && s->block[1] == 1 && s->block[2] == 1);
    assert_int_equal(s->shared_size, 36);
    assert_int_equal(s->args_size, 48);
    assert_string_equal(slot(plan, 0, 0), "input");
    assert_string_equal(slot(plan, 0, 8), "weight");
    assert_string_equal(slot(plan, 0, 16), "bias");
    assert_string_equal(slot(plan, 0, 24), "output");
    assert_int_equal(arg(plan, 0, 32, 8), 360);
    assert_int_equal(arg(plan, 0, 40, 4), 9);
    assert_int_equal(arg(plan, 0, 44, 4), 11);
    assert_string_equal(plan->prelude, "using scalar_t = opd::half;\nusing acc_t = float;\n");
    plan_free(plan);
    plan_free(NULL);
    assert_int_equal(op->refs, 1);
    op_unref(op);
}

static void test_otherwise_and_absent(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request request = example(op, 1, OPD_DTYPE_float64);
    struct plan *plan = build(&request);
    assert_string_equal(plan->kernels[0].expr, "depthwise_forward_any<scalar_t>");
    assert_string_equal(slot(plan, 0, 16), "");
    assert_null(operand(plan, "bias"));
    assert_int_equal(arg(plan, 0, 16, 8), 0);
    assert_int_equal(plan->steps[0].grid[0], 1);
    assert_int_equal(plan->steps[0].block[0], 256);
    assert_string_equal(plan->prelude, "using scalar_t = double;\nusing acc_t = double;\n");
    plan_free(plan);
    op_unref(op);
}

static void test_backward(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request request = example(op, 0, OPD_DTYPE_bfloat16);
    request.direction = PLAN_BACKWARD;
    request.wanted = UINT32_MAX;
    struct plan *plan = build(&request);
    assert_int_equal(plan->n_steps, 4);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_LAUNCH);
    assert_int_equal(plan->steps[0].grid[0], 3); // of grad_input: 594 elements
    assert_int_equal(plan->steps[1].kind, PLAN_STEP_ZERO);
    assert_int_equal(plan->steps[2].kind, PLAN_STEP_ZERO);
    assert_int_equal(plan->steps[3].grid[1], 2);
    assert_int_equal(operand(plan, "grad_output")->kind, PLAN_GRAD_OUTPUT);
    assert_int_equal(operand(plan, "grad_weight")->kind, PLAN_GRAD_INPUT);
    assert_int_equal(operand(plan, "grad_weight")->index, 1);
    assert_int_equal(operand(plan, "partial")->kind, PLAN_SCRATCH);
    assert_int_equal(operand(plan, "partial")->desc.dtype, OPD_DTYPE_float32);
    plan_free(plan);

    request.wanted = 1 << 2; // the bias alone: one section, no zeros for what is not wanted
    plan = build(&request);
    assert_int_equal(plan->n_steps, 2);
    assert_string_equal(slot(plan, 1, 16), "");
    assert_string_equal(slot(plan, 1, 24), "grad_bias");
    assert_null(operand(plan, "grad_weight"));
    plan_free(plan);

    request.inputs[2].dtype = OPD_DTYPE_NONE; // absent: wanted in vain
    plan = build(&request);
    assert_int_equal(plan->n_steps, 0);
    assert_int_equal(plan->n_operands, 0);
    plan_free(plan);

    request.wanted = 1;
    request.grad_absent = 1;
    plan = build(&request);
    assert_int_equal(plan->n_steps, 2);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_ZERO);
    assert_string_equal(plan->operands[plan->steps[0].operand].name, "grad_output");
    assert_int_equal(operand(plan, "grad_output")->kind, PLAN_SCRATCH);
    assert_int_equal(operand(plan, "grad_output")->index, OP_MAX_TEMPS);
    plan_free(plan);
    op_unref(op);
}

static void test_empty(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request request = example(op, 0, OPD_DTYPE_float32);
    request.inputs[0].shape[0] = 0;
    struct plan *plan = build(&request);
    assert_int_equal(plan->n_steps, 0);
    assert_int_equal(plan->operands[0].desc.shape[0], 0);
    plan_free(plan);
    request.direction = PLAN_BACKWARD;
    request.wanted = 2;
    plan = build(&request); // the gradient of the weight is not empty
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_ZERO);
    plan_free(plan);
    op_unref(op);
}

static void test_empty_block(void **state)
{
    (void)state;
    struct op *op = parse_text(
        "//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! shape x [N]\n"
        "//! shape y [N]\n//! forward\n//! kernel k\n//! grid cdiv(N, 64)\n"
        "//! block min(N, 64)\n__global__ void k(float *y) {}\n");
    struct plan_request request = { .op = op };
    request.inputs[0] =
        (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { 0 } };
    struct plan *plan = build(&request);
    assert_int_equal(plan->n_steps, 0);
    plan_free(plan);
    op_unref(op);
}

static void test_requests(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    const struct plan_request good = example(op, 0, OPD_DTYPE_float32);
    struct plan_request r = good;
#define AGAIN(change, message)                                                                     \
    r = good;                                                                                      \
    change;                                                                                        \
    refuse(&r, "depthwise_conv2d: " message)
    AGAIN(r.inputs[1].dtype = OPD_DTYPE_float64,
          "weight is float64, input is float32; expected the same dtype");
    AGAIN(r.inputs[0].dtype = OPD_DTYPE_int32,
          "input is int32, expected one of float16, bfloat16, float32, float64");
    AGAIN(r.inputs[0].dtype = OPD_DTYPE_NONE, "input is missing, expected a tensor");
    AGAIN(r.inputs[0].rank = 3, "input has rank 3 [2, 3, 9], expected rank 4 [N, C, H, W]");
    AGAIN(r.inputs[0].rank = 17, "input: rank 17, expected at most 16");
    AGAIN(r.inputs[0].shape[1] = -1, "input: shape [2, -1, 9, 11]: -1 in dimension 1 is negative");
    AGAIN(r.inputs[0].shape[1] = INT64_C(1) << 45,
          "input: shape [2, 35184372088832, 9, 11]: float32 elements take 2^48 bytes or more");
    AGAIN(r.inputs[1].shape[1] = 2, "weight has 2 in dimension 1, expected 1");
    AGAIN(r.inputs[2].shape[0] = 5, "bias has 5 in dimension 0, expected CM = 6 (of weight)");
    AGAIN(r.inputs[1].shape[0] = 5,
          "weight has 5 channels in dimension 0, input has 3; expected [3*M, 1, KH, KW]");
    AGAIN((r.inputs[0].shape[2] = 1, r.attrs[0].i[0] = 1, r.attrs[1].i[0] = 0),
          "requires OH > 0 && OW > 0 (OH = -1, OW = 6)");
    AGAIN(r.attrs[0].i[0] = 0, "requires stride[0] > 0 && stride[1] > 0 (stride = [0, 2])");
    AGAIN(r.attrs[1].i[0] = INT64_MAX,
          "overflow in '(H + 2*padding[0] - dilation[0]*(KH - 1) - 1) / stride[0] + 1' (t.cu:10)");
    AGAIN(r.attrs[0].present = false, "attribute stride is missing, expected a value");
    AGAIN(r.attrs[0].n = 1, "attribute stride has 1 value, expected 2");
    AGAIN(
        (r.inputs[0].shape[0] = 1 << 20, r.inputs[0].shape[2] = 40001, r.inputs[0].shape[3] = 401),
        "kernel depthwise_forward: grid x is 197600919552, expected 0 to 2147483647");
    AGAIN((r.direction = PLAN_BACKWARD, r.wanted = 2, r.inputs[0].shape[1] = 3,
           r.inputs[1].shape[0] = 3, r.inputs[2].shape[0] = 4),
          "bias has 4 in dimension 0, expected CM = 3 (of weight)");
    op_unref(op);
}

static bool signs_alike(const struct plan_request *a, const struct plan_request *b)
{
    struct buf x = { 0 }, y = { 0 };
    plan_signature(a, UINT32_MAX, &x);
    plan_signature(b, UINT32_MAX, &y);
    bool alike = x.size == y.size && memcmp(x.bytes, y.bytes, x.size) == 0;
    buf_finish(&x);
    buf_finish(&y);
    return alike;
}

static void test_signature(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request a = example(op, 0, OPD_DTYPE_float32), b = a;
    assert_true(signs_alike(&a, &b));
    b.inputs[0].shape[5] = 7; // beyond the rank
    b.wanted = 3;             // of backward alone
    b.grad_absent = 1;
    assert_true(signs_alike(&a, &b));
#define DIFFERS(change)                                                                            \
    b = a;                                                                                         \
    change;                                                                                        \
    assert_false(signs_alike(&a, &b))
    DIFFERS(b.inputs[0].shape[0] = 3);
    DIFFERS(b.inputs[0].dtype = OPD_DTYPE_float64);
    DIFFERS(b.inputs[2].dtype = OPD_DTYPE_NONE);
    DIFFERS(b.attrs[1].i[1] = 0);
    DIFFERS(b.on_cpu = true);
    DIFFERS(b.checked = true);
    DIFFERS(b.keep = true);
    DIFFERS(b.direction = PLAN_BACKWARD);
    a.direction = PLAN_BACKWARD;
    DIFFERS(b.wanted = 1);
    DIFFERS(b.grad_absent = 1);
    b = a;
    b.wanted = 1u << 7; // no such input
    b.grad_absent = 1u << 7;
    b.keep = true; // of forward alone
    assert_true(signs_alike(&a, &b));
    op_unref(op);
}

// Of a tensor that is absent, too: the kernel tests whether it is.
static void test_checked(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request r = example(op, 0, OPD_DTYPE_float32);
    struct plan *plain = build(&r);
    r.checked = true;
    r.inputs[2] = (struct tensor_desc){ 0 };
    struct plan *plan = build(&r);
    static const char first[] = PLAN_CHECKED " 0 8 16 24\n";
    assert_memory_equal(plan->kernels[0].prelude, first, strlen(first));
    assert_string_equal(plan->kernels[0].prelude + strlen(first), plain->kernels[0].prelude);
    plan_free(plan);
    plan_free(plain);
    op_unref(op);
}

static void test_same_bytes(void **state)
{
    (void)state;
    struct op *op = parse_text(depthwise);
    struct plan_request r = example(op, 0, OPD_DTYPE_float32);
    struct plan *a = build(&r), *b = build(&r);
    for (int i = 0; i < a->n_steps; i++)
        assert_memory_equal(a->steps[i].args, b->steps[i].args, a->steps[i].args_size);
    plan_free(a);
    plan_free(b);
    assert_false(plan_example(op, 2, OPD_DTYPE_float32, &r));
    assert_false(plan_example(op, -1, OPD_DTYPE_float32, &r));
    assert_true(plan_example(op, 0, OPD_DTYPE_int8, &r));
    assert_int_equal(r.inputs[0].dtype, OPD_DTYPE_float16);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),     cmocka_unit_test(test_otherwise_and_absent),
        cmocka_unit_test(test_backward),    cmocka_unit_test(test_empty),
        cmocka_unit_test(test_empty_block), cmocka_unit_test(test_requests),
        cmocka_unit_test(test_signature),   cmocka_unit_test(test_checked),
        cmocka_unit_test(test_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
