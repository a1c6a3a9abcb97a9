#pragma once

// The names that an operator's header has defined so far: what a word means, where it stands. Only
// while a file is read; what is kept of it holds indexes, and plans need no names. Errors go to the
// lexer that is given, at its present token.

#include <stdbool.h>

#include "op/expr.h"
#include "op/lex.h"
#include "op/op.h"

enum symbol_kind {
    SYMBOL_SIZE,    // a dimension: index is its slot
    SYMBOL_LET,     // index is its slot
    SYMBOL_PACK,    // ...S: index of the pack
    SYMBOL_ATTR,    // index of the attribute
    SYMBOL_TENSOR,  // index is a tensor id (expr.h)
    SYMBOL_TYPE,    // index is a type id (expr.h)
    SYMBOL_FORMULA, // an intermediate: index is its line's place in the formula_set
    SYMBOL_DEVICE,  // cpu (index 1) and cuda (0)
    SYMBOL_CHECK,   // index of the check
    SYMBOL_AGAIN,   // of the lets once more, with other values: index of the `again`
};

struct symbol {
    char name[OP_MAX_NAME];
    enum symbol_kind kind;
    int index;
    enum expr_type type; // SYMBOL_LET
    int line;            // where it was defined; 0: by the language
};

enum {
    SCOPE_MAX_SYMBOLS = 512,
    SCOPE_MAX_AGAINS = 8,
    AGAIN_MAX_NAMES = 16,
    AGAIN_MAX_TERMS = 4096, // of an expression, where it is written without names for parts of it
};

// What stands for a dimension or let in the lets of an `again`; NULL: that itself.
struct again_value {
    const struct node *node;
    unsigned terms;
};

struct again {
    const struct reader *reader;
    int n_rules; // that have been looked at
    struct again_value of[ENV_MAX_SLOTS];
};

// NULL: it has the value that it has elsewhere.
const struct again_value *again_find(struct again *a, int slot);

struct scope {
    const struct op *op;
    bool shaped[TENSOR_COUNT]; // its shape has been given
    bool saved[OP_MAX_TEMPS];
    bool attr_used[OP_MAX_ATTRS]; // in some expression
    struct again *agains[SCOPE_MAX_AGAINS];
    struct again *as; // that plain names are of; NULL: of none
    int n_agains, n;
    struct symbol symbols[SCOPE_MAX_SYMBOLS];
};

void scope_init(struct scope *s, const struct op *op); // with the names of the language

const struct symbol *scope_find(const struct scope *s, const char *name, size_t size); // or NULL

// Errors: the name is taken, or there are too many. `lx` is where the message points to.
bool scope_add(struct scope *s, const struct symbol *symbol, struct lexer *lx);

// "'nn' is not defined here; did you mean 'n'?" for the lexer's present token. Always false.
bool scope_fail_unknown(const struct scope *s, struct lexer *lx, const char *what);

// The symbol that the lexer stands at. NULL: no name stands there (the message asks for
// `expected`), or one that is not defined (it asks for `what`).
const struct symbol *scope_expect(const struct scope *s, struct lexer *lx, const char *expected,
                                  const char *what);
// The same where only a tensor will do.
const struct symbol *scope_expect_tensor(const struct scope *s, struct lexer *lx,
                                         const char *expected);

const char *symbol_describe(enum symbol_kind kind); // "a dimension"
