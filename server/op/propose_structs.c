#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "op/propose_guess.h"
#include "op/reader.h"

// Kernels' parameters that are structs, with their members in place of them.

enum { MAX_LIST = 4 }; // elements of an attribute

struct opening {
    struct reader *r;
    struct step launch; // what proposals give for the kernel's template parameters
    struct signature_param params[SIGNATURE_MAX_PARAMS];
    int n;
    bool too_many;
};

static void add(struct opening *o, const struct signature_param *param)
{
    o->too_many = o->too_many || o->n == SIGNATURE_MAX_PARAMS;
    if (!o->too_many)
        o->params[o->n++] = *param;
}

static void add_member(const struct signature_param *member, void *data)
{
    struct opening *o = data;
    struct signature_param own = *member;
    own.path = own.name;
    add(o, &own);
}

// Up to four numbers, "p.sizes[0]" and those behind it, are one list.
static void join_lists(struct opening *o)
{
    int n = 0;
    for (int i = 0, end; i < o->n; i = end) {
        const char *path = o->params[i].path;
        size_t size = path ? strcspn(path, "[") : 0;
        bool array = path && o->params[i].kind == PARAM_VALUE && strcmp(path + size, "[0]") == 0;
        for (end = i + 1; array && end < o->n && o->params[end].path &&
                          strncmp(o->params[end].path, path, size + 1) == 0;)
            end++;
        array = array && end - i <= MAX_LIST && strcmp(o->params[i].type, "bool") != 0;
        end = array ? end : i + 1;
        o->params[n] = o->params[i];
        o->params[n++].list = array ? end - i : 0;
    }
    o->n = n;
}

// "sizes_1" of "p.sizes[1]"; of the whole path "p_sizes_1".
static const char *spell(struct arena *arena, const char *path)
{
    char *name = arena_strndup(arena, path, strlen(path)), *to = name;
    for (const char *at = path; *at; at++)
        if (*at != ']')
            *to++ = guess_is_word_char(*at) ? *at : '_';
    *to = '\0';
    return name;
}

// int2 and the like: what its members are called says nothing.
static bool is_letter(const char *name)
{
    return guess_is_one_of(name, WORDS("x", "y", "z", "w", "first", "second"));
}

static const char *spell_own(struct arena *arena, const struct signature_param *param)
{
    const char *dot = strrchr(param->path, '.'), *before = dot;
    if (param->list > 0)
        return arena_strndup(arena, dot + 1, strcspn(dot + 1, "["));
    if (param->kind == PARAM_VALUE && is_letter(dot + 1))
        while (before > param->path && before[-1] != '.')
            before--;
    return spell(arena, before == dot ? dot + 1 : before);
}

static bool is_shared(const struct opening *o, int at)
{
    for (int i = 0; i < o->n; i++)
        if (i != at && o->params[i].name && strcmp(o->params[i].name, o->params[at].name) == 0)
            return true;
    return false;
}

// A member has its own name, unless another parameter or member of the kernel has it, too.
static void name_members(struct opening *o)
{
    bool shared[SIGNATURE_MAX_PARAMS] = { false };
    struct arena *arena = o->r->arena;
    for (int i = 0; i < o->n; i++)
        if (o->params[i].path)
            o->params[i].name = spell_own(arena, &o->params[i]);
    for (int i = 0; i < o->n; i++)
        shared[i] = o->params[i].path && is_shared(o, i);
    for (int i = 0; i < o->n; i++) {
        struct signature_param *param = &o->params[i];
        size_t size = shared[i] ? strlen(param->path) : 0;
        size -= size > 0 && param->list > 0 ? strlen("[0]") : 0;
        if (shared[i])
            param->name = spell(arena, arena_strndup(arena, param->path, size));
    }
}

// A table of tensors, which only lists fill.
static const char *find_table(struct proposal *p, const struct signature_param *param,
                              const struct struct_definition *def)
{
    bool found = false;
    for (int i = 0; i < def->n_members; i++)
        found = found || strcmp(def->members[i].param.name, "block_to_tensor") == 0;
    static const char advice[] = "'%s' is a table of tensors; make lists of them, as in 'op f("
                                 "Tensor(a!)[] xs) -> ()', and 'chunks xs by 65536' below the "
                                 "kernel";
    return found ? arena_printf(&p->arena, advice, param->name) : NULL;
}

static void open_kernel(struct proposal *p, struct opening *o, struct signature *k)
{
    struct template_arg args[SIGNATURE_MAX_TEMPLATE];
    struct opd_err *err = o->r->lx.err;
    o->launch = (struct step){ .name = k->name, .signature = k, .template_args = args };
    for (int i = 0; i < k->n_template && !k->template_params[i].has_default; i++)
        args[o->launch.n_template_args++] =
            (struct template_arg){ .text = guess_template_arg(p, k, i) };
    o->n = 0;
    for (int i = 0; i < k->n_params; i++) {
        const struct signature_param *param = &k->params[i];
        struct cnumber number;
        bool plain = !param->type || param->kind != PARAM_VALUE || param->is_pack ||
                     bind_type(o->r, &o->launch, param->type, &number);
        const struct struct_definition *def =
            plain ? NULL : members_find(o->r, members_type(o->r, &o->launch, param->type));
        int before = o->n;
        const char *problem = plain ? NULL : def ? find_table(p, param, def) : NULL;
        if (!plain && !def)
            problem = arena_printf(&p->arena,
                                   "'%s' is of type '%s', which neither this file defines nor opd",
                                   param->name, param->type);
        if (def && !problem && !members_each(o->r, &o->launch, param, add_member, o)) {
            problem = arena_printf(&p->arena, "%s", err->msg);
            opd_err_clear(err);
            o->n = before;
        }
        k->problem = k->problem ? k->problem : problem;
        if (!def || problem)
            add(o, param);
    }
    if (o->too_many && !k->problem)
        k->problem = "its parameters have too many members";
    join_lists(o);
    name_members(o);
    k->params = arena_copy(&p->arena, o->params, (size_t)o->n, sizeof *o->params);
    k->n_params = o->n;
}

void guess_open_structs(struct proposal *p, struct signature *all, int n)
{
    struct opd_err err = { 0 };
    struct opening *o = mem_zalloc(1, sizeof *o);
    struct reader *r = o->r = mem_zalloc(1, sizeof *r);
    r->arena = &p->arena;
    r->whole = p->text;
    r->whole_size = strlen(p->text);
    scope_init(&r->scope, NULL);
    lex_init(&r->lx, p->file, 0, "", 0, &err);
    struct_scan(r->whole, r->whole_size, r->arena, &r->structs, &r->n_structs);
    for (int i = 0; i < n; i++)
        open_kernel(p, o, &all[i]);
    opd_err_clear(&err);
    free(r);
    free(o);
}
