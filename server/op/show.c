#include "op/show.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/text.h"

enum { MAX_SHOWN = 4096, MAX_WORD = 128 }; // bytes of a line, of a word

struct view {
    const char *text, *end;
    int first;        // the number of its first line
    int line;         // of the message
    const char *what; // the message behind its line
};

// The line that the message names: "file:line: what".
static bool read_line(const char *msg, const char *file, struct view *v)
{
    size_t n = strlen(file);
    if (strncmp(msg, file, n) != 0 || msg[n] != ':' || !isdigit((unsigned char)msg[n + 1]))
        return false;
    char *behind;
    long line = strtol(msg + n + 1, &behind, 10);
    v->line = (int)line;
    v->what = behind;
    return *behind == ':' && line >= 1 && line < 1 << 24;
}

static const char *line_end(const struct view *v, const char *p)
{
    const char *end = memchr(p, '\n', (size_t)(v->end - p));
    return end ? end : v->end;
}

static const char *line_start(const struct view *v, const char *p)
{
    while (p > v->text && p[-1] != '\n')
        p--;
    return p;
}

static const char *find_line(const struct view *v, int line)
{
    const char *p = v->text;
    while (--line >= v->first) {
        p = line_end(v, p);
        if (p++ == v->end)
            return NULL;
    }
    return p;
}

static int count_line(const struct view *v, const char *at)
{
    int line = v->first;
    for (const char *p = v->text; p < at; p++)
        line += *p == '\n';
    return line;
}

// Where the directive of this line ends, its continuations included.
static const char *directive_end(const struct view *v, const char *start)
{
    for (;;) {
        const char *end = line_end(v, start), *last = end;
        while (last > start && isspace((unsigned char)last[-1]))
            last--;
        if (end == v->end || last == start || last[-1] != '\\')
            return end;
        start = end + 1;
    }
}

// Does the word stand there, and not as a part of another?
static bool is_word_at(const char *p, const char *start, const char *end, const char *word,
                       size_t n)
{
    if ((size_t)(end - p) < n || memcmp(p, word, n) != 0)
        return false;
    bool joined_before = p > start && text_is_word_char(p[-1]) && text_is_word_char(word[0]);
    bool joined_behind = p + n < end && text_is_word_char(p[n]) && text_is_word_char(word[n - 1]);
    return !joined_before && !joined_behind;
}

// The first place of the word from `p` on (step 1), or the last one up to it (step -1).
static const char *find_word(const char *start, const char *end, const char *p, int step,
                             const char *word, size_t n)
{
    for (; p >= start && p <= end; p += step)
        if (is_word_at(p, start, end, word, n))
            return p;
    return NULL;
}

// The size of the word that the message quotes first, 'word' or "word", and its start.
static size_t find_quoted(const char *what, const char **out)
{
    const char *open = strpbrk(what, "'\"");
    const char *close = open ? strchr(open + 1, *open) : NULL;
    size_t n = close ? (size_t)(close - open - 1) : 0;
    *out = open ? open + 1 : NULL;
    return n <= MAX_WORD ? n : 0;
}

// The beginning of the line's text, behind "//!".
static const char *text_start(const char *start, const char *end)
{
    while (start < end && isspace((unsigned char)*start))
        start++;
    if (end - start > 3 && memcmp(start, "//!", 3) == 0)
        for (start += 3; start < end && isspace((unsigned char)*start);)
            start++;
    return start;
}

static const char *find_place(const struct view *v, const struct show_hint *hint)
{
    if (hint->at && hint->exact)
        return hint->at;
    const char *start = find_line(v, v->line);
    if (!start)
        return NULL;
    const char *word = hint->word, *end = directive_end(v, start), *found = NULL;
    size_t n = word ? strlen(word) : find_quoted(v->what, &word);
    if (n > 0 && hint->at)
        found = find_word(start, end, hint->at, -1, word, n);
    if (n > 0 && !found)
        found = find_word(start, end, text_start(start, end), 1, word, n);
    if (found)
        return found;
    if (hint->at && hint->at < end)
        return hint->at;
    return text_start(start, line_end(v, start)); // the directive as a whole
}

// The caret's line: as wide as the characters before it.
static void append_caret(struct buf *out, const char *start, const char *at)
{
    for (const char *p = start; p < at; p++)
        if (((unsigned char)*p & 0xc0) != 0x80) // not inside a character
            buf_append_str(out, *p == '\t' ? "\t" : " ");
    buf_append_str(out, "^\n");
}

void show_mistake(struct opd_err *err, const char *file, const char *text, size_t size,
                  const struct show_hint *hint)
{
    int first = text_first_line(text, size); // below 1: that is the mistake, in line 1
    struct view v = { .text = text, .end = text + size, .first = first < 1 ? 1 : first };
    if (err->log || !read_line(err->msg, file, &v))
        return;
    const char *at = find_place(&v, hint);
    if (!at)
        return;
    const char *start = line_start(&v, at), *end = line_end(&v, at);
    if (end > start && end[-1] == '\r')
        end--;
    if (end - start > MAX_SHOWN)
        return;
    int line = count_line(&v, at);
    if (line != v.line || hint->column) {
        char column[16] = "";
        if (hint->column)
            snprintf(column, sizeof column, ":%d", (int)(at - start) + 1);
        char *msg = mem_printf("%s:%d%s%s", file, line, column, v.what);
        snprintf(err->msg, sizeof err->msg, "%s", msg);
        free(msg);
    }
    struct buf log = { 0 };
    char *shown = mem_strndup(start, (size_t)(end - start));
    text_clean(shown);
    buf_printf(&log, "%s\n", shown);
    append_caret(&log, start, at);
    err->log = mem_strdup(buf_str(&log));
    buf_finish(&log);
    free(shown);
}
