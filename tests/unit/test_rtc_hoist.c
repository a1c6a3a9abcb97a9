// rtc_hoist: what may go first does, and nothing that another place would change.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compiler/rtc_hoist.h"

static enum rtc_include judge(const char *name, void *data)
{
    (void)data;
    return strcmp(name, "cmath") == 0             ? RTC_INCLUDE_EMPTY
           : strstr(name, "cub/")                 ? RTC_INCLUDE_OURS
           : strstr(name, "cuda") || *name == 'm' ? RTC_INCLUDE_FIXED
                                                  : RTC_INCLUDE_LOCAL;
}

static const char common[] =
    "#ifndef FLT_MAX\n#define FLT_MAX 1e38f\n#endif\n#define LOOP(i, n) 1\n"
    "#if __CUDA_ARCH__ > 1\n#endif\n";

static const char prelude[] = "using scalar_t = float;\n";

#define FP16 "#include <cuda_fp16.h>\n"
#define CUB "#include <cub/cub.cuh>\n"
#define MMA "#include <mma.h>\n"
static const struct {
    const char *source, *before;
    bool local;
} cases[] = {
    { "", "", false },
    { "__global__ void k() {}\n", "", false },
    { "#include <cmath>\n__global__ void k() {}\n", "", false },
    { "//! op k()\n/* a\n * b */\n#pragma once\n" FP16 "// c\n\n# include \"mma.h\" // d\nint x;\n",
      FP16 MMA, false },
    // An operator's own header, and all that stands behind it, stays.
    { "#include \"own.h\"\n" FP16 "int x;\n", "", true },
    { FP16 "#include \"own.h\"\n" MMA "int x;\n", FP16, true },
    { FP16 "int x;\n#include \"own.h\"\n" MMA, FP16, true },
    { FP16 "#include NAME\n" MMA, FP16, true },
    { FP16 "#include <mma.h\n", FP16, true },
    { FP16 "#include", FP16, true },
    // But what the daemon has put in its place is text like any other.
    { "#line 1 \"own.h\"\n" FP16 "#line 2 \"k.cu\"\n" MMA "int x;\n", FP16 MMA, false },
    // Macros that an include may depend on go with it, others do not.
    { "#define N 3\n" FP16 "#define M 4\nint x;\n", "#define N 3\n" FP16, false },
    { "#define A \\\n  3\n" MMA, "#define A \\\n  3\n" MMA, false },
    { "#define N 3\nint x;\n" FP16, "", false },
    { FP16 "#undef N\n" MMA, FP16, false },
    { FP16 "#define FLT_MAX 3\n" MMA, FP16, false },
    { FP16 "#define LOOP(i, n) 3\n" MMA, FP16, false },
    { "#define LOOPS 3\n" MMA, "#define LOOPS 3\n" MMA, false },
    { FP16 "#define __CUDA_ARCH__ 3\n" MMA, FP16, false },
    { FP16 "#define scalar_t float\n" MMA, FP16, false },
    { "#define scalar 3\n" MMA, "#define scalar 3\n" MMA, false },
    { FP16 "#define N 3 /* a\n b */\n" MMA, FP16, false },
    // Conditions whole or not at all.
    { FP16 "#if __CUDA_ARCH__ >= 800 // x\n" MMA "#else\n#include <cmath>\n#endif\nint x;\n",
      FP16 "#if __CUDA_ARCH__ >= 800 // x\n" MMA "#else\n#endif\n", false },
    { FP16 "#ifdef A\n" MMA "int x;\n#endif\n" MMA, FP16, false },
    { FP16 "#ifndef A\n#define A\n" MMA "#endif\n", FP16, false },
    { FP16 "#ifndef FLT_MAX\n" MMA "#endif\n", FP16, false },
    { FP16 "#if defined(LOOP)\n" MMA "#endif\n", FP16, false },
    { FP16 "#if A\n#elif defined FLT_MAX\n" MMA "#endif\n", FP16, false },
    { FP16 "#if A\n" MMA, FP16, false },
    { FP16 "#endif\n" MMA, FP16, false },
    { FP16 "#error no\n" MMA, FP16, false },
    { FP16 "#pragma pack(1)\n" MMA, FP16, false },
    { FP16 "#\n" MMA, FP16 MMA, false },
};

static void check(const char *source, const char *before, const char *behind, bool local)
{
    struct rtc_hoisted h = rtc_hoist(source, common, prelude, judge, NULL);
    if (strcmp(h.before, before) != 0 || strcmp(h.behind, behind) != 0 || h.local != local)
        fail_msg("%s---\n%s---\n%s--- local %d", source, h.before, h.behind, h.local);
    free(h.before);
    free(h.behind);
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(cases[i].source, cases[i].before, "", cases[i].local);
}

// Those that are to stand behind opd.cuh have the macros and conditions, too.
static void test_ours(void **state)
{
    (void)state;
    check("#define N 3\n" FP16 "#define M 3\n" CUB, "#define N 3\n" FP16,
          "#define N 3\n#define M 3\n" CUB, false);
    check(CUB "#if A\n" MMA "#endif\n", "#if A\n" MMA "#endif\n", CUB, false);
    check("#include \"own.h\"\n" CUB, "", "", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cases), cmocka_unit_test(test_ours) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
