#include "compiler/host_log.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "compiler/host_source.h"

// Names that are ours: of the shim, of the line that exports the kernel, of the file that the
// compiler was given.
static const char *const own_names[] = { "cpu_shim.h:", "kernel:", "opd.cpp:", "prelude:" };

static bool starts(const char *line, const char *prefix)
{
    return strncmp(line, prefix, strlen(prefix)) == 0;
}

static const char *find(const char *line, const char *end, const char *part)
{
    return memmem(line, (size_t)(end - line), part, strlen(part));
}

static bool holds(const char *line, const char *end, const char *part)
{
    return find(line, end, part) != NULL;
}

// Behind "cpu_shim.h:12:3: ", or NULL where the line names nothing of ours.
static const char *skip_own_place(const char *line)
{
    for (size_t i = 0; i < sizeof own_names / sizeof *own_names; i++)
        if (starts(line, own_names[i])) {
            const char *text = line + strlen(own_names[i]);
            return text + strspn(text, "0123456789: ");
        }
    return NULL;
}

// How the compiler came to the place, which is not by the user's doing; and temporary files.
static bool is_noise(const char *line, const char *end)
{
    return holds(line, end, "in expansion of macro ‘OPD_CPU_") ||
           holds(line, end, "in expansion of macro 'OPD_CPU_") ||
           holds(line, end, "OPD_CPU_EXPORT") || holds(line, end, "opd_cpu_launch") ||
           starts(line, "In file included from opd.cpp:") ||
           starts(line, "In file included from cpu_shim.h:") ||
           starts(line, "compilation terminated") ||
           (holds(line, end, "warning") && holds(line, end, "generated.")) ||
           (holds(line, end, "error") && holds(line, end, "generated."));
}

static bool is_there(struct buf *out, const char *text, size_t size)
{
    return out->size > 0 && memmem(out->bytes, out->size, text, size) != NULL;
}

// A line of ours: its text, once.
static void append_own(struct buf *out, const char *text, const char *end)
{
    if (starts(text, "required from here") || starts(text, "  required from here"))
        return;
    if (is_there(out, text, (size_t)(end - text)))
        return;
    buf_append(out, text, (size_t)(end - text));
    buf_append_str(out, "\n");
}

// "a.cu:3: error: inline PTX (asm) cannot run ...", of an error that cpu_refuse.c has caused: its
// column is one in there.
static bool append_refusal(struct buf *out, const char *line, const char *end)
{
    const char *mark = find(line, end, "error: "), *what = find(line, end, HOST_NOT_HERE);
    const char *column = mark && what ? memrchr(line, ':', (size_t)(mark - line - 2)) : NULL;
    if (!column)
        return false;
    while (memcmp(what - 2, ": ", 2) != 0)
        what--;
    buf_printf(out, "%.*s: error: %.*s\n", (int)(column - line), line, (int)(end - what), what);
    return true;
}

static const char *next_line(const char *line)
{
    const char *end = strchrnul(line, '\n');
    return *end ? end + 1 : end;
}

// Behind a warning that a macro of ours is defined again, which a pasted file may do: its own is
// meant. NULL: the line is none.
static const char *skip_redefined(const char *line)
{
    const char *end = strchrnul(line, '\n');
    if (!holds(line, end, "warning: ") || !holds(line, end, " redefined"))
        return NULL;
    do
        line = next_line(line);
    while (*line == ' ' || starts(line, "In file included from "));
    end = strchrnul(line, '\n');
    bool ours = skip_own_place(line) || starts(line, "opd.cuh:") || starts(line, "opd-");
    if (!ours || !holds(line, end, "previous definition"))
        return NULL;
    do
        line = next_line(line);
    while (*line == ' ');
    return line;
}

char *host_log_rewrite(const char *log)
{
    struct buf out = { 0 };
    bool shown = true; // whether the source that is shown below belongs to a line that was kept
    for (const char *next; *log; log = next) {
        const char *end = strchrnul(log, '\n'), *text = skip_own_place(log);
        next = skip_redefined(log);
        if (next)
            continue;
        next = next_line(log);
        bool is_source = *log == ' ';
        if (is_source && !shown)
            continue;
        if (append_refusal(&out, log, end)) {
            shown = false;
            continue;
        }
        if (!is_source)
            shown = !text && !is_noise(log, end);
        if (text && !is_noise(log, end))
            append_own(&out, text, end);
        else if (shown)
            buf_append(&out, log, (size_t)(next - log));
    }
    return out.size ? buf_take(&out) : NULL;
}

char *host_log_first_error(const char *log, const char *file, const char *expr)
{
    enum { LIMIT = 900 };
    const char *mark = strstr(log, "error: ");
    const char *line = mark ? mark : log + strspn(log, "\n");
    while (line > log && line[-1] != '\n')
        line--;
    int length = (int)(strchrnul(line, '\n') - line);
    if (!mark)
        return mem_printf("%s: the C++ compiler failed on kernel '%s'%s%.*s", file, expr,
                          length ? ": " : "", length < LIMIT ? length : LIMIT, line);
    if (holds(line, strchrnul(line, '\n'), HOST_NOT_HERE))
        return mem_printf("%.*s%.*s", (int)(mark - line), line,
                          length - (int)(mark - line) - (int)strlen("error: "),
                          mark + strlen("error: "));
    if (line != mark && !starts(line, "fatal error: "))
        return mem_printf("%.*s", length < LIMIT ? length : LIMIT, line);
    mark += strlen("error: ");
    length = (int)(strchrnul(mark, '\n') - mark);
    return mem_printf("%s: no kernel '%s': %.*s", file, expr, length < LIMIT ? length : LIMIT,
                      mark);
}
