#include "op/signature.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/op.h"
#include "op/scan.h"
#include "op/stores.h"
#include "op/text.h"

// "const float *, int": without names, and what is behind them.
static void append_type(const struct scan_words *w, struct buf *out)
{
    int n = scan_find(w->pieces, w->n, "=");
    n = n < 0 ? w->n : n;
    int bracket = scan_find(w->pieces, n, "[");
    buf_append_str(out, out->size > 0 ? ", " : "");
    for (int i = 0; i < (bracket > 0 ? bracket : n) - 1; i++)
        buf_printf(out, "%.*s%s", (int)w->pieces[i].size, w->pieces[i].start,
                   scan_is(&w->pieces[i], ":") ? "" : " "); // "std ::pair"
    buf_append_str(out, bracket > 0 ? "*" : "");
}

static bool read_params(struct scanner *s, struct piece text, struct signature *sig)
{
    struct signature_param params[SIGNATURE_MAX_PARAMS];
    struct buf types = { 0 };
    s->own = sig->template_params;
    s->n_own = sig->n_template;
    struct scanner inner = scan_part(s, text);
    struct scan_words words;
    while (!scan_at_end(&inner)) {
        if (sig->n_params == SIGNATURE_MAX_PARAMS) {
            buf_finish(&types);
            return op_fail(s->err, "%s:%d: kernel '%s' has more than %d parameters", s->file,
                           sig->line, sig->name, SIGNATURE_MAX_PARAMS);
        }
        scan_words(&inner, &words);
        if (words.n == 1 && scan_is(&words.pieces[0], "void") && sig->n_params == 0)
            break;
        struct signature_param param = { 0 };
        append_type(&words, &types);
        const char *problem = declare_param(s, &words, &param);
        if (problem && !sig->problem)
            sig->problem = arena_printf(s->arena, "parameter %d is %s", sig->n_params + 1, problem);
        params[sig->n_params++] = param;
    }
    sig->params = arena_copy(s->arena, params, (size_t)sig->n_params, sizeof *params);
    sig->types = arena_strndup(s->arena, buf_str(&types), types.size);
    buf_finish(&types);
    return true;
}

static void look_into(struct scanner *s, struct signature *sig)
{
    struct scanner ahead = *s;
    struct piece body = sig->has_body ? scan_bracketed(&ahead, false) : (struct piece){ 0 };
    sig->body = sig->has_body ? (size_t)(body.start - s->code) : 0;
    sig->body_size = body.size;
    for (int i = 0; i < sig->n_params; i++) {
        struct signature_param *p = &sig->params[i];
        p->asked = !sig->has_body || !p->name || !p->writes ||
                   stores_asks(body.start, body.size, p->name, s->code, s->text_size);
        if (sig->has_body && p->kind != PARAM_VALUE && p->name)
            p->reads = !(p->writes ? stores_only : stores_nothing)(body.start, body.size, p->name,
                                                                   s->text, s->text_size);
    }
}

// A kernel, behind __global__: attributes and words in any order, then NAME ( ... ).
static bool read_kernel(struct scanner *s, struct piece template_text)
{
    struct signature sig = { 0 };
    struct piece name = { 0 };
    bool special = false;
    while (!scan_at_end(s) && !(s->piece.size == 1 && strchr(";{}", *s->piece.start))) {
        if (scan_is(&s->piece, "<")) { // std::enable_if_t<(N > 0)>, which is void
            special = template_text.start && template_text.size == 0;
            scan_bracketed(s, true);
            continue;
        }
        if (!scan_is(&s->piece, "(")) {
            name = s->piece;
            scan_next(s);
            continue;
        }
        if (special)
            return true; // name<float>: the template has its parameters
        struct piece params = scan_bracketed(s, false);
        if (scan_is(&name, "__launch_bounds__") || scan_is(&name, "__attribute__") ||
            scan_is(&name, "__cluster_dims__") || scan_is(&name, "__maxnreg__") ||
            scan_is(&name, "alignas"))
            continue;
        if (!scan_is_word(&name))
            return true;
        if (s->n == SIGNATURE_MAX_KERNELS)
            return op_fail(s->err, "%s:%d: more than %d kernels", s->file, name.line,
                           SIGNATURE_MAX_KERNELS);
        sig.name = scan_copy(s->arena, &name);
        sig.line = name.line;
        if (template_text.start && !declare_template(s, template_text, &sig))
            return false;
        if (!read_params(s, params, &sig))
            return false;
        sig.has_body = scan_is(&s->piece, "{");
        look_into(s, &sig);
        s->found[s->n++] = sig;
        return true;
    }
    return true;
}

static bool scan_kernels(struct scanner *s)
{
    struct piece template_text = { 0 };
    scan_next(s);
    while (!scan_at_end(s)) {
        if (scan_is(&s->piece, "template")) {
            scan_next(s);
            if (scan_is(&s->piece, "<"))
                template_text = scan_bracketed(s, true);
        } else if (scan_is(&s->piece, "__global__")) {
            scan_next(s);
            if (!read_kernel(s, template_text))
                return false;
            template_text.start = NULL;
        } else {
            if (s->piece.size == 1 && strchr(";{}", *s->piece.start))
                template_text.start = NULL;
            scan_next(s);
        }
    }
    return true;
}

bool signature_scan(const char *file, const char *text, size_t size, struct arena *arena,
                    struct signature **out, int *out_n, struct opd_err *err)
{
    char *copy = mem_strndup(text, size);
    scan_blank(copy, size);
    struct scanner s = {
        .file = file,
        .arena = arena,
        .err = err,
        .text = text,
        .text_size = size,
        .code = copy,
        .p = copy,
        .end = copy + size,
        .line = text_first_line(text, size),
        .found = mem_zalloc(SIGNATURE_MAX_KERNELS, sizeof *s.found),
    };
    alias_scan(&s, text, size);
    bool ok = scan_kernels(&s);
    *out = arena_copy(arena, s.found, ok ? (size_t)s.n : 0, sizeof **out);
    *out_n = ok ? s.n : 0;
    free(s.found);
    free(copy);
    return ok;
}

static void count_params(const struct scanner *s, struct piece text, int most,
                         struct function_signature *f)
{
    struct scanner inner = scan_part(s, text);
    struct scan_words words;
    while (!scan_at_end(&inner)) {
        scan_words(&inner, &words);
        bool is_void = words.n == 1 && scan_is(&words.pieces[0], "void");
        f->least += !is_void && scan_find(words.pieces, words.n, "=") < 0;
        f->most += !is_void;
    }
    f->most = f->most < most ? f->most : most;
}

// A function behind __device__: NAME ( ... ) { or ;
static bool read_function(struct scanner *s, struct function_signature *f, int most)
{
    struct piece name = { 0 };
    while (!scan_at_end(s) && !(s->piece.size == 1 && strchr("=;{}", *s->piece.start))) {
        if (!scan_is(&s->piece, "(")) {
            name = s->piece;
            scan_next(s);
            continue;
        }
        struct piece inside = scan_bracketed(s, false);
        if (scan_is(&name, "__launch_bounds__") || scan_is(&name, "__attribute__"))
            continue;
        *f = (struct function_signature){ .name = scan_copy(s->arena, &name) };
        count_params(s, inside, most, f);
        return scan_is_word(&name);
    }
    return false;
}

bool signature_functions(const char *text, size_t size, struct arena *arena,
                         struct function_signature **out, int *out_n, int most)
{
    struct function_signature found[SIGNATURE_MAX_KERNELS], next;
    char *copy = mem_strndup(text, size);
    scan_blank(copy, size);
    struct scanner s = { .arena = arena, .p = copy, .end = copy + size, .line = 1 };
    int depth = 0, n = 0;
    scan_next(&s);
    while (!scan_at_end(&s) && n < SIGNATURE_MAX_KERNELS) {
        bool is_device = depth == 0 && scan_is(&s.piece, "__device__");
        depth += scan_is(&s.piece, "{") - scan_is(&s.piece, "}");
        scan_next(&s);
        if (is_device && read_function(&s, &next, most))
            found[n++] = next;
    }
    free(copy);
    *out = arena_copy(arena, found, (size_t)n, sizeof *found);
    *out_n = n;
    return n < SIGNATURE_MAX_KERNELS;
}
