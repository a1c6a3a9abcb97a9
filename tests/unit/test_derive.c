// Derivatives of formulas: against central differences, on formulas made at random; at corners; and
// the operators that they are.

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "op/derive.h"
#include "unit/op_text.h"

#define TOP "//! op f(Tensor x, Tensor z) -> Tensor y\n//! dtypes float32 float64\n"

static uint64_t state = 1;

static uint32_t next(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static double next_number(double from, double to)
{
    return from + (to - from) * next(1 << 20) / (1 << 20);
}

// --- formulas at a point

static struct formula_point point; // large

static double result(const struct op *op, int target)
{
    const struct formula_set *set = op->body->formulas;
    formula_eval(set, &point);
    return point.formulas[formula_find(set, target)][0];
}

// The sum of the outputs by their gradients, which is what backward differentiates.
static double total(const struct op *op)
{
    double sum = 0;
    for (int o = 0; o < op->n_outputs; o++)
        sum += point.tensors[TENSOR_GRAD_OUTPUT + o][0] * result(op, TENSOR_OUTPUT + o);
    return sum;
}

static double difference(const struct op *op, int input, double step)
{
    double x = point.tensors[input][0];
    point.tensors[input][0] = x + step;
    double above = total(op);
    point.tensors[input][0] = x - step;
    double below = total(op);
    point.tensors[input][0] = x;
    return (above - below) / (2 * step);
}

// Central differences of two steps, made one. False: the point is too near to a corner or a pole.
static bool differentiate(const struct op *op, int input, double *out)
{
    double far = difference(op, input, 2e-4), near = difference(op, input, 1e-4);
    *out = (4 * near - far) / 3;
    return isfinite(far) && isfinite(near) && fabs(far - near) < 1e-4 * (1 + fabs(near)) &&
           fabs(near) < 100; // steep ones may be steps, many of them
}

static int n_nan;

static int check_gradients(const struct op *op)
{
    int n = 0;
    for (int i = 0; i < op->n_inputs; i++)
        point.tensors[i][0] = next_number(-2, 2);
    for (int o = 0; o < op->n_outputs; o++)
        point.tensors[TENSOR_GRAD_OUTPUT + o][0] = next_number(0.5, 1);
    for (int i = 0; i < op->n_inputs; i++) {
        double expected;
        if (!op->inputs[i].differentiable || !differentiate(op, i, &expected))
            continue;
        double got = result(op, TENSOR_GRAD_INPUT + i);
        n_nan += isnan(got); // 0 times infinity on the way, as atan(1 / floor(x)) has
        if (!isnan(got) && !(fabs(got - expected) < 1e-5 * (1 + fabs(expected))))
            fail_msg("the gradient of %s is %.9g, expected %.9g at %.17g, %.17g:\n%s",
                     op->inputs[i].name, got, expected, point.tensors[0][0], point.tensors[1][0],
                     op->source);
        n++;
    }
    return n;
}

static struct op *derive(const struct op *op, const char *what)
{
    struct opd_err err = { 0 };
    struct op *derived = op_derive(op, what, &err);
    if (!derived)
        fail_msg("%s\n%s\n%s", err.msg, err.log ? err.log : "", op->source);
    return derived;
}

// A tangent is the gradient turned around.
static void check_tangent(const struct op *op, const struct op *tangent)
{
    double tangents[2] = { next_number(-1, 1), next_number(-1, 1) }, x[2], expected = 0;
    int n = 0;
    x[0] = point.tensors[0][0] = next_number(-2, 2);
    x[1] = point.tensors[1][0] = next_number(-2, 2);
    point.tensors[TENSOR_GRAD_OUTPUT][0] = 1;
    for (int i = 0; i < 2; i++)
        if (op->inputs[i].differentiable) {
            expected += tangents[i] * result(op, TENSOR_GRAD_INPUT + i);
            tangents[n++] = tangents[i];
        }
    for (int i = 0; i < tangent->n_inputs; i++)
        point.tensors[i][0] = i < n ? tangents[i] : x[i - n];
    double got = result(tangent, TENSOR_OUTPUT);
    if (isfinite(expected) && !(fabs(got - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("the tangent is %.9g, expected %.9g:\n%s", got, expected, tangent->source);
}

// --- at random

static void write_term(struct buf *out, int depth)
{
    static const char *const one[] = { "abs",   "acos",         "acosh",       "asin",      "asinh",
                                       "atan",  "atanh",        "cbrt",        "cos",       "cosh",
                                       "erf",   "erfc",         "exp",         "exp10",     "exp2",
                                       "expm1", "fabs",         "floor",       "log",       "log1p",
                                       "log2",  "log10",        "normcdf",     "rcbrt",     "rsqrt",
                                       "sin",   "sinh",         "sqrt",        "tan",       "tanh",
                                       "trunc", "1 / (1 + exp", "log(1 + exp", "log1p(exp", "-(" };
    static const char *const two[] = { "atan2", "copysign", "fdim", "fmax", "fmin",     "fmod",
                                       "hypot", "max",      "min",  "pow",  "remainder" };
    static const char *const leaves[] = { "x", "z", "x", "z", "s", "t", "a", "0.5", "2" };
    static const char *const infix[] = { " + ", " - ", " * ", " / ", " + ", " * " };
    uint32_t kind = next(depth > 0 ? 10 : 1);
    if (kind == 0) {
        buf_append_str(out, leaves[next(sizeof leaves / sizeof *leaves)]);
    } else if (kind < 4) {
        const char *name = one[next(sizeof one / sizeof *one)];
        buf_printf(out, "(%s(", name);
        write_term(out, depth - 1);
        for (const char *c = name; *c; c++)
            if (*c == '(')
                buf_append_str(out, ")");
        buf_append_str(out, "))");
    } else if (kind < 5) {
        buf_printf(out, "%s(", two[next(sizeof two / sizeof *two)]);
        write_term(out, depth - 1);
        buf_append_str(out, ", ");
        write_term(out, depth - 1);
        buf_append_str(out, ")");
    } else if (kind < 9) {
        buf_append_str(out, "(");
        write_term(out, depth - 1);
        buf_append_str(out, infix[next(sizeof infix / sizeof *infix)]);
        write_term(out, depth - 1);
        buf_append_str(out, ")");
    } else {
        buf_append_str(out, "(");
        write_term(out, depth - 1);
        buf_append_str(out, next(2) ? " > 0 && !(x == z) ? " : " < z ? ");
        write_term(out, depth - 1);
        buf_append_str(out, " : ");
        write_term(out, depth - 1);
        buf_append_str(out, ")");
    }
}

static struct op *make_random(void)
{
    struct buf text = { 0 };
    buf_append_str(&text, "//! op f(Tensor x, Tensor z, *, float a=0.75) -> Tensor y\n"
                          "//! dtypes float32 float64\n//! formula s = x + z\n"
                          "//! formula t = s * cos(x)\n//! formula y = ");
    write_term(&text, 4);
    buf_append_str(&text, " + 0 * (t + a)\n");
    struct op *op = parse_text(buf_str(&text));
    buf_finish(&text);
    point.values[0] = 0.75;
    return op;
}

static void test_random(void **unused)
{
    (void)unused;
    int n = 0;
    for (int k = 0; k < 2000; k++) {
        struct op *op = make_random();
        for (int i = 0; i < 4; i++)
            n += check_gradients(op);
        op_unref(op);
    }
    print_message("%d gradients, %d of them NaN\n", n, n_nan);
    assert_true(n > 6000 && n_nan < n / 100);
}

static void test_random_again(void **unused)
{
    (void)unused;
    int n = 0;
    for (int k = 0; k < 400; k++) {
        struct op *op = make_random();
        if (!op_is_derivable(op)) {
            op_unref(op);
            continue;
        }
        struct op *backward = derive(op, "backward"), *tangent = derive(op, "tangent");
        for (int i = 0; i < 4; i++) {
            n += check_gradients(backward) + check_gradients(tangent);
            check_tangent(op, tangent);
        }
        op_unref(op);
        op_unref(backward);
        op_unref(tangent);
    }
    assert_true(n > 2000);
}

// --- corners

static void check_corner(const char *formula, double x, double z, double grad_x, double grad_z)
{
    char text[1024];
    snprintf(text, sizeof text, TOP "//! formula y = %s\n", formula);
    struct op *op = parse_text(text);
    const double expected[] = { grad_x, grad_z };
    point.tensors[0][0] = x;
    point.tensors[1][0] = z;
    point.tensors[TENSOR_GRAD_OUTPUT][0] = 1;
    for (int i = 0; i < 2; i++) {
        double got = op->inputs[i].differentiable ? result(op, TENSOR_GRAD_INPUT + i) : 0;
        if (!(fabs(got - expected[i]) <= 1e-14 * fabs(expected[i])) && got != expected[i] &&
            !(isnan(got) && isnan(expected[i])))
            fail_msg("%s at %g, %g: gradient %d is %.17g, expected %.17g", formula, x, z, i, got,
                     expected[i]);
    }
    op_unref(op);
}

static void test_corners(void **unused)
{
    (void)unused;
    check_corner("abs(x)", 0, 0, 0, 0);
    check_corner("max(x, z)", 1, 1, 0.5, 0.5);
    check_corner("min(x, z)", 1, 1, 0.5, 0.5);
    check_corner("fmax(x, z)", 1, 1, 1, 0);
    check_corner("fmin(x, z)", NAN, 1, 0, 1);
    check_corner("fmax(x, z)", 1, NAN, 1, 0);
    check_corner("pow(x, z)", 0, 0, 0, 0);
    check_corner("pow(x, z)", 0, 2, 0, 0);
    check_corner("pow(x, z)", -2, 3, 12, NAN);
    check_corner("pow(x, z)", 2, 0, 0, log(2));
    check_corner("pow(x, z)", 0, 0.5, INFINITY, 0);
    check_corner("pow(x, 3)", -2, 0, 12, 0);
    check_corner("pow(x, 1)", 0, 0, 1, 0);
    check_corner("atan2(x, z)", 0, 0, 0, 0);
    check_corner("atan2(x, z)", 1e200, 1e200, 5e-201, -5e-201);
    check_corner("hypot(x, z)", 3e200, 4e200, 0.6, 0.8);
    check_corner("fmod(x, z)", -5, 3, 1, 1);
    check_corner("copysign(x, z)", 2, -1, -1, 0);
    check_corner("copysign(x, z)", 0, -1, 0, 0);
    check_corner("floor(x) + round(z)", 0.5, 0.5, 0, 0);
    check_corner("sqrt(x)", 0, 0, INFINITY, 0);
    // A branch that is not taken.
    check_corner("x > 0 ? sqrt(x) : 0", 0, 0, 0, 0);
    check_corner("x > 0 ? sqrt(x) : z", 0, 1, 0, 1);
    check_corner("x != 0 ? z / x : 0", 0, 1, 0, 0);
    check_corner("(x == 0 ? 1 : sin(x) / x) * z", 0, 3, 0, 1);
    check_corner("x > 0 ? (z > 0 ? log(x * z) : 0) : 0", 1, 0, 0, 0);
    check_corner("fmin(acosh(x), z)", 0, 2, 0, 1);
    check_corner("max(sqrt(x), 1) + abs(z)", 0, 0, 0, 0);
    check_corner("x <= 0 ? 0 : x", 0, 0, 0, 0);
    check_corner("x <= 0 ? 0 : x", NAN, 0, 1, 0);
    check_corner("x > 0 ? x : z", 0, 1, 0, 1);
    // Where exp(x) overflows, and where it is nothing beside 1.
    check_corner("1 / (1 + 1 / exp(x))", 800, 0, 0, 0);
    check_corner("z / (1 + 1 / exp(x))", -40, 1, exp(-40), exp(-40));
    check_corner("log(1 + 1 / exp(x))", -800, 0, -1, 0);
    check_corner("log(1 / (1 + exp(-x)))", -700, 0, 1, 0);
    check_corner("1 / (1 + exp(-x))", -800, 0, 0, 0);
    check_corner("1 / (1 + exp(-x))", 40, 0, exp(-40), 0);
    check_corner("1 / (1 + exp(-x))", -40, 0, exp(-40), 0);
    check_corner("x / (exp(-x) + 1)", -800, 0, 0, 0);
    check_corner("log1p(exp(x))", 800, 0, 1, 0);
    check_corner("log1p(exp(x))", -40, 0, exp(-40), 0);
    check_corner("log(1 + exp(x))", 800, 0, 1, 0);
    check_corner("tanh(x)", 800, 0, 0, 0);
    check_corner("tanh(x)", 20, 0, 4 * exp(-40), 0);
    check_corner("acosh(x)", 1e200, 0, 1e-200, 0);
    check_corner("asinh(x)", -1e200, 0, 1e-200, 0);
}

static double derive_at(const char *formula, int order, double x)
{
    char text[256];
    snprintf(text, sizeof text,
             "//! op f(Tensor x) -> Tensor y\n//! dtypes float64\n"
             "//! formula y = %s\n",
             formula);
    struct op *op = parse_text(text);
    for (int k = 0; k < order; k++) {
        struct op *next_one = derive(op, "tangent");
        op_unref(op);
        op = next_one;
    }
    // Inputs of the k-th are the tangents of all those of the one before, and these. x is the last,
    // its own tangent is 1, each time, and those of tangents are 0.
    int last = op->n_inputs - 1;
    for (int i = 0; i <= last; i++)
        point.tensors[i][0] = (last - i) > 0 && ((last - i) & (last - i - 1)) == 0;
    point.tensors[last][0] = x;
    double y = result(op, TENSOR_OUTPUT);
    op_unref(op);
    return y;
}

// Smooth functions stay so where their derivatives are made by cases.
static void test_orders(void **unused)
{
    (void)unused;
    assert_true(fabs(derive_at("tanh(x)", 1, 0) - 1) < 1e-12);
    assert_true(fabs(derive_at("tanh(x)", 2, 0)) < 1e-12);
    assert_true(fabs(derive_at("tanh(x)", 3, 0) + 2) < 1e-12);
    assert_true(fabs(derive_at("1 / (1 + exp(-x))", 2, 0)) < 1e-12);
    assert_true(fabs(derive_at("1 / (1 + exp(-x))", 3, 0) + 0.125) < 1e-12);
    assert_true(fabs(derive_at("log1p(exp(x))", 4, 0) + 0.125) < 1e-12);
    assert_true(fabs(derive_at("x * x * x", 3, 5) - 6) < 1e-12);
    assert_true(derive_at("1 / (1 + exp(-x))", 4, -800) == 0);
    assert_true(fabs(derive_at("log1p(exp(x))", 2, 40) / exp(-40) - 1) < 1e-12);
    assert_true(fabs(derive_at("log1p(exp(x))", 3, -40) / exp(-40) - 1) < 1e-12);
    assert_true(fabs(derive_at("1 / (1 + exp(-x))", 2, -40) / exp(-40) - 1) < 1e-12);
    assert_true(derive_at("sin(x)", 5, 0) == 1);
}

// --- operators

static void test_text(void **unused)
{
    (void)unused;
    struct op *op = parse_text(
        "//! op f(Tensor x, Tensor d_x, Tensor m, *, int[2] k=[1, 2], str "
        "s=\"a b\") -> Tensor y\n//! dtypes float16 float64\n//! type bool : m\n"
        "//! words s \"a b\" c\n//! let n = numel(d_x)\n//! let q = n * k[0]\n"
        "//! let r = q + 1\n"
        "//! formula y = m && s == \"a b\" ? x * q : r + exp(x)\n");
    assert_true(op->inputs[0].differentiable && op->inputs[1].used_backward);
    assert_false(op->inputs[1].differentiable);
    struct op *backward = derive(op, "backward");
    assert_string_equal(backward->name, "f.backward");
    assert_string_equal(backward->schema,
                        "f.backward(Tensor g_y, Tensor x, Tensor d_x, Tensor m, *, "
                        "int[2] k=[1, 2], str s=\"a b\") -> Tensor d_x_2");
    assert_non_null(strstr(backward->source, "//! let     q = n * k[0]\n"));
    assert_null(strstr(backward->source, "//! let     r"));
    struct op *again = derive(backward, "tangent");
    assert_string_equal(again->name, "f.backward.tangent");
    op_unref(again);
    op_unref(backward);
    op_unref(op);
}

static void refuse(const struct op *op, const char *what, const char *message)
{
    struct opd_err err = { 0 };
    assert_null(op_derive(op, what, &err));
    assert_int_equal(err.code, OPD_E_not_found);
    assert_string_equal(err.msg, message);
    opd_err_clear(&err);
}

static void test_refused(void **unused)
{
    (void)unused;
    struct op *op = parse_text(TOP "//! formula y = x\n");
    refuse(op, "forward",
           "there is no operator 'f.forward': the derivatives of one are .backward "
           "and .tangent");
    op_unref(op);
    op = parse_text("//! op f(Tensor(a!) x) -> ()\n//! dtypes float32\n//! formula x = -x\n");
    assert_false(op->has_backward);
    refuse(op, "backward",
           "there is no operator 'f.backward': only operators of formulas have "
           "derivatives that are operators");
    op_unref(op);
    op = parse_text(TOP "//! formula y = digamma(x) + z\n");
    assert_string_equal(op->warnings,
                        "t.cu:1: x has no gradient: digamma cannot be differentiated; "
                        "write a formula for grad_x, or leave it so");
    assert_true(op->inputs[1].differentiable && !op->inputs[0].differentiable);
    op_unref(op);
    refuse_text("//! op f.backward(Tensor x) -> Tensor y\n//! dtypes float32\n//! formula y = x\n",
                "t.cu:1: expected '(' after the operator's name, got '.'");
}

static void test_written(void **unused)
{
    (void)unused;
    struct op *op = parse_text(TOP "//! formula y = x * z\n//! formula grad_x = grad_y * z\n");
    assert_string_equal(op->warnings, "");
    assert_false(op->inputs[1].differentiable); // as the file says
    op_unref(op);
    op = parse_text(TOP "//! formula e = exp(x)\n//! formula y = e * z\n"
                        "//! formula grad_x = grad_y * e\n");
    assert_non_null(
        strstr(op->warnings, "t.cu:5: grad_x is not the derivative of the formulas: at x ="));
    op_unref(op);
    op = parse_text(TOP "//! formula y = rint(x) * z\n"
                        "//! formula grad_x = grad_y * z by definition\n"
                        "//! formula grad_z = grad_y\n");
    assert_non_null(strstr(op->warnings, "t.cu:5: grad_z is not the derivative"));
    assert_null(strstr(op->warnings, "grad_x"));
    op_unref(op);
    refuse_text(TOP "//! formula y = x * z by definition\n",
                "t.cu:3:23: expected the end of the line, got 'by'");
    refuse_text(TOP "//! formula y = x * z\n//! formula grad_x = z by heart\n",
                "t.cu:4:27: expected 'definition', got 'heart'");
    // By an output, before it.
    op = parse_text(TOP "//! formula grad_x = grad_y * y\n//! formula y = exp(x)\n");
    assert_string_equal(op->warnings, "");
    op_unref(op);
}

// What a derivative is made with is not left with the operator, whether it comes to one or not.
static void test_nothing_is_left(void **unused)
{
    (void)unused;
    struct op *op = parse_text(TOP "//! formula y = sin(x) * z\n");
    const struct arena before = op->body->arena;
    op_unref(derive(op, "tangent"));
    op_unref(derive(op, "backward"));
    refuse(op, "forward",
           "there is no operator 'f.forward': the derivatives of one are .backward "
           "and .tangent");
    assert_ptr_equal(op->body->arena.blocks, before.blocks);
    assert_int_equal(op->body->arena.left, before.left);
    op_unref(op);

    char text[2048] = "//! op f(Tensor x0", rest[1024] = "x0 * exp(x0)";
    for (int i = 1; i < 20; i++) {
        snprintf(text + strlen(text), sizeof text - strlen(text), ", Tensor x%d", i);
        snprintf(rest + strlen(rest), sizeof rest - strlen(rest), " + x%d * exp(x%d)", i, i);
    }
    snprintf(text + strlen(text), sizeof text - strlen(text),
             ") -> Tensor y\n//! dtypes float32\n//! formula y = %s\n", rest);
    op = parse_text(text);
    const struct arena wide = op->body->arena;
    refuse(op, "tangent",
           "there is no 'f.tangent': it would be too large"); // 20 tensors and theirs
    assert_ptr_equal(op->body->arena.blocks, wide.blocks);
    assert_int_equal(op->body->arena.left, wide.left);
    op_unref(op);
}

// Products of numbers that overflow stay products.
static void test_infinite(void **unused)
{
    (void)unused;
    struct op *op = parse_text(
        TOP "//! formula y = x * x * 1e200 * 1e200 + 1e300 * (1e300 * z) + z / 1e-320 * 1e10\n");
    struct op *backward = derive(op, "backward"), *tangent = derive(op, "tangent");
    assert_null(strstr(backward->source, "inf"));
    point.tensors[0][0] = 1; // the gradient
    point.tensors[1][0] = 1; // x
    assert_true(isinf(result(backward, TENSOR_OUTPUT)));
    assert_true(isinf(result(backward, TENSOR_OUTPUT + 1)));
    op_unref(tangent);
    op_unref(backward);
    op_unref(op);
}

// Formulas that are each made of the one before, with that as deep in them as it gets.
static void test_deep(void **unused)
{
    (void)unused;
    struct buf text = { 0 };
    buf_append_str(&text, TOP "//! formula t0 = x\n");
    for (int i = 1; i <= 250; i++) {
        buf_printf(&text, "//! formula t%d = t%d", i, i - 1);
        for (int k = 0; k < 900; k++)
            buf_append_str(&text, "+z");
        buf_append_str(&text, "\n");
    }
    buf_append_str(&text, "//! formula y = t250\n");
    struct op *op = parse_text(buf_str(&text));
    assert_true(op->has_backward || op->warnings[0]);
    point.tensors[0][0] = point.tensors[1][0] = 1;
    assert_true(result(op, TENSOR_OUTPUT) == 1 + 250 * 900);
    op_unref(op);
    buf_finish(&text);
}

// As many rules as a file can have: more of them than lines.
static void test_rules(void **unused)
{
    (void)unused;
    struct buf text = { 0 };
    buf_append_str(&text, TOP);
    for (int i = 0; i < 950; i++)
        buf_append_str(&text, "//! require 1\n");
    for (int i = 0; i < 63; i++)
        buf_printf(&text, "//! let a%d, b%d, c%d, d%d = 1, 2, 3, 4\n", i, i, i, i);
    buf_append_str(&text, "//! formula y = x * d62\n");
    struct op *op = parse_text(buf_str(&text));
    struct op *backward = derive(op, "backward");
    assert_non_null(strstr(backward->source, "//! let     d62 = 4\n"));
    assert_null(strstr(backward->source, "c62"));
    op_unref(backward);
    op_unref(op);
    buf_finish(&text);
}

// However the schema is written, a derivative has the operator's attributes.
static void test_schema(void **unused)
{
    (void)unused;
    struct op *op = parse_text("//! op f(*,Tensor x, Tensor? z=None,int[2] k=[1, 2] ,str s=\"a) -> "
                               "(,\",float a)->Tensor y\n"
                               "//! dtypes float32\n//! words s \"a) -> (,\" b\n"
                               "//! formula y = x * a * k[1] * (s == \"b\" ? 2 : 3)\n");
    struct op *backward = derive(op, "backward");
    assert_string_equal(backward->schema, "f.backward(Tensor g_y, *, int[2] k=[1, 2] , str s=\"a) "
                                          "-> (,\", float a) -> Tensor d_x");
    op_unref(backward);
    op_unref(op);
}

// A stride is of a shape, which backward then needs, and a batch would change.
static void test_stride(void **unused)
{
    (void)unused;
    struct op *op = parse_text(TOP "//! let n = stride(x, 0)\n//! formula y = z * n\n");
    assert_true(op->inputs[0].used_backward && !op->inputs[1].used_backward);
    assert_int_equal(op->n_batches, 0);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),   cmocka_unit_test(test_random_again),
        cmocka_unit_test(test_corners),  cmocka_unit_test(test_orders),
        cmocka_unit_test(test_text),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_written),  cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_infinite), cmocka_unit_test(test_deep),
        cmocka_unit_test(test_rules),    cmocka_unit_test(test_stride),
        cmocka_unit_test(test_schema),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
