// host: every kind of job of the CPU's compiler, and diagnostics that name the user's file alone.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/compile_output.h"
#include "compiler/host_log.h"
#include "compiler/host_skip.h"
#include "base/file.h"
#include "base/mem.h"
#include "kernels/source.h"

static const char small_common[] = "template <class T> T opd_scale(T x) { return 2 * x; }\n";
static const char *common = small_common;

// The whole opd.cuh, which the headers of the field need.
static char *read_common(void)
{
    struct opd_err err = { 0 };
    char *text = source_common("kernels_src", &err);
    assert_non_null(text);
    return text;
}

static struct compile_input input(enum compile_kind kind, const char *source, const char *expr)
{
    return (struct compile_input){
        .kind = kind,
        .target = "cpu",
        .common = common,
        .prelude = "using scalar_t = float;\nusing acc_t = float;\n",
        .file = "scale.cu",
        .source = source,
        .expr = expr,
    };
}

static const char good[] = "extern __shared__ float all[];\n"
                           "template <class T> __global__ void scale(T *x, int n)\n"
                           "{\n"
                           "#warning \"mind this\"\n"
                           "    x[n] = opd_scale(x[n]);\n"
                           "}\n";

static void test_kinds(void **state)
{
    (void)state;
    static const enum compile_kind kinds[] = { COMPILE_IMAGE, COMPILE_SYNTAX, COMPILE_DESCRIBE,
                                               COMPILE_SASS };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct compile_input in = input(kinds[i], good, "scale<scalar_t>");
        struct compile_output out;
        struct opd_err err = { 0 };
        bool ok = host_compile(&in, &out, &err);
        if (!ok && kinds[i] == COMPILE_SASS && err.code == OPD_E_unavailable) {
            assert_non_null(strstr(err.msg, "binutils"));
        } else if (!ok) {
            fail_msg("%s\n%s", err.msg, err.log ? err.log : "");
        } else {
            assert_non_null(strstr(out.log, "scale.cu:4:2: warning: "));
            assert_int_equal(out.image != NULL, kinds[i] != COMPILE_SYNTAX);
            assert_int_equal(out.text != NULL,
                             kinds[i] == COMPILE_DESCRIBE || kinds[i] == COMPILE_SASS);
            if (kinds[i] == COMPILE_SASS)
                assert_null(strstr(out.text, "opd-listing"));
        }
        finish(&out, &err);
    }
}

static void test_no_ptx(void **state)
{
    (void)state;
    struct compile_input in = input(COMPILE_PTX, good, "scale<scalar_t>");
    struct compile_output out;
    struct opd_err err = { 0 };
    assert_false(host_compile(&in, &out, &err));
    assert_int_equal(err.code, OPD_E_invalid_argument);
    assert_string_equal(err.msg, "the cpu device has no PTX; ask for \"sass\", its machine code");
    finish(&out, &err);
}

static void expect_error(const char *source, const char *expr, const char *message, const char *log)
{
    static const enum compile_kind kinds[] = { COMPILE_IMAGE, COMPILE_SYNTAX };
    static const char *const own[] = { "cpu_shim", "kernel:", "/opd-", "opd.cpp", "OPD_CPU" };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct compile_input in = input(kinds[i], source, expr);
        struct compile_output out;
        struct opd_err err = { 0 };
        assert_false(host_compile(&in, &out, &err));
        assert_int_equal(err.code, OPD_E_compile_error);
        if (!strstr(err.msg, message) || !err.log || !strstr(err.log, log))
            fail_msg("expected %s and %s, got %s\n%s", message, log, err.msg,
                     err.log ? err.log : "");
        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            if (strstr(err.log, own[k]) || strstr(err.msg, own[k]))
                fail_msg("%s is shown: %s\n%s", own[k], err.msg, err.log);
        finish(&out, &err);
    }
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("\n__global__ void k(float *x)\n{\n    x[0] = nothing;\n}\n", "k",
                 "scale.cu:4:12: error: ", "    x[0] = nothing;");
    // Only what was instantiated is wrong.
    expect_error("template <class T> __global__ void k(T *x)\n{\n    x->y = 1;\n}\n", "k<scalar_t>",
                 "scale.cu:3:8: error: ", "x->y = 1;");
    expect_error("__global__ void k(float *x)\n{\n    atomicAdd(x, \"1\");\n}\n", "k",
                 "scale.cu:3:", "candidate");
    expect_error("#include \"absent.h\"\n__global__ void k() { from_absent(); }\n", "k",
                 "scale.cu:2:23: error: ", "absent.h: not beside the file");
    expect_error(good, "scall<scalar_t>", "scale.cu: no kernel 'scall<scalar_t>': ", "scall");
    expect_error(good, "scale<3>", "scale.cu: no kernel 'scale<3>': ", "error");
}

static void refuse_source(const char *source, const char *message)
{
    struct compile_input in = input(COMPILE_SYNTAX, source, "k");
    struct compile_output out;
    struct opd_err err = { 0 };
    assert_false(host_compile(&in, &out, &err));
    assert_string_equal(err.msg, message);
    finish(&out, &err);
}

static void accept_source(const char *source)
{
    struct compile_input in = input(COMPILE_SYNTAX, source, "k");
    struct compile_output out;
    struct opd_err err = { 0 };
    if (!host_compile(&in, &out, &err))
        fail_msg("%s\n%s\n%s", source, err.msg, err.log ? err.log : "");
    finish(&out, &err);
}

// Of a lambda the words that say where it runs, which NVRTC does not take.
static void test_lambdas(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
#define IN(text) "__device__ void g() { f(" text "); }"
        { IN("[=] __device__(int i) {}"), IN("[=]           (int i) {}") },
        { IN("[&, x] __host__\n__device__ { h(); }"), IN("[&, x]         \n           { h(); }") },
        { "[[nodiscard]] __device__ int f();", "[[nodiscard]] __device__ int f();" },
        { "__device__ int a[3]; __device__ int f();", "__device__ int a[3]; __device__ int f();" },
        { "__device__ int f([=] __device__", "__device__ int f([=] __device__" },
#undef IN
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct compile_input in = input(COMPILE_SYNTAX, texts[i][0], "k");
        struct buf out = { 0 };
        host_skip(&in, &out);
        assert_string_equal(buf_str(&out), texts[i][1]);
        buf_finish(&out);
    }
}

// What is pasted from a PyTorch extension with its kernels: host code is passed over, and what
// names it; device functions that nobody annotated stay.
static void test_extension(void **state)
{
    (void)state;
    char *whole = read_common();
    common = whole;
    accept_source("#include <torch/extension.h>\n# include \"ATen/cuda/some.cuh\" // why not\n"
                  "#include <pybind11/pybind11.h>\n#include <cuda_fp16.h>\n#include <vector>\n"
                  "using namespace at::cuda::detail;\nnamespace F = torch::nn::functional;\n"
                  "#define LAUNCH(f) f<<<1, 1>>>\n"
                  "at::Tensor run(at::Tensor x);\nstd::vector<at::Tensor> both(at::Tensor x)\n{\n"
                  "    AT_DISPATCH_FLOATING_TYPES(x, [&] { k<<<1, 1>>>(x); });\n"
                  "#ifdef NEVER\n    nonsense\n#endif\n}\n"
                  "static inline float half_of(float x) { return x / 2; }\n"
                  "void half_of(torch::Tensor x) { LAUNCH(k)(x); }\n"
                  "template <class T> void by_name(T *x) { unknown(x, run); }\n"
                  "struct Options { cudaStream_t stream; };\n"
                  "namespace a {\n__global__ void k(float *x) { *x = half_of(1); }\n"
                  "int main() { LAUNCH(k)(nullptr); }\n}\nusing a::k;\n"
                  "template void by_name<float>(float *);\n"
                  "PYBIND11_MODULE(a, m) { m.def(\"f\", &f); }\n"
                  "TORCH_LIBRARY(a, m) { m.def(\"f\"); }\n");
#define KERNEL "template <class T> __global__ void k(T *x)\n{\n    if (x) { *x = 1; }\n}\n"
    // Lines keep their numbers.
    expect_error("#define FEW 5\nstatic_assert(FEW < 5, \"too many\");\n" KERNEL, "k<float>",
                 "scale.cu:2:", "too many");
    expect_error(KERNEL "void run(float *x)\n{\n    k<float><<<1, 1>>>(x);\n}\n"
                        "__device__ int f() { return absent; }\n",
                 "k<float>", "scale.cu:9:29: error: ", "'absent' was not declared");
    // Where brackets do not match, nothing is known.
    refuse_source("void run()\n{\n    k<<<1, 1>>>(x);\n" KERNEL,
                  "scale.cu:3: a launch outside of kernels cannot be compiled; delete the host "
                  "functions: the lines of the header say what they did");
    refuse_source("#line 4294967297\nvoid run() { k<<<1, 1>>>(x);\n" KERNEL,
                  "scale.cu:1073741824: a launch outside of kernels cannot be compiled; delete the "
                  "host functions: the lines of the header say what they did");
    // Or of each #if the first branch is read, and all of the others stays.
    accept_source("#ifdef A\nvoid run() {\n#else\nvoid run(int) {\n#endif\n    k<<<1, 1>>>(x);\n}\n"
                  "#ifdef A\n#else\n__device__ float one() { return 1; }\n#endif\n"
                  "std::deque<int> host() { return {}; }\nclass Watch { timespec start; };\n"
                  "#define ORDER(T) template void by<T>(T *);\nORDER(float)\n"
                  "static float shared_sum() { static __shared__ float s; return s; }\n"
                  "__global__ void k(float *x) { *x = one() + shared_sum(); }\n");
    // But where the first is another compiler's.
    accept_source("int run(int n,\n#if defined(__HIP_PLATFORM_AMD__) && (A || B)\n"
                  "        rocblas_algo a = {});\n#else\n        cublasAlgo_t a = {});\n#endif\n"
                  "#ifdef _WIN32\nclass Watch { LARGE start; };\n#else\n"
                  "class Watch { timespec start; void go() { clock_gettime(0, &start); } };\n"
                  "#endif\n__global__ void k(float *x) { *x = 1; }\n");
    accept_source(
        "#ifdef _WIN32\nclass Other;\n#endif\nint run(int n,\n#ifndef A\n"
        "        blas_algo a) {\n#elif B\n        blas_b a) {\n#else\n        blas_c a) {\n"
        "#endif\n    return 0;\n}\n__global__ void k(float *x) { *x = 1; }\n");
    accept_source("#include <vector>\nusing namespace std;\nstruct M;\nvector<M *> all;\n"
                  "void keep(M *m) { all.push_back(m); }\nvector<float> halves(int n)\n{\n"
                  "    return vector<float>(n);\n}\n__global__ void k(float *x) { *x = 1; }\n");
    // What the kernel needs stays, however it is found.
    accept_source("using namespace std;\ntemplate <class T> struct vector { T v; };\n"
                  "vector<float> two(float a) { return { a }; }\n"
                  "__global__ void k(float *x) { vector<float> v = two(*x); *x = v.v; }\n");
#define USES(...) "__global__ void k(float *x) { x[0] = float(" #__VA_ARGS__ "); }\n"
    accept_source("struct B {};\nstruct Sum final : B { float v; };\n" USES(Sum().v));
    accept_source("struct Tensor { float *data; int n; };\n" USES(Tensor{ x, 3 }.data[1]));
    accept_source("namespace my { struct map { float v; }; }\n"
                  "struct S { static constexpr int set(int a) { return a; } };\n"
                  "struct V { static constexpr int v = S::set(2), exit = 1; };\n" USES(
                      my::map{ 1 }.v + V::v + V::exit));
    accept_source(
        "constexpr float op_add(float a) { return a + 1; }\nstruct Float4of { float v; };\n"
        "#define CALL(f, a) op_##f(a)\n#define VECTOR(T) T##4of\n" USES(CALL(add, 2) +
                                                                        VECTOR(Float){ 1 }.v));
    accept_source(
        "template <class T> struct Width { static constexpr int v = 1; };\n"
        "#define WIDTH(T, n) template <> struct Width<T> { static constexpr int v = n; };\n"
        "WIDTH(double, 2)\nusing wide = decltype(1.0);\n"
        "static_assert(Width<wide>::v == 2);\n" USES(1));
    accept_source("struct A { int v; };\n"
                  "inline bool operator==(A a, A b) { return a.v == b.v; }\n"
                  "void run(float *x) { k<<<1, 1>>>(x); }\n"
                  "inline std::ostream &operator<<(std::ostream &o, A) { return o; }\n"
                  "inline std::istream &operator>>(std::istream &i, A) { return i; }\n" USES(
                      A{ 1 } == A{ 2 }));
    accept_source("struct Three { float v[3]; };\n"
                  "constexpr const float *begin(const Three &t) { return t.v; }\n"
                  "constexpr const float *end(const Three &t) { return t.v + 3; }\n"
                  "__global__ void k(float *x) { for (float f : Three{ 1 }) *x += f; }\n");
    accept_source(
        "template <class T> T sum(T *x)\n{\n    T s = 0;\n#pragma GCC unroll 4\n"
        "    for (int i = 0; i < 4; i++)\n        s += x[i];\n    return s;\n}\n" USES(1));
    char *many = mem_alloc(1 << 20); // once the one word took minutes
    for (int i = 0; i < 100000; i++)
        memcpy(many + 5 * i, "b(;);", 5);
    memcpy(many + 500000, USES(1), sizeof USES(1));
    accept_source(many);
    free(many);
    expect_error("namespace my { struct Sum { static int f() { return absent; } }; }\n"
                 "template <class T> __global__ void k(float *x) { *x = T::f(); }\n",
                 "k<my::Sum>", "scale.cu:1:53: error: ", "'absent' was not declared");
    refuse_source(KERNEL "__device__ void run(float *x) { k<<<1, 1>>>(x); }\n",
                  "scale.cu:5: a launch from a kernel (dynamic parallelism) cannot run on the cpu "
                  "device; guard it with #ifdef __CUDA_ARCH__");
    refuse_source("#define RUN k<<<1, 1>>>()\n__global__ void k() { RUN; }\n",
                  "scale.cu:1: a launch from a kernel (dynamic parallelism) cannot run on the cpu "
                  "device; guard it with #ifdef __CUDA_ARCH__");
    common = small_common;
    free(whole);
}

#define NOT_HERE " cannot run on the cpu device; guard it with #ifdef __CUDA_ARCH__"

// What the CPU device has not is told with the line where the preprocessor meets it, even where
// nothing is instantiated; what it leaves out may be there.
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "asm volatile(\"mov.u32 %0, %tid.x;\" : \"=r\"(n));", "inline PTX (asm)" },
        { "__asm__(\"\");", "inline PTX (asm)" },
        { "*y = tex1Dfetch<float>(n, 1);", "a texture" },
        { "cudaTextureObject_t t; *y = tex2D<float>(t, 1, 2);", "a texture" },
        { "surf2Dwrite(*y, 1, 2, 3);", "a surface" },
        { "nvcuda::wmma::fragment<int> f;", "tensor-core code (nvcuda)" },
        { "__pipeline_memcpy_async(y, y + 4, 4);", "an asynchronous copy (pipeline)" },
        { "cudaLaunchDevice(y);", "a launch from a kernel (dynamic parallelism)" },
        { "cuda::barrier<cuda::thread_scope_block> b;", "cuda::barrier" },
        { "cuda::pipeline<cuda::thread_scope_thread> p;", "cuda::pipeline" },
        { "cuda::memcpy_async(y, y + 4, 4, 1);", "cuda::memcpy_async" },
        { "USED;", "inline PTX (asm)" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char head[] = "#include <cuda/barrier>\n#include <mma.h>\n"
                                   "#define USED asm(\"\")\n";
        char *message = mem_printf("scale.cu:6: %s" NOT_HERE, cases[i].message);
        char *plain = mem_printf("%s__global__ void k(float *y, int n)\n{\n    %s\n}\n", head,
                                 cases[i].text);
        refuse_source(plain, message);
        char *guarded = mem_printf("%s__global__ void k(float *y, int n)\n{\n#ifdef __CUDA_ARCH__\n"
                                   "    %s\n#elif !defined(OPD_CPU) || __cplusplus < 201103\n"
                                   "    nonsense\n#endif\n}\n",
                                   head, cases[i].text);
        accept_source(guarded);
        free(message);
        free(plain);
        free(guarded);
    }
    refuse_source(
        "template <class T> __device__ void never(T *y)\n{\n    asm(\"\" : \"=r\"(*y));\n}\n"
        "__global__ void k() {}\n",
        "scale.cu:3: inline PTX (asm)" NOT_HERE);
}

// Text of published kernels that changes nothing here.
static void test_accepted(void **state)
{
    (void)state;
#define EMPTY "__global__ void k() {}\n"
    accept_source("#define AT_DISPATCH_MINE(T, ...) [&] { return __VA_ARGS__(); }()\n" EMPTY);
    accept_source("#define RUN k<<<1, 1>>>()\n#define OLD asm(\"\")\n" EMPTY);
    accept_source("#ifdef WITH_TORCH\nvoid f() { k<<<1, 1>>>(); }\n#endif\n" EMPTY);
    char *whole = read_common();
    common = whole;
    accept_source("#include <algorithm>\n#include <vector>\n#include <stdlib.h>\n"
                  "#include <limits>\n__global__ void k() { std::max(1, 2); }\n");
    common = small_common;
    free(whole);
    accept_source("__constant__ const float a = 1;\nconst __constant__ float b[] = { 1, 2 };\n"
                  "__constant__ unsigned const c = 3;\n__constant__ float d = 4;\n"
                  "const float __constant__ e = 5;\n__constant__ constexpr int f = 6;\n"
                  "__global__ void k(float *x) { *x = a + b[1] + c + d + e + f; }\n");
    refuse_source("__constant__ float d = 4;\n__global__ void k() { d = 5; }\n",
                  "scale.cu:2:25: error: assignment of read-only variable 'd'");
}

// A source that was put together from several files.
static void test_lines_of_several_files(void **state)
{
    (void)state;
    static const char text[] = "#line 1 \"half.cuh\"\n"
                               "#pragma once\n"
                               "template <class T> T half_of(T x)\n"
                               "{\n"
                               "    return x / WHAT;\n"
                               "}\n"
                               "\n#line 2 \"scale.cu\"\n"
                               "extern __shared__ float all[];\n"
                               "__global__ void k(float *x)\n"
                               "{\n"
                               "    x[0] = half_of(x[1]) + BAD;\n"
                               "    OTHER;\n"
                               "}\n";
    struct {
        const char *macro, *by, *message, *shown;
    } cases[] = {
        { "WHAT", "absent", "half.cuh:4:16: error: ", "    4 |     return x / absent;" },
        { "BAD", "missing",
          "scale.cu:5:28: error: ", "    5 |     x[0] = half_of(x[1]) + missing;" },
        { "OTHER", "asm(\"\")", "scale.cu:6: inline PTX", NULL },
        { "WHAT", "asm(\"\")", "half.cuh:4: inline PTX", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf source = { 0 };
        for (const char *p = text; *p;) {
            size_t n = strcspn(p, "WBO");
            buf_append(&source, p, n);
            p += n;
            static const char *const macros[] = { "WHAT", "BAD", "OTHER" };
            for (size_t k = 0; k < 3; k++)
                if (strncmp(p, macros[k], strlen(macros[k])) == 0) {
                    buf_append_str(&source,
                                   strcmp(macros[k], cases[i].macro) == 0 ? cases[i].by : "1");
                    p += strlen(macros[k]);
                }
        }
        struct compile_input in = input(COMPILE_IMAGE, buf_str(&source), "k");
        struct compile_output out;
        struct opd_err err = { 0 };
        assert_false(host_compile(&in, &out, &err));
        if (strncmp(err.msg, cases[i].message, strlen(cases[i].message)) != 0 ||
            (cases[i].shown && !strstr(err.log, cases[i].shown)))
            fail_msg("expected %s, got %s\n%s", cases[i].message, err.msg, err.log ? err.log : "");
        assert_true(!err.log || !strstr(err.log, "pragma once"));
        finish(&out, &err);
        buf_finish(&source);
    }
}

static void test_log_rewrite(void **state)
{
    (void)state;
    assert_null(host_log_rewrite(""));
    assert_null(host_log_rewrite("kernel:1:1:   required from here\n"));
    char *log = host_log_rewrite(
        "a.cu:3:4: error: x\n    3 | y\n      | ^\ncpu_shim.h:9:1: note: z\n  9 | w\n"
        "kernel:1:1: note: z");
    assert_string_equal(log, "a.cu:3:4: error: x\n    3 | y\n      | ^\nnote: z\n");
    free(log);
    char *first = host_log_first_error("c++: killed\n", "a.cu", "k");
    assert_non_null(strstr(first, "a.cu: the C++ compiler failed on kernel 'k': c++: killed"));
    assert_null(strchr(first, '\n'));
    free(first);
    assert_null(host_log_rewrite(
        "a.cu:3:9: warning: 'F' macro redefined [-Wmacro-redefined]\n    3 | #define F\n      | ^\n"
        "In file included from opd.cpp:2:\nopd.cuh:9:9: note: previous definition is here\n"
        "    9 | #define F\n      | ^\n"));
    log = host_log_rewrite("a.cu:3:9: warning: \"F\" redefined\n    3 | #define F\n"
                           "a.cu:2:9: note: this is the location of the previous definition\n");
    assert_non_null(strstr(log, "a.cu:2:9: note"));
    free(log);
}

int main(void)
{
    setenv("LC_ALL", "C", 1); // as a compiler process does
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),       cmocka_unit_test(test_no_ptx),
        cmocka_unit_test(test_errors),      cmocka_unit_test(test_lambdas),
        cmocka_unit_test(test_extension),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_accepted),    cmocka_unit_test(test_lines_of_several_files),
        cmocka_unit_test(test_log_rewrite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
