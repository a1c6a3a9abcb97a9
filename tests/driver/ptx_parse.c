#include "ptx_build.h"

#include <ctype.h>
#include <stdlib.h>

#include "run.h"

void *ptx_grow(void *array, size_t n, size_t each)
{
    if (n & (n - 1))
        return array;
    array = realloc(array, (n ? 2 * n : 1) * each);
    if (!array)
        abort();
    memset((uint8_t *)array + n * each, 0, (n ? n : 1) * each);
    return array;
}

// --- names

const struct symbol *ptx_find(struct build *b, struct token name, uint32_t *number)
{
    size_t stem = name.n;
    while (stem > 1 && isdigit((unsigned char)name.at[stem - 1]))
        stem--;
    *number = stem < name.n ? (uint32_t)strtoul(name.at + stem, NULL, 10) : 0;
    for (size_t i = b->n_symbols; i-- > 0;) {
        const struct symbol *s = &b->symbols[i];
        bool many = s->many && stem < name.n && *number < s->size &&
                    token_equal(s->name, (struct token){ name.at, stem });
        if (many || (!s->many && token_equal(s->name, name))) {
            *number = many ? *number : 0;
            return s;
        }
    }
    return NULL;
}

struct label *ptx_find_label(struct build *b, struct token name)
{
    for (size_t i = b->n_labels; i-- > 0;)
        if (token_equal(b->labels[i].name, name))
            return &b->labels[i];
    return NULL;
}

static void add_symbol(struct build *b, struct token name, enum symbol_kind kind, uint64_t value)
{
    *PTX_PUSH(b->symbols, b->n_symbols) =
        (struct symbol){ .name = name, .kind = kind, .value = value };
}

static void open_scope(struct build *b)
{
    if (b->depth == (int)(sizeof b->scopes / sizeof *b->scopes))
        ptx_fail(b, "too deep", ptx_peek(b));
    else
        b->scopes[b->depth++] = (struct scope){ b->n_symbols, b->n_labels, b->n_fixups };
}

// Branches to what this scope has no label for may be for the one around it.
static void close_scope(struct build *b)
{
    const struct scope *s = &b->scopes[--b->depth];
    size_t left = s->n_fixups;
    for (size_t i = s->n_fixups; i < b->n_fixups; i++) {
        struct fixup *x = &b->fixups[i];
        struct label *label = ptx_find_label(b, x->name);
        if (!label || label < b->labels + s->n_labels)
            b->fixups[left++] = *x;
        else if (x->entry)
            *x->entry = label->at;
        else
            b->f->code[x->code].target = label->at;
    }
    b->n_fixups = left;
    b->n_labels = s->n_labels;
    b->n_symbols = s->n_symbols;
}

uint32_t ptx_constant(struct build *b, uint64_t value)
{
    struct ptx_function *f = b->f;
    for (size_t i = 0; i < f->n_fills; i++)
        if (f->fills[i].value == value)
            return f->fills[i].slot;
    *PTX_PUSH(f->fills, f->n_fills) = (struct ptx_fill){ f->n_slots, value };
    return f->n_slots++;
}

uint32_t ptx_special_slot(struct build *b, struct token name)
{
    static const struct {
        const char *name;
        int number;
    } names[] = {
        { "%tid.x", SP_TID }, { "%tid.y", SP_TID + 1 }, { "%tid.z", SP_TID + 2 },
        { "%ntid.x", SP_NTID }, { "%ntid.y", SP_NTID + 1 }, { "%ntid.z", SP_NTID + 2 },
        { "%ctaid.x", SP_CTAID }, { "%ctaid.y", SP_CTAID + 1 }, { "%ctaid.z", SP_CTAID + 2 },
        { "%nctaid.x", SP_NCTAID }, { "%nctaid.y", SP_NCTAID + 1 },
        { "%nctaid.z", SP_NCTAID + 2 }, { "%laneid", SP_LANE }, { "%warpid", SP_WARP },
        { "%nwarpid", SP_NWARP }, { "%lanemask_eq", SP_LANEMASK_EQ },
        { "%lanemask_le", SP_LANEMASK_LE }, { "%lanemask_lt", SP_LANEMASK_LT },
        { "%lanemask_ge", SP_LANEMASK_GE }, { "%lanemask_gt", SP_LANEMASK_GT },
        { "%dynamic_smem_size", SP_DYNAMIC }, { "%shared_end", SP_SHARED_END },
        { "%total_smem_size", SP_TOTAL }, { "%smid", SP_ZERO }, { "%nsmid", SP_ZERO },
        { "%gridid", SP_ZERO }, { "%clock", SP_CLOCK }, { "%clock64", SP_CLOCK },
        { "%globaltimer", SP_CLOCK },
    };
    struct ptx_function *f = b->f;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        if (!token_is(name, names[k].name))
            continue;
        uint64_t number = (uint64_t)names[k].number;
        for (size_t i = 0; i < f->n_specials; i++)
            if (f->specials[i].value == number)
                return f->specials[i].slot;
        *PTX_PUSH(f->specials, f->n_specials) = (struct ptx_fill){ f->n_slots, number };
        return f->n_slots++;
    }
    return 0;
}

struct ins *ptx_emit(struct build *b)
{
    struct ins *i = PTX_PUSH(b->f->code, b->f->n_code);
    *i = (struct ins){ .guard = -1 };
    return i;
}

// --- variables

struct variable {
    struct token name;
    struct ptx_type type;
    size_t align, size;
    bool open; // name[]: as large as the launch says
};

// From behind the space to behind the name and its dimensions.
static struct variable read_variable(struct build *b)
{
    struct variable v = { .align = 1 };
    size_t vector = 1;
    struct token t;
    for (t = ptx_next(b); t.n && t.at[0] == '.'; t = ptx_next(b)) {
        struct token word = { t.at + 1, t.n - 1 };
        if (token_is(word, "align"))
            v.align = (size_t)token_number(b, ptx_next(b), v.type);
        else if (token_is(word, "v2") || token_is(word, "v4"))
            vector = (size_t)(word.at[1] - '0');
        else if (token_is(word, "attribute"))
            ptx_skip_to(b, ")");
        else if (!token_type(word, &v.type) && !token_is(word, "ptr") && !token_is(word, "global"))
            ptx_fail(b, "a declaration that is not known", t);
    }
    v.name = t;
    v.size = v.type.size * vector * (v.type.two ? 2 : 1);
    if (v.align < v.size && vector * v.type.size == v.size)
        v.align = v.size;
    while (ptx_accept(b, "[")) {
        t = ptx_next(b);
        v.open |= token_is(t, "]");
        v.size *= v.open ? 0 : (size_t)token_number(b, t, v.type);
        if (!v.open)
            ptx_expect(b, "]");
    }
    if (!v.name.n || v.align > 4096 || v.size > (size_t)1 << 30)
        ptx_fail(b, "a variable that is none", v.name);
    return v;
}

static uint32_t place(uint32_t *size, const struct variable *v)
{
    uint32_t align = (uint32_t)v->align, at = (*size + align - 1) / align * align;
    *size = at + (uint32_t)v->size;
    return at;
}

// { 1, 2, generic(name)+4, { 3 } }: of elements, in order.
static void read_values(struct build *b, const struct variable *v, uint8_t *at, size_t *filled)
{
    uint32_t number;
    do {
        struct token t = ptx_next(b);
        bool minus = token_is(t, "-");
        if (token_is(t, "{")) {
            read_values(b, v, at, filled);
            ptx_expect(b, "}");
            continue;
        }
        if (minus || token_is(t, "generic"))
            t = ptx_next(b);
        if (token_is(t, "("))
            t = ptx_next(b);
        const struct symbol *s = ptx_find(b, t, &number);
        uint64_t value = s ? s->value : token_number(b, t, v->type);
        ptx_accept(b, ")");
        if (ptx_accept(b, "+"))
            value += token_number(b, ptx_next(b), v->type);
        if (minus)
            value = 0 - value;
        if (*filled + v->type.size > v->size)
            ptx_fail(b, "more values than there is room for", t);
        else
            memcpy(at + *filled, &value, v->type.size);
        *filled += v->type.size;
    } while (ptx_accept(b, ","));
}

// Of the module, whose memory the process has; its name stays known behind a function's end.
static void add_global(struct build *b, const struct variable *v)
{
    struct ptx_global *g = PTX_PUSH(b->module->globals, b->module->n_globals);
    size_t filled = 0;
    g->name = strndup(v->name.at, v->name.n);
    g->size = v->size;
    g->at = aligned_alloc(256, (v->size + 511) / 256 * 256);
    if (!g->at || !g->name)
        abort();
    memset(g->at, 0, (v->size + 511) / 256 * 256);
    memory_add((uintptr_t)g->at, v->size ? v->size : 1);
    if (ptx_accept(b, "=")) {
        bool many = ptx_accept(b, "{");
        read_values(b, v, g->at, &filled);
        if (many)
            ptx_expect(b, "}");
    }
    add_symbol(b, v->name, Y_ADDRESS, (uintptr_t)g->at);
}

static void read_variables(struct build *b, struct token space)
{
    struct variable v = read_variable(b);
    for (;;) {
        if (token_is(space, ".shared") && v.open) // dynamic: behind all others
            add_symbol(b, v.name, Y_SHARED, UINT64_MAX);
        else if (token_is(space, ".shared"))
            add_symbol(b, v.name, Y_SHARED, place(&b->module->shared_size, &v));
        else if (b->f && (token_is(space, ".local") || token_is(space, ".param"))) {
            add_symbol(b, v.name, Y_FRAME, place(&b->f->frame_size, &v));
            b->symbols[b->n_symbols - 1].size = (uint32_t)v.size;
        } else
            add_global(b, &v);
        if (!ptx_accept(b, ","))
            break;
        v.name = ptx_next(b);
    }
    ptx_expect(b, ";");
}

// .reg .b32 %r<12>, %x;
static void read_registers(struct build *b)
{
    struct token type = ptx_next(b);
    if (ptx_accept(b, ".v2") || ptx_accept(b, ".v4") || token_is(type, ".b128"))
        ptx_fail(b, "registers that are not known", type);
    do {
        struct token name = ptx_next(b);
        bool many = ptx_accept(b, "<");
        uint32_t n = many ? (uint32_t)token_number(b, ptx_next(b), (struct ptx_type){ 0 }) : 1;
        if (many)
            ptx_expect(b, ">");
        if (n > 1 << 20)
            n = ptx_fail(b, "too many registers", name);
        *PTX_PUSH(b->symbols, b->n_symbols) =
            (struct symbol){ name, Y_REGISTERS, many, b->f->n_slots, n };
        b->f->n_slots += n;
    } while (ptx_accept(b, ","));
    ptx_expect(b, ";");
}

// --- functions

static void read_table(struct build *b)
{
    struct label *label = b->n_labels ? &b->labels[b->n_labels - 1] : NULL;
    uint32_t n = 0;
    if (!label || label->table) {
        ptx_fail(b, "a table without a name", ptx_peek(b));
        return;
    }
    uint32_t *table = calloc(4096, sizeof *table);
    if (!table)
        abort();
    *PTX_PUSH(b->module->tables, b->module->n_tables) = label->table = table;
    do
        *PTX_PUSH(b->fixups, b->n_fixups) =
            (struct fixup){ .name = ptx_next(b), .entry = &table[n++] };
    while (ptx_accept(b, ",") && n < 4096);
    ptx_expect(b, ";");
    label->n_table = n;
}

static void read_guarded(struct build *b)
{
    bool negated = ptx_accept(b, "!");
    struct token name = ptx_next(b);
    uint32_t number;
    const struct symbol *s = ptx_find(b, name, &number);
    if (!s || s->kind != Y_REGISTERS)
        ptx_fail(b, "a guard that is no register", name);
    else
        ptx_decode(b, ptx_next(b), (int)(s->value + number), negated);
}

static void read_statement(struct build *b)
{
    struct token t = ptx_next(b);
    if (token_is(t, "{"))
        open_scope(b);
    else if (token_is(t, "}"))
        close_scope(b);
    else if (token_is(t, "@"))
        read_guarded(b);
    else if (token_is(t, ".loc") || token_is(t, ".file"))
        ptx_skip_line(b);
    else if (token_is(t, ".pragma") || token_is(t, ".callprototype"))
        ptx_skip_to(b, ";");
    else if (token_is(t, ".branchtargets"))
        read_table(b);
    else if (token_is(t, ".reg"))
        read_registers(b);
    else if (t.at[0] == '.')
        read_variables(b, t);
    else if (ptx_accept(b, ":"))
        *PTX_PUSH(b->labels, b->n_labels) =
            (struct label){ .name = t, .at = (uint32_t)b->f->n_code };
    else
        ptx_decode(b, t, -1, false);
}

static void read_params(struct build *b, struct ptx_function *f, bool result)
{
    uint32_t *size = f->is_entry ? &f->args_size : &f->frame_size;
    while (!ptx_accept(b, ")") && !b->failed) {
        ptx_expect(b, ".param");
        struct variable v = read_variable(b);
        uint32_t at = place(size, &v);
        struct ptx_variable p = { at, (uint32_t)v.size };
        if (result) {
            f->result = p;
            f->has_result = true;
        } else {
            *PTX_PUSH(f->params, f->n_params) = p;
        }
        add_symbol(b, v.name, f->is_entry ? Y_PARAM : Y_FRAME, at);
        ptx_accept(b, ",");
    }
}

static struct ptx_function *function_of(struct build *b, struct token name, bool is_entry)
{
    uint32_t number;
    const struct symbol *s = ptx_find(b, name, &number);
    if (s && s->kind == Y_FUNCTION)
        return (struct ptx_function *)(uintptr_t)s->value;
    struct ptx_function *f = calloc(1, sizeof *f);
    if (!f)
        abort();
    f->name = strndup(name.at, name.n);
    f->is_entry = is_entry;
    f->module = b->module;
    *PTX_PUSH(b->module->functions, b->module->n_functions) = f;
    add_symbol(b, name, Y_FUNCTION, (uintptr_t)f);
    return f;
}

static void read_body(struct build *b)
{
    int depth = b->depth;
    do
        read_statement(b);
    while (b->depth > depth && !b->failed && ptx_peek(b).n);
    if (b->n_fixups)
        ptx_fail(b, "no such label", b->fixups[0].name);
    struct ins *end = ptx_emit(b); // what runs off its end
    end->run = run_ret;
    end->op = OP_ret;
}

// From behind ".entry" or ".func": a declaration, or all of it.
static void read_function(struct build *b, bool is_entry)
{
    struct scope outside = { b->n_symbols, 0, 0 };
    struct ptx_function result = { 0 }, *f;
    if (!is_entry && ptx_accept(b, "("))
        read_params(b, &result, true);
    struct token name = ptx_next(b);
    size_t n = b->n_symbols - outside.n_symbols; // the result's name comes behind the function's
    struct symbol kept = n ? b->symbols[--b->n_symbols] : (struct symbol){ 0 };
    f = function_of(b, name, is_entry);
    outside.n_symbols = b->n_symbols;
    if (n)
        *PTX_PUSH(b->symbols, b->n_symbols) = kept;
    f->n_params = 0;
    f->args_size = 0;
    f->frame_size = result.frame_size;
    f->result = result.result;
    f->has_result = result.has_result;
    f->n_slots = 1; // the first takes what nobody wants
    if (ptx_accept(b, "("))
        read_params(b, f, false);
    while (!b->failed && ptx_peek(b).n && !token_is(ptx_peek(b), "{") && !ptx_accept(b, ";")) {
        struct token t = ptx_next(b);
        if (token_is(t, ".maxntid") || token_is(t, ".reqntid")) {
            f->max_threads = 1;
            do
                f->max_threads *= (unsigned)token_number(b, ptx_next(b), (struct ptx_type){ 0 });
            while (ptx_accept(b, ","));
        }
    }
    b->f = f;
    if (b->at[-1] != ';' && token_is(ptx_peek(b), "{"))
        read_body(b);
    b->f = NULL;
    b->n_symbols = outside.n_symbols;
    b->n_labels = b->n_fixups = 0;
}

static void read_section(struct build *b)
{
    int depth = 0;
    for (struct token t = ptx_next(b); t.n; t = ptx_next(b)) {
        depth += token_is(t, "{") ? 1 : token_is(t, "}") ? -1 : 0;
        if (depth == 0 && token_is(t, "}"))
            return;
    }
}

static void read_module(struct build *b)
{
    for (struct token t = ptx_next(b); t.n && !b->failed; t = ptx_next(b)) {
        if (token_is(t, ".version") || token_is(t, ".target") || token_is(t, ".address_size") ||
            token_is(t, ".file") || token_is(t, ".loc"))
            ptx_skip_line(b);
        else if (token_is(t, ".section"))
            read_section(b);
        else if (token_is(t, ".pragma") || token_is(t, ".alias"))
            ptx_skip_to(b, ";");
        else if (token_is(t, ".entry") || token_is(t, ".func"))
            read_function(b, token_is(t, ".entry"));
        else if (token_is(t, ".global") || token_is(t, ".const") || token_is(t, ".shared"))
            read_variables(b, t);
        else if (!token_is(t, ".visible") && !token_is(t, ".weak") && !token_is(t, ".extern") &&
                 !token_is(t, ".common") && !token_is(t, "}") && !token_is(t, ";"))
            ptx_fail(b, "a statement that is not known", t);
    }
}

struct ptx_module *ptx_parse(const char *text, char *message, size_t message_size)
{
    struct ptx_module *m = calloc(1, sizeof *m);
    struct build b = {
        .at = text, .module = m, .message = message, .message_size = message_size
    };
    if (!m)
        abort();
    read_module(&b);
    free(b.symbols);
    free(b.labels);
    free(b.fixups);
    m->shared_size = (m->shared_size + 15) / 16 * 16;
    if (!b.failed)
        return m;
    ptx_free(m);
    return NULL;
}

static void free_function(struct ptx_function *f)
{
    for (size_t i = 0; i < f->n_code; i++)
        free(f->code[i].call);
    free(f->code);
    free(f->fills);
    free(f->specials);
    free(f->params);
    free(f->name);
    free(f);
}

void ptx_free(struct ptx_module *m)
{
    for (size_t i = 0; i < m->n_functions; i++)
        free_function(m->functions[i]);
    for (size_t i = 0; i < m->n_globals; i++) {
        memory_remove((uintptr_t)m->globals[i].at);
        free(m->globals[i].at);
        free(m->globals[i].name);
    }
    for (size_t i = 0; i < m->n_tables; i++)
        free(m->tables[i]);
    free(m->functions);
    free(m->globals);
    free(m->tables);
    free(m);
}
