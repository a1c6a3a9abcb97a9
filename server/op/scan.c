#include "op/scan.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "op/text.h"

static void blank(char *from, const char *to)
{
    for (; from < to; from++)
        if (*from != '\n')
            *from = ' ';
}

static char *skip_line(char *p, const char *end)
{
    for (; p < end && *p != '\n'; p++)
        if (*p == '\\' && p + 1 < end)
            p++;
    return p;
}

static char *skip_quoted(char *p, const char *end)
{
    char quote = *p++;
    while (p < end && *p != quote && *p != '\n')
        p += *p == '\\' && p + 1 < end ? 2 : 1;
    return p < end && *p == quote ? p + 1 : p;
}

static char *skip_raw_string(char *p, const char *end)
{
    char close[24] = ")"; // R"word( ... )word"
    char *open = memchr(p, '(', end - p < 20 ? (size_t)(end - p) : 20);
    size_t n = open ? (size_t)(open - (p + 2)) : sizeof close;
    if (n > 16)
        return p + 1;
    memcpy(close + 1, p + 2, n);
    close[n + 1] = '"';
    char *stop = memmem(open, (size_t)(end - open), close, n + 2);
    return stop ? stop + n + 2 : (char *)end;
}

static char *skip_comment(char *p, const char *end)
{
    if (p[1] == '/')
        return skip_line(p, end);
    char *close = memmem(p + 2, (size_t)(end - p - 2), "*/", 2);
    return close ? close + 2 : (char *)end;
}

static const char *skip_blanks(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p;
}

// Whether the directive whose '#' stands at p begins so.
static bool is_directive(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    p = skip_blanks(p + 1, end);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0;
}

// Whether nothing but comments comes up to the end of the line.
static bool is_line_over(const char *p, const char *end)
{
    p = skip_blanks(p, end);
    while (end - p > 1 && p[0] == '/' && (p[1] == '/' || p[1] == '*'))
        p = skip_blanks(skip_comment((char *)p, end), end);
    return p == end || *p == '\n' || *p == '\r';
}

// A condition that only begins so, `0 || A`, may be true.
static bool is_if_zero(const char *p, const char *end)
{
    if (!is_directive(p, end, "if"))
        return false;
    const char *value = skip_blanks(skip_blanks(p + 1, end) + 2, end);
    return value < end && *value == '0' && value[-1] != 'f' && is_line_over(value + 1, end);
}

// From an `#if 0` to the `#else`, `#elif` or `#endif` that ends what nobody compiles.
static char *skip_dead(char *p, const char *end)
{
    bool line_start = true;
    for (int depth = 0; p < end;) {
        if (*p == '/' && end - p > 1 && (p[1] == '/' || p[1] == '*')) {
            p = skip_comment(p, end);
        } else if (*p == '#' && line_start) {
            bool ends = is_directive(p, end, "endif");
            if (depth == 1 && (ends || is_directive(p, end, "el")))
                return p;
            depth += is_directive(p, end, "if") - ends;
            p = skip_line(p, end);
        } else {
            line_start = *p == '\n' || (line_start && isspace((unsigned char)*p));
            p++;
        }
    }
    return p;
}

void scan_blank(char *text, size_t size)
{
    char *p = text;
    const char *end = text + size;
    bool line_start = true;
    while (p < end) {
        char *from = p;
        bool more = end - p > 1;
        bool after_word = p > text && text_is_word_char(p[-1]);
        if (*p == '/' && more && (p[1] == '/' || p[1] == '*'))
            p = skip_comment(p, end);
        else if (*p == '#' && line_start)
            p = is_if_zero(p, end) ? skip_dead(p, end) : skip_line(p, end);
        else if (*p == 'R' && more && p[1] == '"' && !after_word)
            p = skip_raw_string(p, end);
        else if (*p == '"' || (*p == '\'' && !after_word)) // 1'000 is a number
            p = skip_quoted(p, end);
        else {
            line_start = *p == '\n' || (line_start && isspace((unsigned char)*p));
            p++;
            continue;
        }
        blank(from, p);
    }
}

void scan_next(struct scanner *s)
{
    while (s->p < s->end && isspace((unsigned char)*s->p))
        s->line += *s->p++ == '\n';
    s->piece = (struct piece){ s->p, 0, s->line };
    if (s->p == s->end)
        return;
    do
        s->p++;
    while (text_is_word_char(*s->piece.start) && s->p < s->end && text_is_word_char(*s->p));
    s->piece.size = (size_t)(s->p - s->piece.start);
}

bool scan_is(const struct piece *piece, const char *word)
{
    return text_is(piece->start, piece->size, word);
}

bool scan_at_end(const struct scanner *s)
{
    return s->piece.size == 0;
}

// The change of depth that a piece makes, brackets of every kind counted together.
static int depth_change(const struct piece *piece, bool angles)
{
    if (piece->size != 1)
        return 0;
    char c = *piece->start;
    if (strchr("([{", c) || (angles && c == '<'))
        return 1;
    return strchr(")]}", c) || (angles && c == '>') ? -1 : 0;
}

struct piece scan_bracketed(struct scanner *s, bool angles)
{
    int depth = 0, round = 0;
    const char *start = s->piece.start + 1;
    int line = s->piece.line;
    while (!scan_at_end(s)) {
        // Inside parentheses < and > compare.
        depth += depth_change(&s->piece, angles && round == 0);
        if (angles)
            round += depth_change(&s->piece, false);
        const char *stop = s->piece.start;
        scan_next(s);
        if (depth == 0)
            return (struct piece){ start, (size_t)(stop - start), line };
    }
    return (struct piece){ start, 0, line };
}

struct scanner scan_part(const struct scanner *s, struct piece part)
{
    struct scanner inner = {
        .file = s->file,
        .arena = s->arena,
        .err = s->err,
        .p = part.start,
        .end = part.size > 0 ? part.start + part.size : part.start, // NULL: there is no part
        .line = part.line,
        .aliases = s->aliases,
        .n_aliases = s->n_aliases,
        .own = s->own,
        .n_own = s->n_own,
    };
    scan_next(&inner);
    return inner;
}

void scan_words(struct scanner *s, struct scan_words *w)
{
    int depth = 0, round = 0;
    w->n = 0;
    w->too_many = false;
    while (!scan_at_end(s)) {
        depth += depth_change(&s->piece, round == 0);
        round += depth_change(&s->piece, false);
        if (depth == 0 && scan_is(&s->piece, ","))
            break;
        if (w->n < (int)(sizeof w->pieces / sizeof *w->pieces))
            w->pieces[w->n++] = s->piece;
        else
            w->too_many = true;
        scan_next(s);
    }
    scan_next(s);
}

bool scan_is_word(const struct piece *piece)
{
    return piece->size > 0 && text_is_word_char(*piece->start);
}

const char *scan_copy(struct arena *arena, const struct piece *piece)
{
    return arena_strndup(arena, piece->start, piece->size);
}

bool scan_is_qualifier(const struct piece *piece)
{
    static const char *const words[] = {
        "const",    "volatile",          "__restrict__", "__restrict", "restrict",
        "typename", "__grid_constant__", "struct",       "register",
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (scan_is(piece, words[i]))
            return true;
    return false;
}

const char *scan_join(struct scanner *s, const struct piece *pieces, int n)
{
    struct buf text = { 0 };
    for (int i = 0; i < n; i++) {
        if (scan_is_qualifier(&pieces[i]))
            continue;
        if (text.size > 0 && scan_is_word(&pieces[i]) &&
            text_is_word_char((char)text.bytes[text.size - 1]))
            buf_append_str(&text, " ");
        buf_append(&text, pieces[i].start, pieces[i].size);
    }
    const char *copy = arena_strndup(s->arena, (const char *)text.bytes, text.size);
    buf_finish(&text);
    return copy;
}

int scan_find(const struct piece *pieces, int n, const char *word)
{
    for (int i = 0; i < n; i++)
        if (scan_is(&pieces[i], word))
            return i;
    return -1;
}
