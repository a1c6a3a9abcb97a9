#include "compiler/ptx_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "compiler/ptx.h"
#include "compiler/ptx_guard.h"
#include "compiler/ptx_line.h"

enum { MAX_DEPTH = 64, MAX_SYMBOL = 120 };

struct checker {
    const struct ptx_check_input *in;
    struct buf *out, *unchecked;
    struct opd_err *err;
    struct ptx_symbols symbols;
    struct ptx_lines lines;
    struct origins origins; // of the function that is being read
    struct buf cold;        // its ends
    struct buf sites;
    uint32_t n_sites;
    struct ptx_guard guard;
    bool has_table, found;
    int depth;
    bool leaks; // what is GIVEN may be anywhere
};

static bool refuse(struct checker *c, const char *what)
{
    if (!c->err->code)
        opd_err_set(c->err, OPD_E_internal, "the PTX cannot be checked: %s", what);
    return false;
}

static void put(struct checker *c, struct slice s)
{
    buf_append(c->out, s.at, s.size);
}

#define SLICE(s) (int)(s).size, (s).at

// --- one access

// Once for a line of the file: a loop that is unrolled has many.
static void note_unchecked(struct checker *c, struct slice op, const char *why)
{
    uint32_t line;
    const char *file = ptx_lines_find(&c->lines, &line);
    char *note = mem_printf("%s:%u: note: %.*s is not checked%s\n", file, line,
                            op.size < MAX_SYMBOL ? (int)op.size : MAX_SYMBOL, op.at, why);
    size_t n = strlen(note);
    const struct buf *notes = c->unchecked;
    if (notes->size < n || memcmp(notes->bytes + notes->size - n, note, n) != 0)
        buf_append(c->unchecked, note, n);
    free(note);
}

// A line about the place, for who reads the report. The number is of the tensor among the
// slots; the size of a variable, -1 if the launch says it; 0 where it may be any tensor.
static bool add_site(struct checker *c, const struct ptx_access *a, struct origin origin)
{
    uint32_t line;
    const char *file = ptx_lines_find(&c->lines, &line), *what = "any";
    struct slice name = { "-", 1 };
    long long number = 0;
    if (c->n_sites++ == PTX_CHECK_MAX_SITES)
        return refuse(c, "it has more than 65536 accesses");
    if (origin.kind == ORIGIN_SLOT) {
        what = "slot";
        number = origin.index;
    } else if (origin.kind == ORIGIN_SYMBOL) {
        const struct ptx_symbol *symbol = ptx_symbol_at(&c->symbols, origin.index);
        what = symbol->shared ? "shared" : "global";
        number = symbol->size;
        name = slice_plain_name(symbol->name);
    }
    char text[MAX_SYMBOL + 1];
    snprintf(text, sizeof text, "%.*s", SLICE(name));
    buf_printf(&c->sites, CHECKED_SITE_FORMAT, c->n_sites, a->does, a->width, a->element, what,
               number, text, line, file);
    return true;
}

static void add_guard(struct checker *c, const struct ptx_instr *instr)
{
    if (instr->guard.size == 0)
        return;
    if (instr->negated)
        buf_printf(c->out, "not.pred %%opd_t, %.*s;\n\tand.pred %%opd_q, %%opd_q, %%opd_t;\n\t",
                   SLICE(instr->guard));
    else
        buf_printf(c->out, "and.pred %%opd_q, %%opd_q, %.*s;\n\t", SLICE(instr->guard));
}

// Where a miss goes, with the address; of a variable, with the offset in it. What the address is
// made from is not seen from there where it belongs to an inner scope: then the address is worked
// out before.
static void leave(struct checker *c, const struct ptx_access *a, const struct ptx_instr *instr,
                  struct slice reg, bool variable)
{
    char where[256];
    if (a->shared)
        snprintf(where, sizeof where, "cvt.s64.s32 %%opd_a, %%opd_l;\n\t");
    else if (variable)
        snprintf(where, sizeof where, "mov.u64 %%opd_a, %%opd_o;\n\t");
    else
        snprintf(where, sizeof where, "add.s64 %%opd_a, %.*s, %lld;\n\t",
                 reg.size < MAX_SYMBOL ? (int)reg.size : 0, reg.at, (long long)a->offset);
    bool inner = c->depth > 1 || reg.size >= MAX_SYMBOL;
    if (inner && reg.size < MAX_SYMBOL)
        buf_append_str(c->out, where);
    add_guard(c, instr);
    buf_printf(c->out, "@%%opd_q bra OPD_M%u;\n\t", c->n_sites);
    buf_printf(&c->cold, "OPD_M%u:\n\t%smov.u32 %%opd_s, %u;\n\tbra OPD_MISS;\n", c->n_sites,
               inner ? "" : where, c->n_sites);
}

// A variable that is named, inside its bounds.
static bool is_inside(const struct checker *c, const struct ptx_access *a,
                      const struct ptx_symbol *symbol)
{
    return ptx_symbol_find(&c->symbols, a->name) == symbol && symbol->size >= 0 && a->offset >= 0 &&
           a->width <= symbol->size && a->offset <= symbol->size - (int64_t)a->width;
}

// To hold it against the tensors would tell of memory that a kernel may well use: that it is not
// null is all that is known of it.
static bool is_untraced(const struct checker *c, const struct ptx_access *a, struct origin origin)
{
    return origin.kind == ORIGIN_LOADED || origin.kind == ORIGIN_FOREIGN ||
           (origin.kind == ORIGIN_GIVEN && c->leaks) ||
           (origin.kind == ORIGIN_NUMBER && a->name.size > 0);
}

static bool check_access(struct checker *c, const struct ptx_access *a,
                         const struct ptx_instr *instr)
{
    struct origin origin = origins_of(&c->origins, a->name);
    const struct ptx_symbol *symbol = origin.kind == ORIGIN_SYMBOL
                                          ? ptx_symbol_at(&c->symbols, origin.index)
                                          : NULL;
    struct slice reg = a->name;
    bool sized = a->size.size > 0;
    if ((a->shared && (!symbol || !symbol->shared)) || (sized && origin.kind != ORIGIN_SLOT) ||
        (symbol && symbol->size < 0 && !a->shared)) {
        note_unchecked(c, instr->op, "");
        return true;
    }
    bool untraced = is_untraced(c, a, origin);
    if (untraced)
        note_unchecked(c, instr->op, ": its address is from memory, or of no tensor");
    if (symbol && is_inside(c, a, symbol))
        return true;
    if (!add_site(c, a, origin))
        return false;
    if (!a->shared && (reg.size == 0 || ptx_symbol_find(&c->symbols, reg))) {
        buf_printf(c->out, "mov.u64 %%opd_a, %.*s;\n\t", reg.size ? (int)reg.size : 1,
                   reg.size ? reg.at : "0");
        reg = (struct slice){ "%opd_a", 6 };
    }
    if (a->shared)
        ptx_guard_shared(&c->guard, a, symbol);
    else if (sized)
        ptx_guard_sized(&c->guard, a, reg, origin.index);
    else if (origin.kind == ORIGIN_SLOT)
        ptx_guard_slot(&c->guard, a, reg, origin.index);
    else if (symbol)
        ptx_guard_variable(&c->guard, a, reg, symbol);
    else if (untraced)
        ptx_guard_null(&c->guard, a, reg);
    else
        ptx_guard_any(&c->guard, a, reg, c->n_sites);
    leave(c, a, instr, reg, symbol != NULL);
    return true;
}

// --- a function

static bool replace_end(struct checker *c, const struct ptx_access *a,
                        const struct ptx_instr *instr)
{
    if (!add_site(c, a, (struct origin){ 0 }))
        return false;
    if (instr->guard.size)
        buf_printf(c->out, "@%s%.*s ", instr->negated ? "!" : "", SLICE(instr->guard));
    buf_printf(c->out, "bra OPD_M%u;", c->n_sites);
    buf_printf(&c->cold,
               "OPD_M%u:\n\tmov.u64 %%opd_a, 0;\n\tmov.u32 %%opd_s, %u;\n\tbra OPD_MISS;\n",
               c->n_sites, c->n_sites);
    return true;
}

static bool write_code(struct checker *c, struct slice text)
{
    struct ptx_instr instr;
    struct ptx_access access;
    ptx_instr_read(text, &instr);
    enum ptx_access_kind kind = PTX_ACCESS_NONE;
    if (!slice_begins(text, "."))
        kind = ptx_access_read(&instr, &access);
    if (kind == PTX_ACCESS_FOUND && access.width == 0)
        return replace_end(c, &access, &instr);
    if (kind == PTX_ACCESS_UNKNOWN)
        note_unchecked(c, instr.op, "");
    if (kind == PTX_ACCESS_FOUND && !check_access(c, &access, &instr))
        return false;
    put(c, text);
    return true;
}

// What stands before the last brace.
static void write_end(struct checker *c, uint32_t sites_before)
{
    if (c->n_sites == sites_before)
        return;
    buf_append_str(c->out, "\n");
    buf_append(c->out, c->cold.bytes, c->cold.size);
    ptx_guard_misses(&c->guard);
}

// Where the body ends that begins with the next brace.
static bool find_end(struct checker *c, struct slice rest, struct slice *behind)
{
    struct ptx_statement s;
    int depth = 0;
    do {
        if (!ptx_next(&rest, &s) || s.kind == PTX_END || s.kind == PTX_HEADER)
            return refuse(c, "a function does not end");
        depth += (s.kind == PTX_OPEN) - (s.kind == PTX_CLOSE);
        if (depth > MAX_DEPTH)
            return refuse(c, "scopes are nested deeper than 64");
    } while (depth > 0);
    *behind = rest;
    return true;
}

typedef void instr_fn(struct checker *c, const struct ptx_instr *instr);

static void each_instr(struct checker *c, struct slice body, instr_fn *fn)
{
    struct ptx_statement s;
    struct ptx_instr instr;
    while (ptx_next(&body, &s) && s.kind != PTX_END) {
        if (s.kind != PTX_CODE)
            continue;
        ptx_instr_read(s.text, &instr);
        fn(c, &instr);
    }
}

static void add_origin(struct checker *c, const struct ptx_instr *instr)
{
    origins_add(&c->origins, instr);
}

static void find_leak(struct checker *c, const struct ptx_instr *instr)
{
    c->leaks = c->leaks || origins_leak(&c->origins, instr);
}

static void learn_origins(struct checker *c, struct slice header, struct slice body, bool entry)
{
    c->origins = (struct origins){ .symbols = &c->symbols, .slots = c->in->slots };
    c->origins.n_slots = entry ? c->in->n_slots : 0;
    if (entry)
        origins_read_params(&c->origins, header);
    each_instr(c, body, add_origin);
    origins_work_out(&c->origins);
}

static bool write_body(struct checker *c, struct slice body)
{
    struct ptx_statement s;
    const char *copied = body.at;
    uint32_t before = c->n_sites;
    c->depth = 0;
    while (ptx_next(&body, &s) && s.kind != PTX_END) {
        put(c, (struct slice){ copied, (size_t)(s.text.at - copied) });
        copied = s.text.at + s.text.size;
        if (s.kind == PTX_LINE)
            ptx_lines_read(&c->lines, s.text);
        c->depth += (s.kind == PTX_OPEN) - (s.kind == PTX_CLOSE);
        if (s.kind == PTX_CLOSE && c->depth == 0)
            write_end(c, before);
        if (s.kind != PTX_CODE)
            put(c, s.text);
        else if (!write_code(c, s.text))
            return false;
        if (s.kind == PTX_OPEN && c->depth == 1)
            ptx_guard_registers(&c->guard);
    }
    return true;
}

static void write_table(struct checker *c)
{
    size_t rows = c->in->n_slots ? c->in->n_slots : 1;
    if (!c->has_table)
        buf_printf(c->out,
                   ".visible .const .align 8 .b8 " CHECKED_TABLE "[%zu];\n"
                   ".visible .global .align 8 .b8 " CHECKED_REPORT "[%zu];\n\n",
                   rows * sizeof(struct checked_row), sizeof(struct checked_report));
    c->has_table = true;
}

// Whether it is an entry, and which.
static bool entry_name(struct slice header, struct slice *out)
{
    const char *at = memmem(header.at, header.size, ".entry", 6);
    if (!at)
        return false;
    struct slice rest = { at + 6, (size_t)(header.at + header.size - at) - 6 };
    rest = slice_trim(rest);
    *out = slice_name(&rest);
    return true;
}

// A function's body, which `rest` is behind then; not `wanted`: of another entry.
static bool next_body(struct checker *c, struct slice header, struct slice *rest,
                      struct slice *body, bool *entry, bool *wanted)
{
    struct slice name;
    *body = *rest;
    *entry = entry_name(header, &name);
    *wanted = !*entry || slice_is(name, c->in->entry);
    if (!find_end(c, *body, rest))
        return false;
    body->size -= rest->size;
    c->found = c->found || (*entry && *wanted);
    return true;
}

static bool write_function(struct checker *c, struct slice header, struct slice *rest)
{
    struct slice body;
    bool entry, wanted;
    if (!next_body(c, header, rest, &body, &entry, &wanted))
        return false;
    if (!wanted)
        return true;
    c->cold.size = 0;
    learn_origins(c, header, body, entry);
    write_table(c);
    put(c, header);
    bool ok = write_body(c, body);
    origins_finish(&c->origins);
    return ok;
}

// What one function gives, others are given.
static bool learn_leaks(struct checker *c, struct slice rest)
{
    struct ptx_statement s = { 0 };
    struct slice body;
    bool entry, wanted;
    while (ptx_next(&rest, &s) && s.kind != PTX_END) {
        if (s.kind != PTX_HEADER)
            continue;
        if (!next_body(c, s.text, &rest, &body, &entry, &wanted))
            return false;
        if (!wanted || c->leaks)
            continue;
        learn_origins(c, s.text, body, entry);
        each_instr(c, body, find_leak);
        origins_finish(&c->origins);
    }
    return true;
}

// --- the module

static void read_target(struct checker *c, struct slice line)
{
    const char *at = memmem(line.at, line.size, "sm_", 3);
    int64_t arch = 0;
    struct slice rest = { at, at ? (size_t)(line.at + line.size - at) : 0 };
    if (!slice_begins(line, ".target") || !at)
        return;
    rest = (struct slice){ rest.at + 3, rest.size - 3 };
    slice_number(&rest, &arch);
    c->guard.clusters = arch >= 90;
}

// What is said of files stands at the end, in part.
static bool learn_module(struct checker *c, struct slice rest)
{
    struct ptx_statement s;
    do {
        if (!ptx_next(&rest, &s))
            return refuse(c, "a statement does not end");
        if (s.kind == PTX_LINE && slice_begins(s.text, ".file"))
            ptx_lines_read(&c->lines, s.text);
        if (s.kind == PTX_LINE)
            read_target(c, s.text);
        if (s.kind == PTX_CODE && slice_begins(s.text, "."))
            ptx_symbols_add(&c->symbols, s.text);
    } while (s.kind != PTX_END);
    return true;
}

static bool write_module(struct checker *c, struct slice rest)
{
    struct ptx_statement s = { 0 };
    const char *copied = rest.at;
    buf_append_str(c->out, CHECKED_SLOTS);
    for (size_t i = 0; i < c->in->n_slots; i++)
        buf_printf(c->out, " %u", c->in->slots[i]);
    buf_append_str(c->out, "\n");
    while (ptx_next(&rest, &s) && s.kind != PTX_END) {
        put(c, (struct slice){ copied, (size_t)(s.text.at - copied) });
        if (s.kind == PTX_HEADER) {
            if (!write_function(c, s.text, &rest))
                return false;
        } else {
            put(c, s.text);
        }
        copied = rest.at;
    }
    if (!c->found)
        return refuse(c, "its kernel is not there");
    buf_append_str(c->out, "\n");
    buf_append(c->out, c->sites.bytes, c->sites.size);
    return true;
}

bool ptx_check(const struct ptx_check_input *in, struct buf *out, struct buf *unchecked,
               struct opd_err *err)
{
    struct checker c = { .in = in, .out = out, .unchecked = unchecked, .err = err };
    c.guard = (struct ptx_guard){ .out = out, .symbols = &c.symbols, .n_slots = in->n_slots };
    if (in->size > PTX_CHECK_MAX_TEXT)
        return refuse(&c, "it has more than 16 MiB");
    if (in->n_slots > CHECKED_MAX_SLOTS)
        return refuse(&c, "its kernel takes more than 512 tensors");
    char *text = mem_strndup(in->text, in->size);
    struct slice all = { text, strlen(text) };
    bool ok = all.size == in->size || refuse(&c, "it holds a zero byte");
    ok = ok && (ptx_blank_comments(text, all.size) || refuse(&c, "a comment does not end"));
    ok = ok && learn_module(&c, all) && learn_leaks(&c, all) && write_module(&c, all);
    ptx_symbols_finish(&c.symbols);
    ptx_lines_finish(&c.lines);
    buf_finish(&c.cold);
    buf_finish(&c.sites);
    free(text);
    return ok;
}
