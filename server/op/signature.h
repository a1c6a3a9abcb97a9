#pragma once

// The kernels that a source declares, found by reading its text: names, template parameters and
// parameters. Comments, strings and preprocessor lines are not seen; macros are not expanded. What
// cannot be made out is no mistake until a launch names it: the compiler has the last word.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "op/arena.h"
#include "base/err.h"

enum {
    SIGNATURE_MAX_KERNELS = 256,
    SIGNATURE_MAX_PARAMS = 128,
    SIGNATURE_MAX_TEMPLATE = 32,
    STRUCT_MAX = 1024, // in a file and what it includes
    STRUCT_MAX_MEMBERS = 128,
    STRUCT_MAX_EXTENTS = 3,
    TENSOR_INFO_DIMS = 25, // as in include/torch.cuh
};

enum param_kind {
    PARAM_POINTER,
    PARAM_ACCESSOR, // torch::PackedTensorAccessor32<type, rank, ...>, or TensorInfo<type, index>
    PARAM_VALUE,
    PARAM_ARRAY,  // in a struct, and all of it filled by `chunks`
    PARAM_STRUCT, // its members follow, up to
    PARAM_END,
};

struct signature_param {
    const char *name;
    const char *type; // without const, *, __restrict__; what an accessor or pointer points to
    enum param_kind kind;
    bool writes;       // a pointer or an accessor to what is not const
    bool reads;        // what is there may be read: stores.h
    bool asked;        // whether it is null; or that is not to be seen
    bool is_pack;      // PARAM_VALUE: "Types... name", as many as the template is given
    int rank;          // PARAM_ACCESSOR; 0: a TensorInfo, of any up to TENSOR_INFO_DIMS
    int align;         // PARAM_STRUCT, PARAM_END: at least
    const char *index; // the type of its sizes and strides
    const char *path;  // "p.sizes[0]", of a member that propose.h looks at; or NULL
    int list;          // PARAM_VALUE, there: an array of so many; 0: it is none
    int line;
};

struct template_param {
    const char *name; // "" if it has none
    const char *type; // of a value, where that is a word of the file's: an enum, mostly; or NULL
    bool is_type;
    bool has_default;
    bool is_pack;
};

struct signature {
    const char *name;
    int line;
    bool is_template;
    bool has_body;
    size_t body, body_size; // what stands in its braces, in the text
    const char *types;   // of its parameters, as C++
    const char *problem; // a parameter that cannot be passed: fails when the kernel is used
    int n_template, n_params;
    struct template_param *template_params;
    struct signature_param *params;
};

// A struct, as far as kernels can be given one.
struct struct_member {
    struct signature_param param;
    int n_extents; // of an array
    const char *extents[STRUCT_MAX_EXTENTS];
};

struct struct_definition {
    const char *name;
    int line;
    const char *problem; // a member that cannot be filled in: fails when a kernel takes it
    int problem_line;    // 0: the whole of it
    int align;           // as it says itself; 0: that of its members
    const char *base;    // the struct whose members come first, or NULL
    int n_template, n_members;
    struct template_param *template_params;
    struct struct_member *members;
};

// A function that kernels call.
struct function_signature {
    const char *name;
    int least, most; // arguments
};

// The functions behind __device__ outside of all braces; of more parameters than most, as of fewer:
// the compiler has the last word. False: there are too many.
bool signature_functions(const char *text, size_t size, struct arena *arena,
                         struct function_signature **out, int *out_n, int most);

// The structs that the text defines with a name, wherever they stand; those beyond STRUCT_MAX are
// passed over. What they inherit and the functions in them are not seen: whoever lays a struct out
// has the compiler check it.
void struct_scan(const char *text, size_t size, struct arena *arena, struct struct_definition **out,
                 int *out_n);

// A type or an expression, with what the text gives its names to stand for in place of them.
const char *alias_text(const char *text, size_t size, struct arena *arena, const char *of);

// The value of an integer expression of names that the text gives one: "n", "sizes[3 - 1]". False:
// it is none that can be seen.
bool constant_eval(const char *text, size_t size, const char *expr, int64_t *out);

// The result, and what it points to, lives in the arena. Errors: invalid_argument, for too many of
// something alone. Everything that looks like no kernel is passed over.
bool signature_scan(const char *file, const char *text, size_t size, struct arena *arena,
                    struct signature **out, int *out_n, struct opd_err *err);
