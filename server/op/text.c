#include "op/text.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

bool text_is(const char *s, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

bool text_is_word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

// The bytes of the first character; 0 if it is none, or a control character.
static size_t plain_size(const uint8_t *p, size_t left)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    if (p[0] < 0x80)
        return p[0] == '\t' || (p[0] >= 0x20 && p[0] != 0x7f);
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > left)
        return 0;
    uint32_t code = p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code >= least[n] && code >= 0xa0 && code <= 0x10ffff && !surrogate ? n : 0;
}

bool text_is_plain(const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t size = plain_size((const uint8_t *)s + at, n - at);
        if (size == 0)
            return false;
        at += size;
    }
    return true;
}

void text_clean(char *s)
{
    size_t n = strlen(s);
    for (size_t at = 0; at < n;) {
        size_t size = plain_size((const uint8_t *)s + at, n - at);
        if (size == 0)
            s[at] = '?';
        at += size ? size : 1;
    }
}

int text_first_line(const char *s, size_t n)
{
    static const char word[] = "#line ";
    const size_t start = sizeof word - 1, most = 8; // digits
    size_t end = start;
    int line = 0;
    if (n < start || memcmp(s, word, start) != 0)
        return 1;
    for (; end < n && end < start + most && s[end] >= '0' && s[end] <= '9'; end++)
        line = 10 * line + (s[end] - '0');
    if (end == start)
        return 1;
    return line > 0 && (end == n || !text_is_word_char(s[end])) ? line - 1 : -1;
}

// "#line N "FILE"": N, and whether it is of that file. 0: it is another line.
static int read_mark(const char *line, const char *file, bool *out_own)
{
    size_t n = strlen(file);
    char *end;
    if (strncmp(line, "#line ", 6) != 0)
        return 0;
    long number = strtol(line + 6, &end, 10);
    if (number < 1 || number > INT32_MAX || strncmp(end, " \"", 2) != 0)
        return 0;
    *out_own = strncmp(end + 2, file, n) == 0 && end[2 + n] == '"';
    return (int)number;
}

int *text_own_lines(const char *file, const char *whole, size_t size, int *out_n)
{
    int first = text_first_line(whole, size), own = first, n = 1;
    for (size_t i = 0; i < size; i++)
        n += whole[i] == '\n';
    int *lines = mem_zalloc((size_t)n, sizeof *lines);
    bool outside = true;
    const char *line = whole;
    for (int k = 0; k < n; k++) {
        int number = k > 0 ? read_mark(line, file, &outside) : 0;
        lines[k] = own;
        if (number > 0 && outside)
            own = number;
        else if (outside)
            own++;
        line = memchr(line, '\n', (size_t)(whole + size - line));
        if (!line)
            break;
        line++;
    }
    *out_n = n;
    return lines;
}
