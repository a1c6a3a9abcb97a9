// What the lines `batch` and `linear` say, and what is refused.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_text.h"

#define OP "//! op f(Tensor x, Tensor w, Tensor? b=None) -> Tensor y\n//! dtypes float32\n"
#define SHAPES                                                                                     \
    "//! shape x [...S, N, C]\n//! shape w [C, K]\n//! shape b [K]\n//! shape y [...S, N, K]\n"
#define KERNELS                                                                                    \
    "//! forward\n//!   kernel k\n//! backward grad_x grad_w grad_b\n//!   kernel g\n"             \
    "__global__ void k(const float *x, const float *w, const float *b, float *y) {}\n"             \
    "__global__ void g(const float *grad_y, const float *x, const float *w, float *grad_x, "       \
    "float *grad_w, float *grad_b) {}\n"

static void refuse(const char *line, const char *message)
{
    char text[2048];
    snprintf(text, sizeof text, OP SHAPES "%s" KERNELS, line);
    refuse_text(text, message);
}

static void test_places(void **state)
{
    (void)state;
    struct op *op = parse_text(OP SHAPES "//! batch N\n//! batch K\n" KERNELS);
    assert_int_equal(op->n_batches, 3);
    const struct op_batch *n = &op->batches[0], *packs = &op->batches[2];
    assert_true(n->folds && !packs->folds);
    assert_int_equal(n->inputs[0], -2); // behind the pack
    assert_int_equal(n->inputs[1], OP_NO_BATCH);
    assert_int_equal(n->outputs[0], -2);
    assert_int_equal(op->batches[1].inputs[1], 1);
    assert_int_equal(packs->inputs[0], 0);
    assert_int_equal(packs->inputs[1], OP_NO_BATCH);
    op_unref(op);
    refuse("//! batch C K\n", "t.cu:7: w has the batch in two dimensions: [C, K]");
}

static void test_refused(void **state)
{
    (void)state;
    refuse("//! batch\n", "t.cu:7: expected the name of a dimension, got the end of the line");
    refuse("//! batch M\n", "t.cu:7: 'M' is not defined here, expected a dimension");
    refuse("//! batch x\n", "t.cu:7: 'x' is a tensor, expected a dimension of an input");
    refuse("//! batch C\n", "t.cu:7: 'batch', but y has none of these dimensions");
    refuse("//! linear y\n", "t.cu:7: 'y' is no input of a floating dtype that is left as it is");
}

static void test_linear(void **state)
{
    (void)state;
    struct op *op = parse_text(OP SHAPES "//! linear x b\n//! linear w b\n" KERNELS);
    assert_int_equal(op->n_linear, 2);
    assert_int_equal(op->linear[0], 5);
    assert_int_equal(op->linear[1], 6);
    op_unref(op);
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! formula y = 2 * x\n"
                "//! linear x\n",
                "t.cu:4: 'linear' beside 'formula' (line 3): an operator has formulas, and shapes "
                "that follow from them, or shapes and kernels");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! shape x [N]\n"
                "//! shape y [N]\n//! linear x\n//! forward\n//!   kernel k\n"
                "__global__ void k(const float *x, float *y) {}\n",
                "t.cu:1: linear in 'x', but no backward makes grad_x");
}

// A formula that asks for a shape would see that of the batch.
static void test_formulas(void **state)
{
    (void)state;
    const char *top = "//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! let n = numel(x)\n"
                      "//! let m = n + 1\n";
    for (int i = 0; i < 2; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s//! formula y = x * %s\n", top, i ? "m" : "2");
        struct op *op = parse_text(text);
        assert_int_equal(op->n_batches, i ? 0 : 1);
        op_unref(op);
    }
}

// A let that is read twice by each that follows is looked into once.
static void test_lets_of_lets(void **state)
{
    (void)state;
    struct buf text = { 0 };
    buf_append_str(&text, "//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n"
                          "//! let n0 = rank(x)\n//! let m0 = 1\n");
    for (int i = 1; i <= 100; i++)
        buf_printf(&text, "//! let n%d = n%d + n%d\n//! let m%d = m%d + m%d\n", i, i - 1, i - 1, i,
                   i - 1, i - 1);
    size_t size = text.size;
    buf_append_str(&text, "//! formula y = x * m100\n");
    struct op *op = parse_text(buf_str(&text));
    assert_int_equal(op->n_batches, 1);
    op_unref(op);
    text.size = size;
    buf_append_str(&text, "//! formula y = x * (m100 + n100)\n");
    op = parse_text(buf_str(&text));
    assert_int_equal(op->n_batches, 0); // it asks for a shape
    op_unref(op);
    buf_finish(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),       cmocka_unit_test(test_refused),
        cmocka_unit_test(test_linear),       cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_lets_of_lets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
