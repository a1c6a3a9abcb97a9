#include "compiler/ptx.h"

#include <ctype.h>
#include <string.h>

#include "base/hash.h"

bool slice_is(struct slice s, const char *word)
{
    return s.size == strlen(word) && memcmp(s.at, word, s.size) == 0;
}

bool slice_begins(struct slice s, const char *word)
{
    size_t n = strlen(word);
    return s.size >= n && memcmp(s.at, word, n) == 0;
}

uint64_t slice_hash(struct slice s)
{
    return hash_bytes(s.at, s.size, 0);
}

static struct slice slice_skip(struct slice s, size_t n)
{
    return (struct slice){ s.at + n, s.size - n };
}

struct slice slice_trim(struct slice s)
{
    while (s.size > 0 && isspace((unsigned char)s.at[0]))
        s = slice_skip(s, 1);
    while (s.size > 0 && isspace((unsigned char)s.at[s.size - 1]))
        s.size--;
    return s;
}

static bool is_open(char c)
{
    return c == '(' || c == '[' || c == '{';
}

static bool is_close(char c)
{
    return c == ')' || c == ']' || c == '}';
}

bool slice_next(struct slice *list, char separator, struct slice *out)
{
    if (list->size == 0)
        return false;
    size_t n = 0;
    int depth = 0;
    for (; n < list->size && (list->at[n] != separator || depth > 0); n++)
        depth += is_open(list->at[n]) - is_close(list->at[n]);
    *out = slice_trim((struct slice){ list->at, n });
    *list = slice_skip(*list, n < list->size ? n + 1 : n);
    return true;
}

static int digit_of(char c, int base)
{
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : base;
    return digit < base ? digit : -1;
}

bool slice_number(struct slice *s, int64_t *out)
{
    struct slice at = *s;
    bool minus = slice_begins(at, "-");
    at = slice_skip(at, minus);
    int base = slice_begins(at, "0x") || slice_begins(at, "0X") ? 16 : 10;
    at = slice_skip(at, base == 16 ? 2 : 0);
    uint64_t value = 0;
    size_t n = 0;
    for (; n < at.size && digit_of(at.at[n], base) >= 0; n++)
        value = value * (unsigned)base + (unsigned)digit_of(at.at[n], base);
    if (n == 0)
        return false;
    *out = (int64_t)(minus ? 0 - value : value);
    at = slice_skip(at, n);
    *s = slice_begins(at, "U") ? slice_skip(at, 1) : at;
    return true;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%';
}

struct slice slice_name(struct slice *s)
{
    size_t n = 0;
    if (s->size > 0 && !isdigit((unsigned char)s->at[0]))
        while (n < s->size && is_name(s->at[n]))
            n++;
    struct slice name = { s->at, n };
    *s = slice_skip(*s, n);
    return name;
}

// Behind it stands at most the end of its namespace, or which of its name it is in a function.
struct slice slice_plain_name(struct slice name)
{
    for (size_t i = 2; slice_begins(name, "_Z") && i < name.size; i++) {
        struct slice rest = slice_skip(name, i);
        int64_t size = 0;
        if (isdigit((unsigned char)name.at[i - 1]) || !slice_number(&rest, &size) || size <= 0 ||
            (uint64_t)size > rest.size)
            continue;
        size_t behind = (size_t)size;
        while (behind < rest.size && strchr("E_0123456789", rest.at[behind]))
            behind++;
        if (behind == rest.size)
            return (struct slice){ rest.at, (size_t)size };
    }
    return name;
}

// --- statements

// Behind the string that starts at `at`; `size` where it does not end.
static size_t skip_string(const char *text, size_t at, size_t size)
{
    const char *end = at + 1 < size ? memchr(text + at + 1, '"', size - at - 1) : NULL;
    return end ? (size_t)(end - text) + 1 : size + 1;
}

bool ptx_blank_comments(char *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        size_t end = i + 1;
        if (text[i] == '"') {
            end = skip_string(text, i, size);
        } else if (i + 1 < size && text[i] == '/' && text[i + 1] == '/') {
            for (; i < size && text[i] != '\n'; i++)
                text[i] = ' ';
            end = i;
        } else if (i + 1 < size && text[i] == '/' && text[i + 1] == '*') {
            const char *close = memmem(text + i + 2, size - i - 2, "*/", 2);
            if (!close)
                return false;
            end = (size_t)(close - text) + 2;
            for (; i < end; i++)
                text[i] = text[i] == '\n' ? '\n' : ' ';
        }
        if (end > size)
            return false;
        i = end;
    }
    return true;
}

static bool is_line(struct slice s)
{
    static const char *const names[] = { ".loc", ".file", ".version", ".target", ".address_size" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (slice_begins(s, names[i]) &&
            (s.size == strlen(names[i]) || !is_name(s.at[strlen(names[i])])))
            return true;
    return false;
}

// The size of a label with its colon, 0: it is none.
static size_t label_size(struct slice s)
{
    struct slice rest = s;
    if (slice_name(&rest).size == 0)
        return 0;
    while (rest.size > 0 && (rest.at[0] == ' ' || rest.at[0] == '\t'))
        rest = slice_skip(rest, 1);
    bool is = slice_begins(rest, ":") && !slice_begins(rest, "::");
    return is ? s.size - rest.size + 1 : 0;
}

static bool is_function(struct slice s)
{
    return memmem(s.at, s.size, ".entry", 6) || memmem(s.at, s.size, ".func", 5);
}

// To its semicolon, or to the brace of a function. 0: it does not end.
static size_t code_size(struct slice s, enum ptx_kind *kind)
{
    int parens = 0;
    bool body = s.at[0] != '.'; // the first brace has been looked at
    *kind = PTX_CODE;
    for (size_t i = 0; i < s.size; i++) {
        char c = s.at[i];
        if (c == '"')
            i = skip_string(s.at, i, s.size) - 1;
        else if (c == '\0')
            return 0;
        else if (c == ';' && parens == 0)
            return i + 1;
        parens += (c == '(') - (c == ')');
        if (c != '{' || parens != 0 || body)
            continue;
        body = true;
        if (is_function((struct slice){ s.at, i })) {
            *kind = PTX_HEADER;
            return i;
        }
    }
    return 0;
}

static size_t line_size(struct slice s)
{
    const char *end = memchr(s.at, '\n', s.size);
    return end ? (size_t)(end - s.at) : s.size;
}

static size_t section_size(struct slice s)
{
    const char *end = memchr(s.at, '}', s.size);
    return end ? (size_t)(end - s.at) + 1 : 0;
}

bool ptx_next(struct slice *rest, struct ptx_statement *out)
{
    struct slice s = *rest;
    while (s.size > 0 && isspace((unsigned char)s.at[0]))
        s = slice_skip(s, 1);
    enum ptx_kind kind = PTX_CODE;
    size_t n = 0;
    if (s.size == 0)
        kind = PTX_END;
    else if (is_line(s))
        kind = PTX_LINE, n = line_size(s);
    else if (s.at[0] == '{' || s.at[0] == '}')
        kind = s.at[0] == '{' ? PTX_OPEN : PTX_CLOSE, n = 1;
    else if ((n = label_size(s)) > 0)
        kind = PTX_LABEL;
    else if (slice_begins(s, ".section"))
        kind = PTX_SECTION, n = section_size(s);
    else
        n = code_size(s, &kind);
    *out = (struct ptx_statement){ kind, { s.at, n } };
    *rest = slice_skip(s, n);
    return kind == PTX_END || n > 0;
}

// --- instructions

static struct slice take_word(struct slice *s)
{
    size_t n = 0;
    while (n < s->size && !isspace((unsigned char)s->at[n]))
        n++;
    struct slice word = { s->at, n };
    *s = slice_trim(slice_skip(*s, n));
    return word;
}

void ptx_instr_read(struct slice statement, struct ptx_instr *out)
{
    *out = (struct ptx_instr){ 0 };
    struct slice s = slice_trim(statement);
    if (s.size > 0 && s.at[s.size - 1] == ';')
        s = slice_trim((struct slice){ s.at, s.size - 1 });
    if (slice_begins(s, "@")) {
        s = slice_trim(slice_skip(s, 1));
        out->negated = slice_begins(s, "!");
        s = slice_trim(slice_skip(s, out->negated));
        out->guard = slice_name(&s);
        s = slice_trim(s);
    }
    out->op = take_word(&s);
    struct slice words = out->op, word = { 0 };
    while (slice_next(&words, '.', &word)) {
        out->head = out->head.at ? out->head : word;
        out->last = word;
    }
    while (out->n < PTX_MAX_OPERANDS && slice_next(&s, ',', &out->operands[out->n]))
        out->n++;
}

static bool next_word(struct slice *words, struct slice *out)
{
    return slice_next(words, '.', out);
}

bool ptx_has_word(const struct ptx_instr *i, const char *word)
{
    struct slice words = i->op, at;
    next_word(&words, &at);
    while (next_word(&words, &at))
        if (slice_is(at, word))
            return true;
    return false;
}

struct slice ptx_space(const struct ptx_instr *i, int k)
{
    static const char *const spaces[] = { "global",          "shared", "shared::cta",
                                          "shared::cluster", "local",  "param",
                                          "param::entry",    "const",  "param::func" };
    struct slice words = i->op, at;
    next_word(&words, &at);
    while (next_word(&words, &at))
        for (size_t s = 0; s < sizeof spaces / sizeof *spaces; s++)
            if (slice_is(at, spaces[s]) && k-- == 0)
                return at;
    return (struct slice){ "generic", 7 };
}

unsigned ptx_type_size(struct slice type)
{
    static const struct {
        const char *name;
        unsigned size;
    } types[] = { { "b8", 1 },  { "u8", 1 },  { "s8", 1 },    { "b16", 2 },    { "u16", 2 },
                  { "s16", 2 }, { "f16", 2 }, { "bf16", 2 },  { "b32", 4 },    { "u32", 4 },
                  { "s32", 4 }, { "f32", 4 }, { "f16x2", 4 }, { "bf16x2", 4 }, { "b64", 8 },
                  { "u64", 8 }, { "s64", 8 }, { "f64", 8 },   { "f32x2", 8 },  { "b128", 16 } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (slice_is(type, types[i].name))
            return types[i].size;
    return 0;
}

// "+4", "-8", "+-8": as many as there are.
static bool add_terms(struct slice s, int64_t *offset)
{
    while ((s = slice_trim(s)).size > 0) {
        bool minus = s.at[0] == '-';
        if (s.at[0] != '+' && !minus)
            return false;
        s = slice_trim(slice_skip(s, 1));
        int64_t term;
        if (!slice_number(&s, &term))
            return false;
        *offset = (int64_t)(minus ? (uint64_t)*offset - (uint64_t)term
                                  : (uint64_t)*offset + (uint64_t)term);
    }
    return true;
}

bool ptx_address(struct slice operand, struct slice *name, int64_t *offset)
{
    if (operand.size < 2 || operand.at[0] != '[' || operand.at[operand.size - 1] != ']')
        return false;
    struct slice s = slice_trim((struct slice){ operand.at + 1, operand.size - 2 });
    *offset = 0;
    *name = slice_name(&s);
    if (name->size == 0 && !slice_number(&s, offset))
        return false;
    return add_terms(s, offset);
}
