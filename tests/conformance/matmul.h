#pragma once

// Products of matrices, by opd's own kernel and by the backend's library. Elements are small
// integers, so that every sum is exact in every dtype.

#include "conformance/device.h"

#include "base/dtype.h"

enum { A_AT = 0, B_AT = 1 << 20, MOST_ELEMENTS = 1 << 16 };

static double small(int i, int seed)
{
    return (i * 7 + seed * 3 + i / 5) % 5 - 2;
}

static void encode(enum opd_dtype dtype, double value, void *out)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (dtype == OPD_DTYPE_float64) {
        memcpy(out, &value, 8);
    } else if (dtype == OPD_DTYPE_float32) {
        memcpy(out, &f, 4);
    } else { // normal numbers and zero alone
        uint32_t exponent = (bits >> 23 & 255) - 127 + 15;
        uint16_t half = (uint16_t)(bits >> 16 & 0x8000) |
                        (uint16_t)(f == 0 ? 0 : exponent << 10 | (bits >> 13 & 1023));
        uint16_t brain = (uint16_t)(bits >> 16);
        memcpy(out, dtype == OPD_DTYPE_float16 ? &half : &brain, 2);
    }
}

static double decode(enum opd_dtype dtype, const void *from)
{
    double wide;
    float f;
    uint16_t bits16;
    memcpy(&bits16, from, 2);
    if (dtype == OPD_DTYPE_float64)
        return memcpy(&wide, from, 8), wide;
    if (dtype == OPD_DTYPE_float32)
        return memcpy(&f, from, 4), f;
    uint32_t bits = (uint32_t)bits16 << 16;
    if (dtype == OPD_DTYPE_float16)
        bits = (uint32_t)(bits16 & 0x8000) << 16 |
               ((bits16 & 0x7fff) ? ((bits16 >> 10 & 31) + 127 - 15u) << 23 : 0) |
               (uint32_t)(bits16 & 1023) << 13;
    memcpy(&f, &bits, 4);
    return f;
}

struct product_case {
    enum opd_dtype dtype, result;
    int m, n, k;
    bool trans_a, trans_b, accumulate;
    int gap, offset; // elements between rows, and before the first
};

// Element (row, col) of a matrix that is stored row by row, or transposed.
static int place(const struct product_case *c, bool transposed, int rows, int cols, int row,
                 int col)
{
    return c->offset + (transposed ? col * (rows + c->gap) + row : row * (cols + c->gap) + col);
}

static void put_matrix(enum opd_dtype dtype, uint64_t at, int seed)
{
    static uint8_t bytes[MOST_ELEMENTS * 8];
    size_t size = dtype_size(dtype);
    for (int i = 0; i < MOST_ELEMENTS; i++)
        encode(dtype, small(i, seed), bytes + (size_t)i * size);
    copy_to(at, bytes, MOST_ELEMENTS * size);
    finish(); // the next one uses the same bytes
}

static struct backend_matmul describe_product(const struct product_case *c)
{
    device_addr size = dtype_size(c->dtype), offset = (device_addr)c->offset;
    return (struct backend_matmul){
        .dtype = c->dtype,
        .result = c->result,
        .accumulate = c->accumulate,
        .m = c->m,
        .n = c->n,
        .k = c->k,
        .d = { chunk + OUT + offset * dtype_size(c->result), c->n + c->gap, false },
        .a = { chunk + A_AT + offset * size, (c->trans_a ? c->m : c->k) + c->gap, c->trans_a },
        .b = { chunk + B_AT + offset * size, (c->trans_b ? c->k : c->n) + c->gap, c->trans_b },
    };
}

// As a plan would launch it (server/op/plan_matmul.c).
static void launch_product(const struct product_case *c, struct backend_program *program,
                           uint32_t lanes)
{
    struct {
        device_addr d, a, b;
        int64_t m, n, k, ldd, lda, ldb, d_at, a_at, b_at;
        int32_t accumulate;
    } args;
    const struct backend_matmul m = describe_product(c);
    bool on_cpu = strcmp(ops->name, "cpu") == 0;
    uint32_t rows = on_cpu ? 48 : 64, cols = 64;
    uint32_t blocks = (((uint32_t)c->m - 1) / rows + 1) * (((uint32_t)c->n - 1) / cols + 1);
    if (lanes > 0)
        blocks = ((uint32_t)(c->m * c->n) * lanes - 1) / 256 + 1;
    struct opd_err err = { 0 };
    memset(&args, 0, sizeof args);
    args.d = chunk + OUT, args.a = chunk + A_AT, args.b = chunk + B_AT;
    args.m = c->m, args.n = c->n, args.k = c->k;
    args.ldd = m.d.stride, args.lda = m.a.stride, args.ldb = m.b.stride;
    args.d_at = args.a_at = args.b_at = c->offset;
    args.accumulate = c->accumulate;
    must(launch(program, (uint32_t[]){ blocks, 1, 1, on_cpu ? 1 : 256, 1, 1 }, 0, &args, 100, &err),
         &err);
}

static void check_product(const struct product_case *c, const char *by)
{
    static uint8_t bytes[MOST_ELEMENTS * 8];
    size_t size = dtype_size(c->result);
    copy_from(bytes, OUT, MOST_ELEMENTS * size);
    int stride = c->n + c->gap;
    for (int i = 0; i < MOST_ELEMENTS; i++) {
        int row = (i - c->offset) / stride, col = (i - c->offset) % stride;
        double want = small(i, 3), got = decode(c->result, bytes + (size_t)i * size);
        if (i >= c->offset && row < c->m && col < c->n) {
            want = c->accumulate ? want : 0;
            for (int q = 0; q < c->k; q++)
                want += small(place(c, c->trans_a, c->m, c->k, row, q), 1) *
                        small(place(c, c->trans_b, c->k, c->n, q, col), 2);
        }
        if (got != want)
            fail_msg("%s: %s to %s, [%d, %d]%s @ [%d, %d]%s, gap %d: element %d is %g, not %g", by,
                     dtype_name(c->dtype), dtype_name(c->result), c->m, c->k,
                     c->trans_a ? ".T" : "", c->k, c->n, c->trans_b ? ".T" : "", c->gap, i, got,
                     want);
    }
}

static void put_operands(const struct product_case *c)
{
    put_matrix(c->dtype, A_AT, 1);
    put_matrix(c->dtype, B_AT, 2);
    put_matrix(c->result, OUT, 3);
}

// `lanes`: of matmul_small; 0: matmul.
static struct backend_program *build_product(const struct product_case *c, uint32_t lanes)
{
    char expr[128], lanes_text[16] = "";
    struct backend_param params[13];
    if (lanes > 0)
        snprintf(lanes_text, sizeof lanes_text, ", %u", lanes);
    snprintf(expr, sizeof expr, "opd::matmul%s<%s, %s, %s, %s%s>", lanes > 0 ? "_small" : "",
             dtype_type(c->dtype), dtype_type(c->result), c->trans_a ? "true" : "false",
             c->trans_b ? "true" : "false", lanes_text);
    for (unsigned i = 0; i < 13; i++)
        params[i] = (struct backend_param){ .offset = 8 * i, .size = i < 12 ? 8 : 4 };
    return build_as("// nothing of its own\n", expr, "float", params, 13);
}

static const int product_sizes[][3] = { { 1, 1, 1 },    { 3, 5, 2 },    { 6, 16, 7 },
                                        { 17, 33, 40 }, { 64, 64, 16 }, { 65, 130, 37 },
                                        { 100, 8, 31 }, { 2, 200, 40 } };
enum { N_PRODUCT_SIZES = sizeof product_sizes / sizeof *product_sizes };

static struct product_case product_at(int dtypes, int transposed, int size, int variant)
{
    static const enum opd_dtype pairs[][2] = {
        { OPD_DTYPE_float32, OPD_DTYPE_float32 }, { OPD_DTYPE_float64, OPD_DTYPE_float64 },
        { OPD_DTYPE_float16, OPD_DTYPE_float16 }, { OPD_DTYPE_bfloat16, OPD_DTYPE_bfloat16 },
        { OPD_DTYPE_float16, OPD_DTYPE_float32 }, { OPD_DTYPE_bfloat16, OPD_DTYPE_float32 },
    };
    return (struct product_case){
        .dtype = pairs[dtypes][0],
        .result = pairs[dtypes][1],
        .m = product_sizes[size][0],
        .n = product_sizes[size][1],
        .k = product_sizes[size][2],
        .trans_a = transposed & 1,
        .trans_b = transposed & 2,
        .accumulate = variant & 1,
        .gap = variant & 2 ? 3 : 0,
        .offset = variant & 2 ? 5 : 0,
    };
}

static void try_kernel(uint32_t lanes, const char *by)
{
    for (int dtypes = 0; dtypes < 6; dtypes++)
        for (int transposed = 0; transposed < 4; transposed++) {
            struct product_case c = product_at(dtypes, transposed, 0, 0);
            struct backend_program *program = build_product(&c, lanes);
            for (int size = 0; size < N_PRODUCT_SIZES; size++) {
                c = product_at(dtypes, transposed, size, size % 4);
                put_operands(&c);
                launch_product(&c, program, lanes);
                check_product(&c, by);
            }
            ops->unload(be, program);
        }
}

static void products_by_kernel(void **state)
{
    (void)state;
    try_kernel(0, "matmul");
    if (strcmp(ops->name, "cpu") == 0)
        return; // which has no matmul_small
    try_kernel(1, "matmul_small");
    try_kernel(32, "matmul_small by warps");
}

static void products_by_library(void **state)
{
    (void)state;
    struct backend_info info;
    struct opd_err err = { 0 };
    ops->blas_load(be);
    ops->info(be, &info);
    print_message("BLAS: %s\n", info.blas[0] ? info.blas : "none");
    struct product_case c = product_at(0, 0, 0, 0);
    struct backend_matmul m = describe_product(&c);
    if (!info.blas[0]) {
        must_fail(ops->matmul(be, &m, &err), &err, OPD_E_unavailable, "found");
        return;
    }
    bool on_cpu = strcmp(ops->name, "cpu") == 0;
    for (int dtypes = 0; dtypes < 6; dtypes++)
        for (int i = 0; i < 4 * 4 * N_PRODUCT_SIZES; i++) {
            c = product_at(dtypes, i % 4, i / 16, i / 4 % 4);
            m = describe_product(&c);
            m.tf32 = i % 3 == 0; // integers this small are exact in it
            put_operands(&c);
            if (on_cpu && dtypes >= 2) {
                must_fail(ops->matmul(be, &m, &err), &err, OPD_E_invalid_argument, "kernel");
                continue;
            }
            must(ops->matmul(be, &m, &err), &err);
            check_product(&c, info.blas);
        }
}
