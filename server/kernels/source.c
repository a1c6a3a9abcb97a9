#include "kernels/source.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "op/text.h"
#include "wire/trust.h"

// Nested includes.
enum { MAX_DEPTH = 16 };

struct source *source_new(const char *folder, const char *file, int folder_index)
{
    struct source *s = mem_zalloc(1, sizeof *s);
    s->folder = mem_strdup(folder);
    s->file = mem_strdup(file);
    s->path = folder[0] ? mem_printf("%s/%s", folder, file) : mem_strdup(file);
    s->folder_index = folder_index;
    return s;
}

static void forget_includes(struct source *s)
{
    while (s->n_includes > 0)
        free(s->includes[--s->n_includes].path);
}

void source_free(struct source *s)
{
    if (!s)
        return;
    forget_includes(s);
    source_mend(s);
    free(s->folder);
    free(s->file);
    free(s->path);
    free(s->original);
    free(s->text);
    free(s);
}

void source_mend(struct source *s)
{
    if (!s)
        return;
    opd_err_clear(&s->failure.err);
    s->failure = (struct source_failure){ 0 };
}

// Takes a byte-order mark off, which some editors put before UTF-8.
static void drop_mark(char *text, size_t *size)
{
    if (*size < 3 || memcmp(text, "\xef\xbb\xbf", 3) != 0)
        return;
    *size -= 3;
    memmove(text, text + 3, *size + 1);
}

static bool read_text(int fd, const char *path, struct buf *text, struct opd_err *err)
{
    if (!file_get(fd, SOURCE_MAX_SIZE, text))
        return opd_err_errno(err, OPD_E_invalid_argument, "%s", path);
    if (text->size > SOURCE_MAX_SIZE)
        return opd_err_set(err, OPD_E_invalid_argument, "%s: longer than %d bytes", path,
                           SOURCE_MAX_SIZE);
    return strlen(buf_str(text)) == text->size ||
           opd_err_set(err, OPD_E_invalid_argument, "%s: holds a zero byte; expected text", path);
}

char *source_read_file(const char *path, size_t *out_size, struct opd_err *err)
{
    struct stat st;
    struct buf text = { 0 };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe would be waited for
    bool ok = fd >= 0 && fstat(fd, &st) == 0;
    if (!ok)
        opd_err_errno(err, OPD_E_invalid_argument, "%s", path);
    else if (!S_ISREG(st.st_mode))
        ok = opd_err_set(err, OPD_E_invalid_argument, "%s is no file", path);
    else
        ok = trust_check(path, &st, err) && read_text(fd, path, &text, err);
    file_close(&fd);
    if (!ok) {
        buf_finish(&text);
        return NULL;
    }
    drop_mark((char *)text.bytes, &text.size);
    *out_size = text.size;
    return (char *)text.bytes;
}

bool source_changed(const struct source *s, bool *out_by_include)
{
    *out_by_include = false;
    if (!file_stamp_same(&s->now, &s->stamp))
        return true;
    *out_by_include = true;
    for (int i = 0; i < s->n_includes; i++) {
        struct file_stamp now;
        file_stamp_read(s->includes[i].path, &now);
        if (!file_stamp_same(&now, &s->includes[i].stamp))
            return true;
    }
    return false;
}

// --- includes

struct expansion {
    struct source *source;
    struct buf out;
    const char *once[SOURCE_MAX_INCLUDES]; // paths that said #pragma once
    int n_once;
};

// The name in a line that includes by quotes, or NULL. *length: of the name.
static const char *included_name(const char *line, size_t *length)
{
    static const char blanks[] = " \t";
    const char *p = line + strspn(line, blanks);
    if (*p != '#')
        return NULL;
    p += 1 + strspn(p + 1, blanks);
    if (strncmp(p, "include", 7) != 0)
        return NULL;
    p += 7 + strspn(p + 7, blanks);
    *length = *p == '"' ? strcspn(p + 1, "\"\n") : 0;
    return *length > 0 && p[1 + *length] == '"' ? p + 1 : NULL;
}

// Whether a block comment is open at the end of the line.
static bool comment_after(const char *p, const char *end, bool open)
{
    for (; p + 1 < end; p++) {
        if (open && p[0] == '*' && p[1] == '/')
            open = false, p++;
        else if (!open && p[0] == '/' && p[1] == '*')
            open = true, p++;
        else if (!open && p[0] == '/' && p[1] == '/')
            break;
    }
    return open;
}

static struct source_include *note_include(struct source *s, const char *path)
{
    for (int i = 0; i < s->n_includes; i++)
        if (strcmp(s->includes[i].path, path) == 0)
            return &s->includes[i];
    if (s->n_includes == SOURCE_MAX_INCLUDES)
        return NULL;
    struct source_include *inc = &s->includes[s->n_includes++];
    *inc = (struct source_include){ .path = mem_strdup(path) };
    file_stamp_read(path, &inc->stamp);
    return inc;
}

static bool expand(struct expansion *x, const char *name, const char *text, int depth,
                   struct opd_err *err);

// Puts a header in place of the line that includes it. A header that is not in the folder is left
// to the compiler.
static bool include(struct expansion *x, const char *name, size_t length, const char *from,
                    int line, int depth, bool *out_found, struct opd_err *err)
{
    if (!x->source->folder[0])
        return true; // nowhere
    // Beside the file that includes it, else in the operator's folder.
    const char *slash = strrchr(from, '/');
    char *shown = mem_printf("%.*s%.*s", slash ? (int)(slash + 1 - from) : 0, from, (int)length,
                             name);
    char *path = mem_printf("%s/%s", x->source->folder, shown);
    struct file_stamp stamp;
    *out_found = file_stamp_read(path, &stamp);
    if (!*out_found && slash) {
        free(path);
        free(shown);
        shown = mem_strndup(name, length);
        path = mem_printf("%s/%s", x->source->folder, shown);
        *out_found = file_stamp_read(path, &stamp);
    }
    bool ok = true, skip = false;
    for (int i = 0; i < x->n_once; i++)
        skip = skip || strcmp(x->once[i], path) == 0;
    const struct source_include *inc = note_include(x->source, path);
    if (depth == MAX_DEPTH || !inc)
        ok = opd_err_set(err, OPD_E_invalid_argument,
                         "%s:%d: includes are nested deeper than %d, or more than %d", from, line,
                         MAX_DEPTH, SOURCE_MAX_INCLUDES);
    size_t size;
    char *text = ok && *out_found && !skip ? source_read_file(path, &size, err) : NULL;
    if (text) {
        if (strstr(text, "#pragma once") && x->n_once < SOURCE_MAX_INCLUDES)
            x->once[x->n_once++] = inc->path;
        buf_printf(&x->out, "#line 1 \"%s\"\n", shown);
        ok = expand(x, shown, text, depth + 1, err);
        buf_printf(&x->out, "\n#line %d \"%s\"\n", line + 1, from);
        free(text);
    } else if (ok && *out_found && skip) {
        buf_append_str(&x->out, "\n");
    }
    free(path);
    free(shown);
    return ok && !err->code;
}

static bool expand(struct expansion *x, const char *name, const char *text, int depth,
                   struct opd_err *err)
{
    bool comment = false;
    const char *end;
    int number = text_first_line(text, strlen(text));
    for (; *text; number++, text = end) {
        end = strchrnul(text, '\n');
        end += *end == '\n';
        size_t length;
        const char *included = comment ? NULL : included_name(text, &length);
        bool found = false;
        if (included && !include(x, included, length, name, number, depth, &found, err))
            return false;
        if (!found)
            buf_append(&x->out, text, (size_t)(end - text));
        comment = comment_after(text, end, comment);
        if (x->out.size > SOURCE_MAX_SIZE)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: with its includes longer than %d bytes", name, SOURCE_MAX_SIZE);
    }
    return true;
}

// Takes the text over.
static bool take_text(struct source *s, char *text, size_t size, struct opd_err *err)
{
    struct expansion x = { .source = s };
    if (!expand(&x, s->file, text, 0, err)) {
        buf_finish(&x.out);
        free(text);
        return false;
    }
    free(s->original);
    free(s->text);
    s->original = text;
    s->original_size = size;
    s->hash = hash_bytes(x.out.bytes, x.out.size, 0);
    s->text = buf_take(&x.out);
    return true;
}

bool source_read(struct source *s, struct opd_err *err)
{
    s->watched = false;
    file_stamp_read(s->path,
                    &s->stamp); // before the text: what changes in between is seen by the next look
    forget_includes(s);
    size_t size;
    char *text = trust_folder(s->folder, err) ? source_read_file(s->path, &size, err) : NULL;
    return text && take_text(s, text, size, err);
}

char *source_common(const char *folder, struct opd_err *err)
{
    struct source *s = source_new(folder, "opd.cuh", 0);
    char *text = source_read(s, err) ? mem_strdup(s->text) : NULL;
    source_free(s);
    return text;
}

struct source *source_of_text(const char *folder, const char *file, const char *text, size_t size,
                              struct opd_err *err)
{
    struct source *s = source_new(folder, file, 0);
    char *copy = mem_strndup(text, size);
    drop_mark(copy, &size);
    if (take_text(s, copy, size, err))
        return s;
    source_free(s);
    return NULL;
}
