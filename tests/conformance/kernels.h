#pragma once

// What kernels must be able to do.

#include "conformance/device.h"

static void upload_ramp(int n)
{
    float *x = mem_alloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = (float)(i % 1000) * 0.25f;
    copy_to(0, x, (size_t)n * sizeof *x);
    finish();
    free(x);
}

static void elementwise_template(void **state)
{
    (void)state;
    enum { N = 100003 };
    struct backend_program *p = build(
        "template <typename T, int K>\n__global__ void twice(const T *x, T *y, int n)\n{\n"
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n)\n        y[i] = x[i] * K;\n}\n",
        "twice<scalar_t, 2>");
    float *y = mem_alloc(N * sizeof *y);
    upload_ramp(N);
    run(p, (N + 255) / 256, 256, 0, N);
    copy_from(y, OUT, N * sizeof *y);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == (float)(i % 1000) * 0.5f);
    ops->unload(be, p);
    free(y);
}

static void kernel_loop_covers_all(void **state)
{
    (void)state;
    enum { N = 70001 };
    struct backend_program *p = build(
        "template <typename T> __global__ void add(const T *x, T *y, int n)\n"
        "{\n    CUDA_KERNEL_LOOP(i, n) { y[i] += x[i] + i; }\n}\n",
        "add<scalar_t>");
    static const uint32_t grids[] = { 1, 7, 64, 1000 };
    float *y = mem_alloc(N * sizeof *y);
    upload_ramp(N);
    fill(OUT, 0, N * sizeof *y);
    for (int g = 0; g < 4; g++)
        run(p, grids[g], 128, 0, N);
    copy_from(y, OUT, N * sizeof *y);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == 4 * ((float)(i % 1000) * 0.25f + (float)i));
    ops->unload(be, p);
    free(y);
}

static void three_dimensions(void **state)
{
    (void)state;
    struct backend_program *p = build(
        "__global__ void where(const int *, int *y, int)\n{\n"
        "    int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;\n"
        "    int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;\n"
        "    int n = blockDim.x * blockDim.y * blockDim.z;\n"
        "    y[block * n + thread] = blockIdx.x | blockIdx.y << 4 | blockIdx.z << 8 | threadIdx.x "
        "<< 12 |\n"
        "                            threadIdx.y << 16 | threadIdx.z << 20;\n}\n",
        "where");
    struct opd_err err = { 0 };
    struct args args = { chunk, chunk + OUT, 0 };
    uint32_t d[] = { 3, 4, 5, 7, 3, 2 };
    static uint32_t got[3 * 4 * 5 * 7 * 3 * 2];
    must(launch(p, d, 0, &args, 20, &err), &err);
    copy_from(got, OUT, sizeof got);
    for (uint32_t i = 0; i < sizeof got / 4; i++) {
        uint32_t t = i % 42, b = i / 42;
        uint32_t want = b % 3 | b / 3 % 4 << 4 | b / 12 << 8 | t % 7 << 12 | t / 7 % 3 << 16 |
                        t / 21 << 20;
        assert_int_equal(got[i], want);
    }
    ops->unload(be, p);
}

static const char sum_source[] =
    "template <int BLOCK> __global__ void sum(const float *x, float *y, int n)\n{\n"
    "    __shared__ float part[BLOCK];\n    int t = threadIdx.x, i = blockIdx.x * BLOCK + t;\n"
    "    part[t] = i < n ? x[i] : 0.0f;\n    __syncthreads();\n"
    "    for (int s = BLOCK / 2; s > 0; s /= 2) {\n"
    "        if (t < s)\n            part[t] += part[t + s];\n        __syncthreads();\n    }\n"
    "    if (t == 0)\n        y[blockIdx.x] = part[0];\n}\n";

static void check_sums(const char *source, const char *expr, int block, uint32_t shared)
{
    enum { N = 40000 };
    struct backend_program *p = build(source, expr);
    uint32_t grid = (N + (uint32_t)block - 1) / (uint32_t)block;
    float *y = mem_alloc(grid * sizeof *y);
    upload_ramp(N);
    for (int round = 0; round < 3; round++) {
        fill(OUT, 0xff, grid * sizeof *y);
        run(p, grid, (uint32_t)block, shared, N);
        copy_from(y, OUT, grid * sizeof *y);
        for (int b = 0; b < (int)grid; b++) {
            float want = 0;
            for (int i = b * block; i < (b + 1) * block && i < N; i++)
                want += (float)(i % 1000) * 0.25f;
            assert_true(fabsf(y[b] - want) <= 1e-6f * fabsf(want));
        }
    }
    ops->unload(be, p);
    free(y);
}

static void barriers_and_static_shared(void **state)
{
    (void)state;
    check_sums(sum_source, "sum<32>", 32, 0);
    check_sums(sum_source, "sum<256>", 256, 0);
    check_sums(sum_source, "sum<1024>", 1024, 0);
}

static void block_reduction_of_opd(void **state)
{
    (void)state;
    check_sums("__global__ void sum(const float *x, float *y, int n)\n{\n"
               "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
               "    float s = opd::block_reduce_sum<128>(i < n ? x[i] : 0.0f);\n"
               "    if (threadIdx.x == 0)\n        y[blockIdx.x] = s;\n}\n",
               "sum", 128, 0);
}

static void dynamic_shared(void **state)
{
    (void)state;
    check_sums("namespace n {\nextern __shared__ __align__(16) unsigned char global_bytes[];\n}\n"
               "template <class T> __global__ void sum(const T *x, T *y, int n)\n{\n"
               "    extern __shared__ float part[]; // a comment\n"
               "    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;\n"
               "    reinterpret_cast<T *>(n::global_bytes)[t] = i < n ? x[i] : T(0);\n    "
               "__syncthreads();\n"
               "    if (t == 0) {\n        T s = 0;\n        for (int k = 0; k < blockDim.x; k++)\n"
               "            s += part[k];\n        y[blockIdx.x] = s;\n    }\n}\n",
               "sum<float>", 200, 200 * 4);
}

static void run_warp_test(const char *body, uint32_t block, int32_t *got)
{
    char *source = mem_printf("__global__ void warp(const int *, int *y, int n)\n{\n"
                              "    const unsigned all = 0xffffffffu;\n    int t = threadIdx.x, "
                              "lane = t %% 32, *r = y + t * 8;\n"
                              "    %s\n}\n",
                              body);
    struct backend_program *p = build(source, "warp");
    fill(OUT, 0xff, block * 32);
    run(p, 1, block, 0, 0);
    copy_from(got, OUT, block * 32);
    ops->unload(be, p);
    free(source);
}

static void shuffles(void **state)
{
    (void)state;
    static int32_t got[96 * 8];
    run_warp_test("int v = t * 3;\n"
                  "r[0] = __shfl_sync(all, v, 5); r[1] = __shfl_up_sync(all, v, 2); r[2] = "
                  "__shfl_down_sync(all, v, 3);\n"
                  "r[3] = __shfl_xor_sync(all, v, 7); r[4] = __shfl_sync(all, v, 9, 8);\n"
                  "r[5] = __shfl_down_sync(all, v, 1, 4); r[6] = __shfl_up_sync(all, v, 1, 16);\n"
                  "double d = v + 0.5; r[7] = (int)(2 * __shfl_xor_sync(all, d, 1));",
                  96, got);
    for (int t = 0; t < 96; t++) {
        int l = t % 32, w = t - l;
        const int32_t *r = got + t * 8;
        assert_int_equal(r[0], 3 * (w + 5));
        assert_int_equal(r[1], 3 * (l < 2 ? t : t - 2));
        assert_int_equal(r[2], 3 * (l > 28 ? t : t + 3));
        assert_int_equal(r[3], 3 * (w + (l ^ 7)));
        assert_int_equal(r[4], 3 * (w + l / 8 * 8 + 1));
        assert_int_equal(r[5], 3 * (l % 4 == 3 ? t : t + 1));
        assert_int_equal(r[6], 3 * (l % 16 == 0 ? t : t - 1));
        assert_int_equal(r[7], 6 * (w + (l ^ 1)) + 1);
    }
}

static void votes_and_masks(void **state)
{
    (void)state;
    static int32_t got[64 * 8];
    run_warp_test(
        "r[0] = __ballot_sync(all, t % 3 == 0); r[1] = __any_sync(all, t == 40); r[2] = "
        "__all_sync(all, t < 32);\n"
        "if (lane < 16) r[3] = __ballot_sync(0xffffu, lane & 1);\n"
        "else { int v = __shfl_xor_sync(0xffff0000u, t, 1); __syncwarp(0xffff0000u); r[3] = v; }\n"
        "__syncwarp();\nr[4] = __syncthreads_count(t < 50); r[5] = __syncthreads_or(t == 63);\n"
        "r[6] = __syncthreads_and(t < 63); r[7] = __popc(__activemask());",
        64, got);
    for (int t = 0; t < 64; t++) {
        uint32_t thirds = 0;
        for (int l = 0; l < 32; l++)
            thirds |= (uint32_t)((t / 32 * 32 + l) % 3 == 0) << l;
        const int32_t *r = got + t * 8;
        assert_true((uint32_t)r[0] == thirds);
        assert_int_equal(r[1], t >= 32);
        assert_int_equal(r[2], t < 32);
        assert_int_equal(r[3], t % 32 < 16 ? 0xaaaa : (t ^ 1));
        assert_int_equal(r[4], 50);
        assert_int_equal(r[5] != 0, 1);
        assert_int_equal(r[6], 0);
        assert_true(r[7] >= 1 && r[7] <= 32);
    }
}

static void whole_warps_return_early(void **state)
{
    (void)state;
    static int32_t got[128 * 8];
    run_warp_test("if (t / 32 == 1 || t / 32 == 3) return;\n__shared__ int s[128]; s[t] = "
                  "t;\n__syncthreads();\n"
                  "r[0] = s[(t + 64) % 128]; r[1] = __shfl_sync(all, t, 31);",
                  128, got);
    for (int t = 0; t < 128; t++) {
        bool gone = t / 32 == 1 || t / 32 == 3;
        assert_int_equal(got[t * 8], gone ? -1 : (t + 64) % 128);
        assert_int_equal(got[t * 8 + 1], gone ? -1 : t | 31);
    }
}

static void atomics(void **state)
{
    (void)state;
    struct backend_program *p = build(
        "struct sums { int add, sub, high, low, any; unsigned all, flip; int pad; unsigned long "
        "long wide;\n"
        "              float f; int cas; double d; opd::half h[2]; opd::bfloat16 b[2]; };\n"
        "__global__ void count(const int *, sums *s, int n)\n{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n)\n        return;\n"
        "    atomicAdd(&s->add, 1); atomicSub(&s->sub, 2); atomicMax(&s->high, i); "
        "atomicMin(&s->low, -i);\n"
        "    atomicOr(&s->any, i); atomicAnd(&s->all, ~1u); atomicXor(&s->flip, i); "
        "atomicAdd(&s->wide, 1ull << 33);\n"
        "    atomicAdd(&s->f, 0.5f); atomicAdd(&s->d, 0.25);\n"
        "    if (i < 100) { atomicAdd(&s->h[1], opd::half(1.0f)); atomicAdd(&s->b[1], "
        "opd::bfloat16(1.0f)); }\n"
        "    int seen = s->cas, old;\n"
        "    do { old = seen; seen = atomicCAS(&s->cas, old, old + 1); } while (seen != old);\n}\n",
        "count");
    struct {
        int32_t add, sub, high, low, any;
        uint32_t all, flip;
        int32_t pad;
        uint64_t wide;
        float f;
        int32_t cas;
        double d;
        uint16_t h[2], b[2];
    } s = { .all = ~0u }, zero = s;
    enum { N = 20000 };
    uint32_t flip = 0;
    for (uint32_t i = 0; i < N; i++)
        flip ^= i;
    copy_to(OUT, &zero, sizeof zero);
    run(p, (N + 63) / 64, 64, 0, N);
    copy_from(&s, OUT, sizeof s);
    assert_int_equal(s.add, N);
    assert_int_equal(s.sub, -2 * N);
    assert_int_equal(s.high, N - 1);
    assert_int_equal(s.low, 1 - N);
    assert_int_equal(s.any, 32767);
    assert_true(s.all == ~1u && s.flip == flip && s.wide == (uint64_t)N << 33);
    assert_true(s.f == N * 0.5f && s.d == N * 0.25);
    assert_int_equal(s.cas, N);
    assert_true(s.h[0] == 0 && s.h[1] == 0x5640 && s.b[0] == 0 && s.b[1] == 0x42c8); // 100
    ops->unload(be, p);
}

static void half_types(void **state)
{
    (void)state;
    static const char source[] =
        "template <class T> __global__ void half_way(const float *x, float *y, int n)\n{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) {\n        T v = T(x[i]);\n        v += T(1) * v;\n"
        "        y[i] = v;\n    }\n}\n";
    static const float in[] = { 0.0f,  1.0f,  -2.5f,    0.1f,  65504.0f, 70000.0f, 6e-8f,
                                3e-5f, 1e-9f, INFINITY, -0.0f, 2049.0f,  2051.0f };
    static const float half[] = { 0.0f,     2.0f,     -5.0f,         0.2f - 0.000048828f,
                                  INFINITY, INFINITY, 1.1920929e-7f, 5.9962273e-5f,
                                  0.0f,     INFINITY, 0.0f,          4096.0f,
                                  4104.0f };
    float got[13];
    copy_to(0, in, sizeof in);
    struct backend_program *p = build_as(source, "half_way<scalar_t>", "opd::half", args_params, 3);
    run(p, 1, 32, 0, 13);
    copy_from(got, OUT, sizeof got);
    for (int i = 0; i < 13; i++)
        assert_true(got[i] == half[i] || fabsf(got[i] - half[i]) <= 1e-6f * fabsf(half[i]));
    ops->unload(be, p);
    p = build_as(source, "half_way<scalar_t>", "opd::bfloat16", args_params, 3);
    run(p, 1, 32, 0, 13);
    copy_from(got, OUT, sizeof got);
    assert_true(got[1] == 2.0f && got[2] == -5.0f && got[3] == 0.200195312f && got[11] == 4096.0f);
    ops->unload(be, p);
}

static void mathematics(void **state)
{
    (void)state;
    enum { N = 4001 };
    struct backend_program *p = build(
        "__global__ void math(const float *x, float *y, int n)\n{\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {\n"
        "        float v = x[i], *r = y + 6 * i;\n"
        "        r[0] = expf(v); r[1] = tanhf(v); r[2] = erff(v); r[3] = fmaxf(v, 1.5f) + "
        "fminf(0.0f, v);\n"
        "        r[4] = rsqrtf(v * v + 1.0f); r[5] = max(1, 2) + exp(1.0 * v) * 0 + abs(v) + "
        "pow(v, 2);\n    }\n}\n",
        "math");
    float *x = mem_alloc(N * sizeof *x), *y = mem_alloc(6 * N * sizeof *y);
    for (int i = 0; i < N; i++)
        x[i] = (float)(i - N / 2) * 0.005f;
    copy_to(0, x, N * sizeof *x);
    run(p, (N + 127) / 128, 128, 0, N);
    copy_from(y, OUT, 6 * N * sizeof *y);
    for (int i = 0; i < N; i++) {
        double v = x[i];
        const double want[] = { exp(v),
                                tanh(v),
                                erf(v),
                                fmax(v, 1.5) + fmin(0, v),
                                1 / sqrt(v * v + 1),
                                2 + fabs(v) + v * v };
        for (int k = 0; k < 6; k++)
            assert_true(fabs(y[6 * i + k] - want[k]) <= 4e-7 * fabs(want[k]));
    }
    ops->unload(be, p);
    free(x);
    free(y);
}
