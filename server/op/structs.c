#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/text.h"
#include "op/scan.h"

// One declarator: its type, stars and name, then [extents], and perhaps a default.
static const char *read_member(struct scanner *s, struct scan_words *w, struct struct_member *out)
{
    struct piece *pieces = w->pieces;
    int n = scan_find(pieces, w->n, "=");
    n = n < 0 ? w->n : n;
    int name = scan_find(pieces, n, "[");
    name = name < 0 ? n - 1 : name - 1;
    bool bits = false;
    for (int i = 1; i + 1 < n; i++) // not of "::"
        bits = bits || (scan_is(&pieces[i], ":") && !scan_is(&pieces[i - 1], ":") &&
                        !scan_is(&pieces[i + 1], ":"));
    if (w->too_many || name < 1 || !scan_is_word(&pieces[name]) || bits)
        return bits ? "a bit-field" : "a member that is no plain one";
    for (int i = name + 1, to; i < n; i = to + 1) {
        int depth = 1;
        for (to = i + 1; to < n && depth > 0; to++)
            depth += scan_is(&pieces[to], "[") - scan_is(&pieces[to], "]");
        if (depth > 0 || --to == i + 1 || out->n_extents == STRUCT_MAX_EXTENTS)
            return "an array of no extent, or of too many";
        out->extents[out->n_extents++] = scan_join(s, pieces + i + 1, to - i - 1);
    }
    struct scan_words plain = *w;
    plain.n = name + 1;
    return declare_param(s, &plain, &out->param);
}

// The words before a declarator's stars and name.
static int count_base(const struct scan_words *w)
{
    int n = scan_find(w->pieces, w->n, "*");
    int name = scan_find(w->pieces, w->n, "[");
    return n >= 0 ? n : name > 0 ? name - 1 : w->n - 1;
}

// `const T *x, *y, z[3];`
static void read_members(struct scanner *s, struct piece text, struct struct_definition *def,
                         struct struct_member *members)
{
    struct scanner inner = scan_part(s, text);
    struct scan_words words, base = { 0 };
    for (bool first = true; !scan_at_end(&inner); first = false) {
        struct struct_member member = { 0 };
        scan_words(&inner, &words);
        if (first) {
            base = words;
            base.n = words.n > 0 ? count_base(&words) : 0;
        } else {
            struct scan_words more = words;
            words = base;
            for (int i = 0;
                 i < more.n && words.n < (int)(sizeof words.pieces / sizeof(struct piece)); i++)
                words.pieces[words.n++] = more.pieces[i];
        }
        const char *problem = def->n_members == STRUCT_MAX_MEMBERS
                                  ? "one of too many members"
                                  : read_member(s, &words, &member);
        if (problem && !def->problem) {
            def->problem = problem;
            def->problem_line = text.line;
        }
        if (!problem) {
            member.param.reads = true;
            members[def->n_members++] = member;
        }
    }
}

// What is no member: types, functions, what is not the object's.
static bool is_aside(const struct piece *first)
{
    static const char *const words[] = { "static", "using",    "typedef", "friend",       "enum",
                                         "class",  "template", "union",   "static_assert" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (scan_is(first, words[i]))
            return true;
    return false;
}

static void read_body(struct scanner *s, struct piece text, struct struct_definition *def)
{
    struct struct_member members[STRUCT_MAX_MEMBERS];
    struct scanner in = scan_part(s, text);
    while (!scan_at_end(&in)) {
        struct piece first = in.piece;
        bool aside = is_aside(&first), function = false, braces = false;
        for (; !scan_at_end(&in) && !scan_is(&in.piece, ";");) {
            bool body = scan_is(&in.piece, "{");
            function = function || scan_is(&in.piece, "(");
            if (scan_is(&in.piece, ":") && !function && !body &&
                (scan_is(&first, "public") || scan_is(&first, "private") ||
                 scan_is(&first, "protected"))) {
                scan_next(&in);
                first = in.piece;
                aside = is_aside(&first);
                continue;
            }
            if (!body) {
                scan_next(&in);
                continue;
            }
            scan_bracketed(&in, false);
            braces = true;
            if (function)
                break; // a function's body ends it, without ';'
            aside = aside || (scan_is(&first, "struct") && scan_is(&in.piece, ";"));
        }
        struct piece member = { first.start, (size_t)(in.piece.start - first.start), first.line };
        if (scan_is(&in.piece, ";"))
            scan_next(&in);
        if (scan_is(&first, "using") || scan_is(&first, "typedef"))
            alias_member(s, member);
        if (aside || function || member.size == 0)
            continue;
        if (braces && !def->problem) {
            def->problem = "a struct of its own, or braces";
            def->problem_line = first.line;
        } else if (!braces) {
            read_members(s, member, def, members);
        }
    }
    def->members = arena_copy(s->arena, members, (size_t)def->n_members, sizeof *members);
}

// alignas(16) or __align__(16), where the scanner stands behind the word.
static void read_align(struct scanner *s, const struct piece *word, struct struct_definition *def)
{
    struct piece n = scan_bracketed(s, false);
    size_t digits = n.start ? strspn(n.start, "0123456789") : 0;
    if (digits > 0 && digits < 4 && digits == n.size &&
        (scan_is(word, "alignas") || scan_is(word, "__align__")))
        def->align = (int)strtol(n.start, NULL, 10);
    if (def->align < 1 || (def->align & (def->align - 1)) != 0)
        def->problem = "its alignment is none that is known here";
}

// Behind `:`, up to the braces: one base, as `public B<T>`.
static void read_base(struct scanner *s, struct struct_definition *def)
{
    struct piece first = s->piece;
    bool several = false;
    int depth = 0;
    if (scan_is(&first, "public")) {
        scan_next(s);
        first = s->piece;
    }
    for (; !scan_at_end(s) && !scan_is(&s->piece, "{"); scan_next(s)) {
        depth += scan_is(&s->piece, "<") - scan_is(&s->piece, ">");
        several = several || (scan_is(&s->piece, ",") && depth == 0) ||
                  scan_is(&s->piece, "virtual") || scan_is(&s->piece, "private");
    }
    size_t size = (size_t)(s->piece.start - first.start);
    while (size > 0 && strchr(" \t\n", first.start[size - 1]))
        size--;
    def->base = arena_strndup(s->arena, first.start, size);
    if (several)
        def->problem = "it has a base that is not known here";
}

// Behind `struct`: words and attributes, its name, perhaps a base, then the braces.
static bool read_struct(struct scanner *s, struct piece template_text,
                        struct struct_definition *def)
{
    struct piece name = { 0 };
    while (!scan_at_end(s) && !scan_is(&s->piece, "{")) {
        if (s->piece.size == 1 && strchr(";)>,=*&", *s->piece.start))
            return false;
        if (scan_is(&s->piece, "(")) {
            read_align(s, &name, def);
            continue;
        }
        bool base = scan_is(&s->piece, ":");
        if (scan_is_word(&s->piece))
            name = s->piece;
        scan_next(s);
        if (base)
            read_base(s, def);
    }
    if (!scan_is_word(&name) || scan_at_end(s))
        return false;
    struct signature sig = { 0 };
    def->name = scan_copy(s->arena, &name);
    def->line = name.line;
    if (template_text.start && declare_template(s, template_text, &sig)) {
        def->n_template = sig.n_template;
        def->template_params = sig.template_params;
    }
    s->own = def->template_params;
    s->n_own = def->n_template;
    struct scanner ahead = *s; // what is inside may be a struct, too
    read_body(s, scan_bracketed(&ahead, false), def);
    return true;
}

void struct_scan(const char *text, size_t size, struct arena *arena, struct struct_definition **out,
                 int *out_n)
{
    char *copy = mem_strndup(text, size);
    scan_blank(copy, size);
    struct opd_err ignored = { 0 };
    struct scanner s = { .file = "",
                         .arena = arena,
                         .err = &ignored,
                         .p = copy,
                         .end = copy + size,
                         .line = text_first_line(text, size) };
    struct struct_definition *found = mem_zalloc(STRUCT_MAX, sizeof *found);
    struct piece template_text = { 0 };
    int n = 0;
    alias_scan(&s, text, size);
    scan_next(&s);
    while (!scan_at_end(&s) && n < STRUCT_MAX) {
        bool is_struct = scan_is(&s.piece, "struct");
        if (scan_is(&s.piece, "template")) {
            scan_next(&s);
            if (scan_is(&s.piece, "<"))
                template_text = scan_bracketed(&s, true);
            continue;
        }
        if (s.piece.size == 1 && strchr(";{}", *s.piece.start))
            template_text.start = NULL;
        scan_next(&s);
        if (!is_struct)
            continue;
        found[n] = (struct struct_definition){ 0 };
        n += read_struct(&s, template_text, &found[n]);
        template_text.start = NULL;
    }
    opd_err_clear(&ignored);
    *out = arena_copy(arena, found, (size_t)n, sizeof *found);
    *out_n = n;
    free(found);
    free(copy);
}
