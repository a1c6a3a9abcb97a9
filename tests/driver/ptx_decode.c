#include "ptx_build.h"

#include <stdlib.h>

#include "run.h"

enum { PAIR = 1, TWO = 2, MEMORY = 4, BRANCH = 8 };

static const struct {
    const char *name;
    ptx_run *ints, *floats;
    int flags;
} ops[] = {
#define PTX_OP(name, ints, floats, flags) { #name, ints, floats, flags },
#include "ptx_ops.def"
#undef PTX_OP
};

static bool add_word(struct ins *i, struct token t)
{
#define PTX_WORD(word, field, value)                                                               \
    if (token_is(t, word)) {                                                                       \
        i->field = value;                                                                          \
        return true;                                                                               \
    }
#define PTX_NO_WORD(word)                                                                          \
    if (token_is(t, word))                                                                         \
        return true;
#include "ptx_words.def"
#undef PTX_WORD
#undef PTX_NO_WORD
    return false;
}

static struct token next_part(struct token *rest)
{
    size_t n = 0;
    while (n < rest->n && rest->at[n] != '.')
        n++;
    struct token part = { rest->at, n };
    size_t skip = n < rest->n ? n + 1 : n;
    *rest = (struct token){ rest->at + skip, rest->n - skip };
    return part;
}

// "ld.global.v4.b32" into the instruction. Of mma's four types the first and second count.
static bool read_word(struct build *b, struct token word, struct ins *i)
{
    struct token rest = word, name = next_part(&rest);
    struct ptx_type types[4] = { { 0 } };
    int op = 0, n = 0;
    while (op < OP_COUNT && !token_is(name, ops[op].name))
        op++;
    if (op == OP_COUNT)
        return ptx_fail(b, "the stand-in has no instruction", word);
    i->op = (uint8_t)op;
    while (rest.n) {
        struct token part = next_part(&rest);
        if (n < 4 && token_type(part, &types[n]))
            n++;
        else if (!add_word(i, part))
            return ptx_fail(b, "the stand-in does not know what stands behind the instruction",
                            part);
    }
    i->type = types[0];
    i->from = n > 1 ? types[1] : types[0];
    if (op == OP_setp || op == OP_set)
        i->compare = i->compare ? i->compare : i->part == P_LO ? C_LT : C_GT;
    i->run = i->type.kind >= K_FLOAT ? ops[op].floats : ops[op].ints;
    return i->run || ptx_fail(b, "the stand-in has no such form of", word);
}

// --- operands

static void add_slot(struct build *b, struct ins *i, int *n, uint32_t slot)
{
    if (*n == PTX_MAX_OPERANDS)
        ptx_fail(b, "more operands than there is room for", ptx_peek(b));
    else
        i->o[(*n)++] = slot;
}

// The address or offset of a variable as a slot. What is in the frame is behind the frame's base.
static uint32_t symbol_slot(struct build *b, struct ins *i, const struct symbol *s)
{
    if (s->kind == Y_FRAME)
        i->framed = true;
    if (s->kind == Y_SHARED && s->value == UINT64_MAX)
        return ptx_special_slot(b, (struct token){ "%shared_end", 11 });
    return ptx_constant(b, s->value);
}

static bool token_begins(struct token t, const char *text)
{
    return t.n >= strlen(text) && memcmp(t.at, text, strlen(text)) == 0;
}

static uint32_t value_slot(struct build *b, struct ins *i, struct token t)
{
    uint32_t number, slot;
    const struct symbol *s;
    if (token_is(t, "_"))
        return 0;
    if (token_is(t, "WARP_SZ"))
        return ptx_constant(b, WARP);
    if (token_is(t, "-"))
        return ptx_constant(b, 0 - token_number(b, ptx_next(b), i->type));
    if (token_begins(t, "%clock") || token_begins(t, "%globaltimer"))
        i->run = run_clock;
    if ((slot = ptx_special_slot(b, t)) != 0)
        return slot;
    if ((s = ptx_find(b, t, &number)) != NULL)
        return s->kind == Y_REGISTERS ? (uint32_t)s->value + number : symbol_slot(b, i, s);
    return ptx_constant(b, token_number(b, t, i->type));
}

// !%p: an instruction before this one makes it. The one at hand may move.
static uint32_t negated_slot(struct build *b)
{
    struct ins *i = ptx_emit(b);
    i->op = OP_not;
    i->run = run_bits;
    i->type = (struct ptx_type){ K_PRED, 1, false };
    uint32_t slot = value_slot(b, i, ptx_next(b));
    i->o[0] = b->f->n_slots++;
    i->o[1] = slot;
    return i->o[0];
}

static void read_address(struct build *b, struct ins *i, int *n)
{
    struct token t = ptx_next(b);
    uint32_t number;
    const struct symbol *s = ptx_find(b, t, &number);
    if (s && s->kind == Y_FRAME && i->space == S_PARAM)
        i->space = S_LOCAL;
    if (!b->f->is_entry && i->space == S_PARAM)
        i->space = S_LOCAL;
    add_slot(b, i, n, value_slot(b, i, t));
    for (;;) {
        bool minus = ptx_accept(b, "-");
        if (!minus && !ptx_accept(b, "+"))
            break;
        minus |= ptx_accept(b, "-");
        int64_t offset = (int64_t)token_number(b, ptx_next(b), (struct ptx_type){ 0 });
        *(*n > 1 && i->op == OP_cp ? &i->source_offset : &i->offset) += minus ? -offset : offset;
    }
    ptx_expect(b, "]");
}

static void read_vector(struct build *b, struct ins *i, int *n)
{
    int before = *n;
    do
        add_slot(b, i, n, value_slot(b, i, ptx_next(b)));
    while (ptx_accept(b, ","));
    ptx_expect(b, "}");
    *(before == 0 ? &i->first : &i->second) = (uint8_t)(*n - before);
}

static void read_operand(struct build *b, struct ins *i, int *n)
{
    bool first = *n == 0 && ops[i->op].flags & PAIR;
    struct token t = ptx_next(b);
    if (token_is(t, "["))
        read_address(b, i, n);
    else if (token_is(t, "{"))
        read_vector(b, i, n);
    else if (token_is(t, "!"))
        add_slot(b, i, n, negated_slot(b));
    else
        add_slot(b, i, n, value_slot(b, i, t));
    if (first)
        add_slot(b, i, n, ptx_accept(b, "|") ? value_slot(b, i, ptx_next(b)) : 0);
}

static void read_branch(struct build *b, struct ins *i)
{
    struct token t = ptx_next(b);
    if (i->op == OP_bra) {
        *PTX_PUSH(b->fixups, b->n_fixups) = (struct fixup){ .name = t, .code = b->f->n_code };
        return;
    }
    i->o[0] = value_slot(b, i, t);
    ptx_expect(b, ",");
    t = ptx_next(b);
    struct label *label = ptx_find_label(b, t);
    if (!label || !label->table) {
        ptx_fail(b, "no such table", t);
        return;
    }
    i->table = label->table;
    i->n_table = label->n_table;
}

// --- calls

static struct ptx_variable read_passed(struct build *b)
{
    uint32_t number;
    struct token t = ptx_next(b);
    const struct symbol *s = ptx_find(b, t, &number);
    if (!s || s->kind != Y_FRAME) {
        ptx_fail(b, "what is passed is no .param", t);
        return (struct ptx_variable){ 0 };
    }
    return (struct ptx_variable){ (uint32_t)s->value, s->size };
}

static int find_builtin(struct token name)
{
    static const char *const names[] = { "vprintf", "__assertfail", "malloc", "free" };
    for (int k = 0; k < (int)(sizeof names / sizeof *names); k++)
        if (token_is(name, names[k]))
            return k;
    return -1;
}

static void read_called(struct build *b, struct ptx_call *call)
{
    uint32_t number;
    struct token name = ptx_next(b);
    const struct symbol *s = ptx_find(b, name, &number);
    call->builtin = find_builtin(name);
    if (s && s->kind == Y_FUNCTION) {
        call->function = (const struct ptx_function *)(uintptr_t)s->value;
    } else if (s && s->kind == Y_REGISTERS) {
        call->indirect = true;
        call->slot = (uint32_t)s->value + number;
    } else {
        ptx_fail(b, "no such function", name);
    }
}

static void read_call(struct build *b, struct ins *i)
{
    struct ptx_call *call = calloc(1, sizeof *call);
    if (!call)
        abort();
    i->call = call;
    if (ptx_accept(b, "(")) {
        call->result = read_passed(b);
        call->n_results = 1;
        ptx_expect(b, ")");
        ptx_expect(b, ",");
    }
    read_called(b, call);
    if (ptx_accept(b, ",") && ptx_accept(b, "("))
        while (!ptx_accept(b, ")") && call->n_args < 16 && !b->failed) {
            call->args[call->n_args++] = read_passed(b);
            ptx_accept(b, ",");
        }
    if (ptx_accept(b, ",")) // a prototype
        ptx_next(b);
}

void ptx_decode(struct build *b, struct token word, int guard, bool negated)
{
    struct ins i = { .guard = guard, .negated = negated };
    int n = 0;
    if (!read_word(b, word, &i))
        return;
    if (ops[i.op].flags & BRANCH)
        read_branch(b, &i);
    else if (i.op == OP_call)
        read_call(b, &i);
    else if (!token_is(ptx_peek(b), ";"))
        do
            read_operand(b, &i, &n);
        while (ptx_accept(b, ","));
    ptx_expect(b, ";");
    if (!i.n)
        i.n = (uint8_t)(ops[i.op].flags & MEMORY ? 1 : n);
    if (i.op == OP_bra)
        b->fixups[b->n_fixups - 1].code = b->f->n_code;
    *ptx_emit(b) = i;
}
