// plan_revalue: what it makes of a plan is what plan_build() makes of the request, or nothing.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_plan.h"

enum { N = 1, A = 2, O = 4 }; // bits of small()'s attributes

static void expect_same(const struct plan *a, const struct plan *b)
{
    assert_int_equal(a->n_steps, b->n_steps);
    assert_int_equal(a->n_operands, b->n_operands);
    assert_int_equal(a->n_kernels, b->n_kernels);
    for (int i = 0; i < a->n_steps; i++) {
        const struct plan_step *x = &a->steps[i], *y = &b->steps[i];
        assert_memory_equal(x->grid, y->grid, sizeof x->grid);
        assert_int_equal(x->args_size, y->args_size);
        assert_memory_equal(x->args, y->args, x->args_size);
    }
}

// The plan of `r`, and what becomes of it: `fixed` afterwards. It is a plan where `possible`.
static uint32_t revalue(const struct plan_request *r, const struct plan_request *other,
                        bool possible)
{
    struct plan *plan = build(r);
    uint32_t fixed = plan->fixed;
    struct plan *revalued = plan_revalue(plan, other, &fixed);
    assert_int_equal(revalued != NULL, possible);
    if (revalued) {
        struct plan *built = build(other);
        expect_same(revalued, built);
        assert_false(plan->n_steps > 0 && plan->steps[0].args == revalued->steps[0].args);
        plan_free(built);
    }
    plan_free(revalued);
    plan_free(plan);
    return fixed;
}

#define KERNEL                                                                                     \
    "__global__ void k(float *y, float scale, int n, opd::divisor d, short o, double a) {}\n"

static void test_values(void **state)
{
    (void)state;
    struct op *op = small(SHAPES "//! let scale = a * P\n//! let twice = 2 * n\n"
                                 "//! require twice > 0 : \"n is {n}\"\n",
                          "//! forward\n//! kernel k\n//! bind d = twice\n"
                          "//! bind o = present(o) ? o : n\n" KERNEL);
    struct plan_request r = ask(op, 1, 8, 0, 3), other = r;
    other.attrs[0].i[0] = 21;
    other.attrs[1].f[0] = 0.125;
    assert_false(plan_same_numbers(&r, &other));
    assert_int_equal(revalue(&r, &other, true), 0);
    other.attrs[0].i[0] = 0; // refused
    assert_int_equal(revalue(&r, &other, false), 0);
    refuse(&other, "f: n is 0");
    other.attrs[0].i[0] = 40000; // too much for a short
    revalue(&r, &other, false);
    other.attrs[0].i[0] = INT32_MAX; // too much for a divisor
    revalue(&r, &other, false);
    op_unref(op);
}

static void expect_fixed(const char *rules, const char *sections, uint32_t fixed)
{
    char text[2048];
    snprintf(text, sizeof text,
             "//! op f(Tensor x, Tensor m, *, int n=1, float a=0.5, int? o=None) -> Tensor y\n"
             "//! dtypes float32\n%s%s",
             rules, sections);
    struct op *op = parse_text(text);
    struct plan_request r = ask(op, 1, 8, 0, 1);
    struct plan *plan = build(&r);
    assert_int_equal(plan->fixed & (N | A | O), fixed);
    plan_free(plan);
    op_unref(op);
}

// Whatever decides on more than a value in the arguments.
static void test_fixed(void **state)
{
    (void)state;
#define TAKES_N "__global__ void k(float *y, int n, float a) {}\n"
    expect_fixed(SHAPES, "//! forward\n//! kernel k\n" TAKES_N, 0);
    expect_fixed(SHAPES "//! let b = 2 * n\n//! let c = b + 1\n",
                 "//! forward\n//! kernel k grid c\n" TAKES_N, N);
    expect_fixed(SHAPES, "//! forward\n//! kernel k when a < 1\n" TAKES_N, A);
    expect_fixed(SHAPES, "//! forward\n//! kernel k when n == 1 || a < 1\n" TAKES_N, N);
    expect_fixed(SHAPES, "//! forward\n//! kernel k shared 4 * n\n" TAKES_N, N);
    expect_fixed(SHAPES "//! scratch t [n]\n",
                 "//! forward\n//! kernel k\n__global__ void k(float *y, float *t, float a) {}\n",
                 N);
    expect_fixed(SHAPES,
                 "//! forward\n//! kernel k<n>\ntemplate <int X> __global__ void k(float *y, float "
                 "a) {}\n",
                 N);
    expect_fixed(SHAPES,
                 "//! forward\n//! repeat t < 2\n//! kernel k\n//! bind s = t * n\n//! end\n"
                 "__global__ void k(float *y, int s, float a) {}\n",
                 N);
    expect_fixed(SHAPES "//! check c : \"{a} and {n + 1}\"\n",
                 "//! forward\n//! kernel k\n"
                 "__global__ void k(float *y, opd::report_t *report, int n, float a) {}\n",
                 N | A);
    expect_fixed(SHAPES, "//! forward\n//! formula y = x * a\n", N | A | O);
    expect_fixed("//! formula y = x * a + n + (n > 2 ? m : 0)\n", "", 0);
}

static struct op *count(const char *steps)
{
    char text[1024];
    snprintf(text, sizeof text,
             "//! op f(Tensor x, *, int n=1) -> Tensor y\n//! dtypes float32\n"
             "//! shape x [I]\n//! shape y [I]\n//! forward\n%s"
             "__global__ void k(float *y, int s) {}\n",
             steps);
    return parse_text(text);
}

// Only these numbers show that the counter of a loop counts.
static void test_repeats(void **state)
{
    (void)state;
    struct op *op = count("//! repeat t < 3\n//! kernel k\n//! bind s = n > 0 ? n : t\n//! end\n");
    struct plan_request r = { .op = op }, other;
    r.inputs[0] = (struct tensor_desc){ OPD_DTYPE_float32, .rank = 1, .shape = { 8 } };
    r.attrs[0] = op->attrs[0].value;
    other = r;
    other.attrs[0].i[0] = 2;
    assert_int_equal(revalue(&r, &other, true), 0);
    other.attrs[0].i[0] = 0;
    assert_int_equal(revalue(&r, &other, false), 1);
    op_unref(op);
}

// More values than a kernel has parameters.
static void test_members(void **state)
{
    (void)state;
    enum { MANY = 200 };
    struct op *op = small(SHAPES, "//! forward\n//! kernel k\n"
                                  "struct one { int n; };\nstruct all { one of[200]; };\n"
                                  "__global__ void k(float *y, all p) {}\n");
    struct plan_request r = ask(op, 1, 8, 0, 3);
    struct plan *plan = build(&r);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(arg(plan, 0, 8 + 4 * i, 4), 1);
    assert_int_equal(plan->fixed, N);
    plan_free(plan);
    op_unref(op);
}

struct lists {
    struct plan_request request;
    struct plan_lists lists;
    struct tensor_desc descs[300];
    const struct tensor_desc *at[300];
};

static struct lists *make(const struct op *op, int n)
{
    struct lists *l = mem_zalloc(1, sizeof *l);
    l->request = (struct plan_request){ .op = op, .lists = &l->lists };
    memset(l->lists.n, -1, sizeof l->lists.n);
    l->request.inputs[0].dtype = OPD_DTYPE_float32;
    l->request.attrs[0] = op->attrs[0].value;
    l->lists.n[0] = n;
    l->lists.of[0] = l->at;
    for (int i = 0; i < n; i++) {
        l->descs[i] = (struct tensor_desc){ OPD_DTYPE_float32, .rank = 1, .shape = { i + 2 } };
        l->at[i] = &l->descs[i];
    }
    return l;
}

static uint32_t fixed_of_lists(const char *text)
{
    struct op *op = parse_text(text);
    struct lists *l = make(op, 3);
    struct plan *plan = build(&l->request);
    uint32_t fixed = plan->fixed;
    plan_free(plan);
    free(l);
    op_unref(op);
    return fixed;
}

static uint32_t revalue_lists(const char *text, int n, double from, double to, bool possible)
{
    struct op *op = parse_text(text);
    struct lists *l = make(op, n);
    l->request.attrs[0].f[0] = from;
    struct plan_request other = l->request;
    other.attrs[0].f[0] = to;
    uint32_t fixed = revalue(&l->request, &other, possible);
    free(l);
    op_unref(op);
    return fixed;
}

#define SCALES "//! op s(Tensor(a!)[] xs, *, float a=2.0) -> ()\n//! dtypes float32\n"

// What is worked out for the first of their tensors must be true of all.
static void test_lists(void **state)
{
    (void)state;
    assert_int_equal(revalue_lists(SCALES "//! let b = a + 1\n//! require b > 0\n"
                                          "//! formula xs = xs * b\n",
                                   300, 2, 3, true),
                     0);
    revalue_lists(SCALES "//! require a > 0\n//! formula xs = xs * a\n", 3, 2, -3, false);
    assert_int_equal(fixed_of_lists(SCALES "//! let b = a * numel(xs)\n//! formula xs = xs * b\n"),
                     1);
    // Only these numbers show that tensors count.
    assert_int_equal(revalue_lists(SCALES "//! require a < 3 || numel(xs) < 3\n"
                                          "//! formula xs = xs * a\n",
                                   3, 2, 3, false),
                     1);
    assert_int_equal(revalue_lists(SCALES "//! let b = a < 3 ? a : a * numel(xs)\n"
                                          "//! formula xs = xs * b\n",
                                   3, 2, 3, false),
                     1);
    assert_int_equal(revalue_lists(SCALES "//! shape xs [N]\n//! forward\n//! kernel k\n"
                                          "//! bind c = a\n"
                                          "__global__ void k(float *xs, float c, int64_t N) {}\n",
                                   3, 2, 3, true),
                     0);
    assert_int_equal(fixed_of_lists(SCALES "//! shape xs [N]\n//! forward\n//! kernel k\n"
                                           "//! bind c = a * N\n"
                                           "__global__ void k(float *xs, float c) {}\n"),
                     1);
}

// A number that looks like the lengths and shapes behind it.
static void test_signatures(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op s(Tensor(a!)[] xs, *, int n=2) -> ()\n//! dtypes float32\n"
                               "//! formula xs = xs * n\n");
    struct lists *l = make(op, 3), *m = make(op, 3);
    struct buf without = { 0 }, with = { 0 };
    const uint64_t dtype = OPD_DTYPE_float32;
    l->descs[0].shape[0] = (int64_t)(dtype << 48 | 3 << 16);
    m->descs[0].rank = 0;
    m->request.attrs[0].i[0] = (int64_t)(3 | dtype << 32 | UINT64_C(1) << 40);
    plan_signature(&l->request, 0, &without);
    plan_signature(&m->request, 1, &with);
    assert_int_equal(without.size, with.size);
    assert_memory_not_equal(without.bytes, with.bytes, with.size);
    buf_finish(&without);
    buf_finish(&with);
    free(l);
    free(m);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_fixed),
        cmocka_unit_test(test_repeats), cmocka_unit_test(test_members),
        cmocka_unit_test(test_lists),   cmocka_unit_test(test_signatures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
