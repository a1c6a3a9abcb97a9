#pragma once

// C++ text as words and signs, as far as kernels and structs are found by it. Of op/ alone.
//
// What is scanned is a copy in which comments, strings and preprocessor lines are blanks, so that
// lines stay where they are. Macros are not expanded.

#include <stdbool.h>
#include <stddef.h>

#include "op/signature.h"

// A word or one character of the blanked text.
struct piece {
    const char *start;
    size_t size;
    int line;
};

struct scanner {
    const char *file;
    struct arena *arena;
    struct opd_err *err;
    const char *text, *code; // the whole, as it came and as it is scanned
    size_t text_size;
    const char *p, *end;
    int line;
    struct piece piece; // size 0: the end
    int n;
    struct signature *found; // SIGNATURE_MAX_KERNELS of them
    struct alias *aliases;
    int n_aliases, n_own;
    const struct template_param *own; // of the template that is read
};

// The words of one parameter, up to a comma outside brackets.
struct scan_words {
    int n;
    struct piece pieces[64];
    bool too_many;
};

void scan_blank(char *text, size_t size); // what is no code
void scan_next(struct scanner *s);
bool scan_at_end(const struct scanner *s);
bool scan_is(const struct piece *piece, const char *word);
bool scan_is_word(const struct piece *piece);
const char *scan_copy(struct arena *arena, const struct piece *piece);

// The text between an opening bracket, where the scanner stands, and its closing one, behind which
// it is left.
struct piece scan_bracketed(struct scanner *s, bool angles);
// A scanner of such a text, at its first piece.
struct scanner scan_part(const struct scanner *s, struct piece part);

void scan_words(struct scanner *s, struct scan_words *w);
int scan_find(const struct piece *pieces, int n, const char *word); // -1: it is not there
// A type's text, without the words that say nothing about how a parameter is passed.
const char *scan_join(struct scanner *s, const struct piece *pieces, int n);
bool scan_is_qualifier(const struct piece *piece); // one of those

// alias.c: the names of the text that stand for types, found once, from where the scanner begins;
// then in each parameter what they stand for is put in place of them. `text`: as it came.
void alias_scan(struct scanner *s, const char *text, size_t size);
void alias_expand(const struct scanner *s, struct scan_words *w);
// `using NAME = TYPE` or `typedef TYPE NAME` of a struct: for its members, until the next of it.
void alias_member(struct scanner *s, struct piece text);

// declare.c: the parameters of a template, between its brackets; false: too many.
bool declare_template(struct scanner *s, struct piece text, struct signature *sig);
// A parameter. Returns why a launch could not pass it, or NULL.
const char *declare_param(struct scanner *s, struct scan_words *w, struct signature_param *param);
