// show: an operator's file with a mistake shows it: file, line, and a caret below the column, on
// the physical line where it stands.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "op/op.h"
#include "op/show.h"

static const char head[] = "//! op      f(Tensor x, *, str mode=\"a\") -> Tensor y\n" // 1
                           "//! dtypes  float32\n"
                           "//! words   mode a b\n"
                           "//! shape   x [N, M]\n"
                           "//! shape   y [N, M]\n";
static const char tail[] = "//! forward\n"
                           "//!   kernel k<scalar_t>\n"
                           "//!   bind   n = numel(x)\n"
                           "template <class T> __global__ void k(const T *x, T *y, int n)\n"
                           "{\n"
                           "}\n";

// The file's parts and the error: "line: message" begins, and the caret stands under `under`.
static void expect_in(const char *text, const char *message, const char *under)
{
    struct opd_err err = { 0 };
    struct op *op = op_parse("f.cu", text, strlen(text), &err);
    assert_null(op);
    assert_int_equal(err.code, OPD_E_invalid_argument);
    if (strncmp(err.msg, "f.cu:", 5) != 0 || strncmp(err.msg + 5, message, strlen(message)) != 0 ||
        !err.log)
        fail_msg("expected %s, got %s\n%s", message, err.msg, err.log ? err.log : "(no log)");
    char *caret = strchr(err.log, '\n');
    assert_non_null(caret);
    size_t column = strspn(caret + 1, " \t");
    if (strcmp(caret + 1 + column, "^\n") != 0 || column >= (size_t)(caret - err.log) + 1 ||
        strncmp(err.log + column, under, strlen(under)) != 0)
        fail_msg("expected a caret under %s, got %s\n%s", under, err.msg, err.log);
    // The line that is shown is the line that is named.
    int line = atoi(err.msg + 5);
    const char *p = text;
    while (--line > 0)
        p = strchr(p, '\n') + 1;
    if (strncmp(p, err.log, (size_t)(caret - err.log)) != 0)
        fail_msg("line %s is not\n%s", err.msg, err.log);
    opd_err_clear(&err);
}

static void expect(const char *middle, const char *message, const char *under)
{
    char *text = mem_printf("%s%s%s", head, middle, tail);
    expect_in(text, message, under);
    free(text);
}

static void test_good(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    char *text = mem_printf("%s%s", head, tail);
    struct op *op = op_parse("f.cu", text, strlen(text), &err);
    if (!op)
        fail_msg("%s\n%s", err.msg, err.log);
    op_unref(op);
    free(text);
}

static void test_parser(void **state)
{
    (void)state;
    expect("//! shap    x [N]\n", "6: unknown directive 'shap'; did you mean 'shape'", "shap ");
    expect("//!\tlet\tq 5\n", "6: expected '='", "5");
    expect("//! let     q =\n", "6: expected", "");
    expect("//! let     q = 1 1\n", "6: expected the end of the line, got '1'", "1");
    expect("//! let     q = 3 $ 4\n", "6: unexpected character '$'", "$");
    expect("//! let     q = 12ab\n", "6: '12ab' is not a number", "12ab");
    expect("//! shape   x [N]\n", "6: a second shape for 'x'", "x [N]");
    expect("//! type    u_t float32 : z\n", "6: 'z' is not defined here", "z");
    expect("//! kernel  k\n", "6: 'kernel' outside a section", "kernel");
    expect("//! words   mode c\n", "6: a second 'words' for mode", "words");
    expect("//! saved   s nope [N]\n", "6: 'nope' is not defined here", "nope");
}

static void test_expressions(void **state)
{
    (void)state;
    expect("//! let     q = N + Q * M\n", "6: 'Q' is not defined here", "Q * M");
    expect("//! let     q = mode == \"c\" ? 1 : 2\n", "6: \"c\" is none of the words of mode",
           "c\"");
    expect("//! let     q = N % 2.5\n", "6: '%' needs integers, got a float", "% 2.5");
    expect("//! let     q = foo(N)\n", "6: ", "foo(N)");
    expect("//! require N > Q : \"text\"\n", "6: 'Q' is not defined here", "Q :");
    expect("//! require N > 2 : \"has {Q} rows\"\n", "6: 'Q' is not defined here", "Q} rows");
    expect("//! let     N = 5\n", "6: 'N' is defined twice", "N = 5");
}

static void test_continued(void **state)
{
    (void)state;
    expect("//! let     q = N + \\\n//!    M + \\\n//!    Q\n", "8: 'Q' is not defined here", "Q");
    expect("//! let     q = N + \\\n//!    M + \\\n//!    2 2\n", "8: expected the end of the line",
           "2");
    expect("//! let     q = \\\n//!   Q + \\\n//!   M\n", "7: 'Q' is not defined here", "Q + ");
    expect("//! require N > 2 : \\\n//!   \"has {Q} rows\"\n", "7: 'Q' is not defined here",
           "Q} rows");
    expect("//! let     q = N + \\\n", "7: ", "forward");
    expect("//! let     \xc3\xa4 = 3\r\n", "6: ", "\xc3\xa4");
}

static void test_binding(void **state)
{
    (void)state;
    char *text;
    static const struct {
        const char *tail, *message, *under;
    } cases[] = {
        { "//! forward\n//!   kernel  q<scalar_t>\n//!   bind    n = numel(x)\n//!   grid    1\n"
          "template <class T> __global__ void k(const T *x, T *y, int n) {}\n",
          "7: no kernel 'q' in this file", "q<" },
        { "//! forward\n//!   kernel  k\n//!   grid    1\n"
          "template <class T, int V> __global__ void k(const T *x, T *y) {}\n",
          "7: 'k' is a template", "k" },
        { "//! forward\n//!   kernel  k<scalar_t>\n//!   bind    m = numel(x)\n"
          "template <class T> __global__ void k(const T *x, T *y) {}\n",
          "8: bind of 'm', which is no parameter", "m = " },
        { "//! forward\n//!   kernel  k<scalar_t>\n"
          "template <class T> __global__ void k(const T *x, T *y,\n    int m) {}\n",
          "9: kernel 'k' has parameter 'm', which names no", "m) {}" },
        { "//! forward\n//!   kernel  k\n__global__ void k(const float *x, float *y, int k) {}\n",
          "8: kernel 'k' has parameter 'k'", "k" },
        { "//! forward\n__global__ void k(const float *x, float *y) {}\n",
          "6: a section without kernels", "forward" },
        { "//! forward\n//!   kernel  k\n__global__ void k(const float *x) {}\n",
          "6: no kernel of this section writes y", "forward" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        text = mem_printf("%s%s", head, cases[i].tail);
        expect_in(text, cases[i].message, cases[i].under);
        free(text);
    }
}

static void test_whole_file(void **state)
{
    (void)state;
    expect_in("// nothing\n", "1: no '//! op' line", "// nothing");
    expect_in("//! op f(Tensor x) -> Tensor y\n", "1: no 'forward' section", "op f");
    expect_in("//! op f(Tensor x, int n=1.5) -> Tensor y\n", "1: ", "");
    expect_in("//! op f(Tensr x) -> Tensor y\n", "1: ", "Tensr");
    expect("//! example x=[2,3] mode=\"z\"\n", "6: ", "");
    expect("int code;\n//! let q = 5\n", "7: a directive after the first line of code", "let q");
}

// Whatever message and text: no byte outside is read, and no log where no line is named.
static void test_hostile(void **state)
{
    (void)state;
    static const char *const messages[] = {
        "f.cu:0: x",          "f.cu:2: x",           "f.cu: x",
        "other:1: x",         "f.cu:1: 'a",          "f.cu:1: ''",
        "f.cu:1: 'bc' \"d\"", "f.cu:99999999999: x", "f.cu:1: ",
        "f.cu:-1: 'abc'",     "f.cu:1: 'abc\\'"
    };
    static const char *const texts[] = { "",        "\n",          "abc", "abc\\",
                                         "abc\\\n", "\xff\x01 bc", "//!", "//! \\\n//! bc" };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            size_t size = strlen(texts[k]);
            char *text = mem_alloc(size ? size : 1); // of that size, so that reading on shows
            memcpy(text, texts[k], size);
            for (size_t at = 0; at <= size + 1; at++) {
                struct opd_err err = { 0 };
                struct show_hint hint = { .at = at <= size ? text + at : NULL, .exact = at % 2 };
                opd_err_set(&err, OPD_E_invalid_argument, "%s", messages[i]);
                show_mistake(&err, "f.cu", text, size, &hint);
                opd_err_clear(&err);
            }
            free(text);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_parser),
        cmocka_unit_test(test_expressions), cmocka_unit_test(test_continued),
        cmocka_unit_test(test_binding),     cmocka_unit_test(test_whole_file),
        cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
