#include "op/propose_guess.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

// --- words of the text

bool guess_is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

const char *guess_find_word(const char *at, const char *end, const char *word)
{
    size_t n = strlen(word);
    for (; (at = strstr(at, word)) && at < end; at += n)
        if (!guess_is_word_char(at[-1]) && at[-1] != '.' && !guess_is_word_char(at[n]))
            return at;
    return NULL;
}

bool guess_has_part(const char *name, const char *const *parts)
{
    for (; *parts; parts++)
        if (strcasestr(name, *parts))
            return true;
    return false;
}

bool guess_is_one_of(const char *name, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(name, *words) == 0)
            return true;
    return false;
}

static struct guessed_tensor *find_tensor(struct proposal *p, const char *name)
{
    for (int i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0)
            return &p->tensors[i];
    return NULL;
}

enum { STORED = 1, ATOMIC = 2, READ_FIRST = 4 };

// What happens to it where a pointer's name ends: 'name[i] = v', 'name[i] += v', something else.
// *out_value: behind the '='.
static bool is_store(const char *after, const char *end, bool *out_update, const char **out_value)
{
    int depth = 0;
    while (isspace((unsigned char)*after))
        after++;
    if (*after != '[')
        return false;
    do
        depth += (*after == '[') - (*after == ']');
    while (++after < end && (depth > 0 || *after == '[' || *after == ' '));
    if (*after == '.') // "v[i].x"
        after += 1 + strspn(after + 1, "xyzw ");
    *out_update = *after && ((strchr("+-*/|&^", *after) && after[1] == '=') ||
                             (strchr("+-", *after) && after[1] == *after));
    *out_value = after + 1;
    return *out_update || (after[0] == '=' && after[1] != '=');
}

// How a kernel's text writes to what a pointer points to, and whether it reads that before.
static int find_stores(struct proposal *p, const struct signature *k,
                       const struct signature_param *param)
{
    const char *begin, *end, *value, *name = param->name;
    int found = 0, n = 0;
    if (param->path) // "p.x", of whose elements the index is hardly a plain number
        name = arena_strndup(&p->arena, param->path, strcspn(param->path, "["));
    guess_find_body(p, k, &begin, &end);
    for (const char *at = begin; (at = guess_find_word(at, end, name)); at += strlen(name), n++) {
        const char *before = at;
        bool update;
        while (before > begin && strchr(" (&*", before[-1]))
            before--;
        while (before > begin && guess_is_word_char(before[-1]))
            before--;
        if (strncasecmp(before, "atomic", 6) == 0 || strncasecmp(before, "gpuAtomic", 9) == 0) {
            found |= ATOMIC;
        } else if (is_store(at + strlen(name), end, &update, &value)) {
            const char *semicolon = strchr(value, ';');
            if (n == 0 && (update || (semicolon && guess_find_word(value, semicolon, name))))
                found |= READ_FIRST;
            found |= STORED;
        } else if (n == 0 && at[strlen(name)] == '[') {
            found |= READ_FIRST;
        }
    }
    return found;
}

bool guess_is_written(struct proposal *p, const struct signature *k,
                      const struct signature_param *param)
{
    bool some_const = false, some_stored = false;
    const struct signature_param *last = NULL;
    if (!param->type || param->kind == PARAM_VALUE || !param->writes)
        return false;
    if ((guess_find_made(p, param->name) || find_tensor(p, param->name)) &&
        !(find_stores(p, k, param) & (STORED | ATOMIC)))
        return false; // it has another part
    for (int i = 0; i < k->n_params; i++) {
        const struct signature_param *other = &k->params[i];
        if (!other->type || other->kind == PARAM_VALUE)
            continue;
        some_const = some_const || !other->writes;
        some_stored = some_stored || find_stores(p, k, other) & (STORED | ATOMIC);
        last = other;
    }
    if (find_stores(p, k, param) & (STORED | ATOMIC))
        return true;
    if (some_stored && guess_is_backward(k->name) && !guess_is_grad(param->name))
        return false; // what forward has made, without const
    if (guess_is_backward(k->name) && guess_is_grad(param->name) &&
        guess_gradient(p, param->name, INPUT, -1) && !guess_gradient(p, param->name, OUTPUT, -1))
        return true; // by another pointer
    return (some_const && !guess_is_one_of(param->name, WORDS("mask"))) ||
           (!some_stored && param == last);
}

// --- what parameters are

static const char *find_dtype(const char *type, size_t n)
{
    static const char *const known[][2] = {
        { "float", "float32" },
        { "double", "float64" },
        { "int", "int32" },
        { "int32_t", "int32" },
        { "long", "int64" },
        { "long long", "int64" },
        { "int64_t", "int64" },
        { "long int", "int64" },
        { "unsigned", "int32" }, // as which PyTorch has their bits
        { "unsigned int", "int32" },
        { "uint32_t", "int32" },
        { "uint", "int32" },
        { "unsigned long long", "int64" },
        { "unsigned long long int", "int64" },
        { "uint64_t", "int64" },
        { "short", "int16" },
        { "int16_t", "int16" },
        { "char", "int8" },
        { "int8_t", "int8" },
        { "signed char", "int8" },
        { "unsigned char", "uint8" },
        { "uint8_t", "uint8" },
        { "uchar", "uint8" },
        { "bool", "bool" },
        { "half", "float16" },
        { "__half", "float16" },
        { "at::Half", "float16" },
        { "__nv_bfloat16", "bfloat16" },
        { "at::BFloat16", "bfloat16" },
        { "nv_bfloat16", "bfloat16" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i][0]) == n && strncmp(type, known[i][0], n) == 0)
            return known[i][1];
    return NULL;
}

int guess_lanes(const char *type)
{
    size_t n = strlen(type);
    bool many = n > 1 && strchr("234", type[n - 1]) && !find_dtype(type, n) &&
                find_dtype(type, n - 1);
    return many ? type[n - 1] - '0' : 0;
}

const char *guess_dtype(const char *type)
{
    return find_dtype(type, strlen(type) - (guess_lanes(type) > 0));
}

static bool is_type_param(const struct signature *k, const char *type)
{
    for (int i = 0; i < k->n_template; i++)
        if (k->template_params[i].is_type && strcmp(k->template_params[i].name, type) == 0)
            return true;
    return strcmp(type, "scalar_t") == 0;
}

bool guess_is_grad(const char *name)
{
    return guess_has_part(name, WORDS("grad", "diff")) ||
           (name[0] == 'd' && (name[1] == '_' || isupper((unsigned char)name[1]))) ||
           guess_is_one_of(name, WORDS("dout", "dinp", "dx", "dy", "dz", "dw", "db", "dweight",
                                       "dbias", "dgamma", "dbeta", "dinput", "doutput"));
}

bool guess_is_backward(const char *name)
{
    return guess_has_part(name, WORDS("backward", "bwd", "_grad", "Grad", "backprop"));
}

static bool is_total(const char *name)
{
    return guess_is_one_of(name,
                           WORDS("nthreads", "num_threads", "numel", "total", "count", "size",
                                 "num_kernels", "n_elements", "num_elements", "total_elements",
                                 "total_size", "elements", "numElements", "totalElements", "len",
                                 "length", "nelem", "num_total", "output_size", "outputSize"));
}

static bool is_size(const char *name)
{
    return (strlen(name) <= 2 && isalpha((unsigned char)name[0]) && strcmp(name, "t") != 0) ||
           guess_is_one_of(name,
                           WORDS("rows", "cols", "columns", "width", "height", "depth", "channels",
                                 "batch", "batches", "dim", "outer", "inner", "last", "spatial",
                                 "vocab", "heads", "classes", "npoints", "length", "hidden",
                                 "features")) ||
           (!guess_has_part(name, WORDS("stride", "pad", "dilat", "kernel", "radius", "ratio",
                                        "axis", "seed", "offset", "type", "mode", "iter", "sample",
                                        "step", "block", "pooled")) &&
            strcasecmp(name, "groups") != 0 &&
            guess_has_part(name, WORDS("num", "size", "_len", "_dim", "n_", "rows", "cols",
                                       "height", "width", "channel", "count", "batch", "total_")));
}

// A number, true or false, or a name of the file's own as in Mode::SUM.
static bool is_constant(const char *at, size_t n)
{
    bool word = n > 0, scoped = false;
    for (size_t i = 0; i < n && word; i++) {
        scoped = scoped || at[i] == ':';
        word = guess_is_word_char(at[i]) || at[i] == ':';
    }
    return word && (scoped || isdigit((unsigned char)*at) ||
                    (n == 4 && strncmp(at, "true", n) == 0) ||
                    (n == 5 && strncmp(at, "false", n) == 0));
}

// The i-th of the first `NAME<..., constant, ...>` of the file; NULL: there is none.
static const char *find_named_arg(struct proposal *p, const struct signature *k, int i)
{
    const char *end = p->text + strlen(p->text), *at = p->text;
    for (; (at = guess_find_word(at, end, k->name)); at += strlen(k->name)) {
        const char *arg = at + strlen(k->name);
        arg += strspn(arg, " \t\n");
        for (int n = 0; n <= i && *arg && strchr("<,", *arg) && arg[1] != '<'; n++) {
            arg += 1 + strspn(arg + 1, " \t\n");
            size_t size = strcspn(arg, "<>,;({"), own = size;
            while (own > 0 && isspace((unsigned char)arg[own - 1]))
                own--;
            if (n == i && strchr(">,", arg[size]) && is_constant(arg, own))
                return arena_strndup(&p->arena, arg, own);
            arg += size;
        }
    }
    return NULL;
}

const char *guess_template_arg(struct proposal *p, const struct signature *k, int i)
{
    const struct template_param *t = &k->template_params[i];
    if (t->is_type)
        return i && guess_has_part(t->name, WORDS("acc")) ? "acc_t" : "scalar_t";
    const char *named = find_named_arg(p, k, i);
    if (named)
        return named;
    if (t->type)
        return arena_printf(&p->arena, "%s(0)", t->type);
    return guess_has_part(t->name, WORDS("vec"))                      ? "1"
           : guess_has_part(t->name, WORDS("warp", "tile"))           ? "32"
           : guess_has_part(t->name, WORDS("block", "thread", "size")) ? "256"
                                                                      : "1";
}

struct guessed_tensor *guess_find_made(struct proposal *p, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < p->n_tensors; i++) {
        struct guessed_tensor *t = &p->tensors[i];
        if ((t->role == OUTPUT || t->role == SAVED) && strncmp(t->name, name, n) == 0 &&
            (!t->name[n] || strcmp(t->name + n, "_out") == 0))
            return t;
    }
    return NULL;
}

// In the header's words; a template parameter as launches give it.
static const char *spell_type(struct proposal *p, const struct signature *k, const char *type)
{
    for (int i = 0; i < k->n_template; i++)
        if (k->template_params[i].is_type && strcmp(k->template_params[i].name, type) == 0)
            return guess_template_arg(p, k, i);
    return type;
}

// "p." of the member "p.x" of a struct; "": it is none.
static const char *owner_of(struct proposal *p, const struct signature_param *param)
{
    const char *dot = param->path ? strrchr(param->path, '.') : NULL;
    return dot ? arena_strndup(&p->arena, param->path, (size_t)(dot + 1 - param->path)) : "";
}

static void add_tensor(struct proposal *p, const struct signature *k,
                       const struct signature_param *param, enum role role, bool unseen)
{
    struct guessed_tensor *t = find_tensor(p, param->name);
    if (t || p->n_tensors == MAX_NAMES)
        return;
    p->tensors[p->n_tensors++] = (struct guessed_tensor){
        .name = param->name,
        .type = spell_type(p, k, param->type),
        .role = role,
        .unseen = unseen,
        .rank = param->rank,
        .owner = owner_of(p, param),
    };
}

bool guess_is_listed(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void add_value(struct proposal *p, const struct signature *k,
                      const struct signature_param *param)
{
    const char *dtype = is_type_param(k, param->type) ? "float32" : guess_dtype(param->type);
    bool floats = strncmp(dtype ? dtype : "", "float", 5) == 0 || strcmp(param->type, "acc_t") == 0;
    bool integer = !floats &&
                   (dtype || guess_has_part(param->type, WORDS("int", "size_t", "long")));
    if (p->n_attrs == MAX_NAMES || p->n_sizes == MAX_NAMES)
        return;
    for (int i = 0; i < p->n_attrs; i++)
        if (strcmp(p->attrs[i].name, param->name) == 0)
            return;
    if (param->list > 0 && (floats || integer))
        p->attrs[p->n_attrs++] = (struct guessed_value){
            param->name,
            arena_printf(&p->arena, "%s[%d]", floats ? "float" : "int", param->list),
        };
    else if (strcmp(param->type, "bool") == 0 || floats)
        p->attrs[p->n_attrs++] = (struct guessed_value){ param->name, floats ? "float" : "bool" };
    else if (integer && !p->total && is_total(param->name))
        p->total = param->name;
    else if (integer && p->total && strcmp(p->total, param->name) == 0)
        return;
    else if (integer && is_size(param->name)) {
        guess_add_size(p, param->name, owner_of(p, param));
    } else if (integer)
        p->attrs[p->n_attrs++] = (struct guessed_value){ param->name, "int" };
}

void guess_take_forward(struct proposal *p, const struct signature *k)
{
    for (int i = 0; i < k->n_params; i++) {
        const struct signature_param *param = &k->params[i];
        if (!param->type) // it cannot be passed: signature.problem
            continue;
        if (param->kind == PARAM_VALUE) {
            add_value(p, k, param);
            continue;
        }
        int stores = find_stores(p, k, param);
        bool changed = ((stores & READ_FIRST) && (stores & STORED) && !(stores & ATOMIC)) ||
                       guess_is_one_of(param->name, WORDS("input", "inp", "inout", "in_out"));
        add_tensor(p, k, param,
                   !guess_is_written(p, k, param) ? INPUT
                   : changed                      ? CHANGED
                                                  : OUTPUT,
                   !(stores & (STORED | ATOMIC)));
    }
}

void guess_take_backward(struct proposal *p, const struct signature *k)
{
    for (int i = 0; i < k->n_params; i++) {
        const struct signature_param *param = &k->params[i];
        if (param->type && param->kind == PARAM_VALUE)
            add_value(p, k, param);
        else if (param->type && !guess_is_grad(param->name) && !guess_is_written(p, k, param) &&
                 !guess_find_made(p, param->name))
            add_tensor(p, k, param, INPUT, false);
    }
}

void guess_find_saved(struct proposal *p)
{
    int n_results = 0, first = -1;
    for (int k = 0; k < p->n_kernels; k++)
        for (int i = 0; p->backward[k] && i < p->kernels[k]->n_params; i++) {
            const struct signature_param *param = &p->kernels[k]->params[i];
            struct guessed_tensor *t = param->type && !guess_is_written(p, p->kernels[k], param)
                                           ? guess_find_made(p, param->name)
                                           : NULL;
            if (t)
                t->role = SAVED;
        }
    for (int t = p->n_tensors; t-- > 0;) {
        n_results += p->tensors[t].role == OUTPUT || p->tensors[t].role == CHANGED;
        first = p->tensors[t].role == SAVED ? t : first;
    }
    if (n_results == 0 && first >= 0)
        p->tensors[first].role = OUTPUT;
}

// --- backward: which gradient a parameter is

static const char *base_name(struct proposal *p, const char *name)
{
    static const char *const prefixes[] = { "grad_", "d_", "grad", "d", "top_", "bottom_" };
    static const char *const suffixes[] = { "_grad", "_diff", "Grad", "_gradient" };
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        size_t n = strlen(name), m = strlen(suffixes[i]);
        if (n > m && strcmp(name + n - m, suffixes[i]) == 0)
            return arena_strndup(&p->arena, name, n - m);
    }
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0 && name[strlen(prefixes[i])])
            return name + strlen(prefixes[i]);
    return name;
}

const struct guessed_tensor *guess_gradient(struct proposal *p, const char *name, enum role role,
                                            int n)
{
    const char *base = base_name(p, name);
    const struct guessed_tensor *nth = NULL;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct guessed_tensor *t = &p->tensors[i];
        if (t->role != role || (guess_dtype(t->type) && !strstr(guess_dtype(t->type), "float")))
            continue; // no gradient is of integers
        if (strcasecmp(t->name, base) == 0 ||
            (strlen(base) >= 3 &&
             (strcasestr(t->name, base) == t->name || strcasestr(base, t->name) == base)))
            return t;
        if (n-- == 0)
            nth = t;
    }
    return nth;
}
