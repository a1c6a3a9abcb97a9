#include "op/propose_text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "op/op.h"
#include "op/propose_launch.h"

static void ask(struct proposal *p, const char *question)
{
    buf_printf(p->out, "// ? %s\n", question);
}

void propose_write_schema(struct proposal *p)
{
    char name[OP_MAX_NAME];
    size_t n = 0;
    const char *stem = strrchr(p->file, '/') ? strrchr(p->file, '/') + 1 : p->file;
    for (; *stem && *stem != '.' && n < sizeof name - 1; stem++, n++)
        name[n] = guess_is_word_char(*stem) && (n > 0 || !isdigit((unsigned char)*stem)) ? *stem
                                                                                         : '_';
    name[n] = '\0';
    buf_printf(p->out, "//! op      %s(", name);
    int n_outputs = 0, n_inputs = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct guessed_tensor *t = &p->tensors[i];
        n_outputs += t->role == OUTPUT;
        if (t->role == INPUT || t->role == CHANGED)
            buf_printf(p->out, "%sTensor%s %s", n_inputs++ ? ", " : "",
                       t->role == CHANGED ? "(a!)" : "", t->name);
    }
    for (int i = 0; i < p->n_attrs; i++)
        buf_printf(p->out, "%s%s %s",
                   i          ? ", "
                   : n_inputs ? ", *, "
                              : "*, ",
                   p->attrs[i].type, p->attrs[i].name);
    buf_append_str(p->out, n_outputs == 1 ? ") -> " : ") -> (");
    int k = 0;
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].role == OUTPUT)
            buf_printf(p->out, "%sTensor %s", k++ ? ", " : "", p->tensors[i].name);
    buf_append_str(p->out, n_outputs == 1 ? "\n" : ")\n");
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].role == OUTPUT && p->tensors[i].unseen)
            buf_printf(p->out, "// ? Is %s made, or changed in place: Tensor(a!) %s?\n",
                       p->tensors[i].name, p->tensors[i].name);
}

// A line for each dtype, not for each tensor: an operator has few types.
static void write_types(struct proposal *p, const char *const *told)
{
    for (int i = 0; i < p->n_tensors; i++) {
        bool first = told[i] != NULL;
        for (int k = 0; k < i && first; k++)
            first = !told[k] || strcmp(told[k], told[i]) != 0;
        if (!first)
            continue;
        buf_printf(p->out, "//! type    %s :", told[i]);
        for (int k = i; k < p->n_tensors; k++)
            if (told[k] && strcmp(told[k], told[i]) == 0)
                buf_printf(p->out, " %s", p->tensors[k].name);
        buf_append_str(p->out, "\n");
    }
}

void propose_write_types(struct proposal *p)
{
    const char *scalar = NULL;
    for (int i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].type, "scalar_t") == 0)
            scalar = "scalar_t";
    for (int i = 0; i < p->n_tensors && !scalar; i++)
        if (guess_dtype(p->tensors[i].type) && strstr(guess_dtype(p->tensors[i].type), "float"))
            scalar = p->tensors[i].type;
    if (!scalar && p->n_tensors > 0)
        scalar = p->tensors[p->n_tensors - 1].type;
    if (!scalar)
        return;
    bool open = strcmp(scalar, "scalar_t") == 0, has_inputs = false;
    for (int i = 0; i < p->n_tensors; i++)
        has_inputs = has_inputs ||
                     ((p->tensors[i].role == INPUT || p->tensors[i].role == CHANGED) &&
                      strcmp(p->tensors[i].type, scalar) == 0);
    buf_printf(p->out, "//! dtypes  %s\n",
               open                  ? "float32 float64"
               : guess_dtype(scalar) ? guess_dtype(scalar)
                                     : "float32");
    if (open)
        ask(p, "float16 and bfloat16, too?");
    const char *told[MAX_NAMES]; // of each tensor, the dtype that its line says; NULL: none does
    for (int i = 0; i < p->n_tensors; i++) {
        const struct guessed_tensor *t = &p->tensors[i];
        bool plain = strcmp(t->type, "scalar_t") == 0 || // float64's acc_t is that, too
                     strcmp(t->type, "acc_t") == 0 ||
                     (has_inputs && guess_dtype(scalar) && strcmp(t->type, scalar) == 0);
        told[i] = plain || t->role == SAVED ? NULL : guess_dtype(t->type);
        if (!plain && t->role != SAVED && !told[i])
            buf_printf(p->out, "// ? %s points to %s" PROPOSE_MISSING "\n", t->name, t->type);
    }
    write_types(p, told);
}

// "[N, C]"; of one name alone that of the total.
static void write_dims(struct proposal *p, const struct guessed_tensor *t, int first, int end)
{
    buf_append_str(p->out, "[");
    for (int i = first; i < end; i++)
        buf_printf(p->out, "%s%s", i > first ? ", " : "", i < p->n_sizes ? p->sizes[i] : "1");
    if (guess_lanes(t->type) > 0)
        buf_printf(p->out, ", %d", guess_lanes(t->type));
    buf_append_str(p->out, "]\n");
}

static bool is_owned(const struct proposal *p, const struct guessed_tensor *t, int size)
{
    return t->owner[0] && strcmp(t->owner, p->owners[size]) == 0;
}

// "[width, height]" of a struct that has sizes beside the address, where others have some, too.
static bool write_owned(struct proposal *p, const struct guessed_tensor *t)
{
    int n = 0;
    for (int i = 0; i < p->n_sizes; i++)
        n += is_owned(p, t, i);
    if (n == 0 || n == p->n_sizes)
        return false;
    for (int i = 0, k = 0; i < p->n_sizes; i++)
        if (is_owned(p, t, i))
            buf_printf(p->out, "%s%s", k++ ? ", " : "[", p->sizes[i]);
    buf_append_str(p->out, "]\n");
    return true;
}

static bool is_matmul(const struct proposal *p)
{
    return p->n_sizes == 3 && p->n_tensors == 3 && guess_is_listed(p->sizes, 3, "M") &&
           guess_is_listed(p->sizes, 3, "N") && guess_is_listed(p->sizes, 3, "K");
}

static bool is_small(const char *name)
{
    return guess_has_part(name, WORDS("weight", "gamma", "beta", "bias", "scale", "shift", "mean",
                                      "rstd", "std", "var")) ||
           guess_is_one_of(name, WORDS("w", "b"));
}

static int first_dim(const struct proposal *p, const struct guessed_tensor *t)
{
    bool rows = guess_has_part(t->name, WORDS("mean", "std", "var", "sum", "max"));
    int n = t->rank ? t->rank : 1;
    return is_small(t->name) && !rows && n < p->n_sizes ? p->n_sizes - n : 0;
}

static int end_dim(const struct proposal *p, const struct guessed_tensor *t)
{
    bool rows = guess_has_part(t->name, WORDS("mean", "std", "var", "sum", "max")) ||
                guess_is_of_block(p, p->kernels[0], t->name);
    bool index = guess_dtype(t->type) && strstr(guess_dtype(t->type), "int") && t->role == INPUT;
    if (t->rank > 0)
        return first_dim(p, t) + t->rank;
    return (rows && p->n_sizes > 1) || (index && p->n_sizes > 1) ? p->n_sizes - 1 : p->n_sizes;
}

// The input that has all sizes, where no other has: the first whose rank is open. -1: it need not.
static int find_whole(const struct proposal *p)
{
    int whole = -1;
    for (int i = p->n_tensors; i-- > 0;) {
        const struct guessed_tensor *t = &p->tensors[i];
        if (t->role == OUTPUT || t->role == SAVED || t->rank)
            continue;
        if (first_dim(p, t) == 0 && end_dim(p, t) == p->n_sizes && i > 0)
            return -1;
        whole = i;
    }
    return whole;
}

static bool is_rois(const struct guessed_tensor *t)
{
    return t->role == INPUT && guess_has_part(t->name, WORDS("roi"));
}

static bool has_rois(const struct proposal *p)
{
    bool found = false;
    for (int i = 0; i < p->n_tensors; i++)
        found = found || (is_rois(&p->tensors[i]) && !p->tensors[i].rank);
    return found && !guess_is_listed(p->sizes, p->n_sizes, "rois");
}

// Regions of images: of images all sizes, of regions a row of 5, of results one for each region.
static void write_of_rois(struct proposal *p, const struct guessed_tensor *t)
{
    bool made = t->role == OUTPUT || t->role == SAVED, pooled = false;
    if (is_rois(t)) {
        buf_append_str(p->out, "[rois, 5]\n");
        return;
    }
    for (int i = 0; i < p->n_attrs; i++)
        pooled = pooled || guess_has_part(p->attrs[i].name, WORDS("pooled"));
    buf_append_str(p->out, made ? "[rois" : "[images");
    for (int i = 0; i < p->n_sizes; i++)
        if (!guess_has_part(p->sizes[i], WORDS("roi", "batch")) &&
            !(made && pooled && guess_has_part(p->sizes[i], WORDS("height", "width"))))
            buf_printf(p->out, ", %s", p->sizes[i]);
    for (int i = 0; i < p->n_attrs && made; i++)
        if (guess_has_part(p->attrs[i].name, WORDS("pooled")))
            buf_printf(p->out, ", %s", p->attrs[i].name);
    buf_append_str(p->out, "]\n");
}

void propose_write_shapes(struct proposal *p)
{
    bool of_rois = has_rois(p);
    static const char *const matmul[3] = { "[M, K]", "[K, N]", "[M, N]" };
    int whole = find_whole(p);
    if (p->n_tensors > 1 || p->n_sizes > 1)
        ask(p, "Are these the shapes? A name that stands twice is the same size.");
    for (int round = 0; round < 2; round++) // inputs define sizes
        for (int i = 0; i < p->n_tensors; i++) {
            const struct guessed_tensor *t = &p->tensors[i];
            if ((t->role == OUTPUT || t->role == SAVED) != (round == 1))
                continue;
            const char *dtype = strcmp(t->type, "acc_t") == 0 ? "acc_t" : guess_dtype(t->type);
            if (t->role == SAVED)
                buf_printf(p->out, "//! saved   %s%s%s ", t->name, dtype ? " " : "",
                           dtype ? dtype : "");
            else
                buf_printf(p->out, "//! shape   %s ", t->name);
            bool all_small = round == 0 && i == whole && !t->rank;
            if (of_rois)
                write_of_rois(p, t);
            else if (write_owned(p, t))
                continue;
            else if (is_matmul(p))
                buf_printf(p->out, "%s\n", matmul[t->role == OUTPUT || i == 2 ? 2 : i % 2]);
            else if (all_small)
                write_dims(p, t, 0, p->n_sizes);
            else
                write_dims(p, t, first_dim(p, t), end_dim(p, t));
        }
    for (int i = 0; i < p->n_tensors && p->total; i++)
        if (p->tensors[i].role == OUTPUT || p->tensors[i].role == CHANGED) {
            buf_printf(p->out, "//! let     %s = numel(%s)\n", p->total, p->tensors[i].name);
            break;
        }
}

void propose_write_example(struct proposal *p)
{
    static const int sizes[] = { 2, 3, 4, 5, 6, 7, 8, 9 };
    const char *text = buf_str(p->out);
    struct buf line = { 0 };
    for (int i = 0; i < p->n_tensors; i++) {
        char key[160];
        if (p->tensors[i].role == OUTPUT || p->tensors[i].role == SAVED)
            continue;
        snprintf(key, sizeof key, "//! shape   %s [", p->tensors[i].name);
        const char *at = strstr(text, key);
        buf_printf(&line, " %s=[", p->tensors[i].name);
        for (at = at ? at + strlen(key) : "]"; *at && *at != ']';) {
            size_t n = strcspn(at, ",]");
            bool known = false;
            for (int s = 0; s < p->n_sizes; s++)
                if (strlen(p->sizes[s]) == n && strncmp(p->sizes[s], at, n) == 0) {
                    buf_printf(&line, "%d", p->n_sizes == 1 ? 1000 : sizes[s % 8]);
                    known = true;
                }
            if (!known)
                buf_printf(&line, "%.*s", isdigit((unsigned char)*at) ? (int)n : 1,
                           isdigit((unsigned char)*at) ? at : "2");
            at += n + strspn(at + n, ", ");
            if (*at && *at != ']')
                buf_append_str(&line, ",");
        }
        buf_append_str(&line, "]");
    }
    for (int i = 0; i < p->n_attrs; i++)
        buf_printf(&line, " %s=%s", p->attrs[i].name,
                   p->attrs[i].type[0] == 'b'   ? "True"
                   : p->attrs[i].type[0] == 'f' ? "0.5"
                                                : "1");
    if (p->n_attrs > 0)
        ask(p, "Have attributes defaults (int stride=1), or are some of them sizes?");
    buf_printf(p->out, "//! example%s\n", buf_str(&line));
    buf_finish(&line);
}

// Whether a kernel takes the total: so many threads it has.
static bool takes_total(const struct proposal *p, const struct signature *k)
{
    bool takes = false;
    for (int i = 0; i < k->n_params && p->total; i++)
        takes = takes || (k->params[i].name && strcmp(k->params[i].name, p->total) == 0);
    return takes;
}

// "a::b::" of the namespaces around a kernel; what has no name needs none.
static void write_namespaces(struct proposal *p, const struct signature *k)
{
    const char *names[16], *begin, *end, *next = NULL;
    size_t sizes[16] = { 0 };
    int depth = 0;
    guess_find_body(p, k, &begin, &end);
    for (const char *at = p->code; at < begin; at++) {
        bool is_space = strncmp(at, "namespace", 9) == 0 && isspace((unsigned char)at[9]) &&
                        (at == p->code || isspace((unsigned char)at[-1]) || at[-1] == '{');
        if (is_space)
            next = at + 9 + strspn(at + 9, " \t\n");
        if (*at == ';' || *at == '=')
            next = NULL;
        if (*at == '{' && depth < 16) {
            names[depth] = next;
            for (sizes[depth] = 0;
                 next && (guess_is_word_char(next[sizes[depth]]) || next[sizes[depth]] == ':');)
                sizes[depth]++;
            next = NULL;
        }
        depth += (*at == '{') - (*at == '}' && depth > 0);
    }
    for (int i = 0; i < depth && i < 16; i++)
        if (sizes[i] > 0)
            buf_printf(p->out, "%.*s::", (int)sizes[i], names[i]);
}

// What the host copies to a __constant__ variable does not come here.
static void ask_for_constants(struct proposal *p)
{
    const char *end = p->code + strlen(p->code);
    for (const char *at = p->code; (at = guess_find_word(at, end, "__constant__")); at++) {
        size_t n = strcspn(at, ";=");
        if (at[n] == ';')
            buf_printf(p->out, "// ? Nobody fills this; make it a parameter: %.*s\n",
                       (int)strcspn(at, ";\n"), at);
    }
}

static bool is_plain_threads(struct proposal *p, const struct signature *k)
{
    return takes_total(p, k) && guess_is_linear(p, k, 'x') && !guess_is_linear(p, k, 'y');
}

// What a header must say of a block's size; NULL: nothing, it is not known or 256. One constant
// says nothing of a block of rows.
static const char *unusual_block(struct proposal *p, const struct signature *k,
                                 const struct guessed_launch *launch)
{
    const char *block = launch->block                             ? launch->block
                        : guess_body_has(p, k, "threadIdx.y") ? NULL
                                                              : guess_block_size(p, k, 'x');
    return block && strcmp(block, "256") != 0 ? block : NULL;
}

// A thread for each element of a plane, or of what has three dimensions.
static void write_plane(struct proposal *p, const struct signature *k)
{
    const char *extents[3], *block[3];
    int n = guess_is_linear(p, k, 'z') && p->n_sizes > 2 ? 3 : 2;
    bool known = true;
    for (int i = 0; i < n; i++) {
        block[i] = guess_block_size(p, k, "xyz"[i]);
        block[i] = block[i] ? block[i] : i < 2 ? "16" : "1";
        extents[i] = guess_extent(p, k, "xyz"[i]);
        known = known && extents[i];
        if (!extents[i])
            extents[i] = p->sizes[p->n_sizes - 1 - i];
    }
    if (!known)
        ask(p, "A thread for each of these?");
    for (int i = 0; i < n; i++)
        buf_printf(p->out, i < 2 || strcmp(block[i], "1") != 0 ? "%scdiv(%s, %s)" : "%s%s",
                   i ? ", " : "//!   grid    ", extents[i], block[i]);
    buf_printf(p->out, "\n//!   block   %s, %s", block[0], block[1]);
    buf_printf(p->out, n > 2 && strcmp(block[2], "1") != 0 ? ", %s\n" : "\n", block[n - 1]);
}

static void write_grid(struct proposal *p, const struct signature *k,
                       const struct guessed_launch *launch)
{
    const char *block = unusual_block(p, k, launch);
    if (!launch->grid && !guess_is_plane(p, k) && guess_body_has(p, k, "Idx.y"))
        ask(p, "It has blocks or threads along y: which grid and block?");
    if (launch->grid && launch->block) {
        buf_printf(p->out, "//!   grid    %s\n", launch->grid);
    } else if (guess_is_plane(p, k) && p->n_sizes > 1) {
        write_plane(p, k);
        return;
    } else if (!guess_is_linear(p, k, 'x') && guess_body_has(p, k, "blockIdx.x")) {
        ask(p, "A block for each of these?");
        buf_printf(p->out, "//!   grid    %s\n", p->sizes[0]);
    } else if (!takes_total(p, k)) {
        ask(p, "A thread for each element of the first result, or 'threads'?");
    }
    if (block)
        buf_printf(p->out, "//!   block   %s\n", block);
}

static void write_geometry(struct proposal *p, const struct signature *k,
                           const struct guessed_launch *launch)
{
    bool shared = guess_body_has(p, k, "extern __shared__") ||
                  guess_body_has(p, k, "extern  __shared__");
    if (launch->text)
        buf_printf(p->out, "// ? The host launches it as %.150s\n", launch->text);
    if (!is_plain_threads(p, k))
        write_grid(p, k, launch);
    if (shared && !launch->shared)
        ask(p, "How many bytes of dynamic shared memory?");
    if (shared)
        buf_printf(p->out, "//!   shared  %s\n", launch->shared ? launch->shared : "16384");
}

static void write_template(struct proposal *p, const struct signature *k,
                           const struct guessed_launch *launch)
{
    bool open = false;
    for (int i = 0; i < k->n_template && !k->template_params[i].has_default; i++) {
        buf_printf(p->out, "%s%s", i ? ", " : "<", guess_template_arg(p, k, i));
        open = true;
    }
    buf_append_str(p->out, open ? ">" : "");
    const char *block = unusual_block(p, k, launch);
    bool by = block && !block[strspn(block, "0123456789")];
    if (is_plain_threads(p, k))
        buf_printf(p->out, " threads %s%s%s", p->total, by ? " by " : "", by ? block : "");
    buf_append_str(p->out, "\n");
    for (int i = 0; i < k->n_template; i++)
        if (k->template_params[i].type && !k->template_params[i].has_default)
            buf_printf(p->out, "// ? Which %s?\n", k->template_params[i].type);
}

// Where the parameter's own name, of a member the last, does not say it.
static void write_bind(struct proposal *p, const struct signature_param *param, const char *what)
{
    const char *place = param->path ? param->path : param->name;
    const char *own = strrchr(place, '.') ? strrchr(place, '.') + 1 : place;
    size_t size = strcspn(place, "[");
    if (strcmp(own, what) == 0)
        return;
    if (param->list == 0)
        buf_printf(p->out, "//!   bind    %s = %s\n", place, what);
    else if (strlen(what) != strcspn(own, "[") || strncmp(own, what, strlen(what)) != 0)
        for (int i = 0; i < param->list; i++)
            buf_printf(p->out, "//!   bind    %.*s[%d] = %s[%d]\n", (int)size, place, i, what, i);
}

// What a parameter gets where its name is not that of a tensor, size or attribute.
static void write_binds(struct proposal *p, const struct signature *k, bool backward)
{
    int n_read = 0, n_made = 0;
    for (int i = 0; i < k->n_params; i++) {
        const struct signature_param *param = &k->params[i];
        if (!param->type)
            continue;
        if (param->kind == PARAM_VALUE || (!backward && param->path)) {
            write_bind(p, param, param->name);
            continue;
        }
        bool made = backward && guess_is_written(p, k, param);
        const struct guessed_tensor *own = backward && !made ? guess_find_made(p, param->name)
                                                             : NULL;
        if (own)
            write_bind(p, param, own->name);
        else if (backward && !made && !guess_is_grad(param->name))
            write_bind(p, param, param->name);
        if (!backward || own || (!made && !guess_is_grad(param->name)))
            continue;
        const struct guessed_tensor *t = guess_gradient(p, param->name, made ? INPUT : OUTPUT,
                                                        made ? n_made : n_read);
        n_made += made;
        n_read += !made;
        if (!t)
            buf_printf(p->out, "// ? Of which tensor is %s the gradient?\n", param->name);
        else
            write_bind(p, param, arena_printf(&p->arena, "grad_%s", t->name));
    }
}

void propose_write_section(struct proposal *p, bool backward)
{
    if (!backward) {
        ask_for_constants(p);
        buf_append_str(p->out, "//! forward\n");
    } else {
        bool made[MAX_NAMES] = { false };
        int n = 0;
        for (int k = 0; k < p->n_kernels; k++)
            for (int i = 0, n_made = 0; p->backward[k] && i < p->kernels[k]->n_params; i++) {
                const struct signature_param *param = &p->kernels[k]->params[i];
                if (!guess_is_written(p, p->kernels[k], param))
                    continue;
                const struct guessed_tensor *t = guess_gradient(p, param->name, INPUT, n_made++);
                if (t)
                    made[t - p->tensors] = true;
            }
        for (int i = 0; i < p->n_tensors; i++)
            if (made[i])
                buf_printf(p->out, "%s grad_%s", n++ ? "" : "//! backward", p->tensors[i].name);
        buf_append_str(p->out, n ? "\n" : "// ? backward of which gradients?\n");
    }
    for (int k = 0; k < p->n_kernels; k++) {
        const struct signature *kernel = p->kernels[k];
        if (p->backward[k] != backward)
            continue;
        if (kernel->problem)
            buf_printf(p->out, "// ? %s: %s\n", kernel->name, kernel->problem);
        buf_append_str(p->out, "//!   kernel  ");
        write_namespaces(p, kernel);
        buf_append_str(p->out, kernel->name);
        struct guessed_launch launch;
        guess_launch(p, kernel, &launch);
        write_template(p, kernel, &launch);
        write_geometry(p, kernel, &launch);
        write_binds(p, kernel, backward);
    }
}
