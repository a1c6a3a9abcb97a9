#pragma once

// What the tests of conformance stand on: one open device with one chunk, in which inputs lie at
// offset 0 and outputs at OUT, and short ways to compile, launch and copy that fail the test when
// the device does.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "executor/backend.h"
#include "compiler/compile.h"
#include "base/mem.h"

enum { CHUNK = 32 << 20 };

static const struct backend_ops *ops;
static int device_index;
static char *common;
static struct backend *be;
static int chunk_fd;
static device_addr chunk;
static uint64_t chunk_size, last_mark;

static void must(bool ok, struct opd_err *err)
{
    if (!ok)
        print_error("%s: %s\n%s", opd_err_name(err->code), err->msg, err->log ? err->log : "");
    assert_true(ok);
}

// Fails the test unless the call failed so, with that text in its message.
static void must_fail(bool ok, struct opd_err *err, enum opd_err_code code, const char *text)
{
    assert_false(ok);
    if (err->code != code || !strstr(err->msg, text))
        print_error("got %s: %s\nwant %s: ...%s...\n", opd_err_name(err->code), err->msg,
                    opd_err_name(code), text);
    assert_int_equal(err->code, code);
    assert_non_null(strstr(err->msg, text));
    opd_err_clear(err);
}

static void finish(void)
{
    struct opd_err err = { 0 };
    uint64_t passed = 0, mark = ++last_mark;
    must(ops->mark(be, mark, &err), &err);
    for (time_t end = time(NULL) + 20; passed < mark;) {
        must(ops->poll(be, &passed, &err), &err);
        assert_true(time(NULL) < end);
    }
    assert_true(passed == mark);
}

static void copy_to(uint64_t offset, const void *host, size_t size)
{
    struct opd_err err = { 0 };
    must(ops->copy(be, chunk + offset, (uintptr_t)host, size, &err), &err);
}

static void copy_from(void *host, uint64_t offset, size_t size)
{
    struct opd_err err = { 0 };
    must(ops->copy(be, (uintptr_t)host, chunk + offset, size, &err), &err);
    finish();
}

static void fill(uint64_t offset, uint8_t byte, size_t size)
{
    struct opd_err err = { 0 };
    must(ops->fill(be, chunk + offset, byte, size, &err), &err);
}

static bool compile(const char *source, const char *expr, const char *scalar,
                    struct compile_output *out, struct opd_err *err)
{
    struct backend_info info;
    ops->info(be, &info);
    char *prelude = mem_printf("using scalar_t = %s;\nusing acc_t = float;\n", scalar);
    struct compile_input in = {
        .target = info.target,
        .common = common,
        .prelude = prelude,
        .file = "test.cu",
        .source = source,
        .expr = expr,
    };
    bool ok = strcmp(ops->name, "cpu") == 0 ? host_compile(&in, out, err)
                                            : nvrtc_compile(&in, out, err);
    free(prelude);
    return ok;
}

static void free_output(struct compile_output *out)
{
    free(out->image);
    free(out->symbol);
    free(out->log);
}

static struct backend_program *build_as(const char *source, const char *expr, const char *scalar,
                                        const struct backend_param *params, int n_params)
{
    struct opd_err err = { 0 };
    struct compile_output out;
    struct backend_program *program = NULL;
    must(compile(source, expr, scalar, &out, &err), &err);
    struct backend_image image = { out.image, out.size, out.symbol, params, n_params };
    must(ops->load(be, &image, &program, &err), &err);
    free_output(&out);
    return program;
}

// Most kernels here take (in, out, n).
struct args {
    device_addr in, out;
    int32_t n;
};
static const struct backend_param args_params[] = { { .size = 8 },
                                                    { .offset = 8, .size = 8 },
                                                    { .offset = 16, .size = 4 } };

static struct backend_program *build(const char *source, const char *expr)
{
    return build_as(source, expr, "float", args_params, 3);
}

static bool launch(struct backend_program *p, const uint32_t dims[6], uint32_t shared,
                   const void *args, size_t size, struct opd_err *err)
{
    _Alignas(16) uint8_t packed[512] = { 0 };
    memcpy(packed, args, size);
    struct backend_launch l = {
        .program = p,
        .grid = { dims[0], dims[1], dims[2] },
        .block = { dims[3], dims[4], dims[5] },
        .shared_size = shared,
        .args = packed,
        .args_size = size,
    };
    return ops->launch(be, &l, err);
}

enum { OUT = 4 << 20 }; // inputs lie at 0, outputs there

static void run(struct backend_program *p, uint32_t grid, uint32_t block, uint32_t shared,
                int32_t n)
{
    struct opd_err err = { 0 };
    struct args args = { chunk, chunk + OUT, n };
    must(launch(p, (uint32_t[]){ grid, 1, 1, block, 1, 1 }, shared, &args, 20, &err), &err);
}
