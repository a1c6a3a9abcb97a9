// What clients are told of an operator's rules: op->rules, its expressions in postfix notation.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_text.h"

#define PLAIN "//! forward\n//! kernel k\n__global__ void k(float *y) {}\n"

// The rules of an operator with these lines, a line each.
static void tells(const char *lines, const char *expected)
{
    static const char *const kinds[] = { "shape", "let", "require" };
    struct buf text = { 0 }, got = { 0 };
    buf_printf(&text,
               "//! op f(Tensor x, Tensor? m, *, int n=1, float a=0.5, int[2] k=1, int? o=None,"
               " bool t=True, str s=\"one\") -> Tensor y\n//! dtypes float16 float32\n"
               "//! words s one two\n//! shape x [N, C, ...S]\n%s\n%s",
               lines, strstr(lines, "forward") ? "" : PLAIN);
    struct op *op = parse_text(buf_str(&text));
    for (int i = 0; i < op->n_rules; i++) {
        const struct op_rule *r = &op->rules[i];
        buf_printf(&got, "%s %s%s%s%s%s:", kinds[r->kind], r->name ? r->name : "",
                   r->type ? " " : "", r->type ? r->type : "", r->name && r->value ? " = " : "",
                   r->value ? r->value : "");
        for (int k = 0; k < r->n; k++)
            buf_printf(&got, " [%s]", r->parts[k]);
        buf_append_str(&got, "\n");
    }
    assert_string_equal(buf_str(&got), expected);
    buf_finish(&text);
    buf_finish(&got);
    op_unref(op);
}

#define X "shape x: [N] [C] [...S]\n"
#define M "//! shape m [C]\n"
#define TOLD_M "shape m: [C]\n"
#define Y "//! shape y [N]\n"
#define TOLD_Y "shape y: [N]\n"

static void test_only_what_is_needed(void **state)
{
    (void)state;
    tells(M "//! let A = N + 1\n//! let B = A * 2\n//! let GRID = B / 4\n//! scratch z [GRID]\n"
            "//! shape y [...S, B]",
          X TOLD_M "let A = N 1 +:\nlet B = A 2 *:\nshape y: [...S] [B]\n");
    tells(M "//! let A = N + 1\n//! scratch z acc_t [A, 2]\n//! scratch w [3]\n"
            "//! shape y [numel(z)]",
          X TOLD_M "let A = N 1 +:\nshape z acc_t: [A] [2]\nshape y: [numel(z)]\n");
    tells(M Y "//! let A = C * 2\n//! let B = C * 3\n//! saved z int32 [A]\n//! let D = 1\n"
              "//! require N > 0 : \"{B}\"\n"
              "//! forward\n//! kernel j\n__global__ void j(float *y, int *z) {}",
          X TOLD_M TOLD_Y "let A = C 2 *:\nlet B = C 3 *:\nshape z int32: [A]\n"
                          "require N 0 >: [] [B]\n");
}

static void test_words(void **state)
{
    (void)state;
    tells(M "//! shape y [(N + 2*k[1] - n) / -C % 3, cdiv(N, C), min(N, max(C, 2)), "
            "pow2(N + fits32(N)), floor(a * N / 3 + pow(N, 0.5)), size(x, -1), rank(x), numel(x)]",
          X TOLD_M
          "shape y: [N 2 k[1] * + n - C neg() // 3 %] [N C cdiv()] [N C 2 max() min()] "
          "[N N fits32() + pow2()] [a N float() * 3 float() / N float() 0.5 pow() + floor()] "
          "[1 neg() size(x)] [rank(x)] [numel(x)]\n");
    tells(M Y "//! require present(m) && !present(o) || (t ? cpu : cuda) != true\n", X TOLD_M TOLD_Y
          "require present(m) bool() present(o) bool() ! && t bool() cpu cuda ?: 1 != ||: "
          "[requires present(m) && !present(o) || (t ? cpu : cuda) != true (o = ] [o] [, t = ] [t] "
          "[)]\n");
    tells(M Y "//! require is(scalar_t, float16) == sizeof(acc_t) || s == \"two\" || 'one' != s",
          X TOLD_M TOLD_Y
          "require is(scalar_t,float16) sizeof(acc_t) == s 1 == || s 0 != ||: "
          "[requires is(scalar_t, float16) == sizeof(acc_t) || s == \"two\" || 'one' != s (s = ]"
          " [s] [)]\n");
    tells(M Y "//! require a < 1e300 && a > 1.0 && a > 1e-5 && 0.1 < a",
          X TOLD_M TOLD_Y "require a 1.0000000000000001e+300 < a 1.0 > && a 1.0000000000000001e-05 "
                          "> && 0.10000000000000001 a < &&: "
                          "[requires a < 1e300 && a > 1.0 && a > 1e-5 && 0.1 < a (a = ] [a] [)]\n");
}

static void test_messages(void **state)
{
    (void)state;
    tells(M Y "//! require n > 0 : \"{x}{m} is 'it', {k} {N + 1}{s}%s\"", X TOLD_M TOLD_Y
          "require n 0 >: [] [x] [] [m] [ is 'it', ] [k] [ ] [N 1 +] [] [s] [%s]\n");
    tells(M Y "//! require n > 0 : '\"{n}\\'", X TOLD_M TOLD_Y "require n 0 >: [\"] [n] [\\]\n");
    tells(M Y "//! require n > 0 : \"\"", X TOLD_M TOLD_Y "require n 0 >:\n");
}

static void test_formulas(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op f(Tensor x, *, float a=1.0) -> Tensor y\n"
                               "//! dtypes float32\n//! require a > 0.0\n//! formula y = x * a\n");
    assert_true(op->broadcasts);
    assert_int_equal(op->n_rules, 1);
    assert_string_equal(op->rules[0].value, "a 0.0 >");
    op_unref(op);
}

// As long as an expression can be, in both directions.
static void test_long(void **state)
{
    (void)state;
    struct buf text = { 0 }, lines = { 0 };
    for (int i = 0; i < 62; i++)
        buf_append_str(&text, "(N+");
    buf_append_str(&text, "N");
    for (int i = 0; i < 62; i++)
        buf_append_str(&text, ")");
    for (int i = 0; i < 380; i++)
        buf_append_str(&text, "-C");
    buf_printf(&lines,
               "//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! shape x [N, C]\n"
               "//! shape y [%s]\n" PLAIN,
               buf_str(&text));
    struct op *op = parse_text(buf_str(&lines));
    const char *dim = op->rules[1].parts[0];
    assert_int_equal(strlen(dim), 2 * 63 + 2 * 62 + 4 * 380 - 1);
    assert_memory_equal(dim, "N N N ", 6);
    assert_string_equal(dim + strlen(dim) - 12, " C - C - C -");
    op_unref(op);
    buf_finish(&text);
    buf_finish(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_what_is_needed),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
