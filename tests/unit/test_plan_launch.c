// plan: of a launch, its grid, block and shared memory, and its arguments.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/op_plan.h"

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
        { "threads -1", "f: kernel k: threads is -1, expected at least 0" },
        { "threads 2147483648 by 1",
          "f: kernel k: grid x is 2147483648, expected 0 to 2147483647" },
        { "threads 5 by 1025", "f: kernel k: block x is 1025, expected 1 to 1024" },
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

static void test_threads(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        uint32_t grid, block;
    } rows[] = {
        { "threads n*P", 4, 256 },
        { "threads n*P by 128", 8, 128 },
        { "threads n*P by P / 100", 100, 10 },
        { "block 8, 4 threads n*P", 32, 8 },
        { "threads n*P + 24", 4, 256 },
        { "threads n*P + 25", 5, 256 },
        { "threads 1 by 1024", 1, 1024 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "//! forward\n//! kernel k %s\n__global__ void k(float *y, unsigned count) {}\n",
                 rows[i].words);
        struct op *op = small(SHAPES, text);
        struct plan_request r = ask(op, 1, 2, 0, 1000);
        struct plan *plan = build(&r);
        assert_int_equal(plan->steps[0].grid[0], rows[i].grid);
        assert_int_equal(plan->steps[0].block[0], rows[i].block);
        if (i < 4)
            assert_int_equal(arg(plan, 0, 8, 4), 1000); // the parameter `count`
        plan_free(plan);
        op_unref(op);
    }
    // None, none launched; and a name of the file's own goes before `count`.
    struct op *op = small(SHAPES "//! let count = 7", "//! forward\n//! kernel k threads P\n"
                                                      "__global__ void k(float *y, int count) {}");
    struct plan_request r = ask(op, 1, 2, 0, 3);
    struct plan *plan = build(&r);
    assert_int_equal(arg(plan, 0, 8, 4), 7);
    plan_free(plan);
    r.inputs[1].shape[0] = 0;
    plan = build(&r);
    assert_int_equal(plan->n_steps, 1);
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_ZERO);
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

// opd::divisor is two words: d, and 2^32 * (p - d) / d + 1 of the power of two p not below d.
static void test_divisors(void **state)
{
    (void)state;
    static const int64_t rows[][2] = {
        { 1, 1 }, { 2, 1 }, { 3, 0x55555556 }, { 5, 0x9999999a }, { 1 << 30, 1 }, { 2147483647, 3 },
    };
    struct op *op = small(SHAPES,
                          "//! forward\n//! kernel k\n//! bind c = 1\n"
                          "__global__ void k(float *y, char c, const opd::divisor n, char P) {}\n");
    struct plan_request r = ask(op, 1, 2, 0, 3);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        op_attr_set_ints(op, 0, &rows[i][0], 1, &r.attrs[0], &err);
        struct plan *plan = build(&r);
        assert_int_equal(arg(plan, 0, 12, 4), rows[i][0]);
        assert_int_equal(arg(plan, 0, 16, 4), rows[i][1]);
        assert_int_equal(arg(plan, 0, 20, 1), 3);
        plan_free(plan);
    }
    static const int64_t wrong[] = { 0, -1, 2147483648 };
    for (size_t i = 0; i < 3; i++) {
        char message[160];
        snprintf(message, sizeof message,
                 "f: kernel parameter 'n' of k is opd::divisor, value %lld does not fit, expected "
                 "1 to 2147483647",
                 (long long)wrong[i]);
        op_attr_set_ints(op, 0, &wrong[i], 1, &r.attrs[0], &err);
        refuse(&r, message);
    }
    op_unref(op);
}

// A template of one type is of scalar_t where nothing is said.
static void test_default_template(void **state)
{
    (void)state;
    static const char *const templates[] = { "class T", "typename T, int N = 3" };
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "//! forward\n//! kernel k\n"
                 "template <%s> __global__ void k(T *y, T a) {}\n",
                 templates[i]);
        struct op *op = small(SHAPES, text);
        struct plan_request r = ask(op, 1, 2, 0, 3);
        struct plan *plan = build(&r);
        assert_string_equal(plan->kernels[0].expr, "k<scalar_t>");
        assert_int_equal(arg(plan, 0, 8, 4), 0x3f000000);
        plan_free(plan);
        op_unref(op);
    }
}

// Several names of one let, of a list or of as many values.
static void test_pairs(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op f(Tensor x, *, int[2] k=1, float[2] s=0.5) -> Tensor y\n"
                               "//! dtypes float32\n//! shape x [N]\n//! let KH, KW = k\n"
                               "//! let SH, SW = s\n//! let A, B, C = KH + N, SW, KW\n"
                               "//! shape y [N]\n//! forward\n//! kernel k\n"
                               "__global__ void k(float *y, int KH, int KW, float SH, float SW, "
                               "int A, float B, int C) {}\n");
    struct plan_request r = { .op = op };
    r.inputs[0] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { 7 } };
    op_attr_set_ints(op, 0, (int64_t[]){ 5, 6 }, 2, &r.attrs[0], &err);
    op_attr_set_floats(op, 1, (double[]){ 1, 2 }, 2, &r.attrs[1], &err);
    struct plan *plan = build(&r);
    static const uint32_t wanted[] = { 5, 6, 0x3f800000, 0x40000000, 12, 0x40000000, 6 };
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(arg(plan, 0, 8 + 4 * i, 4), wanted[i]);
    plan_free(plan);
    op_unref(op);
}

// Sections of one device, in any order and shared out otherwise on each.
static void test_devices(void **state)
{
    (void)state;
    struct op *op = parse_text(
        "//! op f(Tensor x, Tensor m) -> Tensor y\n//! dtypes float32\n//! shape x [N]\n"
        "//! shape m [N]\n//! shape y [N]\n//! saved s [N]\n//! forward cpu\n//! kernel k<1>\n"
        "//! backward cpu grad_x grad_m\n//! kernel b<1>\n//! forward cuda\n//! kernel k<2>\n"
        "//! backward cuda grad_m\n//! kernel b<3> bind grad_x = grad_m\n"
        "//! backward cuda grad_x\n//! kernel b<2> bind grad_m = grad_x\n"
        "template <int D> __global__ void k(float *y, float *s) {}\n"
        "template <int D> __global__ void b(const float *grad_y, float *grad_x, float *grad_m) {}");
    struct plan_request r = { .op = op };
    r.inputs[0] = r.inputs[1] =
        (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { 7 } };
    for (int cpu = 0; cpu < 2; cpu++)
        for (r.wanted = 0; r.wanted < 4; r.wanted++) {
            r.on_cpu = cpu;
            r.direction = r.wanted ? PLAN_BACKWARD : PLAN_FORWARD;
            struct plan *plan = build(&r);
            int n = cpu || r.wanted != 3 ? 1 : 2;
            assert_int_equal(plan->n_kernels, n);
            assert_string_equal(plan->kernels[n - 1].expr, !r.wanted      ? cpu ? "k<1>" : "k<2>"
                                                           : cpu          ? "b<1>"
                                                           : r.wanted > 1 ? n > 1 ? "b<2>" : "b<3>"
                                                                          : "b<2>");
            plan_free(plan);
        }
    assert_true(op->has_backward);
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

// What belongs to a kernel may stand behind it.
static void test_one_line(void **state)
{
    (void)state;
    struct op *op = small(SHAPES,
                          "//! forward\n"
                          "//! kernel k<3> when n > 4 grid 2, n block 32, 2 shared 8 bind b = n\n"
                          "//! kernel k<4> otherwise grid n bind b = n + 1 block 64\n"
                          "template <int N> __global__ void k(float *y, int b) {}\n");
    struct plan_request r = ask(op, 1, 2, 0, 3);
    for (int n = 2; n < 6; n += 3) {
        op_attr_set_ints(op, 0, (int64_t[]){ n }, 1, &r.attrs[0], &err);
        struct plan *plan = build(&r);
        const struct plan_step *s = &plan->steps[0];
        assert_int_equal(plan->n_steps, 1);
        assert_string_equal(plan->kernels[0].expr, n > 4 ? "k<3>" : "k<4>");
        assert_int_equal(s->grid[0], 2);
        assert_int_equal(s->grid[1], n > 4 ? 5 : 1);
        assert_int_equal(s->block[0], n > 4 ? 32 : 64);
        assert_int_equal(s->block[1], n > 4 ? 2 : 1);
        assert_int_equal(s->shared_size, n > 4 ? 8 : 0);
        assert_int_equal(arg(plan, 0, 8, 4), n > 4 ? 5 : 3);
        plan_free(plan);
    }
    op_unref(op);
    // A name of the file's own goes before a directive's.
    op = small(SHAPES "//! let grid = n", "//! forward\n//! kernel k when grid > 1\n"
                                          "//! kernel k otherwise grid == 1 block 32\n"
                                          "__global__ void k(float *y) {}\n");
    r = ask(op, 1, 2, 0, 3);
    struct plan *plan = build(&r);
    assert_int_equal(plan->steps[0].block[0], 32);
    plan_free(plan);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_limits), cmocka_unit_test(test_default_grid),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_divisors),      cmocka_unit_test(test_default_template),
        cmocka_unit_test(test_pairs),         cmocka_unit_test(test_devices),
        cmocka_unit_test(test_accessors),     cmocka_unit_test(test_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
