// Formula operators: what is refused at load, and the launches of requests.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/op_text.h"

#define OP "//! op f(Tensor x, Tensor z, *, float a=0.5, str s=\"one\", int? n=None) -> Tensor y\n"
#define TOP OP "//! words s one two\n//! dtypes float16 float32 float64\n" // lines 1 to 3

static struct opd_err err;

// The line after the three of TOP, and the column in it.
static void refuse(const char *lines, const char *message)
{
    char text[8192];
    snprintf(text, sizeof text, TOP "%s", lines);
    refuse_text(text, message);
}

// As the right side of the formula of y, which begins in column 17.
static void refuse_right(const char *formula, const char *message)
{
    char line[4096];
    snprintf(line, sizeof line, "//! formula y = %s\n", formula);
    refuse(line, message);
}

static void test_grammar(void **state)
{
    (void)state;
    refuse_right("x +", "t.cu:4:20: expected a number, a name or '(', got the end of the line");
    refuse_right("(x + z", "t.cu:4:23: expected ')', got the end of the line");
    refuse_right("x z", "t.cu:4:19: expected the end of the line, got 'z'");
    refuse_right("x ? z", "t.cu:4:22: expected ':' of '?', got the end of the line");
    refuse_right("xx * 2", "t.cu:4:17: 'xx' is not defined here, expected a tensor, attribute, let "
                           "or an earlier formula; did you mean 'x'?");
    refuse_right("exq(x)", "t.cu:4:17: there is no function 'exq'; did you mean 'exp'?");
    refuse_right("2 * pow(x)", "t.cu:4:21: 'pow' with 1 arguments, expected 2");
    refuse_right("exp(x, z)", "t.cu:4:17: 'exp' with 2 arguments, expected 1");
    refuse_right("exp()", "t.cu:4:17: 'exp' with 0 arguments, expected 1");
    refuse_right("x + s", "t.cu:4:21: 's' is a str attribute, expected a comparison with one of "
                          "its words (== or !=)");
    refuse_right("s < \"one\"", "t.cu:4:17: 's' is a str attribute, expected a comparison with one "
                                "of its words (== or !=)");
    refuse_right("x * (\"one\")", "t.cu:4:23: the string \"one\" stands alone, expected a "
                                  "comparison of a str attribute with it (== or !=)");
    refuse_right("s == \"onne\"", "t.cu:4:23: \"onne\" is none of the words of s; did you mean "
                                  "'one'?");
    refuse_right("x + n", "t.cu:4:21: n may be None, expected an attribute that always has a "
                          "value");
    refuse_right("x + cpu", "t.cu:4:21: 'cpu' is a device, expected a tensor, attribute, let or "
                            "formula");
    refuse_right("x + y", "t.cu:4:21: y is an output, which only formulas of gradients may use; "
                          "give the common part a name of its own");
    refuse_right("x + grad_y", "t.cu:4:21: grad_y is the gradient of an output, which only "
                               "formulas of gradients may use; give the common part a name of its "
                               "own");
    refuse_right("grad_x", "t.cu:4:17: grad_x is made by a formula, expected what formulas are "
                           "made from; give the common part a name of its own");
}

static void test_depth(void **state)
{
    (void)state;
    char formula[1200] = "";
    for (int i = 0; i < 100; i++)
        strcat(formula, "(");
    refuse_right(formula, "t.cu:4:81: the formula is nested more than 64 deep");
    strcpy(formula, "x");
    for (int i = 0; i < 101; i++)
        strcat(formula, "/x");
    refuse_right(formula, "t.cu:4:17: the formula is nested too deeply; use one of its own for a "
                          "part of it");
}

// What C, Python and PyTorch write is told what formulas have for it.
static void test_foreign(void **state)
{
    (void)state;
    refuse_right("x % z",
                 "t.cu:4:19: '%' is not of formulas; the rest of a division is fmod(x, y)");
    refuse_right("x ^ 2", "t.cu:4:19: '^' is not of formulas; a power is pow(x, y)");
    refuse_right("x ** 2", "t.cu:4:20: '**' is not of formulas; a power is pow(x, y)");
    refuse_right("x + * 2", "t.cu:4:21: expected a number, a name or '(', got '*'");
    refuse_right("x if x > 0 else 0",
                 "t.cu:4:19: 'if' is not of formulas; a choice is condition ? a : b");
    refuse_right("2 * (x if x > 0 else 0)",
                 "t.cu:4:24: 'if' is not of formulas; a choice is condition ? a : b");
    refuse_right("x > 0 and z > 0", "t.cu:4:23: 'and' is not of formulas; write &&");
    refuse_right("not x", "t.cu:4:17: 'not' is not of formulas; write !");
    refuse_right("torch.exp(x)", "t.cu:4:22: '.' is not of formulas; a function is called by its "
                                 "name alone, exp(x)");
    refuse_right("x.exp()", "t.cu:4:18: '.' is not of formulas; a function is called by its name "
                            "alone, exp(x)");
    refuse_right("prod(x)", "t.cu:4:17: there is no function 'prod'; a formula has sum, mean, amax "
                            "and amin of a row; that takes a kernel");
    refuse_right("z * sigmoid(x)",
                 "t.cu:4:21: there is no function 'sigmoid'; write 1 / (1 + exp(-x))");
    refuse_right("expf(x)", "t.cu:4:17: there is no function 'expf'; did you mean 'exp'?");
}

// A name that nothing uses is misspelt: a gradient's would be None in silence.
static void test_unused(void **state)
{
    (void)state;
    refuse_text("//! op f(Tensor x, Tensor weight) -> Tensor y\n//! dtypes float32\n"
                "//! formula y = x * weight\n//! formula grad_x = grad_y * weight\n"
                "//! formula grad_wieght = grad_y * x\n",
                "t.cu:5:13: 'grad_wieght' is the gradient of no input, expected grad_ of one, or "
                "another name for an intermediate; did you mean 'grad_weight'?");
    refuse("//! formula y = x\n//! formula grad_xx = grad_y\n//! formula grad_x = grad_xx\n",
           "t.cu:5:13: 'grad_xx' is the gradient of no input, expected grad_ of one, or another "
           "name for an intermediate; did you mean 'grad_x'?");
    refuse("//! formula out = x\n//! formula y = z\n", "t.cu:4:13: no formula uses 'out'");
    refuse_text("//! op f(Tensor x) -> Tensor result\n//! dtypes float32\n"
                "//! formula reslut = x\n",
                "t.cu:3:13: no formula uses 'reslut'; did you mean 'result'?");
    refuse("//! formula y = x\n//! formula p = grad_y * z \\\n//!  + x\n"
           "//! formula q = p * z\n//! formula grad_x = grad_y\n",
           "t.cu:7:13: no formula uses 'q'");
    refuse("//! formula \\\n//!   p = z\n//! formula y = x\n", "t.cu:5:7: no formula uses 'p'");
}

static void test_targets(void **state)
{
    (void)state;
    refuse("//! formula x = 1\n",
           "t.cu:4:13: x is an input, expected an output, grad_ of an input, or a new name; to "
           "change it write Tensor(a!) x");
    refuse("//! formula a = 1\n", "t.cu:4:13: 'a' is an attribute, expected an output, grad_ of an "
                                  "input, or a new name");
    refuse("//! formula grad_y = 1\n",
           "t.cu:4:13: grad_y is given to backward, expected grad_ of an input");
    refuse("//! formula y = x\n//! formula y = z\n",
           "t.cu:5:13: a second formula for y, the first is at line 4");
    refuse("//! formula t = x\n//! formula t = z\n",
           "t.cu:5:13: 't' is the name of a formula already, expected an output, grad_ of an "
           "input, or a new name");
    refuse("//! formula t = grad_y\n//! formula y = t\n",
           "t.cu:5:17: t is made from outputs or gradients, which only formulas of gradients may "
           "use");
    refuse("//! formula grad_x = grad_y\n", "t.cu:1: no formula for output 'y'");
    refuse("//! formula = x\n", "t.cu:4:13: expected a name: an output, grad_ of an input, or a "
                                "new one, got '='");
    refuse("//! formula y x\n", "t.cu:4:15: expected '=', got 'x'");
}

static void test_other_directives(void **state)
{
    (void)state;
    refuse("//! formula y = x\n//! shape x [N]\n",
           "t.cu:5: 'shape' beside 'formula' (line 4): an operator has formulas, and shapes that "
           "follow from them, or shapes and kernels");
    refuse("//! shape x [N]\n//! formula y = x\n",
           "t.cu:5:5: 'formula' beside 'shape': the shapes of an operator with formulas follow "
           "from them");
    refuse("//! formula y = x\n//! forward\n",
           "t.cu:5: 'forward' beside 'formula' (line 4): an operator has formulas, and shapes that "
           "follow from them, or shapes and kernels");
    // A check would take the place of one of the tensors in which 32 inputs' gradients are summed.
    refuse("//! formula y = x\n//! check c : \"no\"\n",
           "t.cu:5: 'check' beside 'formula' (line 4): an operator has formulas, and shapes that "
           "follow from them, or shapes and kernels");
    refuse("//! check c : \"no\"\n//! formula y = x\n",
           "t.cu:5:5: 'formula' beside 'check': an operator has formulas, or shapes and kernels");
    refuse("//! scratch t [2]\n//! formula y = x\n",
           "t.cu:5:5: 'formula' beside 'saved' and 'scratch': an operator has formulas, or shapes "
           "and kernels");
    static const char viewed[] = "//! op f(Tensor(a) x) -> Tensor(a) y\n//! dtypes float32\n";
    char text[256];
    snprintf(text, sizeof text, "%s//! formula y = x\n//! view y x\n", viewed);
    refuse_text(text, "t.cu:4: 'view' beside 'formula' (line 3): an operator has formulas, and "
                      "shapes that follow from them, or shapes and kernels");
    snprintf(text, sizeof text, "%s//! view y x\n//! formula y = x\n", viewed);
    refuse_text(text, "t.cu:4:5: 'formula' beside 'view': an operator has formulas, or shapes and "
                      "kernels");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! formula y = x\n",
                "t.cu:1: no 'dtypes' line: it says what formulas are computed in");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes int32\n//! formula y = x\n",
                "t.cu:1: dtypes has int32, but formulas are computed in floating point; a tensor "
                "of another dtype needs a 'type' line");
    refuse_text(
        "//! op f(Tensor x, Tensor? z) -> Tensor y\n//! dtypes float32\n"
        "//! formula y = present(z) || x > 0 ? x : x * z\n",
        "t.cu:3: y reads z, which may be absent; expected present(z) ? ... : ... around it");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n"
                "//! formula y = twice(x, x)\n__device__ float twice(float x);\n",
                "t.cu:3:17: 'twice' with 2 arguments, expected 1");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n"
                "//! formula y = twice(x)\nstruct s { __device__ float twice(float x); };\n",
                "t.cu:3:17: there is no function 'twice'");
    refuse_text("//! op f(Tensor(a!) x, Tensor(b!) z) -> ()\n//! dtypes float32\n"
                "//! formula z = x\n",
                "t.cu:1: no formula for 'x', which is changed in place");
    refuse_text("//! op f(Tensor(a!) x, Tensor z) -> Tensor y\n//! dtypes float32\n"
                "//! formula x = z\n//! formula y = x\n//! formula grad_z = grad_y * x\n",
                "t.cu:5:31: x is changed by forward, so no gradient can be made from it");
    refuse_text("//! op f(Tensor x, Tensor m) -> Tensor y\n//! dtypes float32\n"
                "//! type bool : m\n//! formula y = x\n//! formula grad_m = grad_y\n",
                "t.cu:5:13: m has no floating dtype, so there is no grad_m");
}

// --- plans

static const char whole[] =
    "//! op g(Tensor x, Tensor z, Tensor w, *, float a=0.5) -> (Tensor y, Tensor v)\n"
    "//! dtypes float16 float32 float64\n"
    "//! formula p = x * z\n"
    "//! formula y = p + a * w\n"
    "//! formula v = tanh(p)\n"
    "//! formula d = 1 - v * v\n"
    "//! formula grad_x = (grad_y + grad_v * d) * z\n"
    "//! formula grad_w = a * grad_y\n";

static struct tensor_desc desc(enum opd_dtype dtype, int rank, int64_t a, int64_t b, int64_t c)
{
    return (struct tensor_desc){ .dtype = dtype, .rank = rank, .shape = { a, b, c } };
}

static struct plan_request request_of(const struct op *op, struct tensor_desc x,
                                      struct tensor_desc z, struct tensor_desc w)
{
    struct plan_request request = { .op = op, .inputs = { x, z, w } };
    request.attrs[0] = op->attrs[0].value;
    return request;
}

static struct plan *build(const struct plan_request *request)
{
    struct plan *plan = plan_build(request, &err);
    if (!plan)
        fail_msg("%s", err.msg);
    return plan;
}

static void check_shape(const struct plan *plan, int operand, const char *name, const char *shape)
{
    char text[64];
    tensor_desc_format(&plan->operands[operand].desc, text, sizeof text);
    assert_string_equal(plan->operands[operand].name, name);
    assert_string_equal(text, shape);
}

static void test_use(void **state)
{
    (void)state;
    struct op *op = parse_text(whole);
    assert_true(op->has_backward);
    assert_true(op->inputs[0].differentiable && op->inputs[2].differentiable);
    assert_false(op->inputs[1].differentiable);
    assert_false(op->inputs[0].used_backward); // d is made of v
    assert_true(op->inputs[1].used_backward && op->outputs[1].used_backward);
    assert_false(op->inputs[2].used_backward || op->outputs[0].used_backward);
    op_unref(op);
}

static void test_forward(void **state)
{
    (void)state;
    struct op *op = parse_text(whole);
    struct tensor_desc x = desc(OPD_DTYPE_float32, 2, 6, 8, 0);
    struct plan_request request = request_of(op, x, x, x);
    struct plan *plan = build(&request);
    assert_int_equal(plan->n_steps, 1);
    assert_string_equal(plan->kernels[0].expr, "opd::formula_map<g_forward, 4>");
    assert_int_equal(plan->kernels[0].line, 4);
    assert_int_equal(plan->kernels[0].n_params, 1);
    // Five tensors, n, share, a float.
    assert_int_equal(plan->kernels[0].params[0].size, 5 * 8 + 2 * 8 + 8);
    assert_int_equal(plan->steps[0].grid[0], 1);
    assert_int_equal(plan->steps[0].block[0], 128);
    assert_int_equal(plan->steps[0].n_slots, 5);
    check_shape(plan, 0, "y", "float32 [6, 8]");
    check_shape(plan, 1, "v", "float32 [6, 8]");
    float a;
    memcpy(&a, plan->steps[0].args + 56, sizeof a);
    assert_true(a == 0.5f);
    assert_non_null(strstr(plan->kernels[0].prelude, "using acc_t = float;\nstruct g_forward {\n"));
    plan_free(plan);

    request.on_cpu = true;
    plan = build(&request);
    assert_string_equal(plan->kernels[0].expr, "opd::formula_map<g_forward, 1>");
    assert_int_equal(plan->steps[0].block[0], 1);
    plan_free(plan);
    op_unref(op);
}

// What a formula is in C++.
static void check_cpp(const char *formula, const char *expected)
{
    char text[1024], line[1024];
    snprintf(text, sizeof text,
             "//! op f(Tensor x, Tensor z, *, float a=0.5) -> Tensor y\n//! dtypes float32\n"
             "//! formula y = %s\n__device__ float own(float x);\n",
             formula);
    snprintf(line, sizeof line, "const acc_t t_y = %s;\n", expected);
    struct op *op = parse_text(text);
    const struct tensor_desc x = desc(OPD_DTYPE_float32, 1, 8, 0, 0);
    struct plan_request request = request_of(op, x, x, x);
    struct plan *plan = build(&request);
    if (!strstr(plan->kernels[0].prelude, line))
        fail_msg("expected %sin %s", line, strstr(plan->kernels[0].prelude, "void compute"));
    plan_free(plan);
    op_unref(op);
}

static void test_choices(void **state)
{
    (void)state;
    check_cpp("x < 0 ? z : x", "opd::formula_choose(v_x < acc_t(0), v_z, v_x)");
    check_cpp("a < 0 ? z : x", "c_0 < acc_t(0) ? v_z : v_x"); // the same for all elements
    check_cpp("sum(x) < 0 ? z : x", "s_0 < acc_t(0) ? v_z : v_x"); // of a row
    check_cpp("x < 0 ? own(z) : x", "v_x < acc_t(0) ? acc_t(::own(v_z)) : v_x");
}

static int64_t argument(const struct plan *plan, int step, uint32_t at, size_t size)
{
    int64_t value = 0;
    memcpy(&value, plan->steps[step].args + at, size);
    return value;
}

// [6, 2, 8] with [8], [2, 1]: dimensions 6, 2 and 8 in vectors of 4; z moves along the last, w
// along the middle one.
static void test_broadcast(void **state)
{
    (void)state;
    struct op *op = parse_text(whole);
    struct plan_request request = request_of(op, desc(OPD_DTYPE_float32, 3, 6, 2, 8),
                                             desc(OPD_DTYPE_float32, 1, 8, 0, 0),
                                             desc(OPD_DTYPE_float32, 2, 2, 1, 0));
    struct plan *plan = build(&request);
    assert_string_equal(plan->kernels[0].expr, "opd::formula_map<g_forward, 4>");
    assert_non_null(strstr(plan->kernels[0].prelude, "opd::formula_dims<3, 2, uint32_t> dims;"));
    static const int64_t expected[] = { 6, 2, 2, 1431655766, 1, 1, 0, 0, 4, 0, 1, 0 };
    for (uint32_t i = 0; i < 12; i++)
        assert_int_equal(argument(plan, 0, 56 + 4 * i, 4), expected[i]);
    assert_int_equal(argument(plan, 0, 40, 8), 96);
    plan_free(plan);

    // More than 2^31 elements: 64 bits.
    request.inputs[0].shape[0] = INT64_C(1) << 28;
    plan = build(&request);
    assert_non_null(strstr(plan->kernels[0].prelude, "opd::formula_dims<3, 2, int64_t> dims;"));
    plan_free(plan);

    request.inputs[1].shape[0] = 7;
    assert_null(plan_build(&request, &err));
    assert_string_equal(err.msg, "g: z is [7], expected a shape that broadcasts with x, which is "
                                 "[268435456, 2, 8]");
    opd_err_clear(&err);
    op_unref(op);
}

static void test_backward(void **state)
{
    (void)state;
    struct op *op = parse_text(whole);
    struct plan_request request = request_of(op, desc(OPD_DTYPE_float32, 2, 5000, 64, 0),
                                             desc(OPD_DTYPE_float32, 1, 1, 0, 0),
                                             desc(OPD_DTYPE_float32, 1, 64, 0, 0));
    request.direction = PLAN_BACKWARD;
    request.wanted = 7;
    struct plan *plan = build(&request);
    // grad_x, and grad_w in two stages.
    assert_int_equal(plan->n_steps, 3);
    assert_string_equal(plan->kernels[0].expr, "opd::formula_map<g_backward, 4>");
    assert_string_equal(plan->kernels[1].expr, "opd::formula_sum<g_grad_w, 4, true, 8>");
    assert_string_equal(plan->kernels[2].expr, "opd::formula_total<acc_t, scalar_t, 32>");
    check_shape(plan, 0, "grad_x", "float32 [5000, 64]");
    check_shape(plan, 1, "grad_w", "float32 [64]");
    uint32_t parts = plan->steps[1].grid[1];
    assert_true(parts > 32 && plan->steps[1].grid[0] == 2);
    assert_int_equal(argument(plan, 2, 24, 8), parts);
    // Each is compiled with its own text alone.
    assert_non_null(strstr(plan->kernels[0].prelude, "struct g_backward {"));
    assert_null(strstr(plan->kernels[0].prelude, "g_grad_w"));
    assert_non_null(strstr(plan->kernels[1].prelude, "struct g_grad_w {"));
    assert_null(strstr(plan->kernels[1].prelude, "g_backward"));
    assert_string_equal(plan->kernels[2].prelude, plan->prelude);
    plan_free(plan);

    request.wanted = 4;
    request.on_cpu = true;
    plan = build(&request);
    assert_string_equal(plan->kernels[0].expr, "opd::formula_sum<g_grad_w, 1, true, 1>");
    assert_null(strstr(plan->kernels[0].prelude, "g_backward"));
    plan_free(plan);
    op_unref(op);
}

static const char affine[] = "//! op a(Tensor x, Tensor w, Tensor b) -> Tensor y\n"
                             "//! dtypes float32 float64\n"
                             "//! formula y = x * w + b\n";

static void check_kernels(const struct plan *plan, const char *const *expected, int n)
{
    assert_int_equal(plan->n_steps, n);
    for (int i = 0; i < n; i++)
        assert_string_equal(plan->kernels[plan->steps[i].kernel].expr, expected[i]);
}

// Sums of gradients whose inputs are alike are one launch; of few elements, in one part.
static void test_sums_together(void **state)
{
    (void)state;
    struct op *op = parse_text(affine);
    const struct tensor_desc x = desc(OPD_DTYPE_float32, 2, 64, 1000, 0);
    const struct tensor_desc w = desc(OPD_DTYPE_float32, 1, 1000, 0, 0);
    struct plan_request request = { .op = op, .inputs = { x, w, w } };
    request.direction = PLAN_BACKWARD;
    request.wanted = 7;
    struct plan *plan = build(&request);
    check_kernels(plan,
                  (const char *[]){ "opd::formula_map<a_backward, 4>",
                                    "opd::formula_sum<a_grad_w, 4, true, 8>" },
                  2);
    assert_non_null(strstr(plan->kernels[1].prelude, "opd::formula_sums<acc_t, 2> sum_type;"));
    check_shape(plan, 1, "grad_w", "float32 [1000]");
    check_shape(plan, 2, "grad_b", "float32 [1000]");
    plan_free(plan);

    request.inputs[0] = desc(OPD_DTYPE_float32, 2, 6400, 1000, 0); // in parts
    plan = build(&request);
    check_kernels(plan,
                  (const char *[]){ "opd::formula_map<a_backward, 4>",
                                    "opd::formula_sum<a_grad_w, 4, true, 8>",
                                    "opd::formula_total<acc_t, scalar_t, 32>",
                                    "opd::formula_total<acc_t, scalar_t, 32>" },
                  4);
    plan_free(plan);

    request.inputs[2] = desc(OPD_DTYPE_float32, 2, 1, 1, 0); // not alike
    request.wanted = 6;
    request.inputs[0] = x;
    plan = build(&request);
    assert_int_equal(plan->n_steps, 3); // grad_b in parts
    plan_free(plan);

    request.inputs[2] = w;
    request.on_cpu = true;
    plan = build(&request);
    assert_null(strstr(plan->kernels[0].prelude, "formula_sums"));
    plan_free(plan);
    op_unref(op);

    // What reads no elements has no width of its own, and each sum its place in shared memory.
    op = parse_text("//! op a(Tensor x, Tensor w, Tensor b) -> Tensor y\n//! dtypes float32\n"
                    "//! formula y = x + floor(w) + floor(b)\n");
    request = (struct plan_request){ .op = op, .inputs = { x, w, w } };
    request.direction = PLAN_BACKWARD;
    request.wanted = 6;
    plan = build(&request);
    check_kernels(plan, (const char *[]){ "opd::formula_sum<a_grad_w, 8, true, 8>" }, 1);
    plan_free(plan);
    op_unref(op);
}

// Sums of a row that wait for no other are made in one pass, up to four, each kind by itself.
static void test_rows_together(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n"
                               "//! formula m = amax(x, -1)\n"
                               "//! formula a = sum(x, -1) + sum(x * x, -1) + sum(exp(x - m), -1)\n"
                               "//! formula b = sum(2 * x, -1) + sum(3 * x, -1) + sum(4 * x, -1)\n"
                               "//! formula y = x * a * b * sum(x * a, -1)\n");
    struct plan_request request = { .op = op,
                                    .inputs = { desc(OPD_DTYPE_float32, 2, 64, 1000, 0) } };
    struct plan *plan = build(&request);
    check_kernels(plan, (const char *[]){ "opd::formula_row<f_forward, 4, 256, 1>" }, 1);
    int passes = 0, sums = 0;
    for (const char *at = plan->kernels[0].prelude; (at = strstr(at, "row.template join<")); at++)
        passes++;
    for (const char *at = plan->kernels[0].prelude; (at = strstr(at, "const acc_t s_")); at++)
        sums++;
    assert_int_equal(passes, 4); // amax; sums of x; what is left of them; that which waits for a
    assert_int_equal(sums, 8);
    plan_free(plan);

    request.inputs[0].shape[0] = 4096; // rows enough for fewer threads each
    plan = build(&request);
    check_kernels(plan, (const char *[]){ "opd::formula_row<f_forward, 4, 32, 8>" }, 1);
    plan_free(plan);
    op_unref(op);
}

// Rows of which few begin with a vector are read in vectors all the same, where there is enough of
// them, unless most of what is read begins elsewhere and they are short.
static void test_rows_within_vectors(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op f(Tensor x, Tensor? w=None, Tensor? b=None) -> Tensor y\n"
                               "//! dtypes float32\n"
                               "//! formula n = x / sum(x, -1)\n"
                               "//! formula s = present(w) ? n * w : n\n"
                               "//! formula y = present(b) ? s + b : s\n");
    const struct {
        int64_t rows, columns;
        int others;
        const char *kernel;
    } cases[] = {
        { 100, 1001, 0, "opd::formula_row<f_forward, 4, 256, 1>" },
        { 4096, 1001, 0, "opd::formula_row<f_forward, 4, 32, 8>" },
        { 100, 1001, 1, "opd::formula_row<f_forward, 4, 256, 1>" },
        { 100, 1001, 2, "opd::formula_row<f_forward, 1, 256, 4>" },
        { 100, 9001, 2, "opd::formula_row<f_forward, 4, 1024, 4>" },
        { 200, 60001, 0, "opd::formula_row<f_forward, 4, 512, -4>" },
        { 100, 1002, 0, "opd::formula_row<f_forward, 2, 256, 2>" },
        { 4096, 63, 0, "opd::formula_row<f_forward, 1, 32, 2>" },
        { 60, 1001, 0, "opd::formula_row<f_forward, 1, 256, 4>" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct plan_request request = {
            .op = op, .inputs = { desc(OPD_DTYPE_float32, 2, cases[i].rows, cases[i].columns, 0) }
        };
        for (int k = 1; k <= cases[i].others; k++)
            request.inputs[k] = desc(OPD_DTYPE_float32, 1, cases[i].columns, 0, 0);
        struct plan *plan = build(&request);
        check_kernels(plan, &cases[i].kernel, 1);
        plan_free(plan);
    }
    op_unref(op);
}

// Of what broadcasts, too: a row's elements are each found, the rest is read in vectors.
static void test_broadcast_within_vectors(void **state)
{
    (void)state;
    struct op *op = parse_text("//! op f(Tensor x, Tensor w) -> Tensor y\n"
                               "//! dtypes float32\n//! formula y = x * w\n");
    struct plan_request request = { .op = op,
                                    .inputs = { desc(OPD_DTYPE_float32, 2, 1001, 131, 0),
                                                desc(OPD_DTYPE_float32, 1, 131, 0, 0) } };
    struct plan *plan = build(&request);
    check_kernels(plan, (const char *[]){ "opd::formula_map<f_forward, 4>" }, 1);
    assert_non_null(strstr(plan->kernels[0].prelude, "e.e_w[j] = p_w[its[0]]"));
    plan_free(plan);

    request.inputs[0] = desc(OPD_DTYPE_float32, 2, 16384, 197, 0); // sums of many short rows
    request.inputs[1] = desc(OPD_DTYPE_float32, 2, 16384, 1, 0);
    request.direction = PLAN_BACKWARD;
    request.wanted = 2;
    plan = build(&request);
    check_kernels(plan, (const char *[]){ "opd::formula_sum<f_grad_w, 4, false, 8>" }, 1);
    plan_free(plan);
    op_unref(op);
}

static void test_empty(void **state)
{
    (void)state;
    struct op *op = parse_text(whole);
    struct plan_request request = request_of(op, desc(OPD_DTYPE_float32, 2, 0, 3, 0),
                                             desc(OPD_DTYPE_float32, 0, 0, 0, 0),
                                             desc(OPD_DTYPE_float32, 1, 3, 0, 0));
    struct plan *plan = build(&request);
    assert_int_equal(plan->n_steps, 0);
    plan_free(plan);
    request.direction = PLAN_BACKWARD;
    request.wanted = 7;
    plan = build(&request);
    assert_int_equal(plan->n_steps, 1); // the sum of nothing
    assert_int_equal(plan->steps[0].kind, PLAN_STEP_ZERO);
    check_shape(plan, (int)plan->steps[0].operand, "grad_w", "float32 [3]");
    plan_free(plan);
    op_unref(op);
}

// No size is divided by: not how many rows there are, nor how long they are.
static void plan_empty_rows(const char *text)
{
    struct op *op = parse_text(text);
    static const int64_t sizes[][2] = {
        { 0, 5 }, { 5, 0 }, { 0, 0 }, { 1, 0 }, { 0, 1 }, { 0, 2 }
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int way = 0; way < 4; way++) {
            struct tensor_desc row = desc(OPD_DTYPE_float32, 1, sizes[i][1], 0, 0);
            struct plan_request request = request_of(
                op, desc(OPD_DTYPE_float32, 2, sizes[i][0], sizes[i][1], 0), row, row);
            request.on_cpu = way & 1;
            request.direction = way & 2 ? PLAN_BACKWARD : PLAN_FORWARD;
            request.wanted = way & 2 ? 7 : 0;
            plan_free(build(&request));
        }
    op_unref(op);
}

static void test_empty_rows(void **state)
{
    (void)state;
    plan_empty_rows("//! op r(Tensor x, Tensor w, Tensor b) -> Tensor y\n"
                    "//! dtypes float32\n"
                    "//! formula top = amax(x, -1)\n"
                    "//! formula y = w * (x - top) / sum(exp(x - top), -1) + b\n");
    plan_empty_rows("//! op r(Tensor x, Tensor w, Tensor b) -> Tensor y\n"
                    "//! dtypes float32\n"
                    "//! formula y = mean(w * (x - b) * (x - b))\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammar),   cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_unused),    cmocka_unit_test(test_depth),
        cmocka_unit_test(test_targets),   cmocka_unit_test(test_other_directives),
        cmocka_unit_test(test_use),       cmocka_unit_test(test_forward),
        cmocka_unit_test(test_broadcast), cmocka_unit_test(test_backward),
        cmocka_unit_test(test_empty),     cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_choices),   cmocka_unit_test(test_sums_together),
        cmocka_unit_test(test_rows_together),
        cmocka_unit_test(test_rows_within_vectors),
        cmocka_unit_test(test_broadcast_within_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
