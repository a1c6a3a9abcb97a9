#pragma once

// The declarations of a C++ text, as far as brackets tell them, and which of them others name. Part
// of the host compiler (host.c).

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"
#include "compiler/host_lex.h"

// A declaration at the level of namespaces, or a #define: its tokens.
struct host_piece {
    size_t first, end;
    bool macro, kernel, device; // device: its head says so, a kernel's too
    bool function, type, body;  // type: a struct, class, union or enum
    bool values;                // an enum
    bool reached;
};

struct host_name {
    struct host_token word;
    size_t piece; // that declares it
    bool reached; // so are all of that word: at the first of them
};

// Zeroed at first. Texts stay the caller's.
struct host_unit {
    struct buf tokens, pieces, names; // of struct host_token, host_piece, host_name
    size_t n_macros;                  // of the names: these come first
    bool unclear;                     // brackets do not match
    bool partly;                      // they do where of each #if one branch is read
    bool includes;                    // by quotes, a text that is not here
    bool uses_std;                    // using namespace std
};

#define HOST_COUNT(buf, type) ((buf).size / sizeof(type))
#define HOST_AT(buf, type, i) ((type *)(void *)(buf).bytes + (i))

// All macros are read before all declarations. `passed`: names of macros that are not wanted; NULL:
// none.
void host_unit_read_macros(struct host_unit *u, const char *text, const char *const *passed);
void host_unit_read(struct host_unit *u, const char *text);

// Then: what macros declare, and an order in which names are found.
void host_unit_link(struct host_unit *u);

// Marks the pieces that declare the word. True: there was one that had not been reached.
bool host_unit_reach(struct host_unit *u, const struct host_token *word);

// The same of those whose name begins, or ends, with the word, if that is long enough to tell them.
bool host_unit_reach_part(struct host_unit *u, const struct host_token *word, bool begins);

// What the text itself declares: a type with its body, or a macro; NULL: neither.
const struct host_piece *host_unit_type(const struct host_unit *u, const struct host_token *name);
const struct host_piece *host_unit_macro(const struct host_unit *u, const struct host_token *name);

void host_unit_finish(struct host_unit *u);

bool host_token_is_any(const struct host_token *t, const char *const *words); // ends with NULL
#define HOST_IS_ANY(t, ...) host_token_is_any(t, (const char *const[]){ __VA_ARGS__, NULL })
