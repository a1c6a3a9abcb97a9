// What every backend must do, through backend.h and compile.h alone.
//
//     conformance cpu | cuda:0        from the repository's root

#include <sys/mman.h>

#include "conformance/device.h"
#include "conformance/graphs.h"
#include "conformance/kernels.h"
#include "conformance/matmul.h"
#include "kernels/source.h"

// ---- memory

static void info_is_complete(void **state)
{
    (void)state;
    struct backend_info info;
    ops->info(be, &info);
    assert_true(info.name[0] && info.target[0]);
    assert_true(info.memory_total > CHUNK && info.memory_free <= info.memory_total);
    assert_true(info.chunk_granularity > 0 && info.processors > 0);
}

static void chunk_survives_unmap_and_close(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    char want[1000], got[1000];
    for (int i = 0; i < 1000; i++)
        want[i] = (char)(i * 7);
    copy_to(chunk_size - 1000, want, sizeof want);
    finish();
    ops->chunk_unmap(be, chunk, chunk_size);
    must(ops->chunk_map(be, chunk_fd, chunk_size, &chunk, &err), &err);
    copy_from(got, chunk_size - 1000, sizeof got);
    assert_memory_equal(want, got, sizeof want);

    ops->chunk_unmap(be, chunk, chunk_size);
    ops->close(be);
    must(ops->open(&be, device_index, &err), &err);
    must(ops->chunk_map(be, chunk_fd, chunk_size, &chunk, &err), &err);
    memset(got, 0, sizeof got);
    copy_from(got, chunk_size - 1000, sizeof got);
    assert_memory_equal(want, got, sizeof want);
}

static void wrong_chunk_is_refused(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    device_addr addr = 0;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_false(ops->chunk_map(be, fds[0], chunk_size, &addr, &err));
    assert_true(err.code != OPD_E_none);
    opd_err_clear(&err);
    close(fds[0]);
    close(fds[1]);
}

static void copies_of_odd_sizes(void **state)
{
    enum { MOST = 11000001 };
    (void)state;
    static const size_t sizes[] = { 0, 1, 3, 7, 64, 511, 4097, 65537, 1000001, MOST };
    uint8_t *want = mem_alloc(MOST), *got = mem_alloc(MOST);
    for (size_t i = 0; i < MOST; i++)
        want[i] = (uint8_t)((i * 31 >> 3) + (i >> 20));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t at = 13 + s, there = MOST + 1003 + 5 * s;
        struct opd_err err = { 0 };
        copy_to(at, want, sizes[s]);
        must(ops->copy(be, chunk + there, chunk + at, sizes[s], &err), &err);
        memset(got, 0, sizes[s]);
        copy_from(got, there, sizes[s]);
        assert_memory_equal(want, got, sizes[s]);
    }
    free(want);
    free(got);
}

static void fills_touch_nothing_else(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 1, 2, 5, 33, 1023, 70001 };
    uint8_t *got = mem_alloc(80000);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        fill(0, 0x11, 80000);
        fill(101 + s, 0xa5, sizes[s]);
        copy_from(got, 0, 80000);
        for (size_t i = 0; i < 80000; i++)
            assert_int_equal(got[i], i >= 101 + s && i < 101 + s + sizes[s] ? 0xa5 : 0x11);
    }
    free(got);
}

// ---- images, compilers, the stream

struct mixed {
    int8_t a;
    double b;
    int16_t c;
    device_addr out;
    uint8_t d;
    float e[3];
    int64_t f;
};

#define PARAM(field)                                                                               \
    {                                                                                              \
        .offset = offsetof(struct mixed, field), .size = sizeof((struct mixed *)0)->field          \
    }
static const struct backend_param mixed_params[] = { PARAM(a), PARAM(b), PARAM(c), PARAM(out),
                                                     PARAM(d), PARAM(e), PARAM(f) };

static const char mixed_source[] =
    "struct three { float v[3]; };\n"
    "__global__ void mixed(char a, double b, short c, double *out, bool d, three e, long long "
    "f)\n{\n"
    "    out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e.v[2]; out[5] = (double)f;\n}\n";

static void arguments_of_mixed_sizes(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct backend_program *p = build_as(mixed_source, "mixed", "float", mixed_params, 7);
    struct mixed args = { 5, 0.125, -300, chunk + OUT, 1, { 1, 2, 3.5f }, 1ll << 40 };
    double got[6];
    must(launch(p, (uint32_t[]){ 1, 1, 1, 1, 1, 1 }, 0, &args, sizeof args, &err), &err);
    copy_from(got, OUT, sizeof got);
    assert_true(got[0] == 5 && got[1] == 0.125 && got[2] == -300 && got[3] == 1 && got[4] == 3.5);
    assert_true(got[5] == (double)(1ll << 40));
    ops->unload(be, p);
}

static void wrong_params_are_refused(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct compile_output out;
    struct backend_program *p = NULL;
    must(compile(mixed_source, "mixed", "float", &out, &err), &err);
    struct backend_param params[7];
    memcpy(params, mixed_params, sizeof params);
    params[2].size = 4;
    struct backend_image image = { out.image, out.size, out.symbol, params, 7 };
    must_fail(ops->load(be, &image, &p, &err), &err, OPD_E_invalid_argument, "param");
    params[2].size = 2;
    params[3].offset += 8;
    must_fail(ops->load(be, &image, &p, &err), &err, OPD_E_invalid_argument, "param");
    image.n_params = 6;
    must_fail(ops->load(be, &image, &p, &err), &err, OPD_E_invalid_argument, "param");
    free_output(&out);
}

static void broken_images_are_refused(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct backend_program *p = NULL;
    struct backend_image image = { "no image at all", 15, "nothing", NULL, 0 };
    assert_false(ops->load(be, &image, &p, &err));
    assert_true(err.code != OPD_E_none && err.msg[0]);
    opd_err_clear(&err);
}

static void compile_errors_name_the_line(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct compile_output out = { 0 };
    bool ok = compile("// one\n\n__global__ void bad(float *y)\n{\n    y[0] = undefined_name;\n}\n",
                      "bad", "float", &out, &err);
    assert_false(ok);
    assert_int_equal(err.code, OPD_E_compile_error);
    assert_non_null(err.log);
    assert_true(strstr(err.log, "test.cu:5") || strstr(err.log, "test.cu(5)"));
    assert_non_null(strstr(err.log, "undefined_name"));
    opd_err_clear(&err);
}

static void versions_live_side_by_side(void **state)
{
    (void)state;
    struct backend_program *p[8];
    int32_t got;
    for (int i = 0; i < 8; i++) {
        char *source = mem_printf(
            "__global__ void version(const int *, int *y, int) { y[0] = %d; }\n", i);
        p[i] = build(source, "version");
        free(source);
    }
    for (int i = 7; i >= 0; i--) {
        run(p[i], 1, 1, 0, 0);
        copy_from(&got, OUT, 4);
        assert_int_equal(got, i);
        ops->unload(be, p[i]);
    }
}

static void work_keeps_its_order(void **state)
{
    (void)state;
    enum { N = 4096 };
    struct backend_program *p = build("__global__ void step(const int *x, int *y, int k)\n{\n"
                                      "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                      "    y[i] = y[i] * 3 + k;\n}\n",
                                      "step");
    struct opd_err err = { 0 };
    static int32_t got[N];
    int32_t want = 0;
    fill(OUT, 0, sizeof got);
    for (int k = 0; k < 15; k++) {
        run(p, N / 128, 128, 0, k);
        must(ops->copy(be, chunk, chunk + OUT, sizeof got, &err), &err);
        fill(OUT, 0xee, sizeof got);
        must(ops->copy(be, chunk + OUT, chunk, sizeof got, &err), &err);
        want = want * 3 + k;
    }
    copy_from(got, OUT, sizeof got);
    for (int i = 0; i < N; i++)
        assert_int_equal(got[i], want);
    ops->unload(be, p);
}

static void marks_increase(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    uint64_t passed = 0, before = last_mark;
    must(ops->poll(be, &passed, &err), &err);
    assert_true(passed <= last_mark);
    for (int i = 0; i < 100; i++) {
        fill(0, 1, 1000);
        must(ops->mark(be, ++last_mark, &err), &err);
        uint64_t now = 0;
        must(ops->poll(be, &now, &err), &err);
        assert_true(now >= passed && now <= last_mark);
        passed = now;
    }
    finish();
    assert_true(last_mark == before + 101);
}

static void marks_are_shared(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct backend *other;
    int fd = memfd_create("opd-marks", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 4096), 0);
    // As two processes see it.
    _Atomic uint64_t *given = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    _Atomic uint64_t *seen = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(given != MAP_FAILED && seen != MAP_FAILED);
    must(ops->open(&other, device_index, &err), &err);
    bool by_device = ops->share_marks(other, given);
    uint64_t passed = 0;
    for (uint64_t mark = 7; mark < 700; mark += 7)
        must(ops->mark(other, mark, &err), &err);
    must(ops->mark(other, (uint64_t)1 << 60, &err), &err);
    // Without asking, where the device does it.
    for (time_t end = time(NULL) + 20; (by_device ? *seen : passed) < (uint64_t)1 << 60;) {
        if (!by_device)
            must(ops->poll(other, &passed, &err), &err);
        assert_true(time(NULL) < end);
    }
    must(ops->poll(other, &passed, &err), &err);
    assert_true(passed == (uint64_t)1 << 60);
    if (by_device)
        assert_true(*seen == passed);
    ops->close(other);
    munmap((void *)given, 4096);
    munmap((void *)seen, 4096);
    close(fd);
}

static void stamps_tell_the_time(void **state)
{
    (void)state;
    enum { LAST = BACKEND_STAMPS - 1 };
    struct backend_program *p = build("__global__ void spin(const int *x, int *y, int n)\n{\n"
                                      "    unsigned v = x[0];\n"
                                      "    for (int i = 0; i < n; i++)\n"
                                      "        v = v * 1664525u + y[i % 64];\n"
                                      "    y[64] = (int)v;\n}\n",
                                      "spin");
    struct opd_err err = { 0 };
    uint64_t none = 0, brief = 0, lengthy = 0, all;
    fill(0, 1, 4096);
    fill(OUT, 2, 4096);
    run(p, 1, 1, 0, 100); // what a first launch costs is not measured
    bool ordered = false; // unless the machine has given the brief one no processor for long
    for (int round = 0; round < 50 && !ordered; round++) {
        must(ops->stamp(be, 0, &err), &err);
        must(ops->stamp(be, 1, &err), &err);
        run(p, 1, 1, 0, 100000);
        must(ops->stamp(be, LAST, &err), &err);
        run(p, 1, 1, 0, 2000000);
        must(ops->stamp(be, 2, &err), &err);
        finish();
        must(ops->elapsed(be, 0, 1, &none, &err), &err);
        must(ops->elapsed(be, 1, LAST, &brief, &err), &err);
        must(ops->elapsed(be, LAST, 2, &lengthy, &err), &err);
        must(ops->elapsed(be, 0, 2, &all, &err), &err);
        uint64_t sum = none + brief + lengthy; // each may be rounded
        assert_true(all + 5000 > sum && all < sum + 5000);
        assert_true(lengthy > 1000000);
        ordered = none < brief && brief < lengthy && lengthy < 10000000000;
    }
    assert_true(ordered);
    ops->unload(be, p);
}

// ---- what only the CPU device does

static void check_fault(const char *source, const char *expr, uint32_t block, const char *text)
{
    struct opd_err err = { 0 };
    struct args args = { chunk, chunk + OUT, 0 };
    struct backend_program *p = build(source, expr);
    for (int round = 0; round < 3; round++)
        must_fail(launch(p, (uint32_t[]){ 50, 1, 1, block, 1, 1 }, 0, &args, 20, &err), &err,
                  OPD_E_kernel_fault, text);
    ops->unload(be, p);
    check_sums(sum_source, "sum<64>", 64, 0); // it goes on
}

static void faults_are_told(void **state)
{
    (void)state;
    if (strcmp(ops->name, "cpu") != 0)
        skip();
    check_fault("__global__ void part(const int *, int *y, int)\n{\n    if (threadIdx.x < 5)\n     "
                "   __syncthreads();\n"
                "    else\n        y[0] = __shfl_sync(0xffffffffu, 1, 0);\n}\n",
                "part", 32, "deadlock");
    check_fault("__global__ void early(const int *, int *y, int)\n{\n"
                "    if (threadIdx.x % 32 < 5)\n        __syncwarp(0x00ffu);\n    else\n        "
                "__syncthreads();\n"
                "}\n",
                "early", 64, "deadlock");
    check_fault("__global__ void check(const int *, int *y, int n)\n{\n    assert(n > "
                "(int)blockIdx.x - 30);\n}\n",
                "check", 32, "test.cu:3: assertion 'n > (int)blockIdx.x - 30' failed");
}

static void what_it_cannot_run_is_refused(void **state)
{
    (void)state;
    if (strcmp(ops->name, "cpu") != 0)
        skip();
    static const struct {
        const char *source, *text; // NULL: compiles
    } cases[] = {
        { "__global__ void k() {\n asm volatile(\"membar.gl;\");\n}",
          "test.cu:2: inline PTX (asm) cannot run" },
        { "/* asm */ // asm\n__global__ void k() { const char *s = \"asm\"; (void)s; }", NULL },
        { "__global__ void k() {\n#ifdef __CUDA_ARCH__\n asm(\"x\");\n#else\n int i; "
          "(void)i;\n#endif\n}",
          NULL },
        { "__global__ void k() {\n#ifndef OPD_CPU\n asm(\"x\");\n#endif\n}", NULL },
        { "__global__ void k() {\n#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800\n "
          "asm(\"x\");\n#endif\n}",
          NULL },
        { "__global__ void k() {\n#ifndef __CUDA_ARCH__\n asm(\"x\");\n#endif\n}",
          "test.cu:3: inline PTX" },
        { "#if 0\n#elif !defined(OPD_CPU)\nasm\n#else\n#define PTX() "
          "asm(\"x\")\n#endif\n__global__ void k() { PTX(); }",
          "test.cu:7: inline PTX" },
        { "#define PTX() asm(\"x\")\n__global__ void k() {}", NULL }, // nothing uses it
        { "\n\nusing namespace nvcuda::wmma;\n__global__ void k() {}", "test.cu:3: tensor-core" },
        { "__global__ void k(cudaTextureObject_t t) {}", "test.cu:1: a texture" },
        { "__global__ void j();\n__global__ void k() { j<<<1, 1>>>(); }",
          "test.cu:2: a launch from a kernel" },
        { "__global__ void k() { cuda::barrier<int> b; }", "test.cu:1: cuda::barrier" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opd_err err = { 0 };
        struct compile_output out = { 0 };
        bool ok = compile(cases[i].source, "k", "float", &out, &err);
        if (cases[i].text)
            must_fail(ok, &err, OPD_E_compile_error, cases[i].text);
        else
            must(ok, &err);
        free_output(&out);
    }
}

// ---- the suite

static int open_device(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct backend_info info;
    must(ops->open(&be, device_index, &err), &err);
    ops->info(be, &info);
    chunk_size = (CHUNK + info.chunk_granularity - 1) / info.chunk_granularity *
                 info.chunk_granularity;
    must(ops->chunk_new(be, chunk_size, &chunk_fd, &err), &err);
    must(ops->chunk_map(be, chunk_fd, chunk_size, &chunk, &err), &err);
    assert_true(chunk != 0);
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    ops->chunk_unmap(be, chunk, chunk_size);
    ops->close(be);
    close(chunk_fd);
    return 0;
}

int main(int argc, char **argv)
{
    ops = argc > 1 ? backend_find(argv[1], &device_index) : NULL;
    common = source_common("kernels_src", &(struct opd_err){ 0 });
    if (!ops || !common) {
        fprintf(stderr, "usage, from the repository's root: %s cpu|cuda:0\n", argv[0]);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info_is_complete),
        cmocka_unit_test(chunk_survives_unmap_and_close),
        cmocka_unit_test(wrong_chunk_is_refused),
        cmocka_unit_test(copies_of_odd_sizes),
        cmocka_unit_test(fills_touch_nothing_else),
        cmocka_unit_test(elementwise_template),
        cmocka_unit_test(kernel_loop_covers_all),
        cmocka_unit_test(three_dimensions),
        cmocka_unit_test(barriers_and_static_shared),
        cmocka_unit_test(block_reduction_of_opd),
        cmocka_unit_test(dynamic_shared),
        cmocka_unit_test(shuffles),
        cmocka_unit_test(votes_and_masks),
        cmocka_unit_test(whole_warps_return_early),
        cmocka_unit_test(atomics),
        cmocka_unit_test(half_types),
        cmocka_unit_test(mathematics),
        cmocka_unit_test(arguments_of_mixed_sizes),
        cmocka_unit_test(products_by_kernel),
        cmocka_unit_test(products_by_library),
        cmocka_unit_test(wrong_params_are_refused),
        cmocka_unit_test(broken_images_are_refused),
        cmocka_unit_test(compile_errors_name_the_line),
        cmocka_unit_test(versions_live_side_by_side),
        cmocka_unit_test(work_keeps_its_order),
        cmocka_unit_test(graphs_run_what_they_recorded),
        cmocka_unit_test(steps_of_graphs_wait_for_what_they_are_told),
        cmocka_unit_test(marks_increase),
        cmocka_unit_test(marks_are_shared),
        cmocka_unit_test(stamps_tell_the_time),
        cmocka_unit_test(faults_are_told),
        cmocka_unit_test(what_it_cannot_run_is_refused),
    };
    int failed = cmocka_run_group_tests_name(argv[1], tests, open_device, close_device);
    free(common);
    return failed != 0;
}
