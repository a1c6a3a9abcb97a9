#pragma once

// Between the files of the expression parser only: expr.c has the grammar, expr_term.c makes the
// code, expr_call.c has the functions.

#include "op/expr.h"
#include "op/scope.h"

// What has just been read. A string and a word of a str attribute are no numbers yet: they meet in
// == and !=.
enum term_kind { TERM_INT, TERM_FLOAT, TERM_WORD, TERM_STRING };

struct term {
    enum term_kind kind;
    int attr;            // TERM_WORD
    struct token string; // TERM_STRING: no code has been made for it
};

struct parser {
    struct lexer *lx;
    const struct expr_place *place;
    int depth, parens;
    int stack;
    int n;
    struct expr_code code[EXPR_MAX_CODE];
};

// Appends an instruction; `effect` is what it does to the height of the stack.
bool expr_emit(struct parser *p, int kind, int a, int b, int effect);
bool expr_emit_const(struct parser *p, union expr_value value);

// The term must be a number, an integer, or is made a truth value.
bool expr_need_number(struct parser *p, struct term *t);
bool expr_need_int(struct parser *p, struct term *t, const char *what);
bool expr_need_bool(struct parser *p, struct term *t);

// left = left KIND right, for a binary instruction.
bool expr_combine(struct parser *p, int kind, struct term *left, struct term *right);

bool expr_parse_ternary(struct parser *p, struct term *out); // a whole expression
bool expr_parse_call(struct parser *p, const struct token *name, struct term *out); // after NAME (
