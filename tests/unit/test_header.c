#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/op_text.h"

#define OP                                                                                         \
    "//! op f(Tensor x, Tensor? m=None, *, int[2] p=1, float a=0.5, str s=\"one\") -> Tensor y\n"
#define WORDS "//! words s one two\n"
#define DTYPES "//! dtypes float32 float64\n"
#define SHAPES "//! shape x [N, C]\n//! shape m [C]\n//! shape y [N, C]\n"
#define TOP OP WORDS DTYPES SHAPES // lines 1 to 6
#define FORWARD "//! forward\n//! kernel k<scalar_t>\n"
#define CODE                                                                                       \
    "template <class T> __global__ void k(const T *x, const T *m, T *y) {}\n"                      \
    "template <class T> __global__ void back(const T *grad_y, T *grad_x, T *grad_m) {}\n"

// Lines after the six of TOP; line 7 is the first.
static void refuse_top(const char *line, const char *message)
{
    char text[4096];
    snprintf(text, sizeof text, TOP "%s\n" FORWARD CODE, line);
    refuse_text(text, message);
}

// Lines after `forward`; line 8 is the first.
static void refuse_forward(const char *lines, const char *message)
{
    char text[4096];
    snprintf(text, sizeof text, TOP "//! forward\n%s\n" CODE, lines);
    refuse_text(text, message);
}

// Lines after a whole forward section; line 9 is the first.
static void refuse_more(const char *lines, const char *message)
{
    char text[4096];
    snprintf(text, sizeof text, TOP FORWARD "%s\n" CODE, lines);
    refuse_text(text, message);
}

static void test_whole(void **state)
{
    (void)state;
    struct op *op = parse_text(
        "// Comment.\n\n#include <x.h>\n#define A \\\n  b\n/* block\n //! not one\n*/\n" TOP
        "//\n//!\n//! doc First,  \\\n//!   in two\\\n//! lines.\n//! doc   \"Second\n"
        "//! type index_t int32 int64 : m\n" FORWARD
        "//! backward grad_x\n//! zero grad_x\n//! kernel back<scalar_t>\n"
        "//! bind grad_m = grad_x\n" CODE);
    assert_string_equal(op->doc, "First, in two lines.\n\"Second");
    assert_int_equal(op->n_types, 2);
    assert_string_equal(op->types[0].name, "scalar_t");
    assert_string_equal(op->types[1].name, "index_t");
    assert_int_equal(op->types[1].n_dtypes, 2);
    assert_int_equal(op->inputs[1].type, 1);
    assert_true(op->has_backward && op->inputs[0].differentiable && !op->inputs[1].differentiable);
    assert_false(op->inputs[0].used_backward || op->outputs[0].used_backward);
    assert_int_equal(op->refs, 1);
    assert_ptr_equal(op_ref(op), op);
    op_unref(op);
    op_unref(op);
    op_unref(NULL);
}

static void test_used_backward(void **state)
{
    (void)state;
    struct op *op = parse_text(
        TOP FORWARD "//! backward grad_x\n//! kernel b\n" CODE
                    "__global__ void b(const float *m, const float *y, float *grad_x) {}");
    assert_false(op->inputs[0].used_backward);
    assert_true(op->inputs[1].used_backward && op->outputs[0].used_backward);
    op_unref(op);
}

static void test_file(void **state)
{
    (void)state;
    refuse_text("", "t.cu:1: no '//! op' line before the first line of code, expected "
                    "'//! op NAME(Tensor x, ...) -> Tensor y'");
    refuse_text(OP WORDS DTYPES SHAPES CODE, "t.cu:1: no 'forward' section");
    refuse_text("int x;\n" TOP FORWARD CODE,
                "t.cu:2: a directive after the first line of code, expected all of them before");
    refuse_text("/* */ int x;\n" TOP FORWARD CODE,
                "t.cu:2: a directive after the first line of code, expected all of them before");
    refuse_text(DTYPES, "t.cu:1: 'dtypes' before 'op', expected the 'op' line first");
    refuse_text(OP OP, "t.cu:2: a second 'op', expected one operator in a file");
    refuse_text("//! op f(Tensor x, \\\n// no\n",
                "t.cu:2: the line before ends in '\\', expected another '//!' line");
    refuse_text("//! op f(Tensor x, \\\n",
                "t.cu:1: the last line ends in '\\', expected another '//!' line");
    refuse_top("//! gird 3", "t.cu:7: unknown directive 'gird'; did you mean 'grid'?");
    refuse_top("//! [3]", "t.cu:7: expected a directive, got '['");
    refuse_top("//! grid 3", "t.cu:7: 'grid' without its kernel, expected below a 'kernel' line");
    refuse_top("//! kernel k",
               "t.cu:7: 'kernel' outside a section, expected after 'forward' or 'backward'");
    refuse_forward("//! let A = 1", "t.cu:8: 'let' inside a section, expected before 'forward'");
    refuse_forward("//! when 1",
                   "t.cu:8: 'when' without its kernel, expected below a 'kernel' or 'matmul' line");
    refuse_text(OP DTYPES "//! let A = s == \"one\"\n",
                "t.cu:3: the words of s are not known yet; put its 'words' line before");
    refuse_text(OP WORDS SHAPES FORWARD CODE, "t.cu:1: no 'dtypes' line, but 'x' is of scalar_t");
    refuse_text(OP WORDS DTYPES "//! shape x []\n//! shape y []\n" FORWARD CODE,
                "t.cu:1: no 'shape' line for 'm'");
    refuse_text(OP DTYPES SHAPES FORWARD CODE, "t.cu:1: no 'words' line for the str attribute 's'");
    refuse_text(
        "//! op f(Tensor? x=None) -> Tensor y\n//! dtypes float32\n//! shape x []\n//! shape y []\n"
        "//! forward\n//! kernel k\n__global__ void k(float *y) {}",
        "t.cu:1: the dtype of output 'y' is not known: no required input has its type; give it "
        "one by a 'type' line");
    struct opd_err err = { 0 };
    refuse_text("//! doc \xff\n",
                "t.cu:1: a byte that is no text, expected UTF-8 without control characters");
    assert_null(op_parse("t.cu", "a\0b", 3, &err));
    assert_string_equal(err.msg, "t.cu:1: a zero byte in the file, expected text");
    opd_err_clear(&err);
    char *large = calloc(1, (1 << 20) + 1);
    assert_null(op_parse("t.cu", large, (1 << 20) + 1, &err));
    assert_string_equal(err.msg, "t.cu:1: the file has 1048577 bytes, expected at most 1048576");
    free(large);
}

static void test_autocast(void **state)
{
    (void)state;
    struct op *op = parse_text(TOP "//! autocast float32\n" FORWARD CODE);
    assert_string_equal(op->autocast[0], "float32");
    assert_string_equal(op->autocast[1], "float32");
    op_unref(op);
    op = parse_text(TOP "//! autocast lower cuda\n//! autocast widest cpu\n" FORWARD CODE);
    assert_string_equal(op->autocast[0], "widest");
    assert_string_equal(op->autocast[1], "lower");
    op_unref(op);
    op = parse_text(TOP "//! autocast lower cuda\n" FORWARD CODE);
    assert_null(op->autocast[0]);
    op_unref(op);
    refuse_top("//! autocast",
               "t.cu:7: expected lower, float32 or widest, got the end of the line");
    refuse_top("//! autocast lowr",
               "t.cu:7: 'lowr' is no rule of autocast, expected lower, float32 "
               "or widest; did you mean 'lower'?");
    refuse_top("//! autocast lower gpu", "t.cu:7: expected the end of the line, got 'gpu'");
    refuse_top("//! autocast lower cpu cuda", "t.cu:7: expected the end of the line, got 'cuda'");
    refuse_top("//! autocast lower\n//! autocast lower cuda",
               "t.cu:8: a second 'autocast' for cuda");
    refuse_text("//! op f(Tensor(a!) x) -> ()\n//! autocast lower\n",
                "t.cu:2: 'autocast', but 'x' shares its memory, which a cast does not");
}

static void test_types(void **state)
{
    (void)state;
    refuse_top("//! dtypes float16", "t.cu:7: a second 'dtypes'");
    refuse_text(OP "//! dtypes\n", "t.cu:2: expected a dtype, got the end of the line");
    refuse_text(OP "//! dtypes float3\n", "t.cu:2: 'float3' is no dtype; did you mean 'float32'?");
    refuse_text(OP "//! dtypes half\n", "t.cu:2: 'half' is no dtype");
    refuse_text(OP "//! dtypes float32 float32\n", "t.cu:2: float32 stands twice in the list");
    refuse_text(OP "//! dtypes float32, float64\n",
                "t.cu:2: expected the end of the line, got ','");
    refuse_top("//! type index_t : m", "t.cu:7: expected a dtype, got ':'");
    refuse_top("//! type index_t int32",
               "t.cu:7: expected ':' and the tensors of this type, got the end "
               "of the line");
    refuse_top("//! type index_t int32 :",
               "t.cu:7: expected the name of an input or output, got the end of the line");
    refuse_top("//! type float32 float64 : m",
               "t.cu:7: a fixed type of 2 dtypes; to allow several write "
               "'type NAME_t float32 ...'");
    refuse_top("//! type N int32 : m",
               "t.cu:7: 'N' is defined twice: it is a dimension since line 4");
    refuse_top("//! type scalar_t int32 : m",
               "t.cu:7: 'scalar_t' is a name of the language, choose another");
    refuse_top("//! type int32 : q",
               "t.cu:7: 'q' is not defined here, expected an input or output");
    refuse_top("//! type int32 : N", "t.cu:7: 'N' is a dimension, expected an input or output");
    refuse_top("//! type int32 : m\n//! type int64 : m", "t.cu:8: 'm' has a type already");
}

static void test_words(void **state)
{
    (void)state;
    refuse_top("//! words s one", "t.cu:7: a second 'words' for s");
    refuse_top("//! words q one", "t.cu:7: 'q' is no attribute");
    refuse_top("//! words p one", "t.cu:7: 'p' is no str attribute, only those have words");
    refuse_text(OP "//! words s\n",
                "t.cu:2: expected the words that the attribute may be, got the end of "
                "the line");
    refuse_text(OP "//! words s one one\n", "t.cu:2: the word one stands twice");
    refuse_text(OP "//! words s two\n",
                "t.cu:2: the default: f: s is \"one\", expected one of two");
}

static void test_shapes(void **state)
{
    (void)state;
    const char *head = OP WORDS DTYPES;
    static const char *const rows[][2] = {
        { "x N", "t.cu:4: 'N' is not defined here, expected an input or output" },
        { "x [N C]", "t.cu:4: expected ',' or ']', got 'C'" },
        { "x [N, C", "t.cu:4: expected ',' or ']', got the end of the line" },
        { "x [N] 3", "t.cu:4: expected the end of the line, got '3'" },
        { "x [N + 1]", "t.cu:4: 'N' is not defined here, expected a dimension, let or attribute" },
        { "x [...S, ...T]", "t.cu:4: a second pack in one shape, expected at most one" },
        { "x [...]", "t.cu:4: expected the name of the pack, as in ...S, got ']'" },
        { "x [...p]", "t.cu:4: 'p' is an attribute, expected a pack of dimensions" },
        { "x [a]", "t.cu:4: a dimension is 'a', a float; expected an integer (floor() makes one)" },
        { "x [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "t.cu:4: a shape of more than 16 dimensions" },
        { "m [Q]", "t.cu:4: 'Q' is new here, but an optional input may be absent and defines no "
                   "dimension; define it in the shape of a required one" },
        { "m [...S]",
          "t.cu:4: 'S' is not defined here, expected a pack that a required input defines; "
          "did you mean 's'?" },
        { "y [Q]", "t.cu:4: 'Q' is not defined here, expected a dimension, let or attribute" },
        { "y [...S]",
          "t.cu:4: 'S' is not defined here, expected a pack that a required input defines; "
          "did you mean 's'?" },
        { "q []", "t.cu:4: 'q' is not defined here, expected an input or output" },
        { "grad_x []",
          "t.cu:4: 'grad_x' is no argument or result of the operator, expected an input "
          "or output" },
        { "x [N]\n//! shape x [N]", "t.cu:5: a second shape for 'x'" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[2048];
        snprintf(text, sizeof text, "%s//! shape %s\n", head, rows[i][0]);
        refuse_text(text, rows[i][1]);
    }
}

static void test_several_in_a_line(void **state)
{
    (void)state;
    struct op *op = parse_text(OP WORDS DTYPES "//! shape x [N, C]; m [C];y [N, C]\n"
                               "//! let A = N*C; B = A + 1\n"
                               "//! require B > 0 : \"B; {B}\"; A > 0 : 'A;'\n"
                               "//! batch N; C\n"
                               "//! example x=[2,3]; x=[4,5] \\\n//!   p=2\n" FORWARD CODE);
    assert_int_equal(op->n_rules, 7);
    assert_string_equal(op->rules[4].value, "A 1 +");
    assert_string_equal(op->rules[6].parts[0], "A;");
    struct plan_request request;
    assert_true(plan_example(op, 1, OPD_DTYPE_float32, &request));
    assert_int_equal(request.inputs[0].shape[1], 5);
    assert_int_equal(request.attrs[0].i[1], 2);
    op_unref(op);
    refuse_top("//! let A = 1;", "t.cu:7: expected a name, got the end of the line");
    refuse_top("//! let A = 1; A = 2", "t.cu:7: 'A' is defined twice: it is a let since line 7");
    refuse_top("//! let A = 1; B = Q; C = 2",
               "t.cu:7: 'Q' is not defined here, expected a dimension, let or attribute");
    refuse_top("//! require N > 0 : \"N; C > 0", "t.cu:7: a string without its closing \"");
    refuse_forward("//! kernel k; k", "t.cu:8: unexpected character ';'");
}

static void test_again(void **state)
{
    (void)state;
    refuse_top("//! again", "t.cu:7: expected a name, got the end of the line");
    refuse_top("//! again N : C = 1",
               "t.cu:7: 'N' is defined twice: it is a dimension since line 4");
    refuse_top("//! again B C = 1",
               "t.cu:7: expected ':' and the names that are to have other values, got 'C'");
    refuse_top("//! again B : Q = 1",
               "t.cu:7: 'Q' is not defined here, expected a dimension or let");
    refuse_top("//! again B : x = 1", "t.cu:7: 'x' is a tensor, expected a dimension or let");
    refuse_top("//! again B : N, N = 1, 2", "t.cu:7: 'N' stands twice");
    refuse_top("//! again B : N, C = 1",
               "t.cu:7: expected ',' and another value, got the end of the line");
    refuse_top("//! again B : N = 1, 2", "t.cu:7: expected the end of the line, got ','");
    refuse_top("//! again B : N = 0.5",
               "t.cu:7: '0.5' is a float, but 'N' is an integer; expected the same");
    refuse_top("//! let f = 0.5\n//! again B : f = N",
               "t.cu:8: 'N' is an integer, but 'f' is a float; expected the same");
    refuse_top("//! again B : N = C\n//! let A = B", "t.cu:8: expected '.' and a dimension or let, "
                                                    "got the end of the line");
    refuse_top("//! again B : N = C\n//! let A = B.x",
               "t.cu:8: 'x' is a tensor, expected a dimension or let");
    refuse_top("//! again B : N = C\n//! let A = B.Q",
               "t.cu:8: 'Q' is not defined here, expected a dimension or let");
    refuse_forward("//! kernel k as N",
                   "t.cu:8: 'N' is a dimension, expected the name of an 'again' line");
    refuse_forward("//! as N", "t.cu:8: 'as' without its kernel, expected below a 'kernel' line");
    char text[4096] = "//! let L0 = N + N";
    for (int i = 1; i < 16; i++)
        snprintf(text + strlen(text), 64, "\n//! let L%d = L%d + L%d", i, i - 1, i - 1);
    strcat(text, "\n//! again B : N = C\n//! let A = B.L9\n//! let D = B.L15");
    refuse_top(text, "t.cu:25: with all that 'L15' is made of, the expression has more than 4096 "
                     "steps");
    // What is replaced behind more of them than there may be counts, too.
    *strstr(text, "\n//! let A") = '\0';
    strcat(text, "\n//! let K = 3\n//! let X = B.L9 + B.L9 + 1 + 1 + K\n//! again E : K = 7");
    size_t top = strlen(text);
    strcat(text, "\n//! let Y = E.X");
    refuse_top(text, "t.cu:27: with all that 'X' is made of, the expression has more than 4096 "
                     "steps");
    text[top] = '\0';
    strcat(text, "\n//! again F : L0 = 7\n//! let Y = F.X + F.K\n//! let Q"); // the same there
    refuse_top(text, "t.cu:29: expected '=', got the end of the line");
}

static void test_lets_and_requires(void **state)
{
    (void)state;
    refuse_top("//! shape x y [N]", "t.cu:7: a second shape for 'x'");
    refuse_top("//! let N = 3", "t.cu:7: 'N' is defined twice: it is a dimension since line 4");
    refuse_top("//! let Q", "t.cu:7: expected '=', got the end of the line");
    refuse_top("//! let = 3", "t.cu:7: expected a name, got '='");
    refuse_top("//! let A, B = p, p", "t.cu:7: expected the end of the line, got ','");
    refuse_top("//! let A, B = 3",
               "t.cu:7: expected ',' and another value, got the end of the line");
    refuse_top("//! let A, B = 3, 4, 5", "t.cu:7: expected the end of the line, got ','");
    refuse_top("//! let A, B, C1 = p", "t.cu:7: p is a list of 2, but the names before '=' are 3");
    refuse_top("//! let A, A = p", "t.cu:7: 'A' is defined twice: it is a let since line 7");
    refuse_top("//! let Q, R = 3, Q",
               "t.cu:7: 'Q' is not defined here, expected a dimension, let or attribute");
    refuse_top("//! let A, = 3", "t.cu:7: expected a name, got '='");
    refuse_top("//! let A, B, C1, D, E = 1",
               "t.cu:7: expected ',' and another value, got the end of the line");
    refuse_top("//! let A, B, C1 = 1, p, 2", "t.cu:7: expected the end of the line, got ','");
    refuse_top("//! let A, B, C1 = 1, 2, p", "t.cu:7: p is a list of 2; write p[0] for an element");
    refuse_top("//! let A, B, C1, D = p, 1",
               "t.cu:7: expected ',' and another value, got the end of the line");
    refuse_top("//! let Q = Q + 1",
               "t.cu:7: 'Q' is not defined here, expected a dimension, let or attribute");
    refuse_top("//! let Q = wanted(x)",
               "t.cu:7: wanted() is known inside forward and backward only");
    refuse_top("//! require N > 0 \"text\"",
               "t.cu:7: expected the end of the line, got the string \"text\"");
    refuse_top("//! require N > 0 : text", "t.cu:7: expected the message in quotes, got 'text'");
    refuse_top("//! require N > 0 : \"{Q}\"",
               "t.cu:7: 'Q' is not defined here, expected a dimension, let or attribute");
    refuse_top("//! require N > 0 : \"{N\"", "t.cu:7: a '{' without its '}' in the message");
    refuse_top("//! require N > 0 : \"{N N}\"", "t.cu:7: expected the end of the line, got 'N'");
}

static void test_strided(void **state)
{
    (void)state;
    struct op *op = parse_text(TOP "//! strided x\n//! let A = stride(x, -1)\n" FORWARD CODE);
    assert_true(op->inputs[0].strided && !op->inputs[1].strided);
    op_unref(op);
    refuse_top("//! strided",
               "t.cu:7: expected the inputs that need not be contiguous, got the end of the line");
    refuse_top("//! strided y", "t.cu:7: 'y' is no input: what an operator makes is contiguous");
    refuse_top("//! strided N", "t.cu:7: 'N' is a dimension, expected a tensor");
    refuse_top("//! strided q", "t.cu:7: 'q' is not defined here, expected a tensor");
    refuse_top("//! let A = stride(x)", "t.cu:7: expected ',', got ')'");
    refuse_top("//! let A = stride(N, 0)", "t.cu:7: 'N' is a dimension, expected a tensor");
    refuse_top("//! example x=[2,3]:[1]",
               "t.cu:7: 1 strides of 2 dimensions, expected one for each");
    refuse_top("//! example x=[2,3]:[-1,2]", "t.cu:7: expected a size, got '-'");
    refuse_top("//! example x=[2,3]:2",
               "t.cu:7: expected strides behind ':', [2, 3]:[1, 2], got '2'");
    refuse_text("//! op f(Tensor(a) x) -> Tensor(a) y\n//! dtypes float32\n//! shape x [N]\n"
                "//! shape y [N, 1]\n//! view y x\n//! strided x\n",
                "t.cu:6: 'x' has a view as result, expected to be contiguous");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! strided x\n"
                "//! formula y = x\n",
                "t.cu:4:5: 'formula' beside 'strided x': formulas take contiguous inputs");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! formula y = x\n"
                "//! strided x\n",
                "t.cu:4: 'strided' beside 'formula' (line 3): an operator has formulas, and shapes "
                "that follow from them, or shapes and kernels");
}

static void test_temps(void **state)
{
    (void)state;
    refuse_top("//! saved g",
               "t.cu:7: expected a shape: [N, C], [] or [...S], got the end of the line");
    refuse_top("//! saved N [N]", "t.cu:7: 'N' is defined twice: it is a dimension since line 4");
    refuse_top("//! saved g flaot32 [N]",
               "t.cu:7: 'flaot32' is not defined here, expected a dtype or type variable");
    refuse_top("//! scratch g float32 [Q]",
               "t.cu:7: 'Q' is not defined here, expected a dimension, let or attribute");
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! scratch g [3]\n",
                "t.cu:2: scalar_t is not known yet; put the 'dtypes' line before");
    refuse_top("//! saved g [N]",
               "t.cu:8: no kernel of this section writes g: none has it as a parameter "
               "that is a pointer to non-const");
}

static void test_sections(void **state)
{
    (void)state;
    refuse_forward("", "t.cu:7: a section without kernels");
    refuse_forward("//! kernel back<scalar_t>\n",
                   "t.cu:11: kernel 'back' has parameter 'grad_y', a gradient, "
                   "expected in a backward section only");
    refuse_more("//! forward", "t.cu:9: a second 'forward', expected one");
    refuse_more("//! forward cpu\n//! kernel k",
                "t.cu:9: a second 'forward' for cpu, expected one");
    refuse_more("//! forward gpu", "t.cu:9: expected the end of the line, got 'gpu'");
    refuse_text(TOP "//! forward cuda\n//! kernel k\n" CODE,
                "t.cu:7: 'forward cuda', but no 'forward cpu'");
    refuse_text(TOP "//! forward cpu\n//! kernel k\n//! forward cpu\n" CODE,
                "t.cu:9: a second 'forward' for cpu, expected one");
    refuse_text(TOP "//! forward cpu\n//! kernel k\n//! forward\n" CODE,
                "t.cu:9: a second 'forward' for cpu, expected one");
    refuse_more("//! backward cpu grad_x\n//! zero grad_x",
                "t.cu:9: grad_x is made on cpu, but in no 'backward cuda' section");
    refuse_more("//! backward grad_x\n//! zero grad_x\n//! backward cpu grad_x\n",
                "t.cu:11: grad_x is made twice, expected in one section only");
    refuse_more("//! backward cpu",
                "t.cu:9: expected the gradients that this section makes, grad_NAME, got the "
                "end of the line");
    refuse_text(TOP "//! backward grad_x\n",
                "t.cu:7: 'backward' before 'forward', expected after it");
    refuse_more("//! backward",
                "t.cu:9: expected the gradients that this section makes, grad_NAME, got the "
                "end of the line");
    refuse_more("//! backward grad_q",
                "t.cu:9: 'grad_q' is not defined here, expected the gradient of an "
                "input; did you mean 'grad_x'?");
    refuse_more("//! backward grad_y",
                "t.cu:9: 'grad_y' is no gradient of an input, expected grad_NAME of one");
    refuse_more("//! backward grad_x grad_x",
                "t.cu:9: grad_x is made twice, expected in one section only");
    refuse_more("//! backward grad_x\n//! kernel back<scalar_t>",
                "t.cu:12: kernel 'back' has parameter 'grad_m', but this section (line 9) does not "
                "make it");
    refuse_more(
        "//! backward grad_x grad_m\n//! kernel b\n__global__ void b(const float *grad_x, float "
        "*grad_m) {}",
        "t.cu:9: no kernel of this section writes grad_x: none has it as a parameter that is a "
        "pointer to non-const");
    refuse_text("//! op f(Tensor x, Tensor i) -> Tensor y\n//! dtypes float32\n//! type int64 : i\n"
                "//! shape x []\n//! shape i []\n//! shape y []\n//! forward\n//! kernel k\n"
                "//! backward grad_i\n__global__ void k(float *y) {}",
                "t.cu:9: i has no floating dtype, so there is no grad_i");
    refuse_forward(
        "//! kernel k<scalar_t>\n//! kernel k<scalar_t>\n//! zero x",
        "t.cu:10: 'x' is not made in this section, expected an output, saved or scratch");
    refuse_forward("//! zero q", "t.cu:8: 'q' is not defined here, expected a tensor");
    refuse_forward("//! zero N", "t.cu:8: 'N' is a dimension, expected a tensor");
    refuse_forward("//! zero",
                   "t.cu:8: expected the tensor to fill with zeros, got the end of the line");
    refuse_more(
        "//! backward grad_x\n//! zero y",
        "t.cu:10: 'y' is not made in this section, expected one of its gradients or scratch");
}

static void test_launches(void **state)
{
    (void)state;
#define K "//! kernel k<scalar_t>\n"
    refuse_forward("//! kernel", "t.cu:8: expected the name of a kernel, got the end of the line");
    refuse_forward("//! kernel k<scalar_t", "t.cu:8: expected ',' or '>', got the end of the line");
    refuse_forward(
        "//! kernel k<a>",
        "t.cu:8: a template argument is 'a', a float; expected an integer (floor() makes one)");
    refuse_forward("//! kernel k<flaot>",
                   "t.cu:8: 'flaot' is not defined here, expected a dimension, let or attribute");
    refuse_forward("//! kernel k<N > 1>", "t.cu:8: expected the end of the line, got '1'");
    refuse_forward(K "//! grid 1, 2, 3, 4",
                   "t.cu:9: a fourth extent in 'grid', expected one to three");
    refuse_forward(K "//! grid 1\n//! grid 2", "t.cu:10: a second 'grid' for this kernel");
    refuse_forward(K "//! grid a",
                   "t.cu:9: grid is 'a', a float; expected an integer (floor() makes one)");
    refuse_forward(K "//! block 1\n//! block 2", "t.cu:10: a second 'block' for this kernel");
    refuse_forward(K "//! block",
                   "t.cu:9: expected a number, a name or '(', got the end of the line");
    refuse_forward(K "//! threads 1\n//! threads 2", "t.cu:10: a second 'threads' for this kernel");
    refuse_forward(K "//! threads 1\n//! grid 2",
                   "t.cu:10: 'grid' and 'threads' for one kernel, expected one of them");
    refuse_forward(K "//! grid 1\n//! threads 2",
                   "t.cu:10: 'grid' and 'threads' for one kernel, expected one of them");
    refuse_forward(K "//! block 1\n//! threads 2 by 3",
                   "t.cu:10: 'block' and 'by' for one kernel, expected one of them");
    refuse_forward(K "//! threads 2 by 3\n//! block 1",
                   "t.cu:10: a second 'block' for this kernel");
    refuse_forward(K "//! threads a",
                   "t.cu:9: threads is 'a', a float; expected an integer (floor() makes one)");
    refuse_forward(K "//! threads 2 of 3", "t.cu:9: expected the end of the line, got 'of'");
    refuse_forward(K "//! shared 1\n//! shared 2", "t.cu:10: a second 'shared' for this kernel");
    refuse_forward(
        K "//! when 1\n//! when 1",
        "t.cu:10: a second condition for this kernel, expected one 'when' or 'otherwise'");
    refuse_forward(K "//! otherwise",
                   "t.cu:9: 'otherwise', but the step before is no kernel with a 'when'");
    refuse_forward(K "//! when 1\n//! zero y\n" K "//! otherwise",
                   "t.cu:12: 'otherwise', but the step before is no kernel with a 'when'");
    refuse_forward(K "//! when 1\n" K "//! otherwise\n" K "//! otherwise",
                   "t.cu:13: 'otherwise', but the step before is no kernel with a 'when'");
    refuse_forward(
        K "//! when 1\n" K "//! otherwise\n//! when 1",
        "t.cu:12: a second condition for this kernel, expected one 'when' or 'otherwise'");
    refuse_forward(K "//! bind x", "t.cu:9: expected '=', got the end of the line");
    refuse_forward(K "//! bind x = x\n//! bind x = x", "t.cu:10: 'x' is bound twice");
    refuse_forward("//! kernel k<scalar_t> when 1 gird 2",
                   "t.cu:8: expected the end of the line, got 'gird'");
    refuse_forward("//! kernel k<scalar_t> grid 1 tf32",
                   "t.cu:8: 'tf32' without its matmul, expected below a 'matmul' line");
    refuse_forward("//! zero y when 1", "t.cu:8: expected the end of the line, got 'when'");
    refuse_forward(K "//! bind q = x", "t.cu:9: bind of 'q', which is no parameter of kernel 'k'");
}

// All types are fixed, so nothing says what scalar_t is.
static void test_scalar_without_dtypes(void **state)
{
    (void)state;
    static const char *const types[] = { "scalar_t", "acc_t" };
    for (int i = 0; i < 2; i++) {
        char text[512], message[128];
        snprintf(text, sizeof text,
                 "//! op f(Tensor x, *, float a=1.0) -> Tensor y\n//! type float32 : x y\n"
                 "//! shape x [N]\n//! shape y [N]\n//! example x=[3]\n"
                 "//! forward\n//! kernel k\n"
                 "__global__ void k(const float *x, float *y, %s a) {}\n",
                 types[i]);
        snprintf(message, sizeof message,
                 "t.cu:8: kernel 'k' has parameter 'a' of type %s, but there is no 'dtypes' line",
                 types[i]);
        refuse_text(text, message);
    }
}

static void test_examples(void **state)
{
    (void)state;
    refuse_top("//! example q=[3]", "t.cu:7: 'q' is no argument of f");
    refuse_top("//! example x=3", "t.cu:7: expected a shape, [2, 3], got '3'");
    refuse_top("//! example x=[3,]", "t.cu:7: expected a size, got ']'");
    refuse_top("//! example x=[3] x=[3]", "t.cu:7: 'x' stands twice in the example");
    refuse_top("//! example x", "t.cu:7: expected '=', got the end of the line");
    refuse_top("//! example x in 0..1",
               "t.cu:7: 'x' has no shape here, expected 'x=[2, 3]' before");
    refuse_top("//! example x=[2,3] x in 0",
               "t.cu:7: expected a range, as in 'x in 0..3', got the end of the line");
    refuse_top("//! example x=[2,3] x in 3..0", "t.cu:7: a range from 3 to 0 is empty");
    refuse_top("//! example x=[2,3] x is []", "t.cu:7: a list without values");
    refuse_top("//! example x=[2,3] x is i x in 0..1",
               "t.cu:7: what 'x' holds stands twice in the example");
    refuse_top("//! example x=[2,3] x is j",
               "t.cu:7: 'j' is not defined here, expected a dimension, let or attribute");
    refuse_top("//! example x=[2,3] x is 6 / (i - 2)",
               "t.cu:7: the example's x: division by zero in '6 / (i - 2)' (t.cu:7)");
    refuse_top("//! example x=[2,3] p=1.5", "t.cu:7: f: p is 1.5, expected an int or a list of 2");
    refuse_top("//! example m=[3]",
               "t.cu:7: the example does not plan: f: x is missing, expected a tensor");
    refuse_top("//! example x=[2,3] m=[4]",
               "t.cu:7: the example does not plan: f: m has 4 in dimension 0, "
               "expected C = 3 (of x)");
    // Sizes whose product overflows, before anything is counted by it.
    refuse_top("//! example x=[3037000500,3037000500] x is [1]",
               "t.cu:7: the example does not plan: f: x: shape [3037000500, 3037000500]: float32 "
               "elements take 2^48 bytes or more");
    refuse_top("//! example x=[2,3] 7", "t.cu:7: expected the end of the line, got '7'");
}

static void test_limits(void **state)
{
    (void)state;
    char *text = calloc(1, 1 << 16);
    strcpy(text, OP);
    for (int i = 0; i < 1024; i++)
        strcat(text, "//! doc x\n");
    refuse_text(text, "t.cu:1025: more than 1024 directives");
    strcpy(text, OP "//! doc ");
    memset(text + strlen(text), 'x', 17000);
    refuse_text(text, "t.cu:2: a directive of more than 16384 characters");
    memset(text, 0, 1 << 16);
    strcpy(text, TOP);
    for (int i = 0; i < 300; i++)
        snprintf(text + strlen(text), 64, "//! let L%d = 1\n", i);
    refuse_text(text, "t.cu:261: more than 256 dimensions and lets");
    strcpy(text, TOP);
    for (int i = 0; i < 300; i += 2)
        snprintf(text + strlen(text), 64, "//! let L%d, L%d = p\n", i, i + 1);
    refuse_text(text, "t.cu:134: more than 256 dimensions and lets");
    strcpy(text, TOP);
    for (int i = 0; i < 33; i++)
        snprintf(text + strlen(text), 64, "//! scratch s%d [3]\n", i);
    refuse_text(text, "t.cu:39: more than 32 saved and scratch tensors");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_used_backward),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_autocast),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_strided),
        cmocka_unit_test(test_temps),
        cmocka_unit_test(test_several_in_a_line),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_lets_and_requires),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_launches),
        cmocka_unit_test(test_scalar_without_dtypes),
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
