#include "compiler/ptx_origin.h"

#include <ctype.h>

enum { MAX_SOURCES = 4, MAX_PASSES = 40 };

#define COUNT(buf, type) ((buf).size / sizeof(type))

// --- variables of the module

static void *id_of(size_t place)
{
    return (void *)(uintptr_t)(place + 1);
}

static size_t place_of(const void *id)
{
    return (size_t)(uintptr_t)id - 1;
}

// The sizes behind a name, "[4][8]", multiplied: -1 where one is missing.
static int64_t array_size(struct slice s, int64_t size)
{
    while ((s = slice_trim(s)).size > 0 && s.at[0] == '[') {
        int64_t n = 0;
        s = slice_trim((struct slice){ s.at + 1, s.size - 1 });
        if (!slice_number(&s, &n))
            return -1;
        s = slice_trim(s);
        if (n < 0 || n > UINT32_MAX || size > UINT32_MAX || s.size == 0)
            return -1;
        size *= n;
        s = (struct slice){ s.at + 1, s.size - 1 };
    }
    return size;
}

static struct slice next_token(struct slice *s)
{
    *s = slice_trim(*s);
    size_t n = 0;
    while (n < s->size && !isspace((unsigned char)s->at[n]) && (n == 0 || s->at[n] != '['))
        n++;
    struct slice token = { s->at, n };
    *s = (struct slice){ s->at + n, s->size - n };
    return token;
}

void ptx_symbols_add(struct ptx_symbols *symbols, struct slice declaration)
{
    struct slice s = declaration, token;
    struct ptx_symbol found = { 0 };
    bool has_space = false;
    unsigned size = 0;
    if (s.size > 0 && s.at[s.size - 1] == ';')
        s.size--;
    while ((token = next_token(&s)).size > 0 && token.at[0] == '.') {
        struct slice word = { token.at + 1, token.size - 1 };
        found.shared = found.shared || slice_is(word, "shared");
        has_space = has_space || slice_is(word, "shared") || slice_is(word, "global");
        size = size ? size : ptx_type_size(word);
        if (slice_is(word, "align"))
            next_token(&s);
    }
    found.name = slice_name(&token);
    if (!has_space || size == 0 || found.name.size == 0 || token.size > 0)
        return;
    found.size = array_size(s, size);
    map_put(&symbols->ids, slice_hash(found.name), id_of(COUNT(symbols->items, found)));
    buf_append(&symbols->items, &found, sizeof found);
}

const struct ptx_symbol *ptx_symbol_at(const struct ptx_symbols *symbols, uint32_t index)
{
    return (const struct ptx_symbol *)(const void *)symbols->items.bytes + index;
}

const struct ptx_symbol *ptx_symbol_find(const struct ptx_symbols *symbols, struct slice name)
{
    void *id = name.size ? map_get(&symbols->ids, slice_hash(name)) : NULL;
    return id ? ptx_symbol_at(symbols, (uint32_t)place_of(id)) : NULL;
}

void ptx_symbols_finish(struct ptx_symbols *symbols)
{
    map_finish(&symbols->ids);
    buf_finish(&symbols->items);
}

// --- parameters

// One of an entry: ".param .align 8 .b8 name[48]", ".param .u64 .ptr .align 1 name". Its offset in
// a packed block, behind which the next one comes.
static void read_param(struct origins *o, struct slice s, uint64_t *end)
{
    struct slice token;
    unsigned size = 0;
    int64_t align = 0;
    while ((token = next_token(&s)).size > 0 && token.at[0] == '.') {
        struct slice word = { token.at + 1, token.size - 1 };
        if (slice_is(word, "align")) {
            struct slice number = next_token(&s);
            int64_t value = 0;
            slice_number(&number, &value);
            align = size ? align : value;
        }
        size = size ? size : ptx_type_size(word);
    }
    struct slice name = slice_name(&token);
    int64_t bytes = array_size(s, size ? size : 8);
    if (align <= 0 || align > 4096)
        align = size ? size : 8;
    uint64_t at = (*end + (uint64_t)align - 1) / (uint64_t)align * (uint64_t)align;
    if (name.size == 0 || bytes < 0 || bytes > UINT16_MAX || at > UINT16_MAX)
        return;
    map_put(&o->params, slice_hash(name), id_of(at));
    *end = at + (uint64_t)bytes;
}

void origins_read_params(struct origins *o, struct slice header)
{
    const char *open = memchr(header.at, '(', header.size);
    const char *close = memrchr(header.at, ')', header.size);
    if (!open || !close || close < open)
        return;
    struct slice list = { open + 1, (size_t)(close - open - 1) }, param;
    for (uint64_t end = 0; slice_next(&list, ',', &param);)
        read_param(o, param, &end);
}

// What stands at an offset in a parameter.
static struct origin param_origin(const struct origins *o, struct slice name, int64_t offset)
{
    void *id = name.size ? map_get(&o->params, slice_hash(name)) : NULL;
    if (!id)
        return (struct origin){ .kind = ORIGIN_GIVEN };
    int64_t at = (int64_t)((uint64_t)place_of(id) + (uint64_t)offset);
    for (size_t i = 0; i < o->n_slots; i++)
        if (o->slots[i] == at)
            return (struct origin){ ORIGIN_SLOT, (uint32_t)i };
    return (struct origin){ 0 };
}

// --- definitions

enum rule {
    RULE_SET,
    RULE_COMBINE, // of all that the sources are
    RULE_JOIN,    // of any of them
    RULE_OTHER,   // no pointer any more, but doubts stay
};

struct def {
    enum rule rule;
    struct origin value; // of RULE_SET
    uint32_t target, sources[MAX_SOURCES], n;
};

static struct origin *values_of(const struct origins *o)
{
    return (struct origin *)(void *)o->values.bytes;
}

static uint32_t register_of(struct origins *o, struct slice name)
{
    uint64_t hash = slice_hash(name);
    void *id = map_get(&o->ids, hash);
    if (id)
        return (uint32_t)place_of(id);
    const struct ptx_symbol *symbol = ptx_symbol_find(o->symbols, name);
    struct origin value = { .kind = slice_begins(name, "__local_depot") ? ORIGIN_MIXED
                                                                        : ORIGIN_NUMBER };
    if (symbol)
        value = (struct origin){ ORIGIN_SYMBOL, (uint32_t)(symbol - ptx_symbol_at(o->symbols, 0)) };
    size_t place = COUNT(o->values, struct origin);
    map_put(&o->ids, hash, id_of(place));
    buf_append(&o->values, &value, sizeof value);
    return (uint32_t)place;
}

static bool is_any(struct slice s, const char *const *words)
{
    while (*words && !slice_is(s, *words))
        words++;
    return *words != NULL;
}

static bool is_wide(struct slice type)
{
    static const char *const types[] = { "u64", "b64", "s64", NULL };
    return is_any(type, types);
}

// The registers that an instruction sets: one, "{a, b}" or "value|predicate".
static bool next_target(struct slice *list, struct slice *out)
{
    struct slice target;
    if (!slice_next(list, ',', &target))
        return false;
    *out = slice_name(&target);
    return true;
}

static struct slice targets_of(const struct ptx_instr *instr)
{
    struct slice s = instr->operands[0];
    return slice_begins(s, "{") && s.size > 1 ? (struct slice){ s.at + 1, s.size - 2 } : s;
}

static void add_def(struct origins *o, const struct ptx_instr *instr, struct def *def)
{
    struct slice targets = targets_of(instr), target;
    while (next_target(&targets, &target)) {
        if (target.size == 0 || ptx_symbol_find(o->symbols, target))
            continue;
        def->target = register_of(o, target);
        buf_append(&o->defs, def, sizeof *def);
    }
}

// Memory of a thread, of its block, or of a call's arguments: what is there, these have put there.
static bool is_own(const struct ptx_instr *instr)
{
    struct slice space = ptx_space(instr, 0);
    return slice_begins(space, "param") || slice_is(space, "local") ||
           slice_begins(space, "shared");
}

static void add_load(struct origins *o, const struct ptx_instr *instr)
{
    struct slice targets = targets_of(instr), target, name = { 0 };
    int64_t offset = 0;
    bool param = slice_begins(ptx_space(instr, 0), "param");
    enum origin_kind kind = is_own(instr) ? ORIGIN_GIVEN : ORIGIN_LOADED;
    if (!is_wide(instr->last))
        return;
    if (param && !ptx_address(instr->operands[1], &name, &offset))
        name.size = 0;
    for (; next_target(&targets, &target); offset = (int64_t)((uint64_t)offset + 8)) {
        struct def def = { .rule = RULE_SET, .value = { .kind = kind } };
        if (param)
            def.value = param_origin(o, name, offset);
        if (target.size == 0)
            continue;
        def.target = register_of(o, target);
        buf_append(&o->defs, &def, sizeof def);
    }
}

static enum rule rule_of(const struct ptx_instr *instr)
{
    static const char *const keep[] = { "mov", "add", "sub", "cvta", "mad",  "or",
                                        "and", "xor", "min", "max",  "lop3", NULL };
    struct slice words = instr->op, second = { 0 };
    slice_next(&words, '.', &second);
    slice_next(&words, '.', &second);
    if (slice_is(instr->head, "selp"))
        return RULE_JOIN;
    if (slice_is(instr->head, "cvt"))
        return is_wide(instr->last) && is_wide(second) ? RULE_COMBINE : RULE_OTHER;
    return is_any(instr->head, keep) ? RULE_COMBINE : RULE_OTHER;
}

void origins_add(struct origins *o, const struct ptx_instr *instr)
{
    static const char *const none[] = { "st",  "red",      "setp",   "call",  "bra", "ret",
                                        "bar", "prefetch", "membar", "fence", NULL };
    static const char *const loads[] = { "ld", "ldu", "atom", NULL };
    if (instr->n < 2 || slice_begins(instr->op, ".") || is_any(instr->head, none))
        return;
    if (is_any(instr->head, loads)) {
        add_load(o, instr);
        return;
    }
    struct def def = { .rule = rule_of(instr) };
    if (slice_begins(instr->operands[1], "{") && slice_is(instr->last, "b64")) {
        def = (struct def){ .rule = RULE_SET, .value = { .kind = ORIGIN_LOADED } };
        add_def(o, instr, &def); // put together of halves
        return;
    }
    int n = def.rule == RULE_JOIN && instr->n > 3 ? 3 : instr->n;
    for (int i = 1; i < n && def.n < MAX_SOURCES; i++) {
        struct slice source = instr->operands[i], name = slice_name(&source);
        if (name.size > 0)
            def.sources[def.n++] = register_of(o, name);
    }
    add_def(o, instr, &def);
}

static bool same(struct origin a, struct origin b)
{
    return a.kind == b.kind && a.index == b.index;
}

static bool is_foreign(const struct origins *o, struct origin v)
{
    return v.kind == ORIGIN_LOADED || v.kind == ORIGIN_FOREIGN ||
           (v.kind == ORIGIN_SYMBOL && !ptx_symbol_at(o->symbols, v.index)->shared);
}

static struct origin either(const struct origins *o, struct origin a, struct origin b)
{
    if (is_foreign(o, a) || is_foreign(o, b))
        return (struct origin){ .kind = ORIGIN_FOREIGN };
    bool given = a.kind == ORIGIN_GIVEN || b.kind == ORIGIN_GIVEN;
    return (struct origin){ .kind = given ? ORIGIN_GIVEN : ORIGIN_MIXED };
}

static struct origin join(const struct origins *o, struct origin a, struct origin b)
{
    if (a.kind == ORIGIN_NUMBER || same(a, b))
        return b;
    return b.kind == ORIGIN_NUMBER ? a : either(o, a, b);
}

// Of the operands of one instruction: one of them is the pointer. What may be an index is one where
// another can be none.
static struct origin combine(const struct origins *o, struct origin a, struct origin b)
{
    bool weak_a = a.kind <= ORIGIN_GIVEN, weak_b = b.kind <= ORIGIN_GIVEN;
    if (weak_a && weak_b)
        return join(o, a, b);
    return weak_a ? b : weak_b ? a : either(o, a, b);
}

static struct origin value_of(const struct origins *o, const struct def *def)
{
    const struct origin *values = values_of(o);
    struct origin value = def->value;
    struct origin doubts = { 0 };
    for (uint32_t i = 0; i < def->n; i++) {
        struct origin source = values[def->sources[i]];
        doubts = source.kind >= ORIGIN_MIXED ? join(o, doubts, source) : doubts;
        value = def->rule == RULE_JOIN ? join(o, value, source) : combine(o, value, source);
    }
    return def->rule == RULE_OTHER ? doubts : value;
}

void origins_work_out(struct origins *o)
{
    const struct def *defs = (const struct def *)(const void *)o->defs.bytes;
    size_t n = COUNT(o->defs, struct def);
    bool changed = true;
    for (int pass = 0; changed && pass < MAX_PASSES; pass++) {
        changed = false;
        for (size_t i = 0; i < n; i++) {
            struct origin *value = &values_of(o)[defs[i].target];
            struct origin now = join(o, *value, value_of(o, &defs[i]));
            changed = changed || !same(now, *value);
            *value = now;
        }
    }
    for (size_t i = 0; changed && i < COUNT(o->values, struct origin); i++)
        values_of(o)[i] = (struct origin){ .kind = ORIGIN_FOREIGN };
}

struct origin origins_of(const struct origins *o, struct slice name)
{
    void *id = name.size ? map_get(&o->ids, slice_hash(name)) : NULL;
    const struct ptx_symbol *symbol = ptx_symbol_find(o->symbols, name);
    if (symbol)
        return (struct origin){ ORIGIN_SYMBOL, (uint32_t)(symbol - ptx_symbol_at(o->symbols, 0)) };
    return id ? values_of(o)[place_of(id)] : (struct origin){ 0 };
}

bool origins_leak(const struct origins *o, const struct ptx_instr *instr)
{
    bool writes = slice_is(instr->head, "st") || slice_is(instr->head, "atom");
    struct slice space = ptx_space(instr, 0), value = { 0 };
    if (slice_is(instr->head, "call") && instr->n > 1)
        return memmem(instr->operands[1].at, instr->operands[1].size, "malloc", 6) != NULL;
    if (!writes || !is_wide(instr->last) || !(is_own(instr) || slice_is(space, "generic")))
        return false;
    bool found = false;
    for (int i = 1; i < instr->n; i++) {
        struct slice list = instr->operands[i];
        if (slice_begins(list, "{") && list.size > 1)
            list = (struct slice){ list.at + 1, list.size - 2 };
        while (next_target(&list, &value))
            found = found || is_foreign(o, origins_of(o, value));
    }
    return found;
}

void origins_finish(struct origins *o)
{
    map_finish(&o->params);
    map_finish(&o->ids);
    buf_finish(&o->values);
    buf_finish(&o->defs);
}
