#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "mem.h"
#include "op_text.h"

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

static struct opd_err err;

static struct plan *build(const struct plan_request *request)
{
    opd_err_clear(&err);
    struct plan *plan = plan_build(request, &err);
    if (!plan)
        fail_msg("%s", err.msg);
    return plan;
}

static void refuse(const struct plan_request *request, const char *message)
{
    opd_err_clear(&err);
    assert_null(plan_build(request, &err));
    assert_int_equal(err.code, OPD_E_invalid_argument);
    assert_string_equal(err.msg, message);
}

static struct plan_request example(const struct op *op, int k, enum opd_dtype dtype)
{
    struct plan_request request;
    assert_true(plan_example(op, k, dtype, &request));
    return request;
}

static const struct plan_operand *operand(const struct plan *plan, const char *name)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (strcmp(plan->operands[i].name, name) == 0)
            return &plan->operands[i];
    return NULL;
}

// The operand that the launch's pointer at this offset names, "" if none.
static const char *slot(const struct plan *plan, int step, uint32_t offset)
{
    for (int i = 0; i < plan->steps[step].n_slots; i++)
        if (plan->steps[step].slots[i].arg_offset == offset)
            return plan->operands[plan->steps[step].slots[i].operand].name;
    return "";
}

static int64_t arg(const struct plan *plan, int step, uint32_t offset, size_t size)
{
    int64_t value = 0;
    assert_true(offset + size <= plan->steps[step].args_size);
    memcpy(&value, plan->steps[step].args + offset, size);
    return value;
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
    request.inputs[0] = (struct tensor_desc){ OPD_DTYPE_float32, 1, { 0 } };
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
    AGAIN(r.inputs[2].shape[0] = 5, "bias has 5 in dimension 0, expected CM = 6");
    AGAIN(r.inputs[1].shape[0] = 5,
          "weight has 5 channels in dimension 0, input has 3; expected [3*M, 1, KH, KW]");
    AGAIN((r.inputs[0].shape[2] = 1, r.attrs[0].i[0] = 1, r.attrs[1].i[0] = 0),
          "requires OH > 0 && OW > 0 (OH = -1, OW = 6)");
    AGAIN(r.attrs[0].i[0] = 0, "requires stride[0] > 0 && stride[1] > 0 (stride = [0, 2])");
    AGAIN(r.attrs[1].i[0] = INT64_MAX,
          "overflow in '(H + 2*padding[0] - dilation[0]*(KH - 1) - 1) / stride[0] + 1' (t.cu:10)");
    AGAIN(r.attrs[0].present = false, "attribute stride is missing, expected a value");
    AGAIN(r.attrs[0].n = 1, "attribute stride has 1 values, expected 2");
    AGAIN(
        (r.inputs[0].shape[0] = 1 << 20, r.inputs[0].shape[2] = 40001, r.inputs[0].shape[3] = 401),
        "kernel depthwise_forward: grid x is 197600919552, expected 0 to 2147483647");
    AGAIN((r.direction = PLAN_BACKWARD, r.wanted = 2, r.inputs[0].shape[1] = 3,
           r.inputs[1].shape[0] = 3, r.inputs[2].shape[0] = 4),
          "bias has 4 in dimension 0, expected CM = 3");
    op_unref(op);
}

// x [...S], one more tensor m [P], attributes, and whatever else the test says.
static struct op *small(const char *rules, const char *sections)
{
    char text[4096];
    snprintf(text, sizeof text,
             "//! op f(Tensor x, Tensor m, *, int n=1, float a=0.5, int? o=None, str s=\"one\") -> "
             "Tensor y\n"
             "//! dtypes float16 float32 int32\n//! words s one two\n%s\n%s",
             rules, sections);
    return parse_text(text);
}

static struct plan_request ask(const struct op *op, int rank, int64_t d0, int64_t d1, int64_t m)
{
    struct plan_request r = { .op = op };
    r.inputs[0] = (struct tensor_desc){ OPD_DTYPE_float32, rank, { d0, d1 } };
    r.inputs[1] = (struct tensor_desc){ OPD_DTYPE_float32, 1, { m } };
    for (int i = 0; i < op->n_attrs; i++)
        r.attrs[i] = op->attrs[i].value;
    return r;
}

#define SHAPES "//! shape x [...S]\n//! shape m [P]\n//! shape y [...S]\n"
#define PLAIN "//! forward\n//! kernel k\n__global__ void k(float *y) {}\n"

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
    refuse(&r, "f: m has [6] in its dimensions ...S, expected [5]");
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

static void test_launch_limits(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "grid 2147483648", "f: kernel k: grid x is 2147483648, expected 0 to 2147483647" },
        { "grid 1, 65536", "f: kernel k: grid y is 65536, expected 0 to 65535" },
        { "grid 1, 1, 65536", "f: kernel k: grid z is 65536, expected 0 to 65535" },
        { "grid -n", "f: kernel k: grid x is -1, expected 0 to 2147483647" },
        { "block 0", "f: kernel k: block x is 0, expected 1 to 1024" },
        { "block 1025", "f: kernel k: block x is 1025, expected 1 to 1024" },
        { "block 1, 1, 65", "f: kernel k: block z is 65, expected 1 to 64" },
        { "block 64, 32", "f: kernel k: block has 2048 threads, expected at most 1024" },
        { "shared 232449", "f: kernel k: shared is 232449 bytes, expected 0 to 232448" },
        { "shared -1", "f: kernel k: shared is -1 bytes, expected 0 to 232448" },
        { "grid n / (n - 1)", "f: division by zero in 'n / (n - 1)' (t.cu:9)" },
        { "grid o", "f: an attribute that is None in 'o' (t.cu:9)" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "//! forward\n//! kernel k\n//! %s\n__global__ void k(float *y) {}\n", rows[i][0]);
        struct op *op = small("//! shape x [...S]\n//! shape m [P]\n//! shape y [...S]", text);
        struct plan_request r = ask(op, 1, 2, 0, 3);
        refuse(&r, rows[i][1]);
        op_unref(op);
    }
}

static void test_default_grid(void **state)
{
    (void)state;
    struct op *op = small(
        SHAPES, "//! forward\n//! kernel k\n//! block 32, 2\n__global__ void k(float *y) {}\n");
    struct plan_request r = ask(op, 2, 65, 2, 3);
    struct plan *plan = build(&r);
    assert_int_equal(plan->steps[0].grid[0], 3); // one thread for each element, whatever the block
    plan_free(plan);
    op_unref(op);
    op = parse_text("//! op sgd(Tensor g, Tensor(a!) p, float lr) -> ()\n//! dtypes float32\n"
                    "//! shape g []\n//! shape p [...S]\n//! forward\n//! kernel k\n"
                    "__global__ void k(float *p, float lr) {}\n");
    r = ask(op, 0, 0, 0, 1000);
    op_attr_set_ints(op, 0, (int64_t[]){ 1 }, 1, &r.attrs[0], &err);
    plan = build(&r);
    assert_int_equal(plan->steps[0].grid[0], 4);
    assert_int_equal(plan->n_operands, 1);
    assert_int_equal(plan->operands[0].kind, PLAN_INPUT);
    plan_free(plan);
    r.inputs[1].shape[0] = 0; // an empty one in place: nothing to do, and no zeros
    plan = build(&r);
    assert_int_equal(plan->n_steps, 0);
    plan_free(plan);
    op_unref(op);
}

static void test_arguments(void **state)
{
    (void)state;
    struct op *op = small(
        SHAPES "//! let big = n * 3000000000",
        "//! forward\n//! kernel k<scalar_t, acc_t, float>\n//! bind z = x\n//! bind q = a\n"
        "//! bind c = n\n//! bind t = 1\n"
        "template <class T, class A, class U> __global__ void k(T *y, bool t, char c, short P, "
        "const T *z, T q, A a, U n, double big) {}\n");
    struct plan_request r = ask(op, 1, 2, 0, 3);
    for (int i = 0; i < 2; i++)
        r.inputs[i].dtype = OPD_DTYPE_float16;
    struct plan *plan = build(&r);
    assert_string_equal(plan->kernels[0].expr, "k<scalar_t, acc_t, float>");
    static const uint32_t offsets[] = { 0, 8, 9, 10, 16, 24, 28, 32, 40 };
    assert_int_equal(plan->kernels[0].n_params, 9);
    for (int i = 0; i < 9; i++)
        assert_int_equal(plan->kernels[0].params[i].offset, offsets[i]);
    assert_int_equal(plan->steps[0].args_size, 48);
    assert_int_equal(arg(plan, 0, 8, 1), 1);
    assert_int_equal(arg(plan, 0, 10, 2), 3);
    assert_string_equal(slot(plan, 0, 16), "x");
    assert_int_equal(arg(plan, 0, 24, 2), 0x3800);     // 0.5 as float16
    assert_int_equal(arg(plan, 0, 28, 4), 0x3f000000); // 0.5f
    assert_int_equal(arg(plan, 0, 32, 4), 0x3f800000); // 1.0f
    double big;
    memcpy(&big, plan->steps[0].args + 40, sizeof big);
    assert_true(big == 3e9);
    plan_free(plan);
    r.attrs[0].i[0] = 200;
    refuse(&r, "f: kernel parameter 'c' of k is char, value 200 does not fit");
    r.attrs[0].i[0] = 1;
    r.inputs[0].dtype = r.inputs[1].dtype = OPD_DTYPE_int32;
    refuse(&r, "f: kernel parameter 'q' of k is T, value 0.5 does not fit");
    op_unref(op);

    op = small(SHAPES "//! let big = n * 3000000000",
               "//! forward\n//! kernel k\n__global__ void k(float *y, int big) {}\n");
    r = ask(op, 1, 2, 0, 3);
    refuse(&r, "f: kernel parameter 'big' of k is int, value 3000000000 does not fit");
    op_unref(op);
}

static void test_accessors(void **state)
{
    (void)state;
    struct op *op = small(SHAPES,
                          "//! forward\n//! kernel k\n__global__ void k(int n, "
                          "torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> x, "
                          "at::PackedTensorAccessor64<float, 2> y) {}\n");
    struct plan_request r = ask(op, 2, 5, 7, 3);
    struct plan *plan = build(&r);
    assert_int_equal(plan->kernels[0].params[1].offset, 8);
    assert_int_equal(plan->kernels[0].params[1].size, 24);
    assert_int_equal(plan->kernels[0].params[2].size, 40);
    assert_string_equal(slot(plan, 0, 8), "x");
    assert_int_equal(arg(plan, 0, 16, 4), 5);
    assert_int_equal(arg(plan, 0, 20, 4), 7);
    assert_int_equal(arg(plan, 0, 24, 4), 7);
    assert_int_equal(arg(plan, 0, 28, 4), 1);
    assert_string_equal(slot(plan, 0, 32), "y");
    assert_int_equal(arg(plan, 0, 40, 8), 5);
    assert_int_equal(arg(plan, 0, 56, 8), 7);
    plan_free(plan);
    r = ask(op, 1, 5, 0, 3);
    refuse(&r, "f: kernel k takes 'x' with 2 dimensions, it has 1: float32 [5]");
    r = ask(op, 2, 65536, 65536, 3);
    refuse(&r, "f: kernel k has the 32-bit accessor 'x', whose size or stride 4294967295 does not "
               "fit; use "
               "PackedTensorAccessor64");
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

static bool signs_alike(const struct plan_request *a, const struct plan_request *b)
{
    struct buf x = { 0 }, y = { 0 };
    plan_signature(a, &x);
    plan_signature(b, &y);
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
    device_check_explain(plan->checks, plan->checks_size, key, &out);
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
        cmocka_unit_test(test_forward),       cmocka_unit_test(test_otherwise_and_absent),
        cmocka_unit_test(test_backward),      cmocka_unit_test(test_empty),
        cmocka_unit_test(test_empty_block),   cmocka_unit_test(test_requests),
        cmocka_unit_test(test_packs),         cmocka_unit_test(test_results),
        cmocka_unit_test(test_launch_limits), cmocka_unit_test(test_default_grid),
        cmocka_unit_test(test_arguments),     cmocka_unit_test(test_accessors),
        cmocka_unit_test(test_saved),         cmocka_unit_test(test_types),
        cmocka_unit_test(test_chain),         cmocka_unit_test(test_signature),
        cmocka_unit_test(test_same_bytes),    cmocka_unit_test(test_checks),
        cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
