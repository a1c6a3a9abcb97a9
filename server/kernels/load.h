#pragma once

// Operators that a client loads: from a text, not from a file of the folders; for its connection
// alone or for everybody, and until it unloads them or ends. A version of one goes the way of an
// edit, and is served or has failed like one; what is under way is in reload's edits.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct opd_operator;
struct reload;
struct source;
struct version;

enum { LOAD_MAX_OPERATORS = 256, LOAD_MAX_SIZE = 32 << 20 }; // of a connection, and their bytes

// Begins to load a source, with its versions' numbers counted on from those that the connection has
// loaded of that name before. The version, with a reference: it is VERSION_COMPILING for as long as
// edit_compiles() says so, and served or failed then; one of the same text that is served already
// is that. NULL with an error: invalid_argument (it does not parse, or another connection shares
// one of that name), out_of_memory (of what a connection may load).
struct version *load_begin(struct reload *r, const struct source *source, uint64_t owner,
                           bool shared, struct opd_err *err);

// A version of it is served: the one of its name that the same connection has in the other scope
// is no more wanted; NULL: there is none.
struct opd_operator *load_replaced(const struct reload *r, const struct version *v);
// Withdraws one; what needs its versions keeps them.
void load_remove(struct reload *r, struct opd_operator *o);
