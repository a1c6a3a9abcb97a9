#include "op/stores.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

#include "op/text.h"

// A text, and a name in it.
struct look {
    const char *begin, *end;
    const char *name;
    size_t n;
};

// The next place of the name at or after p; NULL: there is none.
static const char *find_name(const struct look *l, const char *p)
{
    while ((p = memmem(p, (size_t)(l->end - p), l->name, l->n)) != NULL) {
        bool whole = (p == l->begin || !text_is_word_char(p[-1])) &&
                     (p + l->n == l->end || !text_is_word_char(p[l->n]));
        if (whole)
            return p;
        p++;
    }
    return NULL;
}

// The character that comes next, past blanks, or `end`.
static const char *skip_blanks(const struct look *l, const char *p)
{
    while (p < l->end && isspace((unsigned char)*p))
        p++;
    return p;
}

// The end of the text before p without its blanks.
static const char *drop_blanks(const struct look *l, const char *p)
{
    while (p > l->begin && isspace((unsigned char)p[-1]))
        p--;
    return p;
}

static bool follows(const struct look *l, const char *p, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(l->end - p) >= n && memcmp(p, what, n) == 0;
}

// Does the text before p end so? Words as wholes.
static bool precedes(const struct look *l, const char *p, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(p - l->begin) >= n && memcmp(p - n, what, n) == 0 &&
           (!text_is_word_char(*what) || p - n == l->begin ||
            !text_is_word_char(p[-(ptrdiff_t)n - 1]));
}

static const char *skip_brackets(const struct look *l, const char *p)
{
    int depth = 0;
    for (; p < l->end; p++) {
        depth += (*p == '[') - (*p == ']');
        if (depth == 0)
            return p + 1;
    }
    return p;
}

// y[i] = v, y[b][c] = v, y[i].x = v
static bool is_assigned(const struct look *l, const char *after)
{
    const char *p = after;
    while (p < l->end && *p == '[')
        p = skip_blanks(l, skip_brackets(l, p));
    if (p == after)
        return false;
    while (p < l->end && *p == '.') {
        p = skip_blanks(l, p + 1);
        while (p < l->end && text_is_word_char(*p))
            p++;
        p = skip_blanks(l, p);
    }
    return follows(l, p, "=") && !follows(l, p, "==");
}

// Is it the first argument of one of these?
static bool is_given_to(const struct look *l, const char *before, const char *const *callees)
{
    if (before > l->begin && before[-1] == '&')
        before = drop_blanks(l, before - 1);
    if (before == l->begin || before[-1] != '(')
        return false;
    before = drop_blanks(l, before - 1);
    for (; *callees; callees++)
        if (precedes(l, before, *callees))
            return true;
    return false;
}

// opd::store(y + i, v), opd::store(&y[i], v)
static bool is_stored(const struct look *l, const char *before)
{
    static const char *const callees[] = { "opd::store", "opd::store_vec", "opd::is_aligned",
                                           NULL };
    return is_given_to(l, before, callees);
}

// Is it null: !y, if (y), a && y, y ? a : b, y == nullptr
static bool is_tested(const struct look *l, const char *before, const char *after)
{
    static const char *const tests[] = { "?", "&&", "||", "==", "!=" };
    bool joined = precedes(l, before, "&&") || precedes(l, before, "||") ||
                  precedes(l, before, "!");
    bool opened = precedes(l, before, "(");
    const char *word = opened ? drop_blanks(l, before - 1) : before;
    bool asked = opened && (precedes(l, word, "if") || precedes(l, word, "while"));
    if (after < l->end && *after && strchr("):;,", *after))
        return joined || (asked && *after == ')');
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (follows(l, after, tests[i]))
            return !precedes(l, before, "*");
    return false;
}

static bool is_member(const struct look *l, const char *before)
{
    return precedes(l, before, ".") || precedes(l, before, "->");
}

// #define ADD(v) y[i] += v, but not #define MIN(x, y): the name of a parameter is its own.
static bool is_in_macro(const struct look *file)
{
    for (const char *p = file->begin; (p = memmem(p, (size_t)(file->end - p), "define", 6)) != NULL;
         p += 6) {
        const char *before = drop_blanks(file, p), *at = skip_blanks(file, p + 6), *end = at;
        if (before == file->begin || before[-1] != '#' || at == p + 6)
            continue;
        while (end < file->end && *end != '\n')
            end += *end == '\\' && end + 1 < file->end ? 2 : 1;
        struct look line = { at, end < file->end ? end : file->end, file->name, file->n };
        while (at < line.end && text_is_word_char(*at))
            at++;
        const char *found = find_name(&line, at);
        const char *close = at < line.end && *at == '(' ? memchr(at, ')', (size_t)(line.end - at))
                                                        : NULL;
        if (found && !(close && found < close))
            return true;
    }
    return false;
}

bool stores_nothing(const char *body, size_t size, const char *name, const char *file,
                    size_t file_size)
{
    struct look l = { body, body + size, name, strlen(name) };
    struct look whole = { file, file + file_size, name, l.n };
    return !find_name(&l, body) && !is_in_macro(&whole);
}

bool stores_only(const char *body, size_t size, const char *name, const char *file,
                 size_t file_size)
{
    struct look l = { body, body + size, name, strlen(name) };
    struct look whole = { file, file + file_size, name, l.n };
    for (const char *p = body; (p = find_name(&l, p)) != NULL; p += l.n) {
        const char *before = drop_blanks(&l, p), *after = skip_blanks(&l, p + l.n);
        if (!is_member(&l, before) && !is_assigned(&l, after) && !is_stored(&l, before) &&
            !is_tested(&l, before, after))
            return false;
    }
    return !is_in_macro(&whole);
}

// y[i], y + i, *y, atomicAdd(y, v), reinterpret_cast<float4 *>(y)[i], ((float4 *)y)[i]
static bool is_used(const struct look *l, const char *before, const char *after)
{
    static const char *const atomics[] = {
        "atomicAdd",  "gpuAtomicAdd", "gpuAtomicAddNoReturn", "atomicMax",  "atomicMin",
        "atomicExch", "atomicCAS",    "fastAtomicAdd",        "opd::store", "opd::store_vec",
        NULL
    };
    const char *word = precedes(l, before, "(") ? drop_blanks(l, before - 1) : before;
    if ((precedes(l, word, ">") || precedes(l, word, ")")) && follows(l, after, ")"))
        after = skip_blanks(l, after + 1);
    return follows(l, after, "[") || follows(l, after, "+") || precedes(l, before, "*") ||
           is_given_to(l, before, atomics);
}

// --- what a pointer is handed on to

enum { MAX_HANDS = 16, MAX_READ = 1 << 24 };

// How far a pointer is followed: functions that are entered, and characters that are read.
struct trail {
    const struct look *file;
    int hands;
    int64_t left;
};

static bool asks(const struct look *l, struct trail *t);

// Behind the bracket that closes the one at p, in a text without strings.
static const char *skip_round(const struct look *l, const char *p, struct trail *t)
{
    int depth = 0;
    for (; p < l->end; p++, t->left--) {
        depth += (*p && strchr("([{", *p)) - (*p && strchr(")]}", *p));
        if (depth == 0)
            return p + 1;
    }
    return p;
}

static void last_word(const struct look *l, const char *end, struct look *out)
{
    out->name = end = drop_blanks(l, end);
    while (out->name > l->begin && text_is_word_char(out->name[-1]))
        out->name--;
    out->n = (size_t)(end - out->name);
}

// The name of the n-th parameter between the brackets. False: there are not so many, or it has
// none.
static bool find_param(const struct look *params, int n, struct look *out)
{
    const char *start = params->begin, *p = start;
    for (int depth = 0; p < params->end && (n > 0 || depth > 0 || *p != ','); p++) {
        depth += (*p && strchr("(<[", *p)) - (*p && strchr(")>]", *p));
        if (depth == 0 && *p == ',') {
            n--;
            start = p + 1;
        }
    }
    const char *stop = start;
    while (stop < p && *stop != '=' && *stop != '[')
        stop++;
    last_word(params, stop, out);
    return n == 0 && out->n > 0 && out->name > start;
}

// Of the functions of that name that the file defines, whether one asks for its n-th parameter.
static bool function_asks(const struct look *function, int n, struct trail *t)
{
    struct look f = { t->file->begin, t->file->end, function->name, function->n };
    bool found = false;
    t->left -= f.end - f.begin;
    for (const char *p = f.begin; t->left > 0 && (p = find_name(&f, p)) != NULL; p += f.n) {
        const char *open = skip_blanks(&f, p + f.n);
        if (!follows(&f, open, "("))
            continue;
        const char *close = skip_round(&f, open, t), *body = skip_blanks(&f, close);
        struct look params = { open + 1, close - 1, NULL, 0 };
        struct look inside = { body, body, NULL, 0 };
        if (!follows(&f, body, "{") || close - 1 <= open)
            continue;
        inside.end = skip_round(&f, body, t);
        if (!find_param(&params, n, &inside) || asks(&inside, t))
            return true;
        found = true;
    }
    return !found || t->left <= 0;
}

// f(a, dx): the function, and which of its arguments stands between the two; false: it is none.
static bool find_call(const struct look *l, const char *before, const char *after,
                      struct look *function, int *n)
{
    static const char *const keywords[] = { "if", "while", "for", "switch", "return", "sizeof" };
    const char *p = before;
    if (!follows(l, after, ",") && !follows(l, after, ")"))
        return false;
    if (!precedes(l, before, ",") && !precedes(l, before, "("))
        return false;
    *n = 0;
    for (int depth = 0; depth >= 0; p--) {
        if (p == l->begin || strchr(";{}<>", p[-1]))
            return false;
        depth += (p[-1] == ')' || p[-1] == ']') - (p[-1] == '(' || p[-1] == '[');
        *n += depth == 0 && p[-1] == ',';
    }
    p = drop_blanks(l, p);
    while (precedes(l, p, ">") && p > l->begin) // f<scalar_t, 3>(
        while (--p > l->begin && *p != '<')
            ;
    last_word(l, p, function);
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (text_is(function->name, function->n, keywords[i]))
            return false;
    return function->n > 0;
}

// T *p = dx; and what follows.
static bool find_alias(const struct look *l, const char *before, const char *after,
                       struct look *alias)
{
    if (!follows(l, after, ";") || !precedes(l, before, "="))
        return false;
    last_word(l, before - 1, alias);
    const char *type = drop_blanks(l, alias->name);
    alias->begin = after;
    return alias->n > 0 && (precedes(l, type, "*") || precedes(l, type, "auto"));
}

static bool asks(const struct look *l, struct trail *t)
{
    const char *p = find_name(l, l->begin);
    bool found = p != NULL;
    t->left -= l->end - l->begin;
    if (t->hands++ == MAX_HANDS)
        return true;
    for (; p && t->left > 0; p = find_name(l, p + l->n)) {
        const char *before = drop_blanks(l, p), *after = skip_blanks(l, p + l->n);
        struct look other = *l;
        int n;
        if (is_member(l, before) || (is_used(l, before, after) && !is_tested(l, before, after)))
            continue;
        if (find_alias(l, before, after, &other)
                ? asks(&other, t)
                : !find_call(l, before, after, &other, &n) || function_asks(&other, n, t))
            return true;
    }
    t->hands--;
    return !found || t->left <= 0;
}

bool stores_asks(const char *body, size_t size, const char *name, const char *code,
                 size_t code_size)
{
    struct look l = { body, body + size, name, strlen(name) };
    struct look file = { code, code + code_size, NULL, 0 };
    return asks(&l, &(struct trail){ &file, 0, MAX_READ });
}
