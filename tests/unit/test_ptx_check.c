// ptx_check: each access is held against what its address comes from, with its line; what is not
// PTX is refused. The builds of whole kernels are assembled by compile_all, and run on a GPU.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "compiler/ptx_check.h"

#define HEAD ".version 8.0\n.target sm_90\n.address_size 64\n"
#define ENTRY                                                                                      \
    ".visible .entry k(.param .u64 .ptr .align 1 k_0, .param .align 8 .b8 k_1[16],\n"              \
    "\t.param .u32 k_2)\n"
#define FILES ".file 1 \"/a/planted.cu\"\n.file 2 \"opd-0123.cuh\"\n"

static bool check(const char *text, struct buf *out, struct buf *unchecked, struct opd_err *err)
{
    static const uint32_t slots[] = { 0, 16 };
    struct ptx_check_input in = { text, strlen(text), "k", slots, 2 };
    return ptx_check(&in, out, unchecked, err);
}

// The body's checked build holds each of `found`, a list that NULL ends, in this order; and as many
// places as `sites`.
static void expect(const char *body, int sites, const char *const *found, const char *noted)
{
    struct buf out = { 0 }, unchecked = { 0 };
    struct opd_err err = { 0 };
    char *text = mem_printf(HEAD "%s", body);
    if (!check(text, &out, &unchecked, &err))
        fail_msg("%s", err.msg);
    const char *at = buf_str(&out), *last = strstr(at, "\n//@");
    for (; *found; found++, at++)
        if (!(at = strstr(at, *found)))
            fail_msg("no \"%s\" in:\n%s", *found, buf_str(&out));
    int n = 0;
    for (; last; last = strstr(last + 1, "\n//@"))
        n++;
    assert_int_equal(n, sites);
    assert_string_equal(buf_str(&unchecked), noted);
    buf_finish(&out);
    buf_finish(&unchecked);
    free(text);
}

static void test_tensors(void **state)
{
    (void)state;
    expect(FILES ENTRY "{\n.reg .b64 %rd<9>;\n.reg .pred %p<2>;\n.reg .f32 %f<9>;\n"
                       ".loc 1 7 3\nld.param.u64 %rd1, [k_0];\ncvta.to.global.u64 %rd2, %rd1;\n"
                       "mul.wide.s32 %rd3, %r1, 4;\nadd.s64 %rd4, %rd2, %rd3;\n"
                       ".loc 2 50 1, function_name $x, inlined_at 1 8 5\n"
                       "@!%p1 ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4+-16];\n"
                       "ld.param.u64 %rd5, [k_1+8];\n.loc 1 9 1\n"
                       "atom.global.add.f32 %f5, [%rd5], %f1;\n}\n",
           2,
           (const char *[]){ "//@slots 0 16\n", "opd_table[128]", "and.b32 %opd_l, %opd_l, 15;",
                             "[opd_table+0]", "[opd_table+40]", "add.s64 %opd_o, %opd_o, -16;",
                             "not.pred %opd_t, %p1;", "@%opd_q bra OPD_M1;", "@!%p1 ld.global.nc",
                             "[opd_table+64]", "[opd_table+88]", "bra OPD_M2;", "atom.global",
                             "OPD_M1:", "OPD_MISS:", "//@1 read 16 4 slot 0 - 8 planted.cu\n",
                             "//@2 write 4 4 slot 1 - 9 planted.cu\n", NULL },
           "");
}

#define UNTRACED " is not checked: its address is from memory, or of no tensor\n"

// A choice of two tensors, and what a function is given of them: any of them.
static void test_any(void **state)
{
    (void)state;
    expect(".func f(.param .b64 f_0)\n{\nld.param.u64 %rd1, [f_0];\nst.f32 [%rd1], "
           "%f1;\nret;\n}\n" ENTRY "{\nld.param.u64 %rd1, [k_0];\nld.param.u64 %rd2, [k_1+8];\n"
           "selp.b64 %rd3, %rd1, %rd2, %p1;\nst.param.b64 [param0+0], %rd1;\n"
           "ld.global.u64 %rd4, [%rd3];\nadd.s64 %rd5, %rd1, %rd4;\n"
           "st.global.b16 [%rd5], %rs1;\n}\n",
           3,
           (const char *[]){ "isspacep.shared::cluster", "st.f32", "mov.u64 %opd_m, opd_table;",
                             "ld.global.u64 %rd4", "//@1 write 4 4 any 0 - 0 ?\n",
                             "//@2 read 8 8 any 0 - 0 ?\n", "//@3 write 2 2 slot 0 - 0 ?\n", NULL },
           "");
}

// Addresses of a list, kept in an array of the thread: any tensor's. From memory: not checked; nor
// is what a function or array may have been given of that, or of a variable.
static void test_untraced(void **state)
{
    (void)state;
    const char *const array = "ld.param.u64 %rd1, [k_0];\nst.local.v2.u64 [%rd8], {%rd1, %rd2};\n"
                              "ld.local.u64 %rd3, [%rd9];\nst.f32 [%rd3], %f1;\n}\n";
    char *text = mem_printf(ENTRY "{\nld.param.u64 %%rd2, [k_1+8];\n%s", array);
    expect(text, 1, (const char *[]){ "//@1 write 4 4 any 0", NULL }, "");
    free(text);
    static const char *const given[] = {
        "ld.global.u64 %rd2, [%rd1];\n", "mov.u64 %rd2, lut;\n",
        "ld.param.u64 %rd5, [k_0];\nmov.u64 %rd6, lut;\nselp.b64 %rd2, %rd5, %rd6, %p1;\n",
        "call.uni (retval0),\nmalloc,\n(\nparam0\n);\nld.param.b64 %rd2, [retval0+0];\n"
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        text = mem_printf(".global .align 4 .b8 lut[64];\n" ENTRY
                          "{\nld.param.u64 %%rd1, [k_0];\n%s%s",
                          given[i], array);
        expect(text, 1 + (i == 0),
               (const char *[]){ "st.local", "setp.lt.u64 %opd_q, %opd_a, 4096;", NULL },
               "?:0: note: st.f32" UNTRACED);
        free(text);
    }
    expect(ENTRY "{\nld.param.u64 %rd1, [k_0];\nld.global.v2.u64 {%rd2, %rd3}, [%rd1];\n"
                 "ld.f32 %f1, [%rd3];\nld.f32 %f2, [%rd3+4];\n}\n",
           3, (const char *[]){ "//@1 read 16 8 slot 0", NULL },
           "?:0: note: ld.f32" UNTRACED);
}

static void test_variables(void **state)
{
    (void)state;
    expect(".global .align 4 .b8 lut[64];\n.extern .shared .align 16 .b8 more[];\n" ENTRY
           "{\n.shared .align 4 .b8 tile[4][256];\n.shared .align 4 .b8 _ZZ1kPfE6x1buf0[8];\n"
           ".shared .align 4 .b8 _ZZ1kPfE4tile_0[8];\n.shared .align 4 .b8 _ZN1n4tileE[8];\n"
           "st.shared.f32 [_ZZ1kPfE6x1buf0+8], %f1;\nst.shared.f32 [_ZZ1kPfE4tile_0+8], %f1;\n"
           "st.shared.f32 [_ZN1n4tileE+8], %f1;\n"
           "mov.u64 %rd1, lut;\nadd.s64 %rd2, %rd1, %rd9;\nld.global.f32 %f1, [%rd2];\n"
           "ld.global.f32 %f1, [lut+60];\n"
           "mov.u32 %r1, tile;\nadd.s32 %r2, %r1, %r9;\nst.shared.v2.f32 [%r2+8], {%f1, %f2};\n"
           "st.shared.f32 [more+4], %f1;\nst.shared.f32 [%r7], %f1;\n}\n",
           6,
           (const char *[]){
               "mov.u64 %opd_b, lut;", "mov.u64 %opd_e, 61;", "\n\tld.global.f32",
               "mov.u32 %opd_n, 1017;", "and.b32 %opd_s, %opd_s, 7;",
               "setp.ne.or.u32 %opd_q, %opd_s, 0, %opd_q;", "%dynamic_smem_size",
               "mov.u64 %opd_a, %opd_o;", "cvt.s64.s32 %opd_a, %opd_l;",
               "//@1 write 4 4 shared 8 x1buf0 0 ?\n", "//@2 write 4 4 shared 8 tile 0 ?\n",
               "//@3 write 4 4 shared 8 tile 0 ?\n", "//@4 read 4 4 global 64 lut 0 ?\n",
               "//@5 write 8 4 shared 1024 tile 0 ?\n", "//@6 write 4 4 shared -1 more 0 ?\n",
               NULL },
           "?:0: note: st.shared.f32 is not checked\n");
}

// Traps and assertions are told; entries that are not wanted go; what is known is listed.
static void test_rest(void **state)
{
    (void)state;
    expect(FILES ".entry other()\n{\ntrap;\n}\n" ENTRY
                 "{\n.loc 1 3 1\n@%p1 trap;\n{ // callseq 0\ncall.uni __assertfail, (a, b);\n}\n"
                 ".loc 1 4 1\nwmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%rd1];\n}\n",
           2,
           (const char *[]){ "@%p1 bra OPD_M1;", "bra OPD_M2;", "wmma.load",
                             "OPD_M1:", "//@1 trap 0 0 any 0 - 3 planted.cu\n",
                             "//@2 assert 0 0 any 0 - 3 planted.cu\n", NULL },
           "planted.cu:4: note: wmma.load.a.sync.aligned.row.m16n16k16.f16 is not checked\n");
}

static void test_copies(void **state)
{
    (void)state;
    expect(ENTRY "{\nld.param.u64 %rd1, [k_0];\ncp.async.cg.shared.global [%r1], [%rd1+4], 16;\n"
                 "cp.async.ca.shared.global [%r1], [%rd1], 4, %r3;\ncp.async.commit_group;\n}\n",
           2,
           (const char *[]){ "add.u32 %opd_l, %opd_l, 4;", "[opd_table+40]",
                             "cvt.u64.u32 %opd_m, %r3;", "//@1 read 16 16 slot 0",
                             "//@2 read 1 1 slot 0", NULL },
           "");
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        { "", "its kernel is not there" },
        { ".entry other() { ret; }", "its kernel is not there" },
        { "/* ", "a comment does not end" },
        { "\"", "a comment does not end" },
        { ".entry k() { ret;", "a function does not end" },
        { ".entry k() { mov.u32 %r1, 0 ", "a statement does not end" },
        { ".entry k() {", "a function does not end" },
        { ".section .debug_str { .b8 1", "a statement does not end" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf out = { 0 }, unchecked = { 0 };
        struct opd_err err = { 0 };
        assert_false(check(bad[i][0], &out, &unchecked, &err));
        if (!strstr(err.msg, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], err.msg);
        opd_err_clear(&err);
        buf_finish(&out);
        buf_finish(&unchecked);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),   cmocka_unit_test(test_any),
        cmocka_unit_test(test_untraced),  cmocka_unit_test(test_variables),
        cmocka_unit_test(test_rest),      cmocka_unit_test(test_copies),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
