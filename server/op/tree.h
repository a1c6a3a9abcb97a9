#pragma once

// The grammar of expressions, those of plans (expr.h) and those of formulas (formula.h): text to a
// small typed tree. Of op/ alone.
//
// What names and functions mean is a dialect's. All names are resolved and all types are known
// while the text is read, and a mistake points at its word. The tree lives in the arena of the
// place where it stands; eval.c works out its value, formula_spell.c writes it down as C++.

#include "op/expr.h"
#include "op/scope.h"

enum node_kind {
    NODE_CONST,      // value
    NODE_SLOT,       // a: slot
    NODE_ATTR,       // a: attribute, b: element
    NODE_HAS_ATTR,   // a: attribute
    NODE_HAS_TENSOR, // a: tensor
    NODE_IS_TYPE,    // a: type, b: dtype
    NODE_SIZEOF,     // a: type
    NODE_ON_CPU,     // a: 1 for cpu, 0 for cuda
    NODE_KEEP,       // the context is kept
    NODE_NUMEL,      // a: tensor
    NODE_RANK,
    NODE_SIZE, // of the dimension args[0]
    NODE_STRIDE,
    NODE_TO_FLOAT,
    NODE_TO_TRUTH,
    NODE_NOT,
    NODE_NEG,
    NODE_FLOOR,
    NODE_POW2,
    NODE_FITS32, // an int32 can be it
    NODE_ADD,
    NODE_SUB,
    NODE_MUL,
    NODE_DIV,
    NODE_MOD,
    NODE_CDIV,
    NODE_GCD,
    NODE_MIN,
    NODE_MAX,
    NODE_POW, // of floats only
    NODE_EQ,
    NODE_NE,
    NODE_LT,
    NODE_LE,
    NODE_GT,
    NODE_GE,
    NODE_AND,
    NODE_OR,
    NODE_CHOICE, // args[0] ? args[1] : args[2]

    // Of formulas alone
    NODE_TENSOR,    // a: tensor
    NODE_FORMULA,   // a: formula
    NODE_VALUE,     // a: value
    NODE_CALL,      // a: function (formula_find_function())
    NODE_TEST,      // the same, of one that is true or not
    NODE_TO_NUMBER, // of a truth value
    NODE_SUM,       // over a row of args[0]; a: over which dimensions
    NODE_AMAX,
    NODE_AMIN,
    NODE_COUNT, // how many elements such a row has; a: the same
};

enum { NODE_MAX_ARGS = 8 }; // of a call; 3 of anything else

struct node {
    uint8_t kind, n_args;
    bool bracketed; // in the text
    enum expr_type type;
    int16_t a, b;
    uint32_t size; // of its word
    const char *start;
    union { // of a leaf: a value
        union expr_value value;
        struct node *args[NODE_MAX_ARGS];
    };
};

struct parser {
    struct lexer *lx;
    const struct expr_place *place;
    const struct dialect *dialect;
    void *data; // the dialect's
    int depth, parens, n_terms;
    unsigned n_again; // terms behind names of an `again`
    int n_open; // operands that wait for the one being read
};

struct function {
    const char *name;
    const char *args; // a letter each
    int kind;         // of the node
    const char *code; // in C++, of formulas
};

// NULL and false: it failed, and the lexer has the error.
struct dialect {
    const char *noun;      // "expression"
    enum expr_type number; // of a whole number
    int max_terms, max_open;
    const char *too_many, *too_deep;
    struct node *(*read_name)(struct parser *p, const struct token *name);
    struct node *(*read_call)(struct parser *p, const struct token *name); // behind the '('
    // A test of a str attribute for one of its words.
    struct node *(*add_test)(struct parser *p, struct node *test, const struct node *word,
                             const struct node *string);
    bool (*check_token)(struct parser *p, const struct token *token); // that it can stand here
};

struct node *tree_parse(struct parser *p); // a whole expression, up to what cannot go on with it

// A node at a word of the text: without arguments, or with one or two.
struct node *tree_leaf(struct parser *p, int kind, enum expr_type type, int a, int b,
                       const struct token *at);
struct node *tree_node(struct parser *p, int kind, enum expr_type type, const struct token *at,
                       struct node *left, struct node *right);

// The operands, made what they must be, or an error. NULL stays NULL.
struct node *tree_value(struct parser *p, struct node *n);
struct node *tree_number(struct parser *p, struct node *n);
struct node *tree_float(struct parser *p, struct node *n);
struct node *tree_combine(struct parser *p, int kind, const struct token *at, struct node *left,
                          struct node *right);

// The function of that name. NULL: there is none, which `hint` or the nearest name explains.
const struct function *tree_function(struct parser *p, const struct function *table, size_t n,
                                     const struct token *name, const char *hint);

// Fails at that place of the text; NULL.
#define TREE_FAIL(p, at, ...)                                                                      \
    (tree_point(p, (at)->start), lex_fail((p)->lx, __VA_ARGS__), (struct node *)NULL)
void tree_point(struct parser *p, const char *start);
