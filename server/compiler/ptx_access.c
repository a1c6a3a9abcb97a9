#include "compiler/ptx_access.h"

static bool is_unchecked(struct slice op)
{
    static const char *const names[] = { "multimem",
                                         "wmma.load",
                                         "wmma.store",
                                         "ldmatrix",
                                         "stmatrix",
                                         "cp.async.bulk.tensor",
                                         "cp.reduce.async.bulk",
                                         "discard",
                                         "tex",
                                         "suld",
                                         "sust",
                                         "sured",
                                         "tld4" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (slice_begins(op, names[i]))
            return true;
    return false;
}

static enum ptx_access_kind set_address(struct ptx_access *out, struct slice operand)
{
    return ptx_address(operand, &out->name, &out->offset) ? PTX_ACCESS_FOUND : PTX_ACCESS_UNKNOWN;
}

static unsigned vector_of(const struct ptx_instr *instr)
{
    return ptx_has_word(instr, "v8")   ? 8
           : ptx_has_word(instr, "v4") ? 4
           : ptx_has_word(instr, "v2") ? 2
                                       : 1;
}

// The size of the last type that is named.
static unsigned element_of(const struct ptx_instr *instr)
{
    struct slice words = instr->op, word;
    unsigned size = 0;
    while (slice_next(&words, '.', &word))
        if (ptx_type_size(word))
            size = ptx_type_size(word);
    return size;
}

static enum ptx_access_kind read_plain(const struct ptx_instr *instr, struct ptx_access *out)
{
    struct slice space = ptx_space(instr, 0);
    if (slice_begins(space, "param") || slice_is(space, "const") || slice_is(space, "local") ||
        ptx_has_word(instr, "async") || ptx_has_word(instr, "bulk"))
        return PTX_ACCESS_NONE;
    bool loads = slice_is(instr->head, "ld") || slice_is(instr->head, "ldu");
    out->does = loads ? "read" : "write";
    out->shared = slice_begins(space, "shared");
    out->generic = slice_is(space, "generic");
    out->element = element_of(instr);
    out->width = out->element * vector_of(instr);
    for (int i = 0; i < instr->n && out->width > 0 && out->width <= 32; i++)
        if (slice_begins(instr->operands[i], "["))
            return set_address(out, instr->operands[i]);
    return PTX_ACCESS_UNKNOWN;
}

// Between global and shared memory: the global side.
static enum ptx_access_kind read_copy(const struct ptx_instr *instr, struct ptx_access *out)
{
    if (instr->n < 3 || !slice_begins(instr->operands[0], "["))
        return PTX_ACCESS_NONE; // of groups
    bool from = slice_is(ptx_space(instr, 1), "global"), bulk = ptx_has_word(instr, "bulk");
    out->does = from ? "read" : "write";
    out->element = out->width = 1;
    out->size = instr->operands[2];
    if (!bulk) {
        struct slice size = instr->operands[2], sized = instr->n > 3 ? instr->operands[3] : size;
        int64_t width;
        if (!slice_number(&size, &width) || (width != 4 && width != 8 && width != 16))
            return PTX_ACCESS_UNKNOWN;
        bool constant = !slice_begins(sized, "%r") || slice_begins(sized, "%rd");
        out->width = out->element = constant ? (unsigned)width : 1;
        out->size = constant ? (struct slice){ 0 } : sized;
    }
    return set_address(out, instr->operands[from]);
}

static enum ptx_access_kind read_end(const struct ptx_instr *instr, struct ptx_access *out)
{
    bool traps = slice_is(instr->head, "trap");
    if (!traps && !(slice_is(instr->head, "call") && instr->n > 0 &&
                    slice_is(instr->operands[0], "__assertfail")))
        return PTX_ACCESS_NONE;
    out->does = traps ? "trap" : "assert";
    return PTX_ACCESS_FOUND;
}

enum ptx_access_kind ptx_access_read(const struct ptx_instr *instr, struct ptx_access *out)
{
    static const char *const plain[] = { "ld", "ldu", "st", "atom", "red" };
    *out = (struct ptx_access){ 0 };
    if (is_unchecked(instr->op))
        return PTX_ACCESS_UNKNOWN;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (slice_is(instr->head, plain[i]))
            return read_plain(instr, out);
    if (slice_begins(instr->op, "cp.async."))
        return read_copy(instr, out);
    return read_end(instr, out);
}
