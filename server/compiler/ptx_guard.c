#include "compiler/ptx_guard.h"

#include "base/checked.h"

#define SLICE(s) (int)(s).size, (s).at

// Registers of each function's own, and what those that miss come to: the number of the place is in
// %opd_s, the address in %opd_a. Of all misses that of the first block and thread is kept: 2^63 - 1
// - its number, so that zeros mean "none"; who has a greater one than what is there takes the lock
// and writes.
static const char registers[] = "\n\t.reg .b64 %opd_a, %opd_b, %opd_e, %opd_m, %opd_o;\n"
                                "\t.reg .b32 %opd_l, %opd_n, %opd_s;\n"
                                "\t.reg .pred %opd_q, %opd_t;\n";
static const char report[] = "\nOPD_MISS:\n"
                             "\tmov.u64 %opd_b, " CHECKED_REPORT ";\n"
                             "\tred.global.add.u32 [%opd_b], 1;\n"
                             "\tmov.u32 %opd_l, %ctaid.z;\n"
                             "\tmov.u32 %opd_n, %nctaid.y;\n"
                             "\tcvt.u64.u32 %opd_o, %opd_l;\n"
                             "\tcvt.u64.u32 %opd_m, %opd_n;\n"
                             "\tmov.u32 %opd_l, %ctaid.y;\n"
                             "\tcvt.u64.u32 %opd_e, %opd_l;\n"
                             "\tmad.lo.u64 %opd_o, %opd_o, %opd_m, %opd_e;\n"
                             "\tmov.u32 %opd_n, %nctaid.x;\n"
                             "\tcvt.u64.u32 %opd_m, %opd_n;\n"
                             "\tmov.u32 %opd_l, %ctaid.x;\n"
                             "\tcvt.u64.u32 %opd_e, %opd_l;\n"
                             "\tmad.lo.u64 %opd_o, %opd_o, %opd_m, %opd_e;\n"
                             "\tmov.u32 %opd_l, %tid.z;\n"
                             "\tmov.u32 %opd_n, %ntid.y;\n"
                             "\tmul.lo.u32 %opd_l, %opd_l, %opd_n;\n"
                             "\tmov.u32 %opd_n, %tid.y;\n"
                             "\tadd.u32 %opd_l, %opd_l, %opd_n;\n"
                             "\tmov.u32 %opd_n, %ntid.x;\n"
                             "\tmul.lo.u32 %opd_l, %opd_l, %opd_n;\n"
                             "\tmov.u32 %opd_n, %tid.x;\n"
                             "\tadd.u32 %opd_l, %opd_l, %opd_n;\n"
                             "\tshl.b64 %opd_o, %opd_o, 10;\n"
                             "\tcvt.u64.u32 %opd_e, %opd_l;\n"
                             "\tadd.u64 %opd_o, %opd_o, %opd_e;\n"
                             "\tsub.u64 %opd_o, 9223372036854775807, %opd_o;\n"
                             "\tld.volatile.global.u64 %opd_m, [%opd_b+8];\n"
                             "\tsetp.le.u64 %opd_q, %opd_o, %opd_m;\n"
                             "\t@%opd_q bra OPD_END;\n"
                             "OPD_LOCK:\n"
                             "\tatom.global.cas.b32 %opd_l, [%opd_b+4], 0, 1;\n"
                             "\tsetp.ne.u32 %opd_q, %opd_l, 0;\n"
                             "\t@%opd_q bra OPD_LOCK;\n"
                             "\tmembar.gl;\n"
                             "\tld.volatile.global.u64 %opd_m, [%opd_b+8];\n"
                             "\tsetp.le.u64 %opd_q, %opd_o, %opd_m;\n"
                             "\t@%opd_q bra OPD_FREE;\n"
                             "\tst.volatile.global.u64 [%opd_b+16], %opd_a;\n"
                             "\tst.volatile.global.u32 [%opd_b+24], %opd_s;\n";
static const char report_end[] = "\tmembar.gl;\n"
                                 "\tst.volatile.global.u64 [%opd_b+8], %opd_o;\n"
                                 "OPD_FREE:\n"
                                 "\tmembar.gl;\n"
                                 "\tatom.global.exch.b32 %opd_l, [%opd_b+4], 0;\n"
                                 "OPD_END:\n"
                                 "\texit;\n";

void ptx_guard_registers(const struct ptx_guard *g)
{
    buf_append_str(g->out, registers);
}

void ptx_guard_misses(const struct ptx_guard *g)
{
    static const char *const ids[] = { "ctaid.x", "ctaid.y", "ctaid.z", "tid.x", "tid.y", "tid.z" };
    buf_append_str(g->out, report);
    for (int i = 0; i < 6; i++)
        buf_printf(g->out,
                   "\tmov.u32 %%opd_n, %%%s;\n\tst.volatile.global.u32 [%%opd_b+%d], %%opd_n;\n",
                   ids[i], 28 + 4 * i);
    buf_append_str(g->out, report_end);
}

static int width_index(unsigned width)
{
    int i = 0;
    while (1u << i < width)
        i++;
    return i;
}

static void write_aligned(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg)
{
    buf_printf(g->out, "cvt.u32.u64 %%opd_l, %.*s;\n\t", SLICE(reg));
    if (a->offset % (int64_t)a->width != 0)
        buf_printf(g->out, "add.u32 %%opd_l, %%opd_l, %u;\n\t", (unsigned)a->offset % a->width);
    buf_printf(g->out, "and.b32 %%opd_l, %%opd_l, %u;\n\tsetp.ne.u32 %%opd_q, %%opd_l, 0;\n\t",
               a->width - 1);
}

// The base is in %opd_b, the first offset that is too far in %opd_e.
static void compare(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg)
{
    buf_printf(g->out, "sub.s64 %%opd_o, %.*s, %%opd_b;\n\t", SLICE(reg));
    if (a->offset)
        buf_printf(g->out, "add.s64 %%opd_o, %%opd_o, %lld;\n\t", (long long)a->offset);
    buf_append_str(g->out, a->width > 1 ? "setp.ge.or.u64 %opd_q, %opd_o, %opd_e, %opd_q;\n\t"
                                        : "setp.ge.u64 %opd_q, %opd_o, %opd_e;\n\t");
}

void ptx_guard_slot(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                    uint32_t slot)
{
    size_t row = slot * sizeof(struct checked_row);
    if (a->width > 1)
        write_aligned(g, a, reg);
    buf_printf(g->out,
               "ld.const.u64 %%opd_b, [" CHECKED_TABLE "+%zu];\n\t"
               "ld.const.u64 %%opd_e, [" CHECKED_TABLE "+%zu];\n\t",
               row, row + 8 + 8 * (size_t)width_index(a->width));
    compare(g, a, reg);
}

void ptx_guard_sized(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                     uint32_t slot)
{
    size_t row = slot * sizeof(struct checked_row);
    struct slice size = a->size;
    int64_t number;
    if (slice_number(&size, &number))
        buf_printf(g->out, "mov.u64 %%opd_m, %lld;\n\t", (long long)number);
    else
        buf_printf(g->out, "cvt.u64.u32 %%opd_m, %.*s;\n\t", SLICE(a->size));
    buf_printf(g->out,
               "ld.const.u64 %%opd_b, [" CHECKED_TABLE "+%zu];\n\t"
               "ld.const.u64 %%opd_e, [" CHECKED_TABLE "+%zu];\n\t"
               "sub.s64 %%opd_o, %.*s, %%opd_b;\n\tadd.s64 %%opd_o, %%opd_o, %lld;\n\t"
               "setp.ge.u64 %%opd_q, %%opd_o, %%opd_e;\n\tadd.s64 %%opd_o, %%opd_o, %%opd_m;\n\t"
               "sub.s64 %%opd_o, %%opd_o, 1;\n\t"
               "setp.ge.or.u64 %%opd_q, %%opd_o, %%opd_e, %%opd_q;\n\t"
               "setp.ne.and.u64 %%opd_q, %%opd_m, 0, %%opd_q;\n\t",
               row, row + 8, SLICE(reg), (long long)a->offset);
}

void ptx_guard_variable(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                        const struct ptx_symbol *symbol)
{
    long long limit = symbol->size - (long long)a->width + 1;
    if (a->width > 1)
        write_aligned(g, a, reg);
    buf_printf(g->out, "mov.u64 %%opd_b, %.*s;\n\t", SLICE(symbol->name));
    if (symbol->shared)
        buf_append_str(g->out, "cvta.shared.u64 %opd_b, %opd_b;\n\t");
    else if (a->generic)
        buf_append_str(g->out, "cvta.global.u64 %opd_b, %opd_b;\n\t");
    buf_printf(g->out, "mov.u64 %%opd_e, %lld;\n\t", limit > 0 ? limit : 0);
    compare(g, a, reg);
}

// Offsets in shared memory have 32 bits, in whichever register. The offset is left in %opd_l.
void ptx_guard_shared(const struct ptx_guard *g, const struct ptx_access *a,
                      const struct ptx_symbol *symbol)
{
    if (symbol->size < 0)
        buf_printf(g->out,
                   "mov.u32 %%opd_n, %%dynamic_smem_size;\n\tsub.u32 %%opd_n, %%opd_n, %u;\n\t",
                   a->width - 1);
    else
        buf_printf(g->out, "mov.u32 %%opd_n, %lld;\n\t",
                   symbol->size >= a->width ? (long long)symbol->size - a->width + 1 : 0);
    buf_printf(g->out, "mov.u32 %%opd_s, %.*s;\n\t", SLICE(symbol->name));
    if (ptx_symbol_find(g->symbols, a->name))
        buf_append_str(g->out, "mov.u32 %opd_l, 0;\n\t");
    else if (slice_begins(a->name, "%rd"))
        buf_printf(g->out, "cvt.u32.u64 %%opd_l, %.*s;\n\tsub.u32 %%opd_l, %%opd_l, %%opd_s;\n\t",
                   SLICE(a->name));
    else
        buf_printf(g->out, "sub.u32 %%opd_l, %.*s, %%opd_s;\n\t", SLICE(a->name));
    buf_printf(g->out,
               "add.u32 %%opd_l, %%opd_l, %d;\n\tsetp.ge.u32 %%opd_q, %%opd_l, %%opd_n;\n\t",
               (int)a->offset);
    if (a->width > 1)
        buf_printf(g->out,
                   "add.u32 %%opd_s, %%opd_s, %%opd_l;\n\tand.b32 %%opd_s, %%opd_s, %u;\n\t"
                   "setp.ne.or.u32 %%opd_q, %%opd_s, 0, %%opd_q;\n\t",
                   a->width - 1);
}

void ptx_guard_any(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg,
                   uint32_t n)
{
    buf_printf(g->out,
               "add.s64 %%opd_a, %.*s, %lld;\n\tsetp.ne.u32 %%opd_q, 0, 0;\n\t"
               "mov.u32 %%opd_n, %zu;\n\t",
               SLICE(reg), (long long)a->offset, g->n_slots);
    const char *spaces[] = { g->clusters ? "shared::cluster" : "shared", "local", "const",
                             "param" };
    for (int i = 0; i < 4 && a->generic; i++)
        buf_printf(g->out, "isspacep.%s %%opd_t, %%opd_a;\n\t@%%opd_t bra OPD_D%u;\n\t", spaces[i],
                   n);
    if (a->width > 1)
        buf_printf(g->out,
                   "cvt.u32.u64 %%opd_l, %%opd_a;\n\tand.b32 %%opd_l, %%opd_l, %u;\n\t"
                   "setp.ne.u32 %%opd_q, %%opd_l, 0;\n\t@%%opd_q bra OPD_D%u;\n\t",
                   a->width - 1, n);
    buf_printf(g->out,
               "setp.eq.u32 %%opd_q, %%opd_n, 0;\n\t@%%opd_q bra OPD_D%u;\n\t"
               "mov.u64 %%opd_m, " CHECKED_TABLE ";\n"
               "OPD_A%u:\n\tld.const.u64 %%opd_b, [%%opd_m];\n\t"
               "ld.const.u64 %%opd_e, [%%opd_m+%d];\n\tsub.s64 %%opd_o, %%opd_a, %%opd_b;\n\t"
               "setp.ge.u64 %%opd_q, %%opd_o, %%opd_e;\n\t@!%%opd_q bra OPD_D%u;\n\t"
               "add.s64 %%opd_m, %%opd_m, %zu;\n\tsub.u32 %%opd_n, %%opd_n, 1;\n\t"
               "setp.ne.u32 %%opd_t, %%opd_n, 0;\n\t@%%opd_t bra OPD_A%u;\nOPD_D%u:\n\t",
               n, n, 8 + 8 * width_index(a->width), n, sizeof(struct checked_row), n, n);
}

void ptx_guard_null(const struct ptx_guard *g, const struct ptx_access *a, struct slice reg)
{
    buf_printf(g->out,
               "add.s64 %%opd_a, %.*s, %lld;\n\tsetp.lt.u64 %%opd_q, %%opd_a, %d;\n\t",
               SLICE(reg), (long long)a->offset, CHECKED_NULL_ZONE);
}
