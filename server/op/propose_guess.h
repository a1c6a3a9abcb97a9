#pragma once

// What a file's kernels are taken to mean: which parameters are inputs, outputs, sizes, attributes,
// gradients. Of propose.h alone.

#include "op/propose.h"
#include "op/signature.h"

enum { MAX_NAMES = 64 };

enum role { INPUT, OUTPUT, CHANGED, SAVED }; // CHANGED: in place

struct guessed_tensor {
    const char *name, *type;
    enum role role;
    bool unseen;       // an output: that it is written its kernel does not show by its name
    int rank;          // of an accessor, which its shape has; 0: any
    const char *owner; // "p." of a member of that struct; ""
};

struct guessed_value {
    const char *name, *type; // of an attribute: "int", "float", "bool"
};

struct proposal {
    struct arena arena;
    struct buf *out;
    const char *file, *text, *code; // code: without comments, strings and directives
    struct signature *kernels[MAX_NAMES];
    bool backward[MAX_NAMES];
    int n_kernels, n_tensors, n_sizes, n_attrs;
    struct guessed_tensor tensors[MAX_NAMES];
    const char *sizes[MAX_NAMES], *total; // total: how many there are of the first output
    const char *owners[MAX_NAMES];        // of sizes, as a tensor's
    struct guessed_value attrs[MAX_NAMES];
};

#define WORDS(...) ((const char *const[]){ __VA_ARGS__, NULL })

// Words of a text: ends with NULL.
bool guess_is_word_char(char c);
bool guess_has_part(const char *name, const char *const *parts);
bool guess_is_one_of(const char *name, const char *const *words);
bool guess_is_listed(const char *const *names, int n, const char *name);
// "256" of a constant or macro of the file; NULL: it is none.
const char *guess_constant(struct proposal *p, const char *name);
// The next place of a whole word that is no member, from `at` to `end`; NULL: there is none.
const char *guess_find_word(const char *at, const char *end, const char *word);

// Of a kernel's body: where it is, whether that text is in it, whether an index is made of block
// and thread along that axis.
void guess_find_body(const struct proposal *p, const struct signature *k, const char **out_begin,
                     const char **out_end);
bool guess_body_has(const struct proposal *p, const struct signature *k, const char *what);
bool guess_is_linear(struct proposal *p, const struct signature *k, char axis);
// What that index is held below, of the kernel's parameters; NULL: it is not known.
const char *guess_extent(struct proposal *p, const struct signature *k, char axis);
bool guess_is_plane(struct proposal *p, const struct signature *k); // linear along x and y
// "128" where that index is made with a constant, not with blockDim; NULL: it is not.
const char *guess_block_size(struct proposal *p, const struct signature *k, char axis);

// Whether a block has one element of it: in its brackets stands blockIdx.x, or a name for that.
bool guess_is_of_block(const struct proposal *p, const struct signature *k, const char *name);

const char *guess_dtype(const char *type); // "float32" of "float", "float4"; NULL: there is none
int guess_lanes(const char *type);         // 4 of "float4"; 0: it is no such type
bool guess_is_grad(const char *name);
bool guess_is_backward(const char *name); // of a kernel
// A pointer to non-const beside some to const is for writing; of pointers none of which is to const
// those are that the text shows to be written, or the last.
bool guess_is_written(struct proposal *p, const struct signature *k,
                      const struct signature_param *param);
// What forward makes of that name; also "mean_out" of "mean". NULL: nothing.
struct guessed_tensor *guess_find_made(struct proposal *p, const char *name);
// The tensor of that role of which `name` is the gradient, by name; else the n-th; or NULL.
const struct guessed_tensor *guess_gradient(struct proposal *p, const char *name, enum role role,
                                            int n);

// What a launch gives for the i-th template parameter: "scalar_t", "256".
const char *guess_template_arg(struct proposal *p, const struct signature *k, int i);
// In place of the parameters that are structs their members, which have a path.
void guess_open_structs(struct proposal *p, struct signature *all, int n);

void guess_take_forward(struct proposal *p, const struct signature *k);
void guess_take_backward(struct proposal *p, const struct signature *k);
// What backward reads that forward makes, but the first result where it reads all of them, is for
// backward alone.
void guess_find_saved(struct proposal *p);
void guess_add_size(struct proposal *p, const char *name, const char *owner);
// Sizes of an operator without inputs are attributes.
void guess_sizes(struct proposal *p);
