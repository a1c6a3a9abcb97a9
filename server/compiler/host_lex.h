#pragma once

// Splits C++ text into words and signs, as far as the checks of host_source.c need it.

#include <stdbool.h>
#include <stddef.h>

enum host_token_kind {
    HOST_END,
    HOST_WORD,      // an identifier, keyword or number
    HOST_STRING,    // "..", '..' or a raw string
    HOST_SIGN,      // one character; "<<<" and "::" as one
    HOST_DIRECTIVE, // '#' to the end of the line, continued lines included
};

struct host_token {
    enum host_token_kind kind;
    const char *at;
    size_t size;
    int line;
};

// {text, 1, true} is its start.
struct host_lexer {
    const char *p;
    int line;
    bool fresh; // nothing but blanks in this line so far
};

struct host_token host_lex(struct host_lexer *l);

// Whether a directive is `#line 12 "file"`: the number of the line after it, and the file's name,
// NULL where it gives none. From there on the lexer's `line` should be one below that number.
bool host_lex_line(const struct host_token *directive, int *out_line, const char **out_file,
                   size_t *out_size);

bool host_token_is(const struct host_token *t, const char *text);
bool host_token_starts(const struct host_token *t, const char *text);
