#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/op_text.h"

// A schema of tensors x, m and outputs y, z at most, made a whole file: shapes and a kernel that
// fit it.
static void compose(char *out, size_t size, const char *schema)
{
    static const char *const names[] = { "x", "m", "y", "z", "output" };
    char params[128] = "", shapes[512] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, " %s", names[i]);
        const char *at = strstr(schema, tensor);
        bool unnamed = i == 4 && strstr(schema, "-> Tensor\0") && strlen(strstr(schema, "->")) == 9;
        bool named = at && strchr(",)=", at[strlen(tensor)]) != NULL;
        if (!named && !unnamed)
            continue;
        size_t n = strlen(params), k = strlen(shapes);
        snprintf(params + n, sizeof params - n, "%sfloat *%s", n ? ", " : "", names[i]);
        snprintf(shapes + k, sizeof shapes - k, "//! shape %s []\n", names[i]);
    }
    snprintf(out, size,
             "//! op %s\n//! dtypes float32\n%s%s//! forward\n//! kernel k\n"
             "__global__ void k(%s) {}\n",
             schema, strstr(schema, "str ") ? "//! words s one two\n" : "", shapes, params);
}

static struct op *parse(const char *schema)
{
    char text[2048];
    compose(text, sizeof text, schema);
    return parse_text(text);
}

static void refuse(const char *schema, const char *message)
{
    char text[2048];
    compose(text, sizeof text, schema);
    refuse_text(text, message);
}

static void test_tensors(void **state)
{
    (void)state;
    struct op *op = parse("f(Tensor x, Tensor? m=None) -> (Tensor y, Tensor z)");
    assert_string_equal(op->name, "f");
    assert_int_equal(op->n_inputs, 2);
    assert_int_equal(op->n_outputs, 2);
    assert_string_equal(op->inputs[0].name, "x");
    assert_false(op->inputs[0].optional);
    assert_true(op->inputs[1].optional);
    assert_string_equal(op->outputs[1].name, "z");
    assert_int_equal(op_input_index(op, "m"), 1);
    assert_int_equal(op_input_index(op, "y"), -1);
    assert_false(op->has_backward);
    op_unref(op);

    op = parse("f(Tensor(a!) x, Tensor(b!)? m) -> ()");
    assert_true(op->inputs[0].in_place && op->inputs[1].in_place && op->inputs[1].optional);
    assert_int_equal(op->n_outputs, 0);
    op_unref(op);

    op = parse("f(Tensor x) -> Tensor");
    assert_string_equal(op->outputs[0].name, "output");
    assert_string_equal(op->schema, "f(Tensor x) -> Tensor");
    op_unref(op);
}

static void test_attributes(void **state)
{
    (void)state;
    struct op *op = parse(
        "f(Tensor x, int a, float b=1, *, int[2] c=3, int[3] d=[1, -2, 3], float[2]? e=None, "
        "bool g=True, str s=\"two\", float h=-1.5e-3, int? i=None, bool j=False) -> Tensor y");
    const struct op_attr *a = op->attrs;
    assert_int_equal(op->n_attrs, 10);
    assert_true(a[0].required && a[0].type == OP_ATTR_INT && a[0].list == 0);
    assert_true(!a[1].required && a[1].type == OP_ATTR_FLOAT && a[1].value.f[0] == 1);
    assert_true(a[2].list == 2 && a[2].value.n == 2 && a[2].value.i[0] == 3 &&
                a[2].value.i[1] == 3);
    assert_true(a[3].list == 3 && a[3].value.i[1] == -2 && a[3].value.i[2] == 3);
    assert_true(a[4].optional && !a[4].required && !a[4].value.present);
    assert_true(a[5].type == OP_ATTR_BOOL && a[5].value.i[0] == 1);
    assert_true(a[6].type == OP_ATTR_STR && a[6].n_words == 2 && a[6].value.i[0] == 1);
    assert_true(a[7].value.f[0] == -1.5e-3);
    assert_true(a[8].optional && !a[8].value.present);
    assert_true(a[9].value.present && a[9].value.i[0] == 0);
    assert_int_equal(op_attr_index(op, "s"), 6);
    assert_int_equal(op_attr_index(op, "x"), -1);
    op_unref(op);
}

static void test_one_line(void **state)
{
    (void)state;
    struct op *op = parse_text(
        "//! op   f(Tensor   x, *, \\\n//!      int a=1) \\\n//! -> Tensor y\n"
        "//! dtypes float32\n//! shape x []\n//! shape y []\n//! forward\n"
        "//! kernel k\n__global__ void k(float *y) {}\n");
    assert_string_equal(op->schema, "f(Tensor x, *, int a=1) -> Tensor y");
    op_unref(op);
}

static void test_mistakes(void **state)
{
    (void)state;
    refuse("", "t.cu:1: expected the name of the operator, got the end of the line");
    refuse("f", "t.cu:1: expected '(' after the operator's name, got the end of the line");
    refuse("f(Tensor x)", "t.cu:1: expected '->', got the end of the line");
    refuse("f(Tensor x -> Tensor y", "t.cu:1: expected ',' or ')', got '->'");
    refuse("f(Tensor x) -> Tensor y z", "t.cu:1: expected the end of the line, got 'z'");
    refuse("f(Tensor x,) -> Tensor y",
           "t.cu:1: expected an argument: TYPE NAME or TYPE NAME=DEFAULT, got ')'");
    refuse("f(Tensr x) -> Tensor y",
           "t.cu:1: 'Tensr' is no argument type, expected Tensor, int, float, "
           "bool or str; did you mean 'Tensor'?");
    refuse("f(int64 x) -> Tensor y",
           "t.cu:1: 'int64' is no argument type, expected Tensor, int, float, bool or str; did you "
           "mean 'int'?");
    refuse("f(int a, Tensor x) -> Tensor y",
           "t.cu:1: a tensor after an attribute, expected all tensors first");
    refuse("f(Tensor x, *, *, int a) -> Tensor y", "t.cu:1: a second '*'");
    refuse("f(Tensor(a x) -> Tensor y", "t.cu:1: expected ')', or '!' as in Tensor(a!), got 'x'");
    refuse("f(Tensor(a) x) -> Tensor y",
           "t.cu:1: 'x' is Tensor(a), but no 'view' line says of what");
    refuse("f(Tensor x=None) -> Tensor y",
           "t.cu:1: a default for x, which is no optional tensor: write "
           "Tensor? x=None");
    refuse("f(Tensor x, Tensor? m=1) -> Tensor y", "t.cu:1: expected None, got '1'");
    refuse("f(Tensor x, int[2 a) -> Tensor y", "t.cu:1: expected ']', got 'a'");
    refuse("f(Tensor x, int[5] a) -> Tensor y", "t.cu:1: a list needs its length, 1 to 4: int[2]");
    refuse("f(Tensor x, int[] a) -> Tensor y", "t.cu:1: a list needs its length, 1 to 4: int[2]");
    refuse("f(Tensor x, bool[2] a) -> Tensor y",
           "t.cu:1: a list of bool, expected one of int or float");
    refuse("f(Tensor x, int a=1.5) -> Tensor y", "t.cu:1: f: a is 1.5, expected an int");
    refuse("f(Tensor x, int a=True) -> Tensor y", "t.cu:1: f: a is True, expected an int");
    refuse("f(Tensor x, bool a=1) -> Tensor y", "t.cu:1: f: a is 1, expected a bool");
    refuse("f(Tensor x, int a=None) -> Tensor y", "t.cu:1: f: a is None, expected an int");
    refuse("f(Tensor x, int[2] a=[1, 2, 3]) -> Tensor y",
           "t.cu:1: f: a has 3 values, expected 1 or 2");
    refuse("f(Tensor x, int a=[1, 2]) -> Tensor y", "t.cu:1: f: a has 2 values, expected 1");
    refuse("f(Tensor x, int[2] a=[1, 2) -> Tensor y", "t.cu:1: expected ']' or ',', got ')'");
    refuse("f(Tensor x, int a=) -> Tensor y",
           "t.cu:1: expected a value: a number, True, False, None, \"word\" or [1, 2], got ')'");
    refuse("f(Tensor x, str s=one) -> Tensor y", "t.cu:1: expected a word in quotes, got 'one'");
    refuse("f(Tensor x, str s=\"tow\") -> Tensor y",
           "t.cu:3: the default: f: s is \"tow\", expected one of "
           "one, two; did you mean 'two'?");
    refuse("f(Tensor x, Tensor x) -> Tensor y",
           "t.cu:1: 'x' is defined twice: it is a tensor since line 1");
    refuse("f(Tensor x) -> Tensor x", "t.cu:1: 'x' is defined twice: it is a tensor since line 1");
    refuse("f(Tensor x, Tensor grad_x) -> Tensor y",
           "t.cu:1: 'grad_x' is defined twice: it is a tensor since line 1");
    refuse("f(Tensor x, int cpu) -> Tensor y",
           "t.cu:1: 'cpu' is a name of the language, choose another");
    refuse("f(Tensor float32) -> Tensor y", "t.cu:1: 'float32' is a dtype, choose another name");
    refuse("f(Tensor x) -> (Tensor)", "t.cu:1: expected the name of the output, got ')'");
    refuse("f(Tensor x) -> Tensor(a!) y",
           "t.cu:1: an alias as result: an operator in place ends with '-> ()'");
    refuse("f(Tensor x) -> Tensor? y",
           "t.cu:1: an optional result, expected one that is always made");
    refuse("f(Tensor x) -> int y", "t.cu:1: expected Tensor, got 'int'");
    refuse("f() -> ()", "t.cu:1: an operator without tensors");
}

static void test_limits(void **state)
{
    (void)state;
    char text[4096] = "f(", name[128];
    for (int i = 0; i < 33; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%sTensor t%d", i ? ", " : "", i);
    strcat(text, ") -> Tensor y");
    refuse(text, "t.cu:1: more than 32 tensors");
    strcpy(text, "f(Tensor x");
    for (int i = 0; i < 33; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", int a%d", i);
    strcat(text, ") -> Tensor y");
    refuse(text, "t.cu:1: more than 32 attributes");
    memset(name, 'n', 64);
    name[64] = '\0';
    snprintf(text, sizeof text, "%s(Tensor x) -> Tensor y", name);
    char message[256];
    snprintf(message, sizeof message,
             "t.cu:1: the name '%s' has 64 characters, expected at most 63", name);
    refuse(text, message);
}

static void test_set(void **state)
{
    (void)state;
    struct op *op = parse("f(Tensor x, int a, float b, bool c, str s, int[2]? d) -> Tensor y");
    struct opd_err err = { 0 };
    struct op_value v;
    assert_true(op_attr_set_ints(op, 0, (int64_t[]){ 7 }, 1, &v, &err) && v.i[0] == 7 && v.n == 1);
    assert_true(op_attr_set_ints(op, 1, (int64_t[]){ 7 }, 1, &v, &err) && v.f[0] == 7);
    assert_true(op_attr_set_floats(op, 1, (double[]){ 0.5 }, 1, &v, &err) && v.f[0] == 0.5);
    assert_true(op_attr_set_bool(op, 2, true, &v, &err) && v.i[0] == 1);
    assert_true(op_attr_set_str(op, 3, "twoX", 3, &v, &err) && v.i[0] == 1);
    assert_true(op_attr_set_ints(op, 4, (int64_t[]){ 7 }, 1, &v, &err) && v.n == 2 && v.i[1] == 7);
    assert_true(op_attr_set_ints(op, 4, (int64_t[]){ 7, 8 }, 2, &v, &err) && v.i[1] == 8);
    assert_true(op_attr_set_none(op, 4, &v, &err) && !v.present);
#define FAILS(call, message)                                                                       \
    assert_false(call);                                                                            \
    assert_string_equal(err.msg, message);                                                         \
    opd_err_clear(&err)
    FAILS(op_attr_set_ints(op, 0, (int64_t[]){ 7, 8 }, 2, &v, &err),
          "f: a has 2 values, expected 1");
    FAILS(op_attr_set_ints(op, 0, NULL, 0, &v, &err), "f: a has 0 values, expected 1");
    FAILS(op_attr_set_ints(op, 2, (int64_t[]){ 7 }, 1, &v, &err), "f: c is 7, expected a bool");
    FAILS(op_attr_set_ints(op, 4, (int64_t[]){ 1, 2, 3 }, 3, &v, &err),
          "f: d has 3 values, expected 1 or 2");
    FAILS(op_attr_set_floats(op, 0, (double[]){ 0.5 }, 1, &v, &err),
          "f: a is 0.5, expected an int");
    FAILS(op_attr_set_floats(op, 4, (double[]){ 0.5 }, 1, &v, &err),
          "f: d is 0.5, expected an int or a list of 2 or None");
    FAILS(op_attr_set_bool(op, 0, true, &v, &err), "f: a is True, expected an int");
    FAILS(op_attr_set_str(op, 1, "two", 3, &v, &err), "f: b is \"two\", expected a float");
    FAILS(op_attr_set_str(op, 3, "tow", 3, &v, &err),
          "f: s is \"tow\", expected one of one, two; did you mean 'two'?");
    FAILS(op_attr_set_str(op, 3, "\n\xff\xc3\xa9\xc3", 5, &v, &err),
          "f: s is \"??\xc3\xa9?\", expected one of one, two");
    FAILS(op_attr_set_none(op, 0, &v, &err), "f: a is None, expected an int");
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),  cmocka_unit_test(test_attributes),
        cmocka_unit_test(test_one_line), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_limits),   cmocka_unit_test(test_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
