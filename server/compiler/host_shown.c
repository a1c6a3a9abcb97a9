#include "compiler/host_shown.h"

#include <stdlib.h>
#include <string.h>

#include "compiler/host_lex.h"

enum { MAX_LINE = 1 << 20 }; // the number of a line, from a directive

struct split {
    struct host_shown *files;
    int n, limit;
    int *lines; // of each file: how many its text has
};

static int find_file(struct split *s, const char *name, size_t size)
{
    for (int i = 0; i < s->n; i++)
        if (strlen(s->files[i].name) == size && memcmp(s->files[i].name, name, size) == 0)
            return i;
    if (s->n == s->limit)
        return -1;
    s->files[s->n] = (struct host_shown){ .name = mem_strndup(name, size) };
    s->lines[s->n] = 0;
    return s->n++;
}

static void add_line(struct split *s, int file, int number, const char *line, const char *end)
{
    struct buf *text = &s->files[file].text;
    if (number <= s->lines[file] || number > MAX_LINE)
        return; // it is there already
    for (; s->lines[file] < number - 1; s->lines[file]++)
        buf_append(text, "\n", 1);
    buf_append(text, line, (size_t)(end - line));
    buf_append(text, "\n", 1);
    s->lines[file] = number;
}

// `#line` stands on a line of its own, without blanks before it, where opd writes it.
static bool read_line(const char *line, const char *end, int *out_number, const char **out_file,
                      size_t *out_size)
{
    const struct host_token t = { HOST_DIRECTIVE, line, (size_t)(end - line), 0 };
    return *line == '#' && host_lex_line(&t, out_number, out_file, out_size);
}

int host_shown_split(const char *file, const char *source, struct host_shown *out, int limit)
{
    struct split s = { .files = out, .limit = limit };
    s.lines = mem_zalloc((size_t)limit, sizeof *s.lines);
    int at = find_file(&s, file, strlen(file)), number = 1;
    while (*source) {
        const char *end = strchrnul(source, '\n'), *name;
        size_t size;
        if (!read_line(source, end, &number, &name, &size)) {
            if (at >= 0)
                add_line(&s, at, number, source, end);
            number++;
        } else if (name) {
            at = find_file(&s, name, size);
        }
        source = *end ? end + 1 : end;
    }
    free(s.lines);
    return s.n;
}

void host_shown_finish(struct host_shown *files, int n)
{
    for (int i = 0; i < n; i++) {
        free(files[i].name);
        buf_finish(&files[i].text);
    }
}
