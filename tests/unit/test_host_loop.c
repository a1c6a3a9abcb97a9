// host_loop: which kernels are plain loops of elements, whatever else is in their file.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "compiler/host_loop.h"
#include "kernels/source.h"

static char *read_file(const char *path)
{
    struct buf text = { 0 };
    char piece[4096];
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;)
        buf_append(&text, piece, n);
    fclose(f);
    char *copy = mem_strdup(buf_str(&text));
    buf_finish(&text);
    return copy;
}

// `more`: another kernel of the image, or NULL.
static bool are_plain(const char *prelude, const char *source, const char *expr, const char *more)
{
    char *common = source_common("kernels_src", &(struct opd_err){ 0 });
    const struct compile_input in = {
        .common = common,
        .prelude = prelude,
        .source = source,
        .expr = expr,
        .more = &more,
        .n_more = more != NULL,
    };
    bool plain = host_loop_is_plain(&in);
    free(common);
    return plain;
}

static bool is_plain(const char *prelude, const char *source, const char *expr)
{
    return are_plain(prelude, source, expr, NULL);
}

static void test_shipped_kernels(void **state)
{
    (void)state;
    static const struct {
        const char *file, *expr;
        bool plain;
    } cases[] = {
        { "tests/bench/kernels/gelu", "gelu_forward_each<scalar_t, 2>", true },
        { "tests/bench/kernels/gelu", "gelu_backward_each<scalar_t, 0>", true },
        { "tests/bench/kernels/gelu", "gelu_forward<scalar_t, 2>", false },
        { "kernels_src/depthwise_conv2d", "depthwise_forward_row<scalar_t, 3, 3, 1, 1, 1, 1>",
          false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s.cu", cases[i].file);
        char *source = read_file(path);
        if (is_plain("using scalar_t = float;\n", source, cases[i].expr) != cases[i].plain)
            fail_msg("%s: %s", cases[i].file, cases[i].expr);
        free(source);
    }
}

#define K "__global__ void k(float *y, int n)\n"
#define LOOP "CUDA_KERNEL_LOOP(i, n) "

// Beside other kernels and functions that tell threads apart, under whatever names.
static void test_plain(void **state)
{
    (void)state;
    static const char *const sources[] = {
        K "{ " LOOP "y[i] = 1; }\n",
        K "{ CUDA_1D_KERNEL_LOOP(i, n) { if (y[i] < 0) return; y[i] = 1; } }\n",
        "namespace a { namespace { " K "{ " LOOP "y[i] = 1; } } }\n",
        "extern \"C\" " K "{ " LOOP "y[i] = 1; }\n",
        "#include <cmath>\n#include <algorithm>\n" K "{ " LOOP "y[i] = 1; }\n",
        "template <class T, int N = 4> __device__ T sum(T y, int n) { return y + threadIdx.x; }\n" K
        "{ " LOOP "y[i] = 1; }\n__global__ void other(float *y) { y[threadIdx.x] = 2; }\n",
        "struct at { int i = threadIdx.x; };\nstruct pair { float a, b; } one;\n" K
        "{ pair p; " LOOP "y[i] = p.a; }\n",
        "__global__ void two(float *y, int n) { " LOOP "y[i] = 1; " LOOP "y[i] = 2; }\n" K "{ " LOOP
        "{ for (int j = 0; j < 3; j++) y[i] += j; } }\n",
        "__device__ float twice(float x) { return 2 * x; }\n"
        "#define DO(x) twice(x)\n" K "{ const float a = DO(n); " LOOP "y[i] = a; }\n",
        // A condition that a kernel reports is taken as often as it likes.
        "__global__ void k(float *y, int n, opd::report_t *report)\n{ " LOOP
        "opd::check(report, 0, y[i] > 0, i); }\n",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        if (!is_plain("", sources[i], "k"))
            fail_msg("%s", sources[i]);
    assert_true(is_plain("",
                         "template <class F> " K "{ F f; " LOOP "y[i] = f(i); }\n"
                         "struct f { float operator()(int); };\n"
                         "struct g { float h() { return threadIdx.x; } };\n",
                         "k<f>"));
}

static void test_not_plain(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "",
        K "{ y[threadIdx.x] = 1; }\n",
        K "{ " LOOP "y[i] = 1; y[0] = threadIdx.x; }\n",
        K "{ " LOOP "y[i] = 1; __syncthreads(); }\n",
        K "{ " LOOP "atomicAdd(y, 1); }\n",
        K "{ __shared__ float s; " LOOP "y[i] = s; }\n",
        K "{ " LOOP "printf(\"a\"); }\n",
        K "{ for (auto i : opd::grid_stride(n)) y[i] = 1; " LOOP "y[i] = 1; }\n",
        K "{ " LOOP "y[i] = opd::block_reduce_sum<256>(y[i]); }\n",
        K "{ " LOOP "y[i] = 1; " LOOP "y[i] += y[i + 1]; }\n",
        K "{ for (int r = 0; r < 3; r++) " LOOP "y[i] += r; }\n",
        // By a function, a struct, an operator, a macro, a variable, in one step or several.
        "__device__ int me() { return threadIdx.x; }\n" K "{ " LOOP "y[i] = me(); }\n",
        "namespace a { __device__ int me() { return threadIdx.x; }\nint you() { return me(); } "
        "}\n" K "{ " LOOP "y[i] = a::you(); }\n",
        "struct at { int i = threadIdx.x; };\n" K "{ " LOOP "y[i] = at().i; }\n",
        "typedef struct { int f() { return threadIdx.x; } } at;\n" K "{ at a; " LOOP
        "y[i] = a.f(); }\n",
        "struct at { int f(); };\nint at::f() { return threadIdx.x; }\n" K "{ at a; " LOOP
        "y[i] = a.f(); }\n",
        "struct v {};\nint operator+(v, v) { return threadIdx.x; }\n" K "{ v a, b; " LOOP
        "y[i] = a + b; }\n",
        "#define ME threadIdx.x\n" K "{ " LOOP "y[i] = ME; }\n",
        "#define CAT(a, b) a##b\n" K "{ " LOOP "y[i] = CAT(thread, Idx).x; }\n",
        "#define DEFINE(f) __device__ int f() { return threadIdx.x; }\nDEFINE(me)\n" K "{ " LOOP
        "y[i] = me(); }\n",
        "#define DEFINE(f) __device__ int f() { return threadIdx.x; }\nDEFINE(me);\n" K "{ " LOOP
        "y[i] = me(); }\n",
        "auto me = [] { return threadIdx.x; };\n" K "{ " LOOP "y[i] = me(); }\n",
        "template <class T> __device__ int me() { return blockIdx.x; }\n" K "{ " LOOP
        "y[i] = me<int>(); }\n",
        // The loop is another's.
        "#define CUDA_KERNEL_LOOP(i, n) for (int i = threadIdx.x; i < n; i += 32)\n" K "{ " LOOP
        "y[i] = 1; }\n",
        "__device__ void f(float *y, int n) { " LOOP "y[i] = 1; }\n" K "{ f(y, n); }\n",
        "#define ALL(n) CUDA_KERNEL_LOOP(i, n)\n" K "{ ALL(n) y[i] = 1; }\n",
        // What cannot be told from the text.
        "#include \"more.cuh\"\n" K "{ " LOOP "y[i] = 1; }\n",
        "#ifdef A\nvoid f() {\n#else\nvoid g() {\n#endif\n}\n" K "{ " LOOP "y[i] = 1; }\n",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        if (is_plain("", sources[i], "k"))
            fail_msg("%s", sources[i]);
    // By what it is instantiated with.
    static const char source[] = "struct me { int operator()(int) { return threadIdx.x; } };\n"
                                 "template <class F> " K "{ F f; " LOOP "y[i] = f(i); }\n";
    assert_false(is_plain("", source, "k<me>"));
    assert_false(is_plain("using alias = me;\n", source, "k<alias>"));
}

// Of several in an image each must be one.
static void test_others_of_the_image(void **state)
{
    (void)state;
    static const char source[] = K "{ " LOOP "y[i] = 1; }\n"
                                   "__global__ void l(float *y, int n) { " LOOP "y[i] = 2; }\n"
                                   "__global__ void m(float *y) { __syncthreads(); }\n";
    assert_true(are_plain("", source, "k", "l"));
    assert_false(are_plain("", source, "k", "m"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped_kernels),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_not_plain),
        cmocka_unit_test(test_others_of_the_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
