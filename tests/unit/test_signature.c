#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_text.h"
#include "op/signature.h"

static struct arena arena;
static struct signature *found;
static int n_found;

static int forget(void **state)
{
    (void)state;
    arena_finish(&arena);
    return 0;
}

static void scan(const char *text)
{
    struct opd_err err = { 0 };
    arena_finish(&arena);
    if (!signature_scan("t.cu", text, strlen(text), &arena, &found, &n_found, &err))
        fail_msg("%s", err.msg);
}

// One kernel k whose one parameter has this text.
static const struct signature_param *one(const char *param)
{
    char text[512];
    snprintf(text, sizeof text, "__global__ void k(%s) {}", param);
    scan(text);
    assert_int_equal(n_found, 1);
    assert_int_equal(found->n_params, 1);
    if (found->problem)
        fail_msg("%s: %s", param, found->problem);
    return found->params;
}

static void test_forms(void **state)
{
    (void)state;
    static const char *const heads[] = {
        "__global__ void k",
        "extern \"C\" __global__ void k",
        "static __global__ void k",
        "__global__ static void __launch_bounds__(256) k",
        "__launch_bounds__(256, 2) __global__ void k",
        "__global__ __launch_bounds__((256 > 1) ? 2 : 1) void k",
        "__global__ __attribute__((used)) void k",
        "void __global__ k",
        "extern \"C\" {\n__global__ void\nk",
        "namespace n {\ninline __global__ void k",
        "[[maybe_unused]] __global__ void k",
        "#define K(x) __global__ void x(int)\n__global__ void k",
        "/* __global__ void no(int x) {} */ // __global__ void no()\n__global__ void k",
        "const char *s = \"__global__ void no(int x)\"; __global__ void k",
        "const char *s = R\"(\" __global__ void no(int x))\"; __global__ void k",
        "int n = 1'000; char c = '\"'; __global__ void k",
        "#define A __global__ void \\\n no(int x)\n__global__ void k",
    };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s(const float *x, int n)\n{\n}\n", heads[i]);
        scan(text);
        if (n_found != 1)
            fail_msg("%d kernels in: %s", n_found, text);
        assert_string_equal(found->name, "k");
        assert_int_equal(found->n_params, 2);
        assert_true(found->has_body && !found->is_template && !found->problem);
    }
    scan("__global__ void a(); __global__ void b(void) {} __device__ void c(int x) {}");
    assert_int_equal(n_found, 2);
    assert_int_equal(found[0].n_params + found[1].n_params, 0);
    assert_true(!found[0].has_body && found[1].has_body);
    scan("");
    assert_int_equal(n_found, 0);
    scan("__global__");
    assert_int_equal(n_found, 0);
}

static void test_templates(void **state)
{
    (void)state;
    scan("template <typename T, class U = float, int N = (3 > 2), bool, typename... R>\n"
         "__global__ void k(const T *x, U y) {}\n"
         "template <typename T> struct s { int x; };\n__global__ void plain(int n) {}\n"
         "template <>\n__global__ void special(int n) {}");
    assert_int_equal(n_found, 3);
    const struct template_param *t = found[0].template_params;
    assert_int_equal(found[0].n_template, 5);
    assert_true(t[0].is_type && !t[0].has_default);
    assert_string_equal(t[0].name, "T");
    assert_true(t[1].is_type && t[1].has_default);
    assert_string_equal(t[1].name, "U");
    assert_true(!t[2].is_type && t[2].has_default);
    assert_string_equal(t[2].name, "N");
    assert_string_equal(t[3].name, "");
    assert_true(t[4].is_pack);
    assert_int_equal(found[0].line, 2);
    assert_false(found[1].is_template);
    assert_true(found[2].is_template && found[2].n_template == 0);
}

static void test_pointers(void **state)
{
    (void)state;
    static const struct {
        const char *text, *type;
        bool writes;
    } rows[] = {
        { "const scalar_t* __restrict__ x", "scalar_t", false },
        { "scalar_t const *x", "scalar_t", false },
        { "T *const x", "T", true },
        { "T* __restrict__ const x", "T", true },
        { "const unsigned char *x", "unsigned char", false },
        { "float x[]", "float", true },
        { "const float x[16]", "float", false },
        { "const at::Half *__restrict x", "at::Half", false },
        { "std::complex<float> *x", "std::complex<float>", true },
        { "[[maybe_unused]] int *x", "int", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct signature_param *p = one(rows[i].text);
        assert_int_equal(p->kind, PARAM_POINTER);
        assert_string_equal(p->name, "x");
        assert_string_equal(p->type, rows[i].type);
        assert_int_equal(p->writes, rows[i].writes);
    }
}

static void test_values(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "int x", "int" },
        { "const int x", "int" },
        { "unsigned long long int x", "unsigned long long int" },
        { "const __grid_constant__ int64_t x", "int64_t" },
        { "std::size_t x", "std::size_t" },
        { "scalar_t x = 3", "scalar_t" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct signature_param *p = one(rows[i][0]);
        assert_int_equal(p->kind, PARAM_VALUE);
        assert_string_equal(p->name, "x");
        assert_string_equal(p->type, rows[i][1]);
    }
    scan("__global__ void k(int a,\n   float b,\n\n double c) {}");
    assert_int_equal(found->params[2].line, 4);
}

static void test_accessors(void **state)
{
    (void)state;
    const struct signature_param *p = one(
        "const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x");
    assert_int_equal(p->kind, PARAM_ACCESSOR);
    assert_int_equal(p->rank, 2);
    assert_string_equal(p->index, "int");
    assert_string_equal(p->type, "scalar_t");
    assert_true(p->writes);
    p = one("at::PackedTensorAccessor64<const float,4> x");
    assert_int_equal(p->rank, 4);
    assert_string_equal(p->index, "int64_t");
    assert_false(p->writes);
    p = one("PackedTensorAccessor<T, 10, at::DefaultPtrTraits, size_t> x");
    assert_int_equal(p->rank, 10);
    assert_string_equal(p->index, "int64_t");
}

// Names that stand for types, as extensions have them.
static void test_aliases(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        // what is before the kernel, its parameter, what it is
        { "#define ACC4 PackedTensorAccessor32<T, 4, RestrictPtrTraits>", "const ACC4 x",
          "T 4 int" },
        { "#define ACC(t, n) torch::PackedTensorAccessor64<t, n>", "ACC(float, 2) x",
          "float 2 int64_t" },
        { "template <typename T, size_t N> using acc = at::PackedTensorAccessor32<T, N>;",
          "acc<const T, 3> x", "T 3 int" },
        { "namespace n { template <class T>\nusing two = torch::PackedTensorAccessor64<T, 2>; }",
          "n::two<double> x", "double 2 int64_t" },
        { "", "const at::cuda::detail::TensorInfo<const float, unsigned> x", "float 0 unsigned" },
        { "#define REAL double // in all of them", "REAL x", "double" },
        { "extern \"C\" { typedef long long idx; }", "const idx x", "long long" },
        { "typedef idx other; using idx = int;", "other x", "int" },
        { "enum class mode : unsigned char { A, B };", "mode x", "unsigned char" },
        { "typedef enum { SUM, MEAN } reduce_t;", "const reduce_t x", "int" },
        { "struct s { typedef int inner; };", "inner x", "inner" }, // not of this scope
        { "void f() { using inner = int; }", "inner x", "inner" },
        { "#if A\n#define R float\n#else\n#define R double\n#endif", "R x", "R" }, // which?
        { "using T = int;", "T x", "T" }, // hidden by the template's
        { "using a = b; using b = a;", "a x", "a" },
        { "#define F(a) F(a)\n#define G(a, b, c, d, e) a\n#define H(", "F(int) x", "F(int)" },
        { "#define REAL(t) t\n#define UNIT() int", "REAL UNIT x", "REAL UNIT" }, // not called
        { "template <class U> using own = U;", "own *x", "own" },
        { "#define R\n#define R float\n#define R double\n#define R", "R x", "R" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512], got[128];
        snprintf(text, sizeof text, "%s\ntemplate <class T> __global__ void k(%s) {}", rows[i][0],
                 rows[i][1]);
        scan(text);
        assert_int_equal(n_found, 1);
        const struct signature_param *p = found->params;
        snprintf(got, sizeof got, p->kind == PARAM_ACCESSOR ? "%s %d %s" : "%s", p->type, p->rank,
                 p->index);
        assert_string_equal(got, rows[i][2]);
    }
}

// However many names there are before it.
static void test_many_aliases(void **state)
{
    (void)state;
    struct buf text = { 0 };
    for (int i = 0; i < 500; i++)
        buf_printf(&text, "#define SIZE_%d %d\n", i, i);
    buf_append_str(&text, "typedef double real;\n__global__ void k(real x) {}");
    scan(buf_str(&text));
    assert_int_equal(n_found, 1);
    assert_string_equal(found->params[0].type, "double");
    buf_finish(&text);
}

static void test_problems(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        { "int", "parameter 1 is a parameter without a name, or one that is too long" },
        { "const float *", "parameter 1 is a parameter without a name, or one that is too long" },
        { "const float &x", "parameter 1 is a reference, which a kernel cannot take" },
        { "float **x", "parameter 1 is a pointer to pointers, expected a pointer to elements" },
        { "float *x[2]", "parameter 1 is a pointer to pointers, expected a pointer to elements" },
        { "torch::PackedTensorAccessor32<float, N> x",
          "parameter 1 is an accessor whose rank is not a plain number" },
        { "torch::PackedTensorAccessor32<float> x",
          "parameter 1 is an accessor without its type and rank" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        snprintf(text, sizeof text, "__global__ void k(%s) {}", rows[i][0]);
        scan(text);
        assert_int_equal(n_found, 1);
        assert_non_null(found->problem);
        assert_string_equal(found->problem, rows[i][1]);
    }
}

static void test_limits(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    char *text = calloc(1, 1 << 20);
    for (int i = 0; i < 257; i++)
        strcat(text, "__global__ void k();");
    assert_false(signature_scan("t.cu", text, strlen(text), &arena, &found, &n_found, &err));
    assert_string_equal(err.msg, "t.cu:1: more than 256 kernels");
    opd_err_clear(&err);
    strcpy(text, "\n__global__ void k(int");
    for (int i = 0; i < 129; i++)
        strcat(text, " a, int");
    strcat(text, " a) {}");
    assert_false(signature_scan("t.cu", text, strlen(text), &arena, &found, &n_found, &err));
    assert_string_equal(err.msg, "t.cu:2: kernel 'k' has more than 128 parameters");
    opd_err_clear(&err);
    strcpy(text, "template <int");
    for (int i = 0; i < 33; i++)
        strcat(text, " A, int");
    strcat(text, "> __global__ void k() {}");
    assert_false(signature_scan("t.cu", text, strlen(text), &arena, &found, &n_found, &err));
    assert_string_equal(err.msg, "t.cu:1: a template of more than 32 parameters");
    opd_err_clear(&err);
    memset(text, '(', (1 << 20) - 1);
    memcpy(text, "__global__ void k", 17);
    scan(text);
    memset(text, '<', (1 << 20) - 1);
    memcpy(text, "template ", 9);
    scan(text);
    for (int i = 0; i < (1 << 20) - 2; i += 2)
        memcpy(text + i, "R\"", 2);
    scan(text);
    free(text);
}

// ---- binding: signatures held against a header ----

#define TOP                                                                                        \
    "//! op f(Tensor x, *, int[2] p=1, float a=0.5, int? o=None) -> Tensor y\n//! dtypes float16 " \
    "float32\n"                                                                                    \
    "//! shape x [N, C]\n//! shape y [N, C]\n//! let R = a * 2\n//! forward\n" // 6 lines

static void refuse(const char *launch, const char *code, const char *message)
{
    char text[2048];
    snprintf(text, sizeof text, TOP "%s\n%s\n", launch, code);
    refuse_text(text, message);
}

static void test_binding(void **state)
{
    (void)state;
    refuse("//! kernel kk", "__global__ void k(float *y) {}",
           "t.cu:7: no kernel 'kk' in this file, expected '__global__ void kk(...)'; did you mean "
           "'k'?");
    refuse("//! kernel k",
           "__global__ void k(float *y, int C) {}\n__global__ void k(float *y, int N) {}",
           "t.cu:7: two different kernels 'k', at lines 8 and 9; expected one, or one of the "
           "operator's dtype (give them different names)");
    refuse("//! kernel k<b*2>", "template <int b> __global__ void k(float *y) {}",
           "t.cu:7: 'b' is not defined here, expected a dimension, let or attribute");
    refuse("//! kernel k<3>", "__global__ void k(float *y) {}",
           "t.cu:7: 'k' is no template, expected its name without <...>");
    refuse("//! kernel k", "template <class T, int V> __global__ void k(T *y) {}",
           "t.cu:7: 'k' is a template of 2 parameters, expected k<...>; 'V' is not bound, and "
           "names no dimension, let or attribute");
    refuse("//! kernel k", "template <class T, class U> __global__ void k(T *y, U *n) {}",
           "t.cu:7: 'k' is a template of 2 parameters, expected k<...>");
    refuse("//! kernel k bind V = 0.5", "template <int V> __global__ void k(float *y) {}",
           "t.cu:7: template parameter 'V' of 'k' would be '0.5', a float");
    refuse("//! kernel k bind V = y", "template <int V> __global__ void k(float *y) {}",
           "t.cu:7: 'k' is a template of 1 parameters, expected k<...>; 'V' is not bound, and "
           "names no dimension, let or attribute");
    refuse("//! kernel k<3> bind V = 4", "template <int V> __global__ void k(float *y) {}",
           "t.cu:7: bind of 'V', which is no parameter of kernel 'k'");
    refuse("//! kernel k", "template <class... T> __global__ void k(float *y) {}",
           "t.cu:7: 'k' is a template of 1 parameters, expected k<...>");
    refuse("//! kernel k<scalar_t, 3>", "template <class T> __global__ void k(T *y) {}",
           "t.cu:7: 2 template arguments for 'k', expected 1 (line 8)");
    refuse("//! kernel k<>", "template <class T> __global__ void k(T *y) {}",
           "t.cu:7: 0 template arguments for 'k', expected 1 (line 8)");
    refuse("//! kernel k<N>", "template <class T> __global__ void k(T *y) {}",
           "t.cu:7: template argument 1 of 'k' is 'N', expected a type");
    refuse(
        "//! kernel k", "__global__ void k(float *y,\n int nn) {}",
        "t.cu:9: kernel 'k' has parameter 'nn', which names no tensor, size, let or attribute; did "
        "you mean 'N'? (or add \"bind nn = ...\")");
    refuse(
        "//! kernel k", "__global__ void k(float *y, int NN) {}",
        "t.cu:8: kernel 'k' has parameter 'NN', which names no tensor, size, let or attribute; did "
        "you mean 'N'? (or add \"bind NN = ...\")");
    refuse(
        "//! kernel k", "__global__ void k(float *y, int *xx) {}",
        "t.cu:8: kernel 'k' has parameter 'xx', which names no tensor; did you mean 'x'? (or add "
        "\"bind xx = ...\")");
    refuse("//! kernel k", "__global__ void k(float *y, int x) {}",
           "t.cu:8: kernel 'k' has parameter 'x' of type int, but that is a tensor, expected a "
           "pointer");
    refuse(
        "//! kernel k", "__global__ void k(float *y, int *N) {}",
        "t.cu:8: kernel 'k' has parameter 'N', a pointer, but 'N' is a number, expected a tensor");
    refuse("//! kernel k", "__global__ void k(float *y, int p) {}",
           "t.cu:8: kernel 'k' has parameter 'p', a list of 2, expected a single value: bind p = "
           "p[0]");
    refuse(
        "//! kernel k", "__global__ void k(float *y, dim4 N) {}",
        "t.cu:8: kernel 'k' has parameter 'N' of type 'dim4', expected a pointer, an accessor, a "
        "number, bool, a type variable or a struct that this file defines");
    refuse("//! kernel k<4>", "template <int V> __global__ void k(float *y, V N) {}",
           "t.cu:8: kernel 'k' has parameter 'N' of type 'V', expected a pointer, an accessor, a "
           "number, "
           "bool, a type variable or a struct that this file defines");
    refuse("//! kernel k", "__global__ void k(float *y, int a) {}",
           "t.cu:8: kernel 'k' has parameter 'a' of type int, but 'a' is a float (floor() makes an "
           "integer)");
    refuse("//! kernel k\n//! bind n = R", "__global__ void k(float *y, int n) {}",
           "t.cu:9: kernel 'k' has parameter 'n' of type int, but 'R' is a float (floor() makes an "
           "integer)");
    refuse("//! kernel k\n//! bind m = 3", "__global__ void k(float *y, int n) {}",
           "t.cu:9: kernel 'k' has parameter 'n', which names no tensor, size, let or attribute; "
           "did you "
           "mean 'N'? (or add \"bind n = ...\")");
    refuse("//! kernel k\n//! bind m = 3", "__global__ void k(float *y, int N) {}",
           "t.cu:8: bind of 'm', which is no parameter of kernel 'k'");
    refuse("//! kernel k", "__global__ void k(float *y, const float &x) {}",
           "t.cu:8: kernel 'k': parameter 2 is a reference, which a kernel cannot take");
}

// What nobody compiles is not there.
static void test_if_zero(void **state)
{
    (void)state;
    refuse("//! kernel k", "#if 0\n__global__ void k(float *y, int N) {}\n#endif\n",
           "t.cu:7: no kernel 'k' in this file, expected '__global__ void k(...)'");
    refuse("//! kernel k", "#if 0\n#if A\n#else\n__global__ void k(float *y) {}\n#endif",
           "t.cu:7: no kernel 'k' in this file, expected '__global__ void k(...)'");
    refuse("//! kernel k",
           "#  if\t0 // not\n__global__ void k(float *y) {}\n# else\n"
           "__global__ void k(float *y, int q) {}\n#endif",
           "t.cu:11: kernel 'k' has parameter 'q', which names no tensor, size, let or attribute "
           "(or add \"bind q = ...\")");
    op_unref(parse_text(TOP "//! kernel k\n#if 0\n it's /*\n#endif\n*/ #if 0\n # ifdef A\n #endif\n"
                            "#elif B\n__global__ void k(float *y) {}\n#endif"));
    static const char *const begun[] = { "0 || 1", "0 == 0", "0/2", "0\\\n || 1", "0 /*\n*/ || 1" };
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        char *text = mem_printf(TOP "//! kernel k\n#if %s\n__global__ void k(float *y) {}\n#endif",
                                begun[i]);
        op_unref(parse_text(text));
        free(text);
    }
    static const char *const zero[] = { "0\r", "0/**/", "0 /* a\n */ /**/ // b", "0 // a \\\n b" };
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        char *kernel = mem_printf("#if %s\n__global__ void k(float *y) {}\n#endif", zero[i]);
        refuse("//! kernel k", kernel,
               "t.cu:7: no kernel 'k' in this file, expected '__global__ void k(...)'");
        free(kernel);
    }
    op_unref(parse_text(TOP "//! kernel k\n#if 01\n#if0\n#if 0x1\n"
                            "__global__ void k(float *y) {}\n"));
}

static void test_twice(void **state)
{
    (void)state;
    op_unref(parse_text(TOP "//! kernel k\n__global__ void k(float *y, const float *) {}\n"
                            "__global__ void k(float *y, int N) {}\n"));
    op_unref(parse_text(TOP "//! kernel k\n__global__ void k(float *y, int N);\n"
                            "#ifdef A\n__global__ void k(float *y, int N) {}\n#else\n"
                            "__global__ void k(float *y, int N) { }\n#endif\n"));
    op_unref(parse_text(TOP "//! kernel n::k<scalar_t>\nnamespace n { template <class T, int K = 1>"
                            "__global__ void k(T *y, int N) {} }"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),     cmocka_unit_test(test_templates),
        cmocka_unit_test(test_if_zero),
        cmocka_unit_test(test_pointers),  cmocka_unit_test(test_values),
        cmocka_unit_test(test_accessors), cmocka_unit_test(test_problems),
        cmocka_unit_test(test_aliases),   cmocka_unit_test(test_many_aliases),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_binding),
        cmocka_unit_test(test_twice),
    };
    return cmocka_run_group_tests(tests, NULL, forget);
}
