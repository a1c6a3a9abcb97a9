#pragma once

// The words of one directive: names, numbers, strings and punctuation, one token ahead.
//
// A reader looks at lx->token and takes it with lex_next(); the lex_expect functions do both, or
// fail. The first failure fills `err` ("file:line: what") and leaves a TOKEN_BAD that is never
// taken again, so a reader may go on to its end and look at its result once.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum token_kind {
    TOKEN_END,
    TOKEN_NAME,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_STRING,
    TOKEN_PUNCT,
    TOKEN_BAD
};

// Punctuation is its character, or two of them ("<=" is PUNCT2('<', '=')).
#define PUNCT2(a, b) (((a) << 8) | (b))
enum { PUNCT_ELLIPSIS = 1 };

struct token {
    enum token_kind kind;
    const char *start; // in the text; of a string: between its quotes
    size_t size;
    int punct;
    int64_t i; // TOKEN_INT
    double f;  // TOKEN_FLOAT
};

// Where the first mistake was met: the token that was looked at, which is the mistake itself
// (`exact`) or what came next.
struct lex_mark {
    const char *at;
    int line; // the lexer's, then
    bool exact;
    const char *word; // by whoever knows better: the word to point at
};

// The text outlives the lexer. After a failure `err` is filled and the token is TOKEN_BAD for good.
struct lexer {
    const char *file;
    int line;
    const char *p, *end;
    const char *last_end;  // where the token before this one ended
    struct token token;    // the one to look at
    struct lex_mark *mark; // filled by a failure; NULL: nobody wants to know
    struct opd_err *err;
};

void lex_init(struct lexer *lx, const char *file, int line, const char *text, size_t size,
              struct opd_err *err); // and reads the first token
void lex_next(struct lexer *lx);
struct token lex_peek(const struct lexer *lx); // the token behind the present one

bool lex_is(const struct lexer *lx, int punct);
bool lex_is_word(const struct lexer *lx, const char *word);
bool lex_accept(struct lexer *lx, int punct); // if it is that, takes it
bool lex_accept_word(struct lexer *lx, const char *word);
bool lex_expect(struct lexer *lx, int punct,
                const char *what); // or fails: "expected WHAT, got ..."
bool lex_expect_end(struct lexer *lx);
bool lex_name(struct lexer *lx, const char *what, char *out,
              size_t size); // takes a name; fails if too long

// Fills the error, "file:line: ..."; keeps an earlier one. Always false.
bool lex_fail(struct lexer *lx, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool lex_fail_expected(struct lexer *lx, const char *what); // "expected WHAT, got 'token'"

// From `start` to the end of the last token taken, without trailing blanks.
size_t lex_span(const struct lexer *lx, const char *start);
