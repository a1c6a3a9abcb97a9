#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/op_text.h"

#define IMAGES                                                                                     \
    "//! op f(Tensor x, Tensor w) -> Tensor y\n"                                                   \
    "//! dtypes float32\n"                                                                         \
    "//! shape x y [N, C, H, W]; w [C]\n"

static void test_channels_last(void **state)
{
    (void)state;
    static const char code[] = "//! forward\n//! kernel k\n"
                               "__global__ void k(const float *x, const float *w, float *y) {}\n";
    char text[1024];
    snprintf(text, sizeof text, "%s//! channels_last g y x\n%s", IMAGES, code);
    struct op *op = parse_text(text);
    assert_string_equal(op->channels_last.op, "g");
    assert_int_equal(op->channels_last.inputs, 1);
    assert_int_equal(op->channels_last.outputs, 1);
    assert_null(op->channels_last.when);
    op_unref(op);
    snprintf(text, sizeof text, "%s//! let R = H*W\n//! channels_last g x y when R < 9\n%s", IMAGES,
             code);
    op = parse_text(text);
    assert_string_equal(op->channels_last.when, "R 9 <");
    op_unref(op);
    static const struct {
        const char *line, *err;
    } wrong[] = {
        { "//! channels_last", "t.cu:4: expected the operator that takes dimension 1 as the last, "
                               "got the end of the line" },
        { "//! channels_last g x",
          "t.cu:4: no output is named, expected one whose dimension 1 'g' has last" },
        { "//! channels_last g y",
          "t.cu:4: no input is named, expected one whose dimension 1 'g' has last" },
        { "//! channels_last f x y", "t.cu:4: 'f' is this operator itself, expected another" },
        { "//! channels_last g x w y", "t.cu:4: w is [C], expected [N, C, H, W]" },
        { "//! channels_last g x y when",
          "t.cu:4: expected a number, a name or '(', got the end of the line" },
        { "//! channels_last g x y when Q",
          "t.cu:4: 'Q' is not defined here, expected a dimension, let or attribute" },
        { "//! channels_last g x y\n//! channels_last g x y", "t.cu:5: a second 'channels_last'" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, "%s%s\n%s", IMAGES, wrong[i].line, code);
        refuse_text(text, wrong[i].err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_channels_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
