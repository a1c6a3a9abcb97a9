#include "compiler/ptx_line.h"

enum { MAX_DEPTH = 32, MAX_FILE = 200 };

static uint64_t key_of(struct ptx_place p)
{
    return (uint64_t)p.file << 48 ^ (uint64_t)p.line << 16 ^ p.column;
}

static bool read_numbers(struct slice *s, uint32_t *out, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t value;
        *s = slice_trim(*s);
        if (!slice_number(s, &value) || value < 0 || value > INT32_MAX)
            return false;
        out[i] = (uint32_t)value;
    }
    return true;
}

// .file 1 "/where/the/compiler/runs/gelu.cu"
static void read_file(struct ptx_lines *lines, struct slice s)
{
    uint32_t number;
    if (!read_numbers(&s, &number, 1))
        return;
    s = slice_trim(s);
    const char *end = s.size > 1 ? memchr(s.at + 1, '"', s.size - 1) : NULL;
    const char *name = s.at + 1, *slash = end ? memrchr(name, '/', (size_t)(end - name)) : NULL;
    name = slash ? slash + 1 : name;
    size_t size = end ? (size_t)(end - name) : 0;
    if (size == 0 || size > MAX_FILE)
        return;
    map_put(&lines->files, number, (void *)(uintptr_t)(lines->names.size + 1));
    buf_append(&lines->names, name, size);
    buf_append(&lines->names, "", 1);
}

// .loc 1 58 5, function_name $L__info_string0, inlined_at 2 100 1
static void read_loc(struct ptx_lines *lines, struct slice s)
{
    static const char word[] = "inlined_at";
    struct ptx_place at, caller = { 0 };
    uint32_t numbers[3];
    const char *by = memmem(s.at, s.size, word, strlen(word));
    if (!read_numbers(&s, numbers, 3))
        return;
    at = (struct ptx_place){ numbers[0], numbers[1], numbers[2] };
    if (by) {
        by += strlen(word);
        struct slice rest = { by, (size_t)(s.at + s.size - by) };
        if (read_numbers(&rest, numbers, 3))
            caller = (struct ptx_place){ numbers[0], numbers[1], numbers[2] };
    }
    lines->at = at;
    map_put(&lines->inlined, key_of(at),
            (void *)(uintptr_t)(lines->callers.size / sizeof caller + 1));
    buf_append(&lines->callers, &caller, sizeof caller);
}

void ptx_lines_read(struct ptx_lines *lines, struct slice directive)
{
    bool file = slice_begins(directive, ".file"), loc = slice_begins(directive, ".loc");
    size_t word = file ? 5 : 4;
    struct slice rest = { directive.at + word, directive.size - word };
    if (file)
        read_file(lines, rest);
    else if (loc)
        read_loc(lines, rest);
}

static const char *file_name(const struct ptx_lines *lines, uint32_t number)
{
    size_t at = (size_t)(uintptr_t)map_get(&lines->files, number);
    return at ? (const char *)lines->names.bytes + at - 1 : NULL;
}

// opd.cuh and its kin, under the name of their text, too.
static bool is_ours(const char *name)
{
    size_t n = strlen(name);
    const char *slash = strrchr(name, '/');
    return strncmp(slash ? slash + 1 : name, "opd", 3) == 0 && n > 4 &&
           strcmp(name + n - 4, ".cuh") == 0;
}

const char *ptx_lines_find(const struct ptx_lines *lines, uint32_t *out_line)
{
    struct ptx_place at = lines->at;
    const char *found = "?";
    *out_line = 0;
    for (int depth = 0; at.file && depth < MAX_DEPTH; depth++) {
        const char *name = file_name(lines, at.file);
        if (name) {
            found = name;
            *out_line = at.line;
        }
        if (name && !is_ours(name))
            break;
        size_t caller = (size_t)(uintptr_t)map_get(&lines->inlined, key_of(at));
        at = caller ? ((const struct ptx_place *)(const void *)lines->callers.bytes)[caller - 1]
                    : (struct ptx_place){ 0 };
    }
    return found;
}

void ptx_lines_finish(struct ptx_lines *lines)
{
    map_finish(&lines->files);
    map_finish(&lines->inlined);
    buf_finish(&lines->names);
    buf_finish(&lines->callers);
}
