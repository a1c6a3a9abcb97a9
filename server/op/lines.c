#include "op/lines.h"

#include <ctype.h>
#include <string.h>

#include "op/body.h"
#include "base/mem.h"
#include "op/text.h"

struct splitter {
    const char *file;
    struct arena *arena;
    struct opd_err *err;
    const char *p, *end; // end of the present line
    int number;
    bool in_comment, in_code, in_macro, continues;
    struct buf text, pieces; // of the directive being joined
    int n;
    struct line *lines;
};

static bool starts_with(const struct splitter *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return (size_t)(s->end - s->p) >= n && memcmp(s->p, prefix, n) == 0;
}

static void skip_blanks(struct splitter *s)
{
    while (s->p < s->end && isspace((unsigned char)*s->p))
        s->p++;
}

static bool fail(struct splitter *s, const char *what)
{
    return op_fail(s->err, "%s:%d: %s", s->file, s->number, what);
}

const char *line_place(const struct line *line, const char *at)
{
    size_t offset = (size_t)(at - line->text);
    int i = line->n_pieces - 1;
    while (i > 0 && line->pieces[i].at > offset)
        i--;
    return line->pieces[i].start + (offset - line->pieces[i].at);
}

static bool add_directive(struct splitter *s)
{
    skip_blanks(s);
    const char *end = s->end;
    while (end > s->p && isspace((unsigned char)end[-1]))
        end--;
    bool more = end > s->p && end[-1] == '\\';
    if (more) // the next line is joined by one blank, whatever stands before the '\\'
        for (end--; end > s->p && isspace((unsigned char)end[-1]);)
            end--;
    if (!s->continues && end == s->p && !more)
        return true;
    if (!s->continues) {
        if (s->n == OP_MAX_DIRECTIVES)
            return fail(s, "more than 1024 directives");
        s->lines[s->n].number = s->number;
        s->text.size = s->pieces.size = 0;
    }
    buf_append_str(&s->text, s->continues ? " " : "");
    buf_append(&s->pieces, &(struct line_piece){ s->text.size, s->p }, sizeof(struct line_piece));
    buf_append(&s->text, s->p, (size_t)(end - s->p));
    if (!text_is_plain(s->p, (size_t)(end - s->p)))
        return fail(s, "a byte that is no text, expected UTF-8 without control characters");
    if (s->text.size > OP_MAX_LINE)
        return fail(s, "a directive of more than 16384 characters");
    s->continues = more;
    if (!more) {
        struct line *line = &s->lines[s->n++];
        size_t n = s->pieces.size / sizeof(struct line_piece);
        line->text = arena_strndup(s->arena, (const char *)s->text.bytes, s->text.size);
        line->size = s->text.size;
        line->pieces = arena_copy(s->arena, s->pieces.bytes, n, sizeof *line->pieces);
        line->n_pieces = (int)n;
    }
    return true;
}

// Code on this line, once its comments are passed?
static bool has_code(struct splitter *s)
{
    while (s->p < s->end) {
        if (s->in_comment) {
            const char *close = memmem(s->p, (size_t)(s->end - s->p), "*/", 2);
            if (!close)
                return false;
            s->in_comment = false;
            s->p = close + 2;
        }
        skip_blanks(s);
        if (!starts_with(s, "/*"))
            return s->p < s->end && !starts_with(s, "//");
        s->in_comment = true;
        s->p += 2;
    }
    return false;
}

static bool read_line(struct splitter *s)
{
    bool continued_macro = s->in_macro;
    s->in_macro = false;
    skip_blanks(s);
    if (!s->in_comment && !continued_macro && starts_with(s, "//!")) {
        if (s->in_code)
            return fail(s, "a directive after the first line of code, expected all of them before");
        s->p += 3;
        return add_directive(s);
    }
    if (s->continues)
        return fail(s, "the line before ends in '\\', expected another '//!' line");
    if (s->in_code)
        return true;
    if (!s->in_comment && (continued_macro || starts_with(s, "#"))) {
        s->in_macro = s->end > s->p && s->end[-1] == '\\';
        return true;
    }
    s->in_code = has_code(s);
    return true;
}

static bool split(struct splitter *s, const char *text, size_t size)
{
    const char *end = text + size;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        stop = stop ? stop : end;
        s->number++;
        s->p = text;
        s->end = stop > text && stop[-1] == '\r' ? stop - 1 : stop;
        if (!read_line(s))
            return false;
        text = stop + 1;
    }
    return !s->continues || fail(s, "the last line ends in '\\', expected another '//!' line");
}

bool lines_split(const char *file, const char *text, size_t size, struct arena *arena,
                 struct line **out, int *out_n, struct opd_err *err)
{
    if (size > OP_MAX_TEXT)
        return op_fail(err, "%s:1: the file has %zu bytes, expected at most %d", file, size,
                       OP_MAX_TEXT);
    if (memchr(text, '\0', size))
        return op_fail(err, "%s:1: a zero byte in the file, expected text", file);
    int first = text_first_line(text, size);
    if (first < 0)
        return op_fail(err, "%s:1: the number of #line is not one of 1 to 99999999", file);
    struct splitter s = {
        .file = file,
        .arena = arena,
        .err = err,
        .number = first - 1,
        .lines = arena_alloc(arena, OP_MAX_DIRECTIVES, sizeof *s.lines),
    };
    bool ok = split(&s, text, size);
    buf_finish(&s.text);
    buf_finish(&s.pieces);
    *out = s.lines;
    *out_n = s.n;
    return ok;
}
