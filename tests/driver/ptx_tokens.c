#include "ptx_build.h"

#include <ctype.h>
#include <stdlib.h>

bool ptx_fail(struct build *b, const char *what, struct token where)
{
    if (!b->failed)
        snprintf(b->message, b->message_size, "%s: \"%.*s%.*s\"", what, (int)where.n, where.at,
                 (int)strcspn(where.at + where.n, ";\n"), where.at + where.n);
    b->failed = true;
    return false;
}

static bool is_word(const char *s)
{
    return isalnum((unsigned char)*s) || *s == '_' || *s == '$' || *s == '%' || *s == '.';
}

void ptx_skip_line(struct build *b)
{
    b->at += strcspn(b->at, "\n");
}

static void skip_space(struct build *b)
{
    for (;;) {
        b->at += strspn(b->at, " \t\r\n");
        if (strncmp(b->at, "//", 2) == 0) {
            ptx_skip_line(b);
        } else if (strncmp(b->at, "/*", 2) == 0) {
            const char *end = strstr(b->at, "*/");
            b->at = end ? end + 2 : strchr(b->at, '\0');
        } else {
            return;
        }
    }
}

struct token ptx_peek(struct build *b)
{
    skip_space(b);
    const char *s = b->at;
    if (b->failed || !*s)
        return (struct token){ s, 0 };
    if (*s == '"') {
        s += 1 + strcspn(s + 1, "\"\n");
        return (struct token){ b->at, (size_t)(s + (*s == '"') - b->at) };
    }
    while (is_word(s) || (s > b->at && s[0] == ':' && s[1] == ':') || (s[0] == ':' && s[-1] == ':'))
        s++;
    return (struct token){ b->at, s > b->at ? (size_t)(s - b->at) : 1 };
}

struct token ptx_next(struct build *b)
{
    struct token t = ptx_peek(b);
    b->at = t.at + t.n;
    return t;
}

bool ptx_accept(struct build *b, const char *what)
{
    bool is = token_is(ptx_peek(b), what);
    if (is)
        ptx_next(b);
    return is;
}

void ptx_expect(struct build *b, const char *what)
{
    struct token t = ptx_next(b);
    char text[40];
    snprintf(text, sizeof text, "expected %s", what);
    if (!token_is(t, what))
        ptx_fail(b, text, t);
}

bool token_equal(struct token a, struct token b)
{
    return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

void ptx_skip_to(struct build *b, const char *what)
{
    struct token t;
    while ((t = ptx_next(b)).n && !token_is(t, what))
        continue;
}

bool token_type(struct token word, struct ptx_type *out)
{
    static const struct {
        const char *name;
        struct ptx_type type;
    } types[] = {
        { "pred", { K_PRED, 1, false } },   { "b8", { K_BITS, 1, false } },
        { "b16", { K_BITS, 2, false } },    { "b32", { K_BITS, 4, false } },
        { "b64", { K_BITS, 8, false } },    { "u8", { K_UNSIGNED, 1, false } },
        { "u16", { K_UNSIGNED, 2, false } }, { "u32", { K_UNSIGNED, 4, false } },
        { "u64", { K_UNSIGNED, 8, false } }, { "s8", { K_SIGNED, 1, false } },
        { "s16", { K_SIGNED, 2, false } },  { "s32", { K_SIGNED, 4, false } },
        { "s64", { K_SIGNED, 8, false } },  { "f16", { K_FLOAT, 2, false } },
        { "f32", { K_FLOAT, 4, false } },   { "f64", { K_FLOAT, 8, false } },
        { "bf16", { K_BFLOAT, 2, false } }, { "f16x2", { K_FLOAT, 2, true } },
        { "bf16x2", { K_BFLOAT, 2, true } },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (token_is(word, types[i].name)) {
            *out = types[i].type;
            return true;
        }
    return false;
}

uint64_t token_number(struct build *b, struct token t, struct ptx_type type)
{
    char text[64], *end = text;
    snprintf(text, sizeof text, "%.*s", t.n < sizeof text ? (int)t.n : 0, t.at);
    if (t.n > 2 && text[0] == '0' && strchr("fFdD", text[1]))
        return strtoull(text + 2, NULL, 16);
    if (strchr(text, '.')) {
        double d = strtod(text, &end);
        float f = (float)d;
        uint64_t value = 0;
        memcpy(&value, type.size == 4 ? (void *)&f : (void *)&d, type.size == 4 ? 4 : 8);
        return value;
    }
    uint64_t value = strtoull(text, &end, 0);
    if (end == text || (*end && strcmp(end, "U") != 0))
        ptx_fail(b, "expected a number", t);
    return value;
}
