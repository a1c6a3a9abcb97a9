#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/scan.h"

// Integer constants of C++, as far as they tell how long an array in a struct is: numbers, names
// that the text gives a value, elements of arrays of such, + - * / %. Who lays a struct out by them
// has the compiler check it.

enum { MAX_CONSTANT = INT32_MAX, MAX_DEPTH = 16, MAX_LOOKS = 64 };

struct constants {
    const struct scanner *whole; // at its first piece
    int depth;                   // of parts inside parts
    int n_looks;                 // through the text
};

static bool eval_sum(struct constants *c, struct scanner *s, int64_t *out);

static bool eval_part(struct constants *c, const struct scanner *s, struct piece part, int64_t *out)
{
    struct scanner in = scan_part(s, part);
    bool ok = c->depth++ < MAX_DEPTH && eval_sum(c, &in, out) && scan_at_end(&in);
    c->depth--;
    return ok;
}

// The n-th of what stands between braces.
static bool eval_element(struct constants *c, const struct scanner *s, struct piece braces,
                         int64_t n, int64_t *out)
{
    struct scanner in = scan_part(s, braces);
    struct scan_words words = { 0 };
    for (; n >= 0 && !scan_at_end(&in); n--)
        scan_words(&in, &words);
    if (n >= 0 || words.n == 0)
        return false;
    const struct piece *first = &words.pieces[0], *last = &words.pieces[words.n - 1];
    struct piece part = { first->start, (size_t)(last->start + last->size - first->start), 1 };
    return eval_part(c, s, part, out);
}

// `NAME = value;` or `NAME[...] = { values }`, wherever it stands first.
static bool eval_name(struct constants *c, struct piece name, bool has_index, int64_t index,
                      int64_t *out)
{
    struct scanner s = *c->whole;
    while (!scan_at_end(&s)) {
        bool found = s.piece.size == name.size && memcmp(s.piece.start, name.start, name.size) == 0;
        scan_next(&s);
        if (found && has_index && scan_is(&s.piece, "["))
            scan_bracketed(&s, false);
        if (!found || !scan_is(&s.piece, "="))
            continue;
        scan_next(&s);
        if (has_index && scan_is(&s.piece, "{"))
            return eval_element(c, &s, scan_bracketed(&s, false), index, out);
        struct piece value = s.piece;
        while (!scan_at_end(&s) && !scan_is(&s.piece, ";") && !scan_is(&s.piece, ","))
            scan_next(&s);
        value.size = (size_t)(s.piece.start - value.start);
        return !has_index && eval_part(c, &s, value, out);
    }
    return false;
}

static bool eval_atom(struct constants *c, struct scanner *s, int64_t *out)
{
    struct piece word = s->piece;
    int64_t index = 0;
    if (scan_is(&word, "("))
        return eval_part(c, s, scan_bracketed(s, false), out);
    if (!scan_is_word(&word))
        return false;
    scan_next(s);
    if (isdigit((unsigned char)*word.start)) {
        *out = strtoll(word.start, NULL, 0);
        return *out <= MAX_CONSTANT;
    }
    bool has_index = scan_is(&s->piece, "[");
    return (!has_index || eval_part(c, s, scan_bracketed(s, false), &index)) &&
           c->n_looks++ < MAX_LOOKS && eval_name(c, word, has_index, index, out);
}

static bool eval_product(struct constants *c, struct scanner *s, int64_t *out)
{
    int64_t b;
    if (!eval_atom(c, s, out))
        return false;
    while (s->piece.size == 1 && strchr("*/%", *s->piece.start)) {
        char sign = *s->piece.start;
        scan_next(s);
        if (!eval_atom(c, s, &b) || (sign != '*' && b == 0))
            return false;
        *out = sign == '*' ? *out * b : sign == '/' ? *out / b : *out % b;
        if (*out > MAX_CONSTANT || *out < -MAX_CONSTANT)
            return false;
    }
    return true;
}

static bool eval_sum(struct constants *c, struct scanner *s, int64_t *out)
{
    int64_t b;
    if (!eval_product(c, s, out))
        return false;
    while (scan_is(&s->piece, "+") || scan_is(&s->piece, "-")) {
        bool minus = scan_is(&s->piece, "-");
        scan_next(s);
        if (!eval_product(c, s, &b))
            return false;
        *out += minus ? -b : b;
        if (*out > MAX_CONSTANT || *out < -MAX_CONSTANT)
            return false;
    }
    return true;
}

bool constant_eval(const char *text, size_t size, const char *expr, int64_t *out)
{
    char *copy = mem_strndup(text, size), *own = mem_strdup(expr);
    scan_blank(copy, size);
    struct scanner whole = { .p = copy, .end = copy + size, .line = 1 };
    struct constants c = { .whole = &whole };
    scan_next(&whole);
    bool ok = eval_part(&c, &whole, (struct piece){ own, strlen(own), 1 }, out);
    free(own);
    free(copy);
    return ok;
}
