#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/scan.h"

// Names that stand for types: `using`, also a template, typedef, enum, and macros, as far as they
// are outside of functions and structs.

enum { FEW_ALIASES = 16, MAX_ALIASES = 1024, MAX_ARGS = 4, MAX_ROUNDS = 16 };

struct alias {
    struct piece name, value; // of size 0: there are two, and not the same
    char open;                // '<' of a template, '(' of a macro with parameters, or 0
    int n_params;
    struct piece params[MAX_ARGS];
};

static bool is_same(const struct piece *a, const struct piece *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->start, b->start, a->size) == 0);
}

static void append_alias(struct scanner *s, const struct alias *alias)
{
    int n = s->n_aliases;
    if (n >= FEW_ALIASES && (n & (n - 1)) == 0) { // full at 16, 32, 64, ...
        const struct alias *few = s->aliases;
        s->aliases = arena_alloc(s->arena, 2 * (size_t)n, sizeof *s->aliases);
        memcpy(s->aliases, few, (size_t)n * sizeof *few);
    }
    s->aliases[s->n_aliases++] = *alias;
}

static void add(struct scanner *s, struct piece name, char open, struct piece params,
                struct piece value)
{
    struct alias alias = { .name = name, .value = value, .open = open };
    struct scanner in = scan_part(s, params);
    while (open && !scan_at_end(&in)) {
        struct scan_words words;
        scan_words(&in, &words);
        if (words.n == 0 || alias.n_params == MAX_ARGS)
            return;
        alias.params[alias.n_params++] = words.pieces[words.n - 1];
    }
    for (int i = 0; i < s->n_aliases; i++)
        if (is_same(&s->aliases[i].name, &name)) {
            if (!is_same(&s->aliases[i].value, &value))
                s->aliases[i].value = (struct piece){ 0 };
            return;
        }
    if (scan_is_word(&name) && value.size > 0 && s->n_aliases < MAX_ALIASES)
        append_alias(s, &alias);
}

// Behind `#define`: NAME or NAME(A, B), and the rest of the line.
static void read_macro(struct scanner *in)
{
    struct piece name = in->piece, params = { 0 };
    char open = 0;
    if (in->p < in->end && *in->p == '(') {
        open = '(';
        scan_next(in);
        params = scan_bracketed(in, false);
    } else {
        scan_next(in);
    }
    struct piece value = in->piece;
    value.size = (size_t)(in->end - value.start);
    while (value.size > 0 && strchr(" \t\r", value.start[value.size - 1]))
        value.size--;
    add(in, name, open, params, value);
}

static void read_macros(struct scanner *s, const char *text, size_t size)
{
    const char *end = text + size, *stop;
    for (const char *line = text; line < end; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        const char *hash = line;
        while (hash < stop && (*hash == ' ' || *hash == '\t'))
            hash++;
        if (hash >= stop || *hash != '#' || stop[-1] == '\\')
            continue;
        size_t n = (size_t)(stop - hash - 1);
        char *copy = arena_strndup(s->arena, hash + 1, n);
        scan_blank(copy, n);
        struct scanner in = scan_part(s, (struct piece){ copy, n, 1 });
        if (scan_is(&in.piece, "define")) {
            scan_next(&in);
            read_macro(&in);
            s->aliases = in.aliases;
            s->n_aliases = in.n_aliases;
        }
    }
}

static struct piece read_to_semicolon(struct scanner *s)
{
    struct piece value = s->piece;
    while (!scan_at_end(s) && !scan_is(&s->piece, ";"))
        scan_next(s);
    value.size = (size_t)(s->piece.start - value.start);
    return value;
}

void alias_member(struct scanner *s, struct piece text)
{
    struct scanner in = scan_part(s, text);
    struct alias alias = { 0 };
    bool is_using = scan_is(&in.piece, "using");
    scan_next(&in);
    alias.value = in.piece;
    for (alias.name = in.piece; !scan_at_end(&in) && !scan_is(&in.piece, ";"); scan_next(&in)) {
        if (is_using && scan_is(&in.piece, "=")) {
            scan_next(&in);
            alias.value = read_to_semicolon(&in);
            break;
        }
        alias.name = in.piece;
    }
    if (!is_using)
        alias.value.size = (size_t)(alias.name.start - alias.value.start);
    if (!scan_is_word(&alias.name) || alias.value.size == 0 ||
        alias.value.start == alias.name.start)
        return;
    for (int i = 0; i < s->n_aliases; i++)
        if (is_same(&s->aliases[i].name, &alias.name)) {
            s->aliases[i] = alias;
            return;
        }
    if (s->n_aliases < MAX_ALIASES)
        append_alias(s, &alias);
}

static void read_using(struct scanner *s, struct piece template_text)
{
    struct piece name = s->piece;
    scan_next(s);
    if (!scan_is(&s->piece, "="))
        return;
    scan_next(s);
    add(s, name, template_text.start ? '<' : 0, template_text, read_to_semicolon(s));
}

// [class] NAME [: type] {...}, where it has no name that behind it.
static void read_enum(struct scanner *s)
{
    static const struct piece plain = { "int", 3, 0 };
    struct piece name = { 0 }, value = plain;
    for (; !scan_at_end(s) && !(s->piece.size == 1 && strchr(":;{(", *s->piece.start));
         scan_next(s))
        name = s->piece;
    if (scan_is(&s->piece, ":")) {
        scan_next(s);
        value = s->piece;
        while (!scan_at_end(s) && !scan_is(&s->piece, "{"))
            scan_next(s);
        value.size = (size_t)(s->piece.start - value.start);
    }
    if (!scan_is(&s->piece, "{"))
        return;
    scan_bracketed(s, false);
    add(s, name.start && !scan_is(&name, "enum") ? name : s->piece, 0, (struct piece){ 0 }, value);
}

static void read_typedef(struct scanner *s)
{
    struct piece value = s->piece, name = s->piece;
    if (scan_is(&s->piece, "enum")) {
        read_enum(s);
        return;
    }
    while (!scan_at_end(s) && !(s->piece.size == 1 && strchr(";{(", *s->piece.start))) {
        name = s->piece;
        scan_next(s);
    }
    value.size = (size_t)(name.start - value.start);
    if (scan_is(&s->piece, ";"))
        add(s, name, 0, (struct piece){ 0 }, value);
}

// A statement or definition that gives no name to a type. What a namespace holds is read on.
static void skip(struct scanner *s)
{
    bool space = scan_is(&s->piece, "namespace") || scan_is(&s->piece, "extern") ||
                 scan_is(&s->piece, "inline");
    while (!scan_at_end(s) && !(s->piece.size == 1 && strchr(";{}", *s->piece.start))) {
        space = space && !scan_is(&s->piece, "(");
        scan_next(s);
    }
    if (scan_is(&s->piece, "{") && !space)
        scan_bracketed(s, false);
    else
        scan_next(s);
}

void alias_scan(struct scanner *s, const char *text, size_t size)
{
    struct piece template_text = { 0 };
    s->aliases = arena_alloc(s->arena, FEW_ALIASES, sizeof *s->aliases);
    read_macros(s, text, size);
    struct scanner in = *s;
    for (scan_next(&in); !scan_at_end(&in);) {
        struct piece first = in.piece;
        bool keyword = scan_is(&first, "template") || scan_is(&first, "using") ||
                       scan_is(&first, "typedef") || scan_is(&first, "enum");
        if (!keyword) {
            skip(&in);
        } else {
            scan_next(&in);
            if (scan_is(&first, "template")) {
                template_text = scan_bracketed(&in, true);
                continue;
            }
            if (scan_is(&first, "using"))
                read_using(&in, template_text);
            else if (scan_is(&first, "typedef"))
                read_typedef(&in);
            else
                read_enum(&in);
        }
        template_text = (struct piece){ 0 };
    }
    s->aliases = in.aliases;
    s->n_aliases = in.n_aliases;
}

// --- in a parameter

static void append(struct scan_words *w, const struct piece *pieces, int n)
{
    for (int i = 0; i < n; i++)
        if (w->n < (int)(sizeof w->pieces / sizeof *w->pieces))
            w->pieces[w->n++] = pieces[i];
        else
            w->too_many = true;
}

// Between the brackets, by comma. Where the pieces behind them begin; 0: they are not so many.
static int split(const struct scan_words *w, int at, const struct alias *a, int from[MAX_ARGS],
                 int to[MAX_ARGS])
{
    int depth = 0, k = 0, n = a->n_params;
    if (at >= w->n || *w->pieces[at].start != a->open)
        return 0;
    for (; at < w->n; at++) {
        bool opens = *w->pieces[at].start == a->open;
        bool closes = *w->pieces[at].start == (a->open == '<' ? '>' : ')');
        depth += opens - closes;
        bool ends = depth == 0 || (depth == 1 && scan_is(&w->pieces[at], ","));
        if (opens && depth == 1)
            from[0] = at + 1;
        else if (ends && k < n)
            to[k++] = at;
        if (depth == 0)
            return k == n ? at + 1 : 0;
        if (ends && k < MAX_ARGS)
            from[k] = at + 1;
    }
    return 0;
}

static bool replace(const struct scanner *s, struct scan_words *w, int at, const struct alias *a)
{
    int from[MAX_ARGS], to[MAX_ARGS], rest = at + 1;
    if (a->open)
        rest = split(w, at + 1, a, from, to);
    if (rest == 0)
        return false;
    struct scan_words out = *w;
    out.n = at;
    struct scanner value = scan_part(s, a->value);
    for (; !scan_at_end(&value); scan_next(&value)) {
        int k = 0;
        while (k < a->n_params && !is_same(&a->params[k], &value.piece))
            k++;
        if (k < a->n_params)
            append(&out, w->pieces + from[k], to[k] - from[k]);
        else
            append(&out, &value.piece, 1);
    }
    append(&out, w->pieces + rest, w->n - rest);
    *w = out;
    return true;
}

static const struct alias *find(const struct scanner *s, const struct piece *word)
{
    for (int i = 0; i < s->n_own; i++) // which hides it
        if (scan_is(word, s->own[i].name))
            return NULL;
    for (int i = 0; i < s->n_aliases; i++)
        if (s->aliases[i].value.size > 0 && is_same(&s->aliases[i].name, word))
            return &s->aliases[i];
    return NULL;
}

void alias_expand(const struct scanner *s, struct scan_words *w)
{
    int rounds = 0;
    for (int i = 0; i + 1 < w->n && s->n_aliases > 0; i++) { // the last is the parameter's name
        const struct alias *a = find(s, &w->pieces[i]);
        if (a && rounds < MAX_ROUNDS && replace(s, w, i, a)) {
            rounds++;
            i--;
        }
    }
}

const char *alias_text(const char *text, size_t size, struct arena *arena, const char *of)
{
    char *copy = mem_strndup(text, size);
    scan_blank(copy, size);
    struct scanner s = { .arena = arena, .p = copy, .end = copy + size, .line = 1 };
    struct scan_words words = { 0 };
    alias_scan(&s, text, size);
    struct scanner in = scan_part(&s, (struct piece){ of, strlen(of), 1 });
    for (; !scan_at_end(&in); scan_next(&in))
        append(&words, &in.piece, 1);
    append(&words, &(struct piece){ "_", 1, 1 }, 1); // in place of the parameter's name
    alias_expand(&s, &words);
    const char *found = words.too_many ? of : scan_join(&s, words.pieces, words.n - 1);
    free(copy);
    return found;
}
