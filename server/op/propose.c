#include "op/propose.h"

#include <string.h>
#include <strings.h>

#include "op/op.h"
#include "op/propose_text.h"
#include "op/scan.h"

static bool is_chosen(const char *chosen, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = chosen; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && strncmp(at, name, n) == 0)
            return true;
    return false;
}

static void take_kernel(struct proposal *p, struct signature *k, bool backward)
{
    if (p->n_kernels == MAX_NAMES)
        return;
    p->backward[p->n_kernels] = backward;
    p->kernels[p->n_kernels++] = k;
}

static bool takes_tensors(const struct signature *k)
{
    bool takes = false;
    for (int i = 0; i < k->n_params; i++)
        takes = takes || (k->params[i].type && k->params[i].kind != PARAM_VALUE);
    return takes;
}

// A name but for its direction: "normkernel" of norm_backward_kernel.
static const char *find_stem(struct proposal *p, const char *name)
{
    static const char *const words[] = { "_", "forward", "backward", "fwd", "bwd", "grad" };
    struct buf stem = { 0 };
    while (*name) {
        size_t n = 0;
        for (size_t i = 0; i < sizeof words / sizeof *words && n == 0; i++)
            n = strncasecmp(name, words[i], strlen(words[i])) == 0 ? strlen(words[i]) : 0;
        buf_append(&stem, name, n ? 0 : 1);
        name += n ? n : 1;
    }
    const char *out = arena_strndup(&p->arena, buf_str(&stem), stem.size);
    buf_finish(&stem);
    return out;
}

// Whether a backward kernel has the name of a forward one, and that is not this.
static bool is_anothers(struct proposal *p, const struct signature *all, int n,
                        const struct signature *backward, const struct signature *forward)
{
    const char *stem = find_stem(p, backward->name);
    bool another = false;
    if (!forward || strcmp(find_stem(p, forward->name), stem) == 0)
        return false;
    for (int i = 0; i < n && !another; i++)
        another = all[i].has_body && !guess_is_backward(all[i].name) &&
                  strcmp(find_stem(p, all[i].name), stem) == 0;
    return another;
}

static const struct signature *find_forward(const struct signature *all, int n, bool of_tensors)
{
    for (int i = 0; i < n; i++)
        if (all[i].has_body && !guess_is_backward(all[i].name) &&
            (!of_tensors || takes_tensors(&all[i])))
            return &all[i];
    return NULL;
}

// Those that are chosen; else the first that takes a tensor, and backward kernels.
static void choose(struct proposal *p, struct signature *all, int n, const char *chosen)
{
    const struct signature *first = NULL;
    struct buf rest = { 0 };
    bool some = false; // that take tensors
    for (int i = 0; i < n; i++)
        some = some || (all[i].has_body && takes_tensors(&all[i]));
    const struct signature *forward = find_forward(all, n, some);
    for (int i = 0; i < n; i++) {
        bool backward = guess_is_backward(all[i].name);
        bool known = false;
        for (int k = 0; k < p->n_kernels; k++)
            known = known || strcmp(p->kernels[k]->name, all[i].name) == 0;
        if (known || !all[i].has_body)
            continue;
        bool taken = chosen[0] ? is_chosen(chosen, all[i].name)
                               : (backward ? !is_anothers(p, all, n, &all[i], forward) : !first) &&
                                     (!some || takes_tensors(&all[i]));
        if (taken)
            take_kernel(p, &all[i], backward);
        else
            buf_printf(&rest, "%s%s", rest.size ? ", " : "", all[i].name);
        first = first || backward || !taken ? first : &all[i];
    }
    for (int k = 0; k < p->n_kernels && !first; k++) // a backward alone is an operator, too
        p->backward[k] = false;
    if (rest.size)
        buf_printf(p->out, "// Not used: %s. 'opctl new FILE KERNEL,KERNEL' takes others.\n",
                   buf_str(&rest));
    buf_finish(&rest);
}

bool propose_header(const char *file, const char *text, size_t size, const char *chosen,
                    struct buf *out, struct opd_err *err)
{
    struct proposal p = { .out = out, .file = file };
    struct signature *all;
    int n;
    p.text = arena_printf(&p.arena, "\n%.*s", (int)size, text) + 1; // something is before it
    char *code = arena_printf(&p.arena, "\n%s", p.text) + 1;
    scan_blank(code, strlen(code));
    p.code = code;
    bool ok = signature_scan(file, text, size, &p.arena, &all, &n, err);
    if (ok) {
        guess_open_structs(&p, all, n);
        choose(&p, all, n, chosen);
    }
    if (ok && p.n_kernels == 0)
        ok = op_fail(err, "%s: %s '%s'", file,
                     n ? "it has no kernel" : "it has no __global__ function", chosen);
    bool any_backward = false;
    for (int k = 0; ok && k < p.n_kernels; k++) {
        any_backward = any_backward || p.backward[k];
        if (!p.backward[k])
            guess_take_forward(&p, p.kernels[k]);
    }
    for (int k = 0; ok && k < p.n_kernels; k++)
        if (p.backward[k])
            guess_take_backward(&p, p.kernels[k]);
    if (ok) {
        guess_find_saved(&p);
        guess_sizes(&p);
        propose_write_schema(&p);
        propose_write_types(&p);
        propose_write_shapes(&p);
        propose_write_example(&p);
        propose_write_section(&p, false);
        if (any_backward)
            propose_write_section(&p, true);
        buf_append_str(out, "\n");
    }
    arena_finish(&p.arena);
    return ok;
}
