#pragma once

// What the parts of the parser share: ptx_tokens.c makes tokens of text, ptx_parse.c reads modules,
// declarations and scopes, ptx_decode.c one instruction. The first failure makes every later token
// the end.

#include <stdio.h>
#include <string.h>

#include "ptx.h"

struct token {
    const char *at;
    size_t n; // 0: the end
};

enum symbol_kind { Y_REGISTERS, Y_ADDRESS, Y_SHARED, Y_FRAME, Y_PARAM, Y_FUNCTION };

struct symbol {
    struct token name;
    enum symbol_kind kind;
    bool many;      // %r<12>: the name goes on with a number below `size`
    uint64_t value; // first slot; address; offset
    uint32_t size;
};

struct label {
    struct token name;
    uint32_t at;
    uint32_t *table; // .branchtargets
    uint32_t n_table;
};

struct fixup { // a branch to a label that comes later
    struct token name;
    size_t code;
    uint32_t *entry; // of a table, or NULL: the instruction's target
};

struct scope {
    size_t n_symbols, n_labels, n_fixups;
};

struct build {
    const char *at;
    struct ptx_module *module;
    struct ptx_function *f;
    struct symbol *symbols;
    struct label *labels;
    struct fixup *fixups;
    size_t n_symbols, n_labels, n_fixups;
    struct scope scopes[64];
    int depth;
    bool failed;
    char *message;
    size_t message_size;
};

// Makes room for one more of an array whose room is the next power of two.
void *ptx_grow(void *array, size_t n, size_t each);
#define PTX_PUSH(array, n) ((array) = ptx_grow((array), (n), sizeof *(array)), &(array)[(n)++])

bool ptx_fail(struct build *b, const char *what, struct token where); // always false
struct token ptx_next(struct build *b);
struct token ptx_peek(struct build *b);
void ptx_expect(struct build *b, const char *what);
bool ptx_accept(struct build *b, const char *what);
void ptx_skip_line(struct build *b);
void ptx_skip_to(struct build *b, const char *what); // and past it
static inline bool token_is(struct token t, const char *text)
{
    return t.n == strlen(text) && memcmp(t.at, text, t.n) == 0;
}
bool token_equal(struct token a, struct token b);
bool token_type(struct token word, struct ptx_type *out); // "f32", without a dot
uint64_t token_number(struct build *b, struct token t, struct ptx_type type);

const struct symbol *ptx_find(struct build *b, struct token name, uint32_t *number);
struct label *ptx_find_label(struct build *b, struct token name);
uint32_t ptx_constant(struct build *b, uint64_t value);
uint32_t ptx_special_slot(struct build *b, struct token name); // 0: there is none
struct ins *ptx_emit(struct build *b);

// `word` is the instruction's; up to the semicolon.
void ptx_decode(struct build *b, struct token word, int guard, bool negated);
