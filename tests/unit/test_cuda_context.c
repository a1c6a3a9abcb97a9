// cuda_context: which kernels call what, so that their stack's depth is not known. Needs NVRTC, no
// GPU.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/compile_output.h"
#include "base/mem.h"
#include "compiler/nvrtc_load.h"
#include "executor/cuda_context.h"

static const struct {
    const char *functions, *body;
    bool calls;
} kernels[] = {
    { "", "x[threadIdx.x] = sinf(x[1]) / x[2];", false }, // a division calls its slow path
    { "__device__ float twice(float v) { return 2 * v; }\n", "x[0] = twice(x[1]);", false },
    { "__device__ __noinline__ int deep(int n, float *x)\n"
      "{ return n < 2 ? n : deep(n - 1, x) + (int)(x[n] += deep(n - 2, x)); }\n",
      "x[0] = deep((int)x[1], x);", true },
    { "__device__ __noinline__ int one(int n) { return n; }\n"
      "__device__ __noinline__ int other(int n) { return -n; }\n"
      "__device__ int (*which[2])(int) = { one, other };\n",
      "x[0] = which[(int)x[1] & 1]((int)x[2]);", true },
    { "", "printf(\"%f\\n\", x[0]);", true },
    { "", "x[0] = malloc(20) != nullptr;", true },
};

static void compile(size_t i, enum compile_kind kind, struct compile_output *out)
{
    char source[1024];
    snprintf(source, sizeof source, "%stemplate <class T> __global__ void k(T *x)\n{\n%s\n}\n",
             kernels[i].functions, kernels[i].body);
    struct compile_input in = { .kind = kind,
                                .target = "sm_90",
                                .common = "",
                                .prelude = "using scalar_t = float;\nusing acc_t = float;\n",
                                .file = "k.cu",
                                .source = source,
                                .expr = "k<scalar_t>" };
    struct opd_err err = { 0 };
    if (!nvrtc_compile(&in, out, &err))
        fail_msg("%s\n%s", err.msg, err.log ? err.log : "");
}

static void test_which_call(void **state)
{
    (void)state;
    static const enum compile_kind kinds[] = { COMPILE_IMAGE, COMPILE_PTX };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (int k = 0; k < 2; k++) {
            struct compile_output out;
            struct opd_err err = { 0 };
            compile(i, kinds[k], &out);
            bool calls = k ? cuda_context_has_calls(out.text, strlen(out.text))
                           : cuda_context_has_calls(out.image, out.size);
            if (calls != kernels[i].calls)
                fail_msg("%s as %s: %d", kernels[i].body, k ? "PTX" : "cubin", calls);
            finish(&out, &err);
        }
}

// What is cut short, or has other bytes, is read inside its bounds.
static void test_bytes_of_any_kind(void **state)
{
    (void)state;
    struct compile_output out;
    struct opd_err err = { 0 };
    compile(0, COMPILE_IMAGE, &out);
    size_t size = out.size;
    for (size_t n = 4; n < size; n += n < 64 ? 1 : 61) {
        uint8_t *cut = mem_alloc(n); // the sanitizer knows its end
        memcpy(cut, out.image, n);
        cuda_context_has_calls(cut, n);
        free(cut);
    }
    uint8_t *changed = mem_alloc(size);
    srand(1);
    for (int round = 0; round < 2000; round++) {
        memcpy(changed, out.image, size);
        for (int k = 0; k < 8; k++)
            changed[4 + (size_t)rand() % (size - 4)] = (uint8_t)rand();
        cuda_context_has_calls(changed, size);
    }
    free(changed);
    assert_false(cuda_context_has_calls("", 0));
    finish(&out, &err);
}

static int set_up(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    if (nvrtc_load(&err))
        return 0;
    print_error("%s\n", err.msg);
    return -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_which_call),
        cmocka_unit_test(test_bytes_of_any_kind),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
