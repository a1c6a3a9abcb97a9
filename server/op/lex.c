#include "op/lex.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/op.h"
#include "op/text.h"

static bool is_name_start(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static bool is_digit_at(const struct lexer *lx, const char *p)
{
    return p < lx->end && isdigit((unsigned char)*p);
}

bool lex_fail(struct lexer *lx, const char *fmt, ...)
{
    lx->token.kind = TOKEN_BAD;
    if (lx->err->code != OPD_E_none)
        return false;
    char text[sizeof lx->err->msg];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text_clean(text);
    if (lx->mark) {
        lx->mark->at = lx->token.start;
        lx->mark->line = lx->line;
    }
    return opd_err_set(lx->err, OPD_E_invalid_argument, "%s:%d: %s", lx->file, lx->line, text);
}

static void read_number(struct lexer *lx)
{
    const char *p = lx->p;
    bool is_float = false;
    while (is_digit_at(lx, p))
        p++;
    if (p < lx->end && *p == '.' && !(p + 1 < lx->end && p[1] == '.')) { // 0..3 is a range
        is_float = true;
        for (p++; is_digit_at(lx, p);)
            p++;
    }
    if (p < lx->end && (*p == 'e' || *p == 'E')) {
        const char *digits = p + 1;
        if (digits < lx->end && (*digits == '+' || *digits == '-'))
            digits++;
        if (is_digit_at(lx, digits)) {
            is_float = true;
            for (p = digits; is_digit_at(lx, p);)
                p++;
        }
    }
    while (p < lx->end && text_is_word_char(*p))
        p++;

    char text[64];
    size_t n = (size_t)(p - lx->p);
    lx->token.size = n;
    if (n >= sizeof text) {
        lex_fail(lx, "a number of %zu characters, expected at most %zu", n, sizeof text - 1);
        return;
    }
    memcpy(text, lx->p, n);
    text[n] = '\0';
    char *rest;
    errno = 0;
    if (is_float)
        lx->token.f = strtod(text, &rest);
    else
        lx->token.i = strtoll(text, &rest, 10);
    lx->token.kind = is_float ? TOKEN_FLOAT : TOKEN_INT;
    lx->p = p;
    if (*rest)
        lex_fail(lx, "'%s' is not a number", text);
    else if (errno == ERANGE && !(is_float && lx->token.f < 1))
        lex_fail(lx, "the number %s is too large", text);
}

static void read_string(struct lexer *lx)
{
    const char *close = memchr(lx->p + 1, *lx->p, (size_t)(lx->end - lx->p - 1));
    if (!close) {
        lex_fail(lx, "a string without its closing %c", *lx->p);
        return;
    }
    lx->token.kind = TOKEN_STRING;
    lx->token.start = lx->p + 1;
    lx->token.size = (size_t)(close - lx->p - 1);
    lx->p = close + 1;
}

static void read_punct(struct lexer *lx)
{
    static const char two[][3] = { "||", "&&", "==", "!=", "<=", ">=", "->", "::", ".." };
    size_t left = (size_t)(lx->end - lx->p);
    lx->token.kind = TOKEN_PUNCT;
    if (left >= 3 && memcmp(lx->p, "...", 3) == 0) {
        lx->token.punct = PUNCT_ELLIPSIS;
        lx->token.size = 3;
        lx->p += 3;
        return;
    }
    for (size_t i = 0; left >= 2 && i < sizeof two / sizeof *two; i++)
        if (memcmp(lx->p, two[i], 2) == 0) {
            lx->token.punct = PUNCT2(two[i][0], two[i][1]);
            lx->token.size = 2;
            lx->p += 2;
            return;
        }
    if (*lx->p == '\0' || !strchr("+-*/%^!<>=?:,()[]{}.&|#@", *lx->p)) {
        if (isprint((unsigned char)*lx->p))
            lex_fail(lx, "unexpected character '%c'", *lx->p);
        else
            lex_fail(lx, "unexpected byte 0x%02x", (unsigned char)*lx->p);
        return;
    }
    lx->token.punct = *lx->p;
    lx->token.size = 1;
    lx->p++;
}

void lex_next(struct lexer *lx)
{
    if (lx->token.kind == TOKEN_BAD)
        return;
    lx->last_end = lx->p;
    while (lx->p < lx->end && isspace((unsigned char)*lx->p))
        lx->p++;
    lx->token = (struct token){ .kind = TOKEN_END, .start = lx->p };
    if (lx->p == lx->end)
        return;
    if (is_name_start(*lx->p)) {
        while (lx->p < lx->end && text_is_word_char(*lx->p))
            lx->p++;
        lx->token.kind = TOKEN_NAME;
        lx->token.size = (size_t)(lx->p - lx->token.start);
    } else if (isdigit((unsigned char)*lx->p) || (*lx->p == '.' && is_digit_at(lx, lx->p + 1))) {
        read_number(lx);
    } else if (*lx->p == '"' || *lx->p == '\'') {
        read_string(lx);
    } else {
        read_punct(lx);
    }
}

struct token lex_peek(const struct lexer *lx)
{
    struct opd_err ignored = { 0 };
    struct lexer after = *lx;
    after.err = &ignored;
    after.mark = NULL;
    lex_next(&after);
    opd_err_clear(&ignored);
    return after.token;
}

void lex_init(struct lexer *lx, const char *file, int line, const char *text, size_t size,
              struct opd_err *err)
{
    *lx = (struct lexer){
        .file = file,
        .line = line,
        .p = text,
        .end = text + size,
        .last_end = text,
        .err = err,
    };
    lex_next(lx);
}

bool lex_is(const struct lexer *lx, int punct)
{
    return lx->token.kind == TOKEN_PUNCT && lx->token.punct == punct;
}

bool lex_is_word(const struct lexer *lx, const char *word)
{
    return lx->token.kind == TOKEN_NAME && text_is(lx->token.start, lx->token.size, word);
}

bool lex_accept(struct lexer *lx, int punct)
{
    if (!lex_is(lx, punct))
        return false;
    lex_next(lx);
    return true;
}

bool lex_accept_word(struct lexer *lx, const char *word)
{
    if (!lex_is_word(lx, word))
        return false;
    lex_next(lx);
    return true;
}

bool lex_fail_expected(struct lexer *lx, const char *what)
{
    if (lx->mark && lx->err->code == OPD_E_none)
        lx->mark->exact = true;
    if (lx->token.kind == TOKEN_END)
        return lex_fail(lx, "expected %s, got the end of the line", what);
    if (lx->token.kind == TOKEN_STRING)
        return lex_fail(lx, "expected %s, got the string \"%.*s\"", what, (int)lx->token.size,
                        lx->token.start);
    return lex_fail(lx, "expected %s, got '%.*s'", what, (int)lx->token.size, lx->token.start);
}

bool lex_expect(struct lexer *lx, int punct, const char *what)
{
    return lex_accept(lx, punct) || lex_fail_expected(lx, what);
}

bool lex_expect_end(struct lexer *lx)
{
    return lx->token.kind == TOKEN_END || lex_fail_expected(lx, "the end of the line");
}

bool lex_name(struct lexer *lx, const char *what, char *out, size_t size)
{
    if (lx->token.kind != TOKEN_NAME)
        return lex_fail_expected(lx, what);
    if (lx->token.size >= size)
        return lex_fail(lx, "the name '%.*s' has %zu characters, expected at most %zu",
                        (int)lx->token.size, lx->token.start, lx->token.size, size - 1);
    memcpy(out, lx->token.start, lx->token.size);
    out[lx->token.size] = '\0';
    lex_next(lx);
    return true;
}

size_t lex_span(const struct lexer *lx, const char *start)
{
    const char *end = lx->last_end;
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    return end > start ? (size_t)(end - start) : 0;
}
