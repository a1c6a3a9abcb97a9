// nvrtc: every kind of job, diagnostics in the user's file, and the precompiled header, which may
// change nothing but the time. Needs NVRTC, no GPU.

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/compile_output.h"
#include "base/file.h"
#include "base/mem.h"
#include "compiler/nvrtc_load.h"
#include "compiler/pch.h"
#include "compiler/scratch.h"
#include "kernels/source.h"

static const char source[] = "template <class T> __global__ void scale(T *x, int n)\n"
                             "{\n"
                             "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                             "    if (i < n)\n"
                             "        x[i] = opd_scale(x[i]);\n"
                             "}\n";
static const char twice[] = "template <class T> __device__ T opd_scale(T x) { return 2 * x; }\n";

static struct compile_input input(enum compile_kind kind)
{
    return (struct compile_input){
        .kind = kind,
        .target = "sm_90",
        .common = twice,
        .prelude = "using scalar_t = float;\nusing acc_t = float;\n",
        .file = "scale.cu",
        .source = source,
        .expr = "scale<scalar_t>",
    };
}

static void expect_ok(const struct compile_input *in, struct compile_output *out)
{
    struct opd_err err = { 0 };
    if (!nvrtc_compile(in, out, &err))
        fail_msg("%s\n%s", err.msg, err.log ? err.log : "");
}

static void expect_error(const struct compile_input *in, const char *message, const char *log)
{
    struct compile_output out;
    struct opd_err err = { 0 };
    assert_false(nvrtc_compile(in, &out, &err));
    assert_int_equal(err.code, OPD_E_compile_error);
    if (!strstr(err.msg, message) || !err.log || !strstr(err.log, log))
        fail_msg("expected %s and %s, got %s\n%s", message, log, err.msg, err.log ? err.log : "");
    assert_null(strstr(err.log, "precompiled"));
    assert_null(strstr(err.log, "opd-"));
    finish(&out, &err);
}

static const enum compile_kind kinds[] = { COMPILE_IMAGE, COMPILE_SYNTAX, COMPILE_DESCRIBE,
                                           COMPILE_PTX };

static void test_kinds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct compile_input in = input(kinds[i]);
        struct compile_output out;
        expect_ok(&in, &out);
        assert_null(out.log);
        assert_int_equal(out.text != NULL, kinds[i] == COMPILE_DESCRIBE || kinds[i] == COMPILE_PTX);
        if (kinds[i] == COMPILE_IMAGE)
            assert_non_null(strstr(out.symbol, "scale"));
        if (kinds[i] == COMPILE_PTX)
            assert_non_null(strstr(out.text, ".target sm_90"));
        finish(&out, &(struct opd_err){ 0 });
    }
}

static void test_every_kind_sees_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct compile_input in = input(kinds[i]);
        in.source = "template <class T> __global__ void scale(T *x, int n)\n"
                    "{\n"
                    "    x[n] = T::nothing;\n"
                    "}\n";
        expect_error(&in, "scale.cu:3:12: error: ", "    x[n] = T::nothing;");
        in.source = "\n\n__global__ void scale(float *x) { x[0] = y; }\n";
        in.expr = "scale";
        expect_error(&in, "scale.cu:3:42: error: ", "x[0] = y;");
        in.source = source;
        in.expr = "scall<scalar_t>";
        expect_error(&in, "scale.cu: no kernel 'scall<scalar_t>'", "scall");
    }
}

static void test_warnings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct compile_input in = input(kinds[i]);
        in.source = "__global__ void scale(float *x)\n{\n    int unused;\n    x[0] = 1;\n}\n";
        in.expr = "scale";
        struct compile_output out;
        expect_ok(&in, &out);
        assert_non_null(out.log);
        assert_non_null(strstr(out.log, "scale.cu:3:9: warning"));
        assert_null(strstr(out.log, "ptxas info"));
        assert_null(strstr(out.log, "precompiled"));
        finish(&out, &(struct opd_err){ 0 });
    }
}

// What the common header says is what counts, however often another was compiled before.
static void test_edited_common_header(void **state)
{
    (void)state;
    static const char *const headers[] = {
        twice, "template <class T> __device__ T opd_scale(T x) { return 3 * x; }\n",
        "\n\n\ntemplate <class T> __device__ T opd_scale(T x) { return 5 * x; }\n", twice
    };
    static const char *const factors[] = { "0f40000000", "0f40400000", "0f40A00000", "0f40000000" };
    for (int turn = 0; turn < 8; turn++) {
        struct compile_input in = input(COMPILE_PTX);
        in.common = headers[turn % 4];
        struct compile_output out;
        expect_ok(&in, &out);
        // Doubling is an addition.
        bool doubles = strstr(out.text, "add.f32") || strstr(out.text, "add.rn.f32");
        assert_true(strstr(out.text, factors[turn % 4]) || (in.common == twice && doubles));
        if (in.common != twice)
            assert_false(doubles);
        finish(&out, &(struct opd_err){ 0 });
    }
    struct compile_input in = input(COMPILE_IMAGE);
    in.common = "\n\ntemplate <class T> __device__ T opd_scale(T x) { return T::x; }\n";
    expect_error(&in, "opd.cuh:3:", "scale.cu");
    in.common = "\n#error \"here\"\n";
    expect_error(&in, "opd.cuh:2", "here");
}

static void test_targets_and_names(void **state)
{
    (void)state;
    static const char *const targets[] = { "sm_75",  "sm_80",  "sm_86", "sm_90",
                                           "sm_100", "sm_120", "sm_90" };
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        struct compile_input in = input(COMPILE_DESCRIBE);
        struct compile_output out;
        unsigned registers, stores, loads, shared, stack, constant;
        in.target = targets[i];
        in.file = i % 2 ? "another \"name\".cu" : "scale.cu";
        in.source =
            "template <class T> __global__ void __launch_bounds__(1024) scale(T *x, int n)\n"
            "{\n"
            "    __shared__ T s[256];\n"
            "    T a[200];\n"
            "#pragma unroll\n"
            "    for (int i = 0; i < 200; i++)\n"
            "        a[i] = x[i * n];\n"
            "    s[threadIdx.x & 255] = a[0];\n"
            "    __syncthreads();\n"
            "#pragma unroll\n"
            "    for (int i = 0; i < 200; i++)\n"
            "        x[i * 7] = a[i] * a[199 - i] + s[i];\n"
            "}\n"
            "__global__ void other(float *x) { x[0] = 1; }\n";
        expect_ok(&in, &out);
        assert_int_equal(
            sscanf(out.text,
                   "registers=%u spill_stores=%u spill_loads=%u shared=%u stack=%u constant=%u",
                   &registers, &stores, &loads, &shared, &stack, &constant),
            6);
        assert_int_equal(registers, 64);
        assert_true(stores > 0 && loads > 0 && stack > 0);
        assert_in_range(shared, 1024, 4096); // with what the system keeps, from sm_90 on
        assert_in_range(constant, 300, 2000);
        finish(&out, &(struct opd_err){ 0 });
    }
}

// A card that NVRTC does not know yet: the driver compiles the PTX of the newest that it does.
static void test_newer_targets(void **state)
{
    (void)state;
    struct compile_input in = input(COMPILE_IMAGE);
    struct compile_output out;
    struct opd_err err = { 0 };
    in.target = "sm_990";
    expect_ok(&in, &out);
    assert_non_null(strstr((const char *)out.image, ".target sm_"));
    assert_int_equal(strlen((const char *)out.image), out.size - 1);
    assert_non_null(strstr((const char *)out.image, out.symbol));
    finish(&out, &err);
    in.kind = COMPILE_DESCRIBE;
    expect_ok(&in, &out);
    assert_string_equal(out.text, ""); // nobody knows before the driver has
    finish(&out, &err);
    in.kind = COMPILE_SASS;
    assert_false(nvrtc_compile(&in, &out, &err));
    assert_non_null(strstr(err.msg, "does not compile for sm_990: the driver does, from PTX"));
    finish(&out, &err);
    in.target = "sm_20";
    assert_false(nvrtc_compile(&in, &out, &err));
    assert_int_equal(err.code, OPD_E_unavailable);
    finish(&out, &err);
}

static void test_sass(void **state)
{
    (void)state;
    struct compile_input in = input(COMPILE_SASS);
    struct compile_output out;
    struct opd_err err = { 0 };
    char folder[] = "/tmp/opd-toolkit-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *make = mem_printf(
        "mkdir %s/bin && printf '#!/bin/sh\\nfor f; do :; done; head -c 4 $f; echo EXIT\\n' "
        ">%s/bin/nvdisasm && chmod +x %s/bin/nvdisasm",
        folder, folder, folder);
    assert_int_equal(system(make), 0);
    free(make);
    setenv("CUDA_HOME", folder, 1);
    expect_ok(&in, &out);
    assert_string_equal(out.text, "\177ELFEXIT\n");
    finish(&out, &err);
    unsetenv("CUDA_HOME");
    char *remove = mem_printf("rm -r %s", folder);
    assert_int_equal(system(remove), 0);
    free(remove);
    // Whatever is installed here.
    if (nvrtc_compile(&in, &out, &err)) {
        assert_non_null(strstr(out.text, "EXIT"));
    } else {
        assert_int_equal(err.code, OPD_E_unavailable);
        assert_non_null(strstr(err.msg, "install"));
    }
    finish(&out, &err);
}

// The precompiled headers that this process holds; they have no name any more.
static int n_held;

static void count_held(const char *path, void *unused)
{
    char target[4096] = "";
    (void)unused;
    n_held += readlink(path, target, sizeof target - 1) > 0 && strstr(target, ".pch") != NULL;
}

// What is compiled again finds the header that was made for the first.
static void test_pch_is_used(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    for (int i = 0; i < 6; i++) {
        struct compile_input in = input(COMPILE_IMAGE);
        struct compile_output out;
        in.file = i % 2 ? "other.cu" : "scale.cu";
        in.prelude = i % 2 ? "using scalar_t = double;\n" : "using scalar_t = float;\n";
        in.common = "template <class T> __device__ T opd_scale(T x) { return 7 * x; }\n";
        expect_ok(&in, &out);
        finish(&out, &err);
        n_held = 0;
        file_each("/proc/self/fd/*", count_held, NULL);
        assert_int_equal(n_held, nvrtc_load(&err)->pch);
    }
}

// A folder that cannot be used costs nothing but time.
static void test_unusable_pch_folder(void **state)
{
    (void)state;
    static const char *const folders[] = { "/nonexistent/folder", "/proc/self/task" };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct compile_input in = input(COMPILE_IMAGE);
        struct compile_output out;
        pch_use(folders[i]);
        expect_ok(&in, &out);
        finish(&out, &(struct opd_err){ 0 });
    }
    pch_use(NULL);
}

// In a child, whose memory is bounded. The front end says so; what comes after it ends the process.
static void test_out_of_memory(void **state)
{
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    skip(); // they take terabytes
#endif
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit memory = { 400 << 20, 400 << 20 };
        setrlimit(RLIMIT_DATA, &memory);
        struct compile_input in = input(COMPILE_IMAGE);
        in.source = "#define A x[i] = x[i] * 2 + i;\n"
                    "#define B A A A A A A A A A A\n"
                    "#define C B B B B B B B B B B\n"
                    "#define D C C C C C C C C C C\n"
                    "#define E D D D D D D D D D D\n"
                    "#define F E E E E E E E E E E\n"
                    "__global__ void scale(float *x, int i) { F F F F F F F F F F }\n";
        in.expr = "scale";
        struct compile_output out;
        struct opd_err err = { 0 };
        bool ok = nvrtc_compile(&in, &out, &err);
        fprintf(stderr, "%s\n", err.msg);
        _exit(!ok && err.code == OPD_E_compile_error && strstr(err.msg, "out of memory") ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

static int set_up(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    if (!nvrtc_load(&err)) {
        print_error("%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int set_up_pch(void **state)
{
    const char *folder = scratch_open();
    pch_use(folder);
    return folder ? set_up(state) : -1;
}

static int tear_down_pch(void **state)
{
    (void)state;
    pch_use(NULL);
    scratch_close();
    return 0;
}

static char *read_text(const char *path)
{
    struct buf text = { 0 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && file_get(fd, SIZE_MAX, &text));
    file_close(&fd);
    return buf_take(&text);
}

// A file pasted whole, with the headers of the field and host code.
static void test_field(void **state)
{
    (void)state;
    static const char *const kernels[] = { "rows<scalar_t, 100>", "members", "pairs", "draw" };
    struct compile_input in = input(COMPILE_IMAGE);
    char *common = source_common("kernels_src", &(struct opd_err){ 0 });
    char *text = read_text("tests/functional/kernels/field.cu");
    in.common = common;
    in.source = text;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        struct compile_output out;
        in.expr = kernels[i];
        expect_ok(&in, &out);
        assert_non_null(strstr(out.log, "field_host.h"));
        finish(&out, &(struct opd_err){ 0 });
    }
    free(common);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_every_kind_sees_errors),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_edited_common_header),
        cmocka_unit_test(test_targets_and_names),
        cmocka_unit_test(test_newer_targets),
        cmocka_unit_test(test_sass),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_field),
    };
    const struct CMUnitTest used[] = { cmocka_unit_test(test_pch_is_used) };
    const struct CMUnitTest alone[] = { cmocka_unit_test(test_unusable_pch_folder) };
    return cmocka_run_group_tests_name("without a precompiled header", tests, set_up, NULL) +
           cmocka_run_group_tests_name("with a precompiled header", tests, set_up_pch,
                                       tear_down_pch) +
           cmocka_run_group_tests_name("the precompiled header", used, set_up_pch, tear_down_pch) +
           cmocka_run_group_tests_name("with folders that cannot be used", alone, set_up, NULL);
}
