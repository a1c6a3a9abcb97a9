#include "compiler/rtc_log.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compiler/field.h"

static const char *const name_map = "__nv_name_map"; // NVRTC's pretended file of name expressions
static const char *const at_end = "At end of source: ";

// Lines that are left out begin so, or hold this.
static const char *const left_out[] = {
    "Remark: The warnings can be suppressed", // by an option that no user of opd can give
    "ptxas info ",
    "ptxas         .", // goes on with an info
};
static const char *const left_out_inside[] = {
    "precompiled header file \"", "from PCH file \"",
    "detected in the compilation of \"", // how many errors
};

// "file(12): error": where "(" is, and the text after "): ". Diagnostics begin in the first column.
static bool split_head(const char *line, const char *end, const char **out_open,
                       const char **out_text)
{
    const char *open = line;
    for (; open < end; open++) {
        if (*open != '(' || open == line)
            continue;
        const char *p = open + 1;
        while (p < end && *p >= '0' && *p <= '9')
            p++;
        if (p > open + 1 && end - p > 3 && memcmp(p, "): ", 3) == 0) {
            *out_open = open;
            *out_text = p + 3;
            return *line != ' ';
        }
    }
    return false;
}

// The column of the caret that belongs to the diagnostic before `line`; the source is shown two
// columns in. 0: none.
static int find_column(const char *line)
{
    const char *open, *text;
    while (*line) {
        const char *end = strchrnul(line, '\n');
        size_t spaces = strspn(line, " ");
        if (line[spaces] == '^' && line + spaces + 1 == end)
            return spaces >= 2 ? (int)spaces - 1 : 1;
        if (split_head(line, end, &open, &text))
            return 0;
        line = *end ? end + 1 : end;
    }
    return 0;
}

static bool is_left_out(const char *line, const char *end)
{
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strncmp(line, left_out[i], strlen(left_out[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof left_out_inside / sizeof *left_out_inside; i++)
        if (memmem(line, (size_t)(end - line), left_out_inside[i], strlen(left_out_inside[i])))
            return true;
    return false;
}

// A macro of ours is defined again, which a pasted file may do: its own is meant.
static bool is_redefined(const char *text, const char *end)
{
    static const char place[] = " (declared at line ";
    const char *at = memmem(text, (size_t)(end - text), place, strlen(place));
    if (!at || !memmem(text, (size_t)(at - text), "redefinition of macro", 21))
        return false;
    at += strlen(place);
    at += strspn(at, "0123456789");
    if (strncmp(at, " of ", 4) != 0)
        return false;
    char *file = mem_strndup(at + 4, strcspn(at + 4, ")\n"));
    struct field_header header;
    bool ours = field_find(file, &header); // opd.cuh, too
    free(file);
    return ours;
}

// Behind a diagnostic and the source that is shown below it.
static const char *skip_diagnostic(const char *line)
{
    do {
        const char *end = strchrnul(line, '\n');
        line = *end ? end + 1 : end;
    } while (*line == ' ');
    return *line == '\n' ? line + 1 : line;
}

char *rtc_log_rewrite(const char *log)
{
    struct buf out = { 0 };
    while (*log) {
        const char *end = strchrnul(log, '\n'), *next = *end ? end + 1 : end, *open, *text;
        if (split_head(log, end, &open, &text) && is_redefined(text, end)) {
            log = skip_diagnostic(log);
            continue;
        }
        if (split_head(log, end, &open, &text)) {
            int column = find_column(next);
            buf_append(&out, log, (size_t)(open - log));
            buf_printf(&out, ":%.*s", (int)(text - 3 - (open + 1)), open + 1);
            if (column > 0)
                buf_printf(&out, ":%d", column);
            buf_append_str(&out, ": ");
            buf_append(&out, text, (size_t)(end - text));
        } else if (!is_left_out(log, end)) {
            buf_append(&out, log, (size_t)(end - log));
        } else {
            log = *next == '\n' ? next + 1 : next; // with the empty line behind it
            continue;
        }
        buf_append_str(&out, "\n");
        log = next;
    }
    return out.size ? buf_take(&out) : NULL;
}

char *rtc_log_first_error(const char *log, const char *file, const char *expr)
{
    const char *mark = strstr(log, "error: ");
    if (!mark)
        return mem_printf("%s: kernel '%s' does not compile", file, expr);
    const char *line = mark;
    while (line > log && line[-1] != '\n')
        line--;
    int length = (int)(strchrnul(line, '\n') - line);
    if (strncmp(line, at_end, strlen(at_end)) == 0) // where NVRTC names no file
        return mem_printf("%s: %.*s", file, length < 900 ? length : 900, line);
    if (strncmp(line, name_map, strlen(name_map)) != 0)
        return mem_printf("%.*s", length < 900 ? length : 900, line);
    mark += strlen("error: ");
    length = (int)(strchrnul(mark, '\n') - mark);
    return mem_printf("%s: no kernel '%s': %.*s", file, expr, length < 700 ? length : 700, mark);
}
