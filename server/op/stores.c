#include "op/stores.h"

#include <ctype.h>
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
    static const char *const atomics[] = { "atomicAdd",
                                           "gpuAtomicAdd",
                                           "gpuAtomicAddNoReturn",
                                           "atomicMax",
                                           "atomicMin",
                                           "atomicExch",
                                           "atomicCAS",
                                           NULL };
    const char *word = precedes(l, before, "(") ? drop_blanks(l, before - 1) : before;
    if ((precedes(l, word, ">") || precedes(l, word, ")")) && follows(l, after, ")"))
        after = skip_blanks(l, after + 1);
    return follows(l, after, "[") || follows(l, after, "+") || precedes(l, before, "*") ||
           is_given_to(l, before, atomics);
}

bool stores_asks(const char *body, size_t size, const char *name)
{
    struct look l = { body, body + size, name, strlen(name) };
    const char *p = find_name(&l, body);
    bool found = p != NULL;
    for (; p; p = find_name(&l, p + l.n)) {
        const char *before = drop_blanks(&l, p), *after = skip_blanks(&l, p + l.n);
        if (!is_member(&l, before) && (!is_used(&l, before, after) || is_tested(&l, before, after)))
            return true;
    }
    return !found;
}
