#pragma once

// An operator: what the header of a .cu file says, parsed and resolved. Immutable once parsed;
// counted.
//
// kernels_src/README.md is the manual of the language; this is its result. plan.h says how the one
// becomes the other. What callers may look at is here; shapes, conditions and launches are in
// op_body, which only op/ reads.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

enum {
    OP_MAX_RANK = 16,
    OP_MAX_INPUTS = 32,
    OP_MAX_OUTPUTS = 16,
    OP_MAX_ATTRS = 32,
    OP_MAX_TEMPS = 32, // saved and scratch together
    OP_MAX_LIST = 4,   // int[N] and float[N]: N at most
    OP_MAX_NAME = 64,  // with the terminator
};

enum op_attr_type {
    OP_ATTR_INT,
    OP_ATTR_FLOAT,
    OP_ATTR_BOOL,
    OP_ATTR_STR, // one of a list of words
};
extern const char *const op_attr_types[]; // as headers name them

// The value of an attribute in a request, or its default.
struct op_value {
    bool present;           // false: None, for optional ones only
    int n;                  // 1, or the length of a list
    int64_t i[OP_MAX_LIST]; // ints, bools (0, 1), index of the word
    double f[OP_MAX_LIST];  // floats
};

struct op_attr {
    char name[OP_MAX_NAME];
    enum op_attr_type type;
    int list;              // 0: a scalar; N: int[N], which takes one value for all as well
    bool optional;         // "int?": may be None
    bool required;         // has no default
    struct op_value value; // the default
    int n_words;           // OP_ATTR_STR: the words it may be
    const char **words;
};

struct op_tensor {
    char name[OP_MAX_NAME];
    bool optional;       // "Tensor?": may be absent
    bool in_place;       // "Tensor(a!)"
    bool list;           // "Tensor[]": as many tensors as come
    bool strided;        // an input that need not be contiguous
    bool differentiable; // an input with a gradient in some backward section
    bool by_definition;  // that gradient is what it is, and no derivative
    bool used_backward;  // inputs and outputs: backward reads it, so a context keeps it
    int type;            // index into types[]
    char alias[4];       // "a" of "Tensor(a)"; "" if none
    bool is_view;        // an output that is the memory of
    int view_of;         // this input
    const char *reduced; // of formulas: how many of its last dimensions are 1, in postfix notation;
                         // -1: it has none at all. NULL: it has the whole shape
};

// A tensor that forward writes and backward reads.
struct op_saved {
    char name[OP_MAX_NAME];
    int temp; // the index of its plan operand
};

// A type variable, "scalar_t", and the dtypes that it may take; or a fixed type, with no name and
// one dtype.
struct op_type {
    char name[OP_MAX_NAME];
    int n_dtypes;
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
};

enum rule_kind { RULE_SHAPE, RULE_LET, RULE_REQUIRE };

// A rule as clients are told of it, in the order of the file. Expressions are in postfix notation,
// one blank between words: protocol/README.md describes them.
struct op_rule {
    enum rule_kind kind;
    const char *name;  // of the tensor, or of the let
    const char *type;  // of a saved or scratch tensor: dtype, type variable or acc_t
    const char *value; // of a let, or what is required
    int n;
    const char *const *parts; // dimensions of a shape; texts and values of a message in turn
};

// How a batch of calls becomes one: folded into one dimension of each tensor, or as a dimension
// more before all. The dimensions, behind a pack from the end: -1 is the last.
enum { OP_MAX_BATCHES = 8, OP_MAX_LINEAR = 8, OP_NO_BATCH = 127 };
struct op_batch {
    bool folds;
    int8_t inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS], saved[OP_MAX_TEMPS];
};

// Where inputs lie in memory with their dimension 1 last, an operator that takes them so.
struct op_channels_last {
    char op[OP_MAX_NAME]; // "": there is none
    uint32_t inputs, outputs; // which have that dimension last there
    const char *when;         // an expression as in rules; NULL: always
};

struct op {
    int refs;
    char *file;   // as given to op_parse
    char *source; // the whole text
    size_t source_size;
    char name[OP_MAX_NAME];
    char *schema;   // in PyTorch's words, one line
    char *doc;      // lines joined by '\n'; "" if none
    uint64_t hash;  // of the text
    char *warnings; // lines of "file:line: what", of a file that is served all the same; "" if none

    int n_types, n_inputs, n_outputs, n_attrs;
    struct op_type types[8];
    struct op_tensor inputs[OP_MAX_INPUTS];
    struct op_tensor outputs[OP_MAX_OUTPUTS];
    struct op_attr attrs[OP_MAX_ATTRS];
    bool has_backward;
    bool lists; // some inputs are: it is applied to the first tensor of each, to the second, ...
    int n_saved;
    struct op_saved saved[OP_MAX_TEMPS];
    double deadline; // seconds that a run may take; 0: nothing is said
    int n_rules;     // what results depend on, and what is required
    const struct op_rule *rules;
    bool broadcasts; // inputs broadcast together, and results have that shape: an operator of
                     // formulas
    int n_batches;
    struct op_batch batches[OP_MAX_BATCHES + 1]; // to be tried in this order
    int n_linear;
    uint32_t linear[OP_MAX_LINEAR]; // inputs in which the outputs are linear, the others fixed
    const char *autocast[2];        // on op_autocast_devices; NULL: nothing is said
    struct op_channels_last channels_last;

    struct op_body *body; // shapes, conditions, launches: of op/ alone
};

// Parses a file. `file` is used in messages ("gelu.cu:3: ..."); `text` is copied, and need not be
// terminated. Errors: invalid_argument, "file:line: what, expected what", with the line and a caret
// below it in err->log. The result has one reference.
struct op *op_parse(const char *file, const char *text, size_t size, struct opd_err *err);
// The same of a file that includes others, whose text with these in place is `whole`: kernels,
// structs and names of types are found there.
struct op *op_parse_whole(const char *file, const char *text, size_t size, const char *whole,
                          struct opd_err *err);

// The derivatives of an operator of formulas are such operators, too: "backward" makes the
// gradients of the inputs, "tangent" the tangents of the outputs, all of the shape of all inputs
// together. Their inputs are the gradients of the outputs, then those inputs and outputs that
// backward reads; or the tangents of the differentiable inputs, then all inputs. Of no other
// operators: not_found, with the reason; nor where that would be too large. The name is the
// operator's, a dot, and `what`.
struct op *op_derive(const struct op *op, const char *what, struct opd_err *err);
// Does the operator have derivatives?
bool op_is_derivable(const struct op *op);

struct op *op_ref(struct op *op); // returns op
void op_unref(struct op *op);     // NULL is fine

extern const char *const op_autocast_devices[2]; // "cpu", "cuda"

// A mistake in a file or a request. Always false.
#define op_fail(err, ...) opd_err_set(err, OPD_E_invalid_argument, __VA_ARGS__)

int op_input_index(const struct op *op, const char *name); // -1: none of that name
int op_attr_index(const struct op *op, const char *name);
// The place of a word among those of a str attribute. -1: it is none, and `near` has the nearest.
struct suggest;
int op_attr_word(const struct op_attr *a, const char *word, size_t size, struct suggest *near);
bool op_type_takes(const struct op_type *type, enum opd_dtype dtype);

// Set a value of an attribute from outside, checking type, length and words; a scalar fills a list.
// `v` is filled whole. Errors name operator and attribute: "gelu: approximate is "tahn", expected
// one of ...".
bool op_attr_set_ints(const struct op *op, int attr, const int64_t *values, int n,
                      struct op_value *v,
                      struct opd_err *err); // ints also serve a float attribute
bool op_attr_set_floats(const struct op *op, int attr, const double *values, int n,
                        struct op_value *v, struct opd_err *err);
bool op_attr_set_bool(const struct op *op, int attr, bool value, struct op_value *v,
                      struct opd_err *err);
bool op_attr_set_str(const struct op *op, int attr, const char *value, size_t size,
                     struct op_value *v, struct opd_err *err);
bool op_attr_set_none(const struct op *op, int attr, struct op_value *v, struct opd_err *err);
