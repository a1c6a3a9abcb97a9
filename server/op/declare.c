#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "op/op.h"
#include "op/scan.h"

static struct template_param read_template_param(struct scanner *s, struct scan_words *w)
{
    struct template_param param = { .name = "" };
    for (int i = 0; i < w->n; i++)
        if (scan_is(&w->pieces[i], "=")) {
            param.has_default = true;
            w->n = i;
        } else if (scan_is(&w->pieces[i], ".")) {
            param.is_pack = true;
        }
    if (w->n == 0)
        return param;
    param.is_type = scan_is(&w->pieces[0], "typename") || scan_is(&w->pieces[0], "class");
    if (w->n > 1 && scan_is_word(&w->pieces[w->n - 1]))
        param.name = scan_copy(s->arena, &w->pieces[w->n - 1]);
    static const char *const numbers[] = {
        "int", "unsigned", "bool", "long", "char", "short", NULL
    };
    const char *type = w->n == 2 && !param.is_type ? scan_copy(s->arena, &w->pieces[0]) : NULL;
    bool is_number = type && strlen(type) > 2 && strcmp(type + strlen(type) - 2, "_t") == 0;
    for (int i = 0; type && numbers[i]; i++)
        is_number = is_number || strcmp(type, numbers[i]) == 0;
    param.type = is_number ? NULL : type;
    return param;
}

bool declare_template(struct scanner *s, struct piece text, struct signature *sig)
{
    struct template_param params[SIGNATURE_MAX_TEMPLATE];
    struct scanner inner = scan_part(s, text);
    struct scan_words words;
    sig->is_template = true;
    sig->n_template = 0;
    while (!scan_at_end(&inner)) {
        if (sig->n_template == SIGNATURE_MAX_TEMPLATE)
            return op_fail(s->err, "%s:%d: a template of more than %d parameters", s->file,
                           text.line, SIGNATURE_MAX_TEMPLATE);
        scan_words(&inner, &words);
        params[sig->n_template++] = read_template_param(s, &words);
    }
    sig->template_params = arena_copy(s->arena, params, (size_t)sig->n_template, sizeof *params);
    return true;
}

// PackedTensorAccessor32 < type , rank , ... > or TensorInfo < type , index >. Returns why it is
// none that can be passed, or NULL; param->kind tells whether it is one.
static const char *read_accessor(struct scanner *s, const struct piece *pieces, int n,
                                 struct signature_param *param)
{
    static const char *const accessors[][2] = {
        { "PackedTensorAccessor32", "int" },
        { "PackedTensorAccessor64", "int64_t" },
        { "PackedTensorAccessor", "int64_t" },
        { "TensorInfo", NULL },
    };
    for (size_t i = 0; i < sizeof accessors / sizeof *accessors; i++) {
        int at = scan_find(pieces, n, accessors[i][0]);
        if (at < 0)
            continue;
        int comma = at + 1 + scan_find(pieces + at + 1, n - at - 1, ","), close = n - 1;
        param->kind = PARAM_ACCESSOR;
        while (close > comma && !scan_is(&pieces[close], ">"))
            close--;
        if (comma <= at + 2 || comma + 1 >= close || !scan_is(&pieces[at + 1], "<"))
            return "an accessor without its type and rank";
        param->writes = scan_find(pieces + at, comma - at, "const") < 0;
        param->type = scan_join(s, pieces + at + 2, comma - at - 2);
        param->index = accessors[i][1];
        if (!param->index)
            param->index = scan_join(s, pieces + comma + 1, close - comma - 1);
        else if (pieces[comma + 1].size <= 2 && isdigit((unsigned char)*pieces[comma + 1].start))
            param->rank = atoi(scan_copy(s->arena, &pieces[comma + 1]));
        return param->rank > 0 || !accessors[i][1] ? NULL
                                                   : "an accessor whose rank is not a plain number";
    }
    return NULL;
}

static void read_pointer(struct scanner *s, const struct piece *pieces, int n, int star,
                         struct signature_param *param)
{
    param->kind = PARAM_POINTER;
    param->writes = scan_find(pieces, star, "const") < 0;
    param->type = scan_join(s, pieces, star < n ? star : n);
}

const char *declare_param(struct scanner *s, struct scan_words *w, struct signature_param *param)
{
    alias_expand(s, w);
    int n = scan_find(w->pieces, w->n, "=");
    n = n < 0 ? w->n : n;
    int bracket = scan_find(w->pieces, n, "[");
    bool attribute = bracket == 0; // [[maybe_unused]]
    bool is_array = bracket > 0;
    struct piece *pieces = w->pieces;
    if (attribute) {
        int close = scan_find(pieces, n, "]");
        pieces += close + 2;
        n = close < 0 || close + 2 > n ? 0 : n - close - 2;
        is_array = false;
    }
    if (is_array)
        n = bracket;
    if (w->too_many || n < 2 || !scan_is_word(&pieces[n - 1]) || scan_is_qualifier(&pieces[n - 1]))
        return "a parameter without a name, or one that is too long";
    param->name = scan_copy(s->arena, &pieces[n - 1]);
    param->line = pieces[n - 1].line;
    n--;
    const char *problem = read_accessor(s, pieces, n, param);
    if (problem || param->kind == PARAM_ACCESSOR)
        return problem;
    if (scan_find(pieces, n, "&") >= 0)
        return "a reference, which a kernel cannot take";
    int star = scan_find(pieces, n, "*");
    if (star >= 0 && (is_array || scan_find(pieces + star + 1, n - star - 1, "*") >= 0))
        return "a pointer to pointers, expected a pointer to elements";
    if (star >= 0 || is_array) {
        read_pointer(s, pieces, n, star >= 0 ? star : n, param);
    } else {
        int dots = scan_find(pieces, n, "."); // "Types... name"
        param->kind = PARAM_VALUE;
        param->is_pack = dots > 0;
        param->type = scan_join(s, pieces, dots > 0 ? dots : n);
    }
    return NULL;
}
