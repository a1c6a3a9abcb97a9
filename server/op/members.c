#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/reader.h"
#include "op/text.h"

// Parameters that are structs: among a kernel's arguments their members stand one after the other.
// Where these lie is worked out as C does it (params.c), and the compiler is made to check that
// (plan.c).

enum { MAX_NESTED = 8 };

struct filler {
    struct reader *r;
    const struct step *launch;
    const struct signature_param *param; // the kernel's, for errors
    struct argument_list *out;
    int n_lists; // of `chunks` that have an array
    member_visit *visit; // in place of being bound, or NULL
    void *data;
};

// int2, float4 and the like, dim3 and std::pair, where the file has none of that name.
static const struct struct_definition *find_common(const struct reader *r, const char *name,
                                                   size_t n)
{
    static const struct {
        const char *name, *type;
        int size;
    } bases[] = {
        { "char", "signed char", 1 }, { "uchar", "unsigned char", 1 },
        { "short", "short", 2 },      { "ushort", "unsigned short", 2 },
        { "int", "int", 4 },          { "uint", "unsigned", 4 },
        { "long", "int64_t", 8 },     { "ulong", "uint64_t", 8 },
        { "longlong", "int64_t", 8 }, { "ulonglong", "uint64_t", 8 },
        { "float", "float", 4 },      { "double", "double", 8 },
    };
    static const char *const members[] = { "x", "x, y", "x, y, z", "x, y, z, w" };
    const char *text = text_is(name, n, "dim3")   ? "struct dim3 { unsigned x, y, z; };"
                       : text_is(name, n, "pair") ? "template <class A, class B> struct pair "
                                                    "{ A first; B second; };"
                                                  : NULL;
    int k = n > 1 ? name[n - 1] - '0' : 0;
    for (size_t i = 0; k >= 1 && k <= 4 && i < sizeof bases / sizeof *bases; i++)
        if (text_is(name, n - 1, bases[i].name)) {
            int all = k * bases[i].size, align = k == 3 ? bases[i].size : all < 16 ? all : 16;
            text = arena_printf(r->arena, "struct alignas(%d) %.*s { %s %s; };", align, (int)n,
                                name, bases[i].type, members[k - 1]);
        }
    struct struct_definition *found = NULL;
    int n_found = 0;
    if (text)
        struct_scan(text, strlen(text), r->arena, &found, &n_found);
    for (int i = 0; n_found > 0 && i < found->n_members; i++)
        found->line = found->members[i].param.line = 0; // not of the file's
    return n_found > 0 ? found : NULL;
}

const struct struct_definition *members_find(const struct reader *r, const char *type)
{
    size_t n = strcspn(type, "<");
    const char *start = type;
    for (const char *p = type; p + 1 < type + n; p++)
        if (p[0] == ':' && p[1] == ':')
            start = p + 2;
    for (int i = 0; i < r->n_structs; i++)
        if (text_is(start, (size_t)(type + n - start), r->structs[i].name))
            return &r->structs[i];
    return find_common(r, start, (size_t)(type + n - start));
}

static bool add(struct filler *f, const struct argument *arg)
{
    if (f->out->n == BIND_MAX_ARGS)
        return PARAM_FAIL(f->r, f->launch, f->param,
                          ", with whose members there are more than %d arguments", BIND_MAX_ARGS);
    f->out->args[f->out->n++] = *arg;
    return true;
}

static bool add_mark(struct filler *f, const char *name, enum param_kind kind,
                     const struct struct_definition *def)
{
    if (f->visit)
        return true;
    struct signature_param *p = arena_alloc(f->r->arena, 1, sizeof *p);
    *p = (struct signature_param){ .name = name,
                                   .type = f->param->type,
                                   .kind = kind,
                                   .align = def->align,
                                   .line = def->line ? def->line : f->param->line };
    return add(f, &(struct argument){ .param = p, .tensor = -1 });
}

// --- templates

// The n-th of the arguments between < and >; "" where there are not so many.
static const char *template_argument(struct arena *arena, const char *type, int n)
{
    const char *start = strchr(type, '<');
    int depth = 0;
    for (const char *p = start; p && *p; p++) {
        depth += strchr("<([", *p) != NULL;
        bool ends = depth == 1 && (*p == ',' || *p == '>');
        if (ends && n-- == 0)
            return arena_strndup(arena, start + 1, (size_t)(p - start - 1));
        if (ends)
            start = p;
        depth -= strchr(">)]", *p) != NULL;
    }
    return "";
}

// What a template parameter's name stands for: in a struct of that type, or, without one, in this
// launch. NULL: it is no such name.
static const char *find_argument(const struct filler *f, const struct struct_definition *def,
                                 const char *type, const char *word, size_t size)
{
    const struct signature *sig = f->launch->signature;
    for (int i = 0; def && i < def->n_template; i++)
        if (text_is(word, size, def->template_params[i].name))
            return template_argument(f->r->arena, type, i);
    for (int i = 0; !def && i < sig->n_template && i < f->launch->n_template_args; i++) {
        const struct template_arg *arg = &f->launch->template_args[i];
        if (text_is(word, size, sig->template_params[i].name))
            return arg->expr ? arg->expr->text : arg->text;
    }
    return NULL;
}

static const char *substitute(const struct filler *f, const struct struct_definition *def,
                              const char *type, const char *text)
{
    struct buf out = { 0 };
    while (*text) {
        size_t n = 1;
        while (text_is_word_char(*text) && text_is_word_char(text[n]))
            n++;
        const char *arg = find_argument(f, def, type, text, n);
        buf_append(&out, arg ? arg : text, arg ? strlen(arg) : n);
        text += n;
    }
    const char *kept = arena_strndup(f->r->arena, buf_str(&out), out.size);
    buf_finish(&out);
    return kept;
}

// --- members

static bool add_struct(struct filler *f, const char *type, const char *path, int depth);

static bool add_member(struct filler *f, const struct struct_member *m, const char *type,
                       const char *path, int depth)
{
    struct cnumber number;
    if (m->param.kind == PARAM_VALUE && !bind_type(f->r, f->launch, type, &number))
        return add_struct(f, type, path, depth + 1);
    struct signature_param *p = arena_alloc(f->r->arena, 1, sizeof *p);
    *p = m->param;
    p->name = path;
    p->type = type;
    p->line = p->line ? p->line : f->param->line;
    if (f->visit)
        return f->visit(p, f->data), true;
    struct argument arg = { .param = p, .tensor = -1 };
    return bind_param(f->r, f->launch, &arg) && add(f, &arg);
}

// -1: it is no number that can be seen.
static int64_t read_extent(const struct reader *r, const char *text)
{
    int64_t n;
    if (text[strspn(text, "0123456789")] == 0)
        return strtoll(text, NULL, 10);
    text = alias_text(r->whole, r->whole_size, r->arena, text);
    return constant_eval(r->whole, r->whole_size, text, &n) ? n : -1;
}

static bool read_extents(struct filler *f, const struct struct_definition *def,
                         const struct struct_member *m, const char *type, const char *path,
                         int64_t extents[STRUCT_MAX_EXTENTS])
{
    for (int i = 0; i < m->n_extents; i++) {
        const char *text = substitute(f, def, type, m->extents[i]);
        extents[i] = read_extent(f->r, text);
        if (extents[i] < 1 || extents[i] > BIND_MAX_ARGS)
            return PARAM_FAIL(
                f->r, f->launch, f->param,
                ", whose array '%.64s' has '%.64s' elements, expected a number from 1 "
                "to %d",
                path, text, BIND_MAX_ARGS);
    }
    return true;
}

// All of an array, the last index first; what is none is one element.
static bool add_elements(struct filler *f, const struct struct_definition *def,
                         const struct struct_member *m, const char *type, const char *path,
                         int depth)
{
    const char *of = substitute(f, def, type, m->param.type ? m->param.type : "");
    int64_t extents[STRUCT_MAX_EXTENTS], index[STRUCT_MAX_EXTENTS] = { 0 };
    if (!read_extents(f, def, m, type, path, extents))
        return false;
    for (int at = 0; at >= 0;) {
        const char *element = path;
        for (int i = 0; i < m->n_extents; i++)
            element = arena_printf(f->r->arena, "%s[%" PRId64 "]", element, index[i]);
        if (!add_member(f, m, of, element, depth))
            return false;
        for (at = m->n_extents - 1; at >= 0 && ++index[at] == extents[at]; at--)
            index[at] = 0;
    }
    return true;
}

// --- what `chunks` fills

static const struct struct_member *find_member(const struct struct_definition *def,
                                               const char *name)
{
    for (int i = 0; i < def->n_members; i++)
        if (strcmp(def->members[i].param.name, name) == 0)
            return &def->members[i];
    return NULL;
}

static enum chunk_role role_of(const struct struct_member *m)
{
    static const char *const names[] = { [CHUNK_TENSORS] = "block_to_tensor",
                                         [CHUNK_NUMBERS] = "block_to_chunk",
                                         [CHUNK_START] = "start_tensor_this_launch" };
    for (int i = CHUNK_TENSORS; i <= CHUNK_START; i++)
        if (strcmp(m->param.name, names[i]) == 0)
            return (enum chunk_role)i;
    return m->param.kind == PARAM_POINTER ? CHUNK_ADDRESSES : CHUNK_SIZES;
}

static bool add_array(struct filler *f, const struct struct_definition *def,
                      const struct struct_member *m, const char *type, const char *path)
{
    int64_t extents[STRUCT_MAX_EXTENTS] = { 1, 1, 1 };
    struct signature_param *p = arena_alloc(f->r->arena, 1, sizeof *p);
    *p = m->param;
    p->name = path;
    p->kind = PARAM_ARRAY;
    p->type = substitute(f, def, type, m->param.type);
    struct argument arg = { .param = p, .tensor = -1, .role = role_of(m), .n_lists = 1 };
    if (!read_extents(f, def, m, type, path, extents))
        return false;
    arg.n = (uint32_t)extents[m->n_extents > 0 ? m->n_extents - 1 : 0];
    for (int i = 0; i + 1 < m->n_extents; i++)
        arg.n_lists *= (int)extents[i];
    if (arg.role == CHUNK_ADDRESSES) {
        arg.type = (struct cnumber){ CNUMBER_UNSIGNED, 8, 0 };
        arg.list = f->n_lists;
        f->n_lists += arg.n_lists;
    } else if (arg.n_lists > 1 || !bind_type(f->r, f->launch, p->type, &arg.type) ||
               arg.type.kind > CNUMBER_UNSIGNED) {
        return PARAM_FAIL(f->r, f->launch, f->param,
                          ", in which 'chunks' fills '%.64s' of type '%.64s', expected an array "
                          "of integers",
                          path, p->type);
    }
    return add(f, &arg);
}

// Do the arrays go together, and with the lists that `chunks` names?
static bool check_table(const struct filler *f, int from)
{
    uint32_t n[CHUNK_START + 1] = { 0 };
    bool same = true;
    for (int i = from; i < f->out->n; i++) {
        const struct argument *arg = &f->out->args[i];
        if (arg->param->kind != PARAM_ARRAY)
            continue;
        same = same && (n[arg->role] == 0 || n[arg->role] == arg->n);
        n[arg->role] = arg->n;
    }
    if (!n[CHUNK_TENSORS] || !n[CHUNK_NUMBERS])
        return PARAM_FAIL(f->r, f->launch, f->param,
                          ", which has no array '%s', expected one beside the addresses",
                          n[CHUNK_TENSORS] ? "block_to_chunk" : "block_to_tensor");
    if (f->n_lists != f->launch->n_lists)
        return PARAM_FAIL(f->r, f->launch, f->param,
                          ", which has addresses of %d lists, but 'chunks' names %d", f->n_lists,
                          f->launch->n_lists);
    return (same && n[CHUNK_TENSORS] == n[CHUNK_NUMBERS] &&
            (n[CHUNK_SIZES] == 0 || n[CHUNK_SIZES] == n[CHUNK_ADDRESSES])) ||
           PARAM_FAIL(f->r, f->launch, f->param,
                      ", whose arrays of tensors, or of blocks, are not equally long");
}

static bool check_struct(struct filler *f, const struct struct_definition *def)
{
    if (def->problem && def->problem_line > 0)
        return PARAM_FAIL(f->r, f->launch, f->param,
                          " of struct '%s' (line %d), which cannot be filled in: line %d has %s",
                          def->name, def->line, def->problem_line, def->problem);
    return !def->problem ||
           PARAM_FAIL(f->r, f->launch, f->param,
                      " of struct '%s' (line %d), which cannot be filled in: %s", def->name,
                      def->line, def->problem);
}

// Those of its base first, which ends as a struct does unless it has one itself.
static bool add_members(struct filler *f, const struct struct_definition *def, const char *type,
                        const char *path, int depth)
{
    const char *base = def->base ? substitute(f, def, type, def->base) : NULL;
    const struct struct_definition *first = base ? members_find(f->r, base) : NULL;
    if (!check_struct(f, def))
        return false;
    if (base && (!first || first == def || depth > MAX_NESTED))
        return PARAM_FAIL(f->r, f->launch, f->param,
                          " of struct '%s' (line %d), whose base '%.64s' is none of this file",
                          def->name, def->line, base);
    bool whole = first && !first->base;
    if ((whole && !add_mark(f, path, PARAM_STRUCT, first)) ||
        (first && !add_members(f, first, base, path, depth + 1)) ||
        (whole && !add_mark(f, path, PARAM_END, first)))
        return false;
    bool table = f->launch->chunk &&
                 (find_member(def, "block_to_tensor") || find_member(def, "block_to_chunk"));
    int from = table ? f->out->n : 0;
    for (int i = 0; i < def->n_members; i++) {
        const struct struct_member *m = &def->members[i];
        const char *name = arena_printf(f->r->arena, "%s.%s", path, m->param.name);
        bool filled = table && (m->n_extents > 0 || role_of(m) == CHUNK_START);
        if (filled ? !add_array(f, def, m, type, name)
                   : !add_elements(f, def, m, type, name, depth))
            return false;
    }
    return !table || check_table(f, from);
}

static bool add_struct(struct filler *f, const char *type, const char *path, int depth)
{
    const struct struct_definition *def = members_find(f->r, type);
    if (!def || depth > MAX_NESTED)
        return PARAM_FAIL(f->r, f->launch, f->param,
                          ", whose member '%.64s' is of type '%.64s', expected a pointer, an "
                          "accessor, a number, bool, a type variable or a struct of this file",
                          path, type);
    return add_mark(f, path, PARAM_STRUCT, def) && add_members(f, def, type, path, depth) &&
           add_mark(f, path, PARAM_END, def);
}

const char *members_type(struct reader *r, const struct step *launch, const char *type)
{
    struct filler f = { .r = r, .launch = launch };
    return substitute(&f, NULL, NULL, type);
}

bool members_bind(struct reader *r, const struct step *launch, const struct signature_param *p,
                  struct argument_list *out)
{
    struct filler f = { .r = r, .launch = launch, .param = p, .out = out };
    return add_struct(&f, substitute(&f, NULL, NULL, p->type), p->name, 0);
}

bool members_each(struct reader *r, const struct step *launch, const struct signature_param *p,
                  member_visit *visit, void *data)
{
    struct filler f = { .r = r, .launch = launch, .param = p, .visit = visit, .data = data };
    return add_struct(&f, substitute(&f, NULL, NULL, p->type), p->name, 0);
}
