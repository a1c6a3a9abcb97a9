#pragma once

// PTX as text: statements and the parts of an instruction. Nothing is copied: all slices point into
// the text, whose comments ptx_blank_comments() has made spaces.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

struct slice {
    const char *at;
    size_t size;
};

bool slice_is(struct slice s, const char *word);
bool slice_begins(struct slice s, const char *word);
uint64_t slice_hash(struct slice s); // a key of a struct map
// The next word of a list with this separator between its words, and takes it off. False: none is
// left.
bool slice_next(struct slice *list, char separator, struct slice *out);
struct slice slice_trim(struct slice s);
// A number at the start, decimal or hexadecimal, which is taken off; what is too large is cut off.
// False: there is none.
bool slice_number(struct slice *s, int64_t *out);
// A register's or a symbol's name at the start, which is taken off; empty: there is none.
struct slice slice_name(struct slice *s);

// What a variable is called in the source: of a mangled name "_ZZ1kPfE4tile_0" it is "tile".
struct slice slice_plain_name(struct slice name);

enum ptx_kind {
    PTX_END,
    PTX_LINE, // .loc, .file, .version ...: to the end of the line
    PTX_OPEN,
    PTX_CLOSE,
    PTX_LABEL,
    PTX_HEADER, // of a function whose body follows
    PTX_SECTION,
    PTX_CODE, // an instruction or a declaration, with its semicolon
};

struct ptx_statement {
    enum ptx_kind kind;
    struct slice text;
};

// False: a comment or a string does not end.
bool ptx_blank_comments(char *text, size_t size);
// The statement at *at, which goes behind it. False: it does not end, or holds a zero byte.
bool ptx_next(struct slice *rest, struct ptx_statement *out);

enum { PTX_MAX_OPERANDS = 12 }; // further ones are left out

struct ptx_instr {
    bool negated;            // @!
    struct slice guard;      // a predicate; empty: none
    struct slice op;         // "ld.global.v4.f32"
    struct slice head, last; // its first word and its last
    struct slice operands[PTX_MAX_OPERANDS];
    int n;
};

void ptx_instr_read(struct slice statement, struct ptx_instr *out);
bool ptx_has_word(const struct ptx_instr *i, const char *word); // behind the first
// "global", "shared::cta" ...; "generic" where none is named. The k-th that is named.
struct slice ptx_space(const struct ptx_instr *i, int k);
// Bytes of a type's name, "f32"; 0: it is none.
unsigned ptx_type_size(struct slice type);
// "[%rd1+4]", "[symbol]", "[16]". `name` is empty where there is only a number.
bool ptx_address(struct slice operand, struct slice *name, int64_t *offset);
