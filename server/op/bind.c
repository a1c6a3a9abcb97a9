#include <string.h>

#include "base/mem.h"
#include "base/suggest.h"
#include "op/reader.h"
#include "op/text.h"

// The index of a template parameter by its name; -1: there is none.
static int find_template_param(const struct signature *sig, const char *name, size_t n)
{
    for (int i = 0; i < sig->n_template && n > 0; i++)
        if (text_is(name, n, sig->template_params[i].name))
            return i;
    return -1;
}

static bool fail_no_kernel(struct reader *r, const char *name)
{
    struct suggest near;
    suggest_init(&near, name, strlen(name));
    for (int i = 0; i < r->n_signatures; i++)
        suggest_add(&near, r->signatures[i].name);
    return lex_fail(&r->lx, "no kernel '%s' in this file, expected '__global__ void %s(...)'%s",
                    name, name, suggest_text(&near));
}

static bool is_same(const struct signature *a, const struct signature *b)
{
    if (a->n_params != b->n_params || a->n_template != b->n_template || a->problem || b->problem)
        return false;
    for (int i = 0; i < a->n_params; i++) {
        const struct signature_param *p = &a->params[i], *q = &b->params[i];
        if (p->kind != q->kind || strcmp(p->name, q->name) != 0 || strcmp(p->type, q->type) != 0)
            return false;
    }
    return true;
}

static bool is_part(const char *whole, const char *name)
{
    size_t n = strlen(name);
    return strncmp(whole, name, n) == 0 && (!whole[n] || whole[n] == '.' || whole[n] == '[');
}

// How many of its parameters the header has no name and no `bind` for, and of its binds no
// parameter.
static int count_unsaid(const struct reader *r, const struct signature *sig)
{
    int n = r->n_binds;
    for (int i = 0; i < sig->n_params; i++) {
        const char *name = sig->params[i].name; // NULL: signature.problem
        bool said = name && scope_find(&r->scope, name, strlen(name)) != NULL;
        for (int b = 0; name && b < r->n_binds; b++) {
            bool bound = is_part(r->binds[b].name, name);
            said = said || bound;
            n -= bound;
        }
        n += !said;
    }
    return n;
}

// How many of its parameters are of the operator's first dtype.
static int count_fitting(const struct reader *r, const struct signature *sig)
{
    const struct op_type *scalar = &r->op->types[TYPE_SCALAR];
    struct cnumber type, wanted = { 0 };
    int n = 0;
    if (scalar->n_dtypes > 0)
        wanted = cnumber_of_dtype(scalar->dtypes[0]);
    for (int i = 0; i < sig->n_params; i++) {
        const char *text = sig->params[i].type;
        n += text && scalar->n_dtypes > 0 && cnumber_parse(text, strlen(text), &type) &&
             type.kind == wanted.kind && type.size == wanted.size;
    }
    return n;
}

// Of kernels that share a name the one is meant that takes what the header has, among such the one
// with most of the first dtype, and then the one that takes most. > 0: rather a than b.
static int compare_fitting(const struct reader *r, const struct step *launch,
                           const struct signature *a, const struct signature *b)
{
    int plain_a = launch->is_template && !a->is_template, unsaid_a = count_unsaid(r, a);
    int plain_b = launch->is_template && !b->is_template, unsaid_b = count_unsaid(r, b);
    int fitting = count_fitting(r, a) - count_fitting(r, b);
    return plain_a != plain_b     ? plain_b - plain_a
           : unsaid_a != unsaid_b ? unsaid_b - unsaid_a
           : fitting != 0         ? fitting
                                  : a->n_params - b->n_params;
}

// The definition of that name; the same kernel may be declared before, or stand in two branches
// of an #if.
static const struct signature *find_signature(struct reader *r, struct step *launch)
{
    const char *name = strrchr(launch->name, ':');
    struct signature *found = NULL, *rival = NULL;
    name = name ? name + 1 : launch->name;
    while (*name == ' ')
        name++;
    for (int i = 0; i < r->n_signatures; i++) {
        struct signature *sig = &r->signatures[i];
        bool special = sig->is_template && sig->n_template == 0; // of the one before
        if (strcmp(sig->name, name) != 0 || (found && special))
            continue;
        bool both = found && found->has_body && sig->has_body;
        int more = both && !is_same(found, sig) ? compare_fitting(r, launch, sig, found) : 0;
        if (both && !is_same(found, sig)) {
            launch->types = found->is_template == sig->is_template ? "" : launch->types;
            rival = more > 0 ? NULL : more == 0 ? sig : rival;
        }
        for (int p = 0; both && is_same(found, sig) && p < sig->n_params; p++) {
            found->params[p].reads |= sig->params[p].reads; // either may be the one compiled
            found->params[p].asked &= sig->params[p].asked;
        }
        if (!found || more > 0 || (sig->has_body && !found->has_body))
            found = sig;
    }
    if (!found)
        fail_no_kernel(r, name);
    if (rival) {
        lex_fail(&r->lx,
                 "two different kernels '%s', at lines %d and %d; expected one, or one of the "
                 "operator's dtype (give them different names)",
                 name, found->line, rival->line);
        return NULL;
    }
    return found;
}

// The types of the parameters, by which the compiler tells it from others of its name; those of a
// template with its arguments in them. NULL: they are no types.
static const char *spell_types(struct reader *r, const struct step *launch)
{
    const struct signature *sig = launch->signature;
    struct buf out = { 0 };
    bool ok = true;
    for (const char *p = sig->types; *p && ok;) {
        size_t n = 0;
        while (text_is_word_char(p[n]))
            n++;
        int at = n > 0 ? find_template_param(sig, p, n) : -1;
        const char *arg = at >= 0 && at < launch->n_template_args ? launch->template_args[at].text
                                                                  : NULL;
        ok = at < 0 || (arg && !sig->template_params[at].is_pack);
        n += n == 0;
        buf_append(&out, at < 0 ? p : arg, !ok ? 0 : at < 0 ? n : strlen(arg));
        p += n;
    }
    const char *text = ok ? arena_printf(r->arena, "%s", buf_str(&out)) : NULL;
    buf_finish(&out);
    return text;
}

// An expression of a name alone; the kernel's line is what an error is told of.
static const struct expr *read_own(struct reader *r, const char *name, int line)
{
    struct lexer outer = r->lx;
    lex_init(&r->lx, outer.file, line, name, strlen(name), outer.err);
    const struct expr *e = reader_expr(r);
    bool bad = !e || !lex_expect_end(&r->lx);
    r->lx = outer;
    return bad ? NULL : e;
}

// What stands for a template parameter that the launch does not give: what is bound to it or has
// its name. Nothing of both: neither is there. False with the error.
static bool find_template_arg(struct reader *r, const struct signature *sig,
                              const struct template_param *t, struct template_arg *out)
{
    const struct symbol *s = scope_find(&r->scope, t->name, strlen(t->name));
    *out = (struct template_arg){ 0 };
    if (t->is_type) {
        out->text = s && s->kind == SYMBOL_TYPE ? arena_printf(r->arena, "%s", t->name) : NULL;
        return true;
    }
    for (int i = 0; i < r->n_binds; i++)
        if (strcmp(r->binds[i].name, t->name) == 0) {
            r->binds[i].used = true;
            out->expr = r->binds[i].expr;
        }
    bool list = s && s->kind == SYMBOL_ATTR && r->op->attrs[s->index].list > 0;
    bool number = s && (s->kind == SYMBOL_SIZE || s->kind == SYMBOL_LET || s->kind == SYMBOL_ATTR);
    if (!out->expr && number && !list && !(out->expr = read_own(r, t->name, sig->line)))
        return false;
    return !out->expr || out->expr->type == EXPR_INT ||
           lex_fail(&r->lx, "template parameter '%s' of '%s' would be '%s', a float", t->name,
                    sig->name, out->expr->text);
}

// Without <...>: each is bound or has its name, up to one with a default for which neither is
// there; a single type of which nothing is said is scalar_t.
static bool name_template_args(struct reader *r, struct step *launch)
{
    const struct signature *sig = launch->signature;
    struct template_arg args[OP_MAX_TEMPLATE_ARGS];
    int n_unsaid = 0, unsaid = 0, n = 0;
    for (; n < sig->n_template; n++) {
        const struct template_param *t = &sig->template_params[n];
        if (t->is_pack || n == OP_MAX_TEMPLATE_ARGS)
            return true;
        if (!find_template_arg(r, sig, t, &args[n]))
            return false;
        if (args[n].text || args[n].expr)
            continue;
        if (t->has_default)
            break;
        if (!t->is_type || r->op->types[TYPE_SCALAR].n_dtypes == 0)
            return lex_fail(&r->lx,
                            "'%s' is a template of %d parameters, expected %s<...>; '%s' is not "
                            "bound, and names no dimension, let or attribute",
                            launch->name, sig->n_template, launch->name, t->name);
        unsaid = n;
        n_unsaid++;
    }
    if (sig->n_template == 0 || n_unsaid > 1)
        return true;
    if (n_unsaid == 1)
        args[unsaid].text = "scalar_t";
    launch->is_template = true;
    launch->n_template_args = n;
    launch->template_args = arena_copy(r->arena, args, (size_t)n, sizeof *args);
    return true;
}

static bool check_template(struct reader *r, const struct step *launch)
{
    const struct signature *sig = launch->signature;
    int n = launch->n_template_args, least = 0;
    bool pack = false;
    for (int i = 0; i < sig->n_template; i++) {
        pack = pack || sig->template_params[i].is_pack;
        least += !sig->template_params[i].has_default && !sig->template_params[i].is_pack;
    }
    if (launch->is_template && !sig->is_template)
        return lex_fail(&r->lx, "'%s' is no template, expected its name without <...>",
                        launch->name);
    if (!launch->is_template && sig->is_template)
        return lex_fail(&r->lx, "'%s' is a template of %d parameters, expected %s<...>",
                        launch->name, sig->n_template, launch->name);
    if (n < least || (n > sig->n_template && !pack))
        return lex_fail(&r->lx, "%d template arguments for '%s', expected %d (line %d)", n,
                        launch->name, sig->n_template, sig->line);
    for (int i = 0; i < n && i < sig->n_template && !pack; i++)
        if (sig->template_params[i].is_type && launch->template_args[i].expr)
            return lex_fail(&r->lx, "template argument %d of '%s' is '%s', expected a type", i + 1,
                            launch->name, launch->template_args[i].expr->text);
    return true;
}

bool bind_type(struct reader *r, const struct step *launch, const char *text, struct cnumber *out)
{
    int at = find_template_param(launch->signature, text, strlen(text));
    if (at >= 0 && launch->signature->template_params[at].is_type)
        text = at < launch->n_template_args ? launch->template_args[at].text : "";
    const struct symbol *s = scope_find(&r->scope, text, strlen(text));
    if (s && s->kind == SYMBOL_TYPE) {
        *out = (struct cnumber){ .kind = CNUMBER_VARIABLE, .type = s->index };
        return true;
    }
    return cnumber_parse(text, strlen(text), out);
}

static bool fail_type(struct reader *r, const struct step *launch, const struct signature_param *p)
{
    return PARAM_FAIL(r, launch, p,
                      " of type '%.64s', expected a pointer, an accessor, a number, bool, a type "
                      "variable or a struct that this file defines",
                      p->type);
}

static bool fail_unknown_param(struct reader *r, const struct step *launch,
                               const struct signature_param *p)
{
    struct suggest near;
    struct cnumber ignored;
    if (p->kind == PARAM_VALUE && !bind_type(r, launch, p->type, &ignored))
        return fail_type(r, launch, p);
    suggest_init(&near, p->name, strlen(p->name));
    bool pointer = p->kind != PARAM_VALUE;
    for (int i = 0; i < r->scope.n; i++) {
        const struct symbol *s = &r->scope.symbols[i];
        bool tensor = s->kind == SYMBOL_TENSOR;
        if (s->kind != SYMBOL_TYPE && s->kind != SYMBOL_PACK && s->kind != SYMBOL_CHECK &&
            tensor == pointer)
            suggest_add(&near, s->name);
    }
    return PARAM_FAIL(r, launch, p, ", which names no %s%s (or add \"bind %s = ...\")",
                      pointer ? "tensor" : "tensor, size, let or attribute", suggest_text(&near),
                      p->name);
}

static bool bind_tensor(struct reader *r, const struct step *launch, struct argument *arg,
                        int tensor)
{
    const struct signature_param *p = arg->param;
    if (tensor >= TENSOR_GRAD_OUTPUT && !r->section->backward)
        return PARAM_FAIL(r, launch, p, ", a gradient, expected in a backward section only");
    if (tensor >= TENSOR_GRAD_INPUT && !(r->section->grads >> (tensor - TENSOR_GRAD_INPUT) & 1))
        return PARAM_FAIL(r, launch, p, ", but this section (line %d) does not make it",
                          r->section->line);
    if (p->kind == PARAM_VALUE)
        return PARAM_FAIL(r, launch, p, " of type %s, but that is a tensor, expected a pointer",
                          p->type);
    if (p->kind == PARAM_ACCESSOR &&
        (!bind_type(r, launch, p->index, &arg->type) ||
         (arg->type.kind != CNUMBER_SIGNED && arg->type.kind != CNUMBER_UNSIGNED) ||
         arg->type.size < 4))
        return PARAM_FAIL(r, launch, p, ", whose sizes are of type %.64s, expected int or int64_t",
                          p->index);
    if (launch->chunk && body_is_list(r->op, tensor))
        return PARAM_FAIL(r, launch, p,
                          ", a list of tensors, of which 'chunks' launches take many"
                          " at once, in a struct");
    arg->tensor = tensor;
    if (tensor < TENSOR_TEMP || p->reads)
        section_note_use(r, tensor);
    return true;
}

static bool bind_value(struct reader *r, const struct step *launch, struct argument *arg,
                       const struct expr *e)
{
    const struct signature_param *p = arg->param;
    if (p->kind == PARAM_POINTER && strcmp(e->text, "0") == 0)
        return true; // null
    if (p->kind != PARAM_VALUE)
        return PARAM_FAIL(r, launch, p, ", a pointer, but '%.64s' is a number, expected a tensor",
                          e->text);
    arg->expr = e;
    if (!bind_type(r, launch, p->type, &arg->type))
        return fail_type(r, launch, p);
    bool scalar = arg->type.kind == CNUMBER_VARIABLE &&
                  (arg->type.type == TYPE_SCALAR || arg->type.type == TYPE_ACC);
    if (scalar && r->op->types[TYPE_SCALAR].n_dtypes == 0)
        return PARAM_FAIL(r, launch, p, " of type %s, but there is no 'dtypes' line", p->type);
    bool takes_float = arg->type.kind == CNUMBER_FLOAT || arg->type.kind == CNUMBER_HALF ||
                       arg->type.kind == CNUMBER_BFLOAT16 || arg->type.kind == CNUMBER_VARIABLE;
    return takes_float || e->type == EXPR_INT ||
           PARAM_FAIL(r, launch, p,
                      " of type %.64s, but '%.64s' is a float (floor() makes an integer)", p->type,
                      e->text);
}

// A member's own name: "sizes[1]" of "p.sizes[1]".
static const char *own_name(const struct signature_param *p)
{
    const char *dot = strrchr(p->name, '.');
    return dot ? dot + 1 : p->name;
}

// The value of a size, let or attribute with the parameter's own name.
static bool bind_name(struct reader *r, const struct step *launch, struct argument *arg)
{
    const struct signature_param *p = arg->param;
    const char *name = own_name(p);
    size_t n = strcspn(name, "[");
    const struct symbol *s = scope_find(&r->scope, name, n);
    bool list = s && s->kind == SYMBOL_ATTR && r->op->attrs[s->index].list > 0;
    if (name[n] && !list)
        return fail_unknown_param(r, launch, p);
    if (!s && launch->threads && strcmp(p->name, "count") == 0)
        return bind_value(r, launch, arg, launch->threads);
    if (!s && launch->chunk && strcmp(p->name, "chunk_size") == 0)
        return bind_value(r, launch, arg, launch->chunk);
    if (!s || s->kind == SYMBOL_TYPE || s->kind == SYMBOL_PACK || s->kind == SYMBOL_CHECK)
        return fail_unknown_param(r, launch, p);
    if (s->kind == SYMBOL_TENSOR)
        return bind_tensor(r, launch, arg, s->index);
    if (list && !name[n])
        return PARAM_FAIL(r, launch, p, ", a list of %d, expected a single value: bind %s = %s[0]",
                          r->op->attrs[s->index].list, p->name, name);
    const struct expr *e = read_own(r, name, p->line);
    return e && bind_value(r, launch, arg, e);
}

bool bind_param(struct reader *r, const struct step *launch, struct argument *arg)
{
    for (int i = 0; i < r->n_binds; i++) {
        struct bind *bind = &r->binds[i];
        if (strcmp(bind->name, arg->param->name) != 0)
            continue;
        bind->used = true;
        return bind->expr ? bind_value(r, launch, arg, bind->expr)
                          : bind_tensor(r, launch, arg, bind->tensor);
    }
    return bind_name(r, launch, arg);
}

static bool check_binds(struct reader *r, const struct step *launch)
{
    for (int i = 0; i < r->n_binds; i++) {
        const struct bind *bind = &r->binds[i];
        if (bind->used)
            continue;
        struct suggest near;
        suggest_init(&near, bind->name, strlen(bind->name));
        for (int k = 0; k < launch->n_args; k++)
            if (launch->args[k].param->kind != PARAM_END)
                suggest_add(&near, launch->args[k].param->name);
        r->lx.line = bind->line;
        return lex_fail(&r->lx, "bind of '%s', which is no parameter of kernel '%s'%s", bind->name,
                        launch->name, suggest_text(&near));
    }
    return true;
}

static bool is_struct_param(struct reader *r, const struct step *launch,
                            const struct signature_param *p)
{
    struct cnumber ignored;
    return p->kind == PARAM_VALUE && !bind_type(r, launch, p->type, &ignored) &&
           members_find(r, members_type(r, launch, p->type));
}

// One parameter, of which a struct has many arguments.
static bool bind_one(struct reader *r, const struct step *launch, const struct signature_param *p,
                     struct argument_list *list)
{
    struct argument arg = { .param = p, .tensor = -1 };
    if (list->n == BIND_MAX_ARGS)
        return PARAM_FAIL(r, launch, p,
                          ", which is one too many beside the members of structs: at most %d",
                          BIND_MAX_ARGS);
    if (is_struct_param(r, launch, p))
        return members_bind(r, launch, p, list);
    if (!bind_param(r, launch, &arg))
        return false;
    list->args[list->n++] = arg;
    return true;
}

// "Types... args": args[0], args[1], as many as the template has arguments behind the others.
static bool bind_pack(struct reader *r, const struct step *launch, const struct signature_param *p,
                      struct argument_list *list)
{
    int from = find_template_param(launch->signature, p->type, strlen(p->type));
    for (int i = from < 0 ? launch->n_template_args : from; i < launch->n_template_args; i++) {
        struct signature_param *own = arena_alloc(r->arena, 1, sizeof *own);
        const struct template_arg *arg = &launch->template_args[i];
        *own = *p;
        own->name = arena_printf(r->arena, "%s[%d]", p->name, i - from);
        own->type = alias_text(r->whole, r->whole_size, r->arena,
                               arg->text ? arg->text : arg->expr->text);
        const char *star = strchr(own->type, '*');
        if (star) { // where it goes is not to be seen
            own->kind = PARAM_POINTER;
            own->type = arena_strndup(r->arena, own->type, (size_t)(star - own->type));
            own->reads = own->asked = true;
            own->writes = !strstr(arg->text, "const");
        }
        if (!bind_one(r, launch, own, list))
            return false;
    }
    return true;
}

static bool check_chunks(struct reader *r, const struct step *launch)
{
    int tables = 0;
    for (int i = 0; i < launch->n_args; i++)
        tables += launch->args[i].param->kind == PARAM_ARRAY &&
                  launch->args[i].role == CHUNK_TENSORS;
    if (!launch->chunk || tables == 1)
        return true;
    return lex_fail(&r->lx,
                    "'chunks', but kernel '%s' takes %s with arrays of addresses, "
                    "block_to_tensor and block_to_chunk",
                    launch->name, tables ? "more than one struct" : "no struct");
}

bool bind_launch(struct reader *r, struct step *launch)
{
    const struct signature *sig = find_signature(r, launch);
    if (!sig)
        return false;
    launch->signature = sig;
    if (!launch->is_template && !name_template_args(r, launch))
        return false;
    if (launch->types)
        launch->types = spell_types(r, launch);
    if (!check_template(r, launch))
        return false;
    if (sig->problem) {
        r->lx.line = sig->line;
        return lex_fail(&r->lx, "kernel '%s': %s", launch->name, sig->problem);
    }
    struct argument_list list;
    list.n = 0;
    for (int i = 0; i < sig->n_params; i++)
        if (!(sig->params[i].is_pack ? bind_pack : bind_one)(r, launch, &sig->params[i], &list))
            return false;
    launch->args = arena_copy(r->arena, list.args, (size_t)list.n, sizeof *launch->args);
    launch->n_args = list.n;
    return check_binds(r, launch) && check_chunks(r, launch);
}
