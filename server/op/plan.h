#pragma once

// A plan: an operator applied to dtypes, shapes and attributes, worked out to the last argument
// byte. It holds no pointers to memory: each place where one goes is a slot that names an operand.
// Built once for a signature, then kept.
//
// How a file becomes an operator becomes a plan. op_parse() takes the "//!" lines out of the text
// (lines.h) and the signatures of the kernels (signature.h), and gives each line to the reader of
// its directive (the table in header.c; reader.h). A line is read word by word (lex.h); what it
// names is looked up among what came before (scope.h); its expressions become trees (expr.h,
// tree.h). What is left is the operator: its signature in op.h, for everyone, and in body.h rules,
// sections and steps without names, for op/ alone. plan_build() fills an environment (struct env in
// expr.h) from a request: rules.h holds the request against the operator's rules, which give each
// dimension and let its value and each output its shape. Then plan.c goes through the sections of
// the direction that is wanted: it drops steps whose condition does not hold, evaluates grids, and
// packs arguments (params.h); builder.h appends what comes of that. Products of matrices are in
// plan_matmul.c, operators of formulas in formula.h.
//
// Everything in op/ is a pure function of what it is given: no I/O, no device, no clock.

#include "op/op.h"

enum plan_direction { PLAN_FORWARD, PLAN_BACKWARD };

struct tensor_desc {
    enum opd_dtype dtype; // OPD_DTYPE_NONE: absent, and then of rank 0
    int rank;
    int64_t shape[OP_MAX_RANK];
    bool strided;                 // false: contiguous, and the strides are not set
    int64_t strides[OP_MAX_RANK]; // elements from one index to the next
};

// Rank, signs, and that the bytes stay below 2^48: what comes from outside is held against it
// before anything is computed from it. Errors: invalid_argument, "shape [..]: what".
bool tensor_desc_check(const struct tensor_desc *d, struct opd_err *err);
static inline bool tensor_desc_same(const struct tensor_desc *a, const struct tensor_desc *b)
{
    bool same = a->dtype == b->dtype && a->rank == b->rank && a->strided == b->strided;
    for (int i = 0; same && i < a->rank; i++)
        same = a->shape[i] == b->shape[i] && (!a->strided || a->strides[i] == b->strides[i]);
    return same;
}
int64_t tensor_desc_numel(const struct tensor_desc *d);
// Bytes, from its first element to the end of the last one in memory.
uint64_t tensor_desc_size(const struct tensor_desc *d);
uint64_t tensor_desc_offset(const struct tensor_desc *d, uint64_t i); // elements to the i-th one
int64_t tensor_desc_stride(const struct tensor_desc *d, int dim);     // of a contiguous one, too
// As it is set strides[], it is contiguous after all: none of them is needed.
void tensor_desc_simplify(struct tensor_desc *d);
// May two indices of it be the same element?
bool tensor_desc_overlaps(const struct tensor_desc *d);
// "float32 [2, 3]", "float32 [2, 3] with strides [1, 2]"
void tensor_desc_format(const struct tensor_desc *d, char *out, size_t size);
void tensor_desc_format_shape(const int64_t *shape, int rank, char *out, size_t size); // "[2, 3]"

// Inputs that are lists. All of them have as many tensors, each list of one dtype, which stands in
// the request's `inputs`.
struct plan_lists {
    int n[OP_MAX_INPUTS]; // -1: it is none, or absent
    const struct tensor_desc *const *of[OP_MAX_INPUTS];
};
// A copy with all that it points to, in one piece: free() is enough. NULL: NULL.
struct plan_lists *plan_lists_copy(const struct plan_lists *lists);
// The tensors of each list; 0 also where all are absent.
int plan_lists_length(const struct plan_lists *lists);

// What a plan is made for. The operator is borrowed; the plan takes a reference of its own.
struct plan_request {
    const struct op *op;
    enum plan_direction direction;
    bool on_cpu;          // the names `cpu` and `cuda` in expressions
    bool blas;            // the device multiplies matrices by itself: no kernel is launched for it
    bool long_args;       // a launch may have OP_LONG_ARGS_SIZE bytes of arguments
    bool checked;         // its kernels are checked builds (base/checked.h)
    bool keep;            // forward: a context will be kept, so `saved` tensors are wanted
    uint32_t wanted;      // backward: bit i = gradient of input i is wanted; of an absent or not
                          // differentiable input: ignored
    uint32_t grad_absent; // backward: bit o = no gradient came for output o: taken as zero
    const struct plan_lists *lists; // borrowed; NULL: the operator takes none
    struct tensor_desc inputs[OP_MAX_INPUTS];
    struct op_value attrs[OP_MAX_ATTRS];
};

enum { EXAMPLE_MAX_MEMBERS = 8 }; // tensors in a list of an example
enum { PLAN_MAX_SCRATCH = OP_MAX_TEMPS + OP_MAX_OUTPUTS + OP_MAX_INPUTS }; // more than any index

enum plan_operand_kind {
    PLAN_INPUT,   // index: which input
    PLAN_OUTPUT,  // which output (forward writes it, backward reads it)
    PLAN_SAVED,   // which saved tensor (forward writes it, backward reads it)
    PLAN_SCRATCH, // lives for this run only: also a saved tensor where no context is kept, and the
                  // zeros that stand for the absent gradient of output o (index OP_MAX_TEMPS + o,
                  // "grad_" of its name), and the gradient of an input that a kernel writes though
                  // nobody wants it (behind those)
    PLAN_GRAD_OUTPUT, // backward: gradient of output `index`, given by the caller
    PLAN_GRAD_INPUT,  // backward: gradient of input `index`, made here
};

// Of the tensors in a list each is an operand: its index is the list's + PLAN_MEMBER * its place.
enum { PLAN_MEMBER = 256, PLAN_MAX_MEMBERS = 4096 };
static inline int plan_index(int operand_index)
{
    return operand_index % PLAN_MEMBER;
}
static inline int plan_member(int operand_index)
{
    return operand_index / PLAN_MEMBER;
}

// Only operands that some step touches, or that the caller gets, are listed; the latter first, in
// order. Absent inputs, and gradients that are not wanted and of which the kernel asks that, are no
// operands: their 8 bytes stay zero and have no slot.
struct plan_operand {
    enum plan_operand_kind kind;
    int index;
    const char *name; // the op's string: "input", "grad_weight"
    int view_of;      // it is the memory of this input (an output), or of this output's gradient (a
                      // gradient); -1: it has its own
    struct tensor_desc desc;
};

struct plan_param {
    uint32_t offset, size; // in the packed arguments: natural alignment, as a C struct
    bool is_tensor;
    char name[52]; // for messages, cut off where it is longer; "": it has none
};

// One kernel instantiation that the plan launches.
struct plan_kernel {
    char *expr;          // "depthwise_conv2d_forward<scalar_t, 3, 3>"
    const char *prelude; // what it is compiled with: the plan's, and what is its own
    int line;            // of the `kernel` directive
    int n_params;
    struct plan_param *params;
};

struct plan_slot {
    uint32_t arg_offset; // 8 bytes there take the operand's address
    uint32_t operand;
    bool reads;  // at most: a kernel's parameter is a pointer to const, or opd's own does no more
    bool writes; // the launch may: a parameter that is none to const, or the schema says so
};

// A matrix inside an operand, its rows one after the other.
struct plan_matrix {
    uint32_t operand;
    bool transposed; // to be used so; never the result
    uint64_t offset; // bytes to its first element
    uint64_t size;   // bytes from there to the end of its last
    int64_t stride;  // elements from one row to the next
};

// d [m, n] = a [m, k] @ b [k, n], or += where `accumulate`. All of m, n, k are > 0, and these and
// the strides fit into an int.
struct plan_matmul {
    enum opd_dtype dtype, result; // of a and b; of d: the same, or float32 where that has 16 bits
    bool accumulate, tf32;
    int64_t m, n, k;
    struct plan_matrix d, a, b;
};

enum plan_step_kind { PLAN_STEP_LAUNCH, PLAN_STEP_ZERO, PLAN_STEP_MATMUL };

struct plan_step {
    enum plan_step_kind kind;
    uint32_t operand; // ZERO: which operand is filled with zero bytes
    bool copies;      // LAUNCH: it copies `operand`, as it is, to all others in its slots
    uint32_t kernel;  // LAUNCH: which of kernels[]
    uint32_t grid[3], block[3], shared_size;
    uint32_t args_size;
    uint8_t *args; // a template: slots are zero in it
    int n_slots;
    struct plan_slot *slots;
    struct plan_matmul *matmul; // MATMUL
};

// Everything that it points to is its own, and stays as it is until plan_free().
struct plan {
    struct op *op; // a reference
    enum plan_direction direction;
    int n_operands, n_kernels, n_steps;
    struct plan_operand *operands;
    struct plan_kernel *kernels;
    struct plan_step *steps;
    // What every kernel's own prelude begins with, text between the common header and the source:
    // one using-declaration for each type variable ("using scalar_t = opd::half;") and for its
    // accumulator ("using acc_t = float;"). Of formulas the kernel's text follows; and behind the
    // source, where it calls functions of that or takes structs, what follows this line.
#define PLAN_BEHIND_SOURCE "// behind the source\n"
    char *prelude;
    // A prelude whose first line this begins is that of a checked build (base/checked.h): the
    // offsets of tensors' addresses among the arguments follow. The number goes up with what
    // ptx_check() makes of the same text.
#define PLAN_CHECKED "// checked build 3:"
    // What kernels of this plan may report: an operand of 8 bytes that starts as zeros, -1 if none
    // does; and the messages, for report_explain() in base/report.h.
    int report;
    char *checks;
    size_t checks_size;
    uint64_t bytes; // of the elements that a run reads and writes: of all operands but scratch
    uint32_t fixed; // bit i: it depends on attribute i, not only some values among its arguments do
};

struct buf;

// Checks the request against the operator and works it out. Nothing is launched or allocated on a
// device. Errors: invalid_argument, naming operator, argument, what came and what was expected. The
// caller frees it with plan_free().
struct plan *plan_build(const struct plan_request *request, struct opd_err *err);
void plan_free(struct plan *plan); // NULL is fine

// The prelude of a kernel's checked build; the caller frees it. plan_build() has put it in where
// such builds were asked for.
char *plan_checked_prelude(const struct plan *plan, int kernel);

// The same plan for a request that differs in the numbers of attributes that are not fixed. What it
// shares with `plan` is that one's, which is to outlive it. NULL: plan_build() knows why; or these
// numbers show that more of them are fixed than *fixed says, to which they are added.
struct plan *plan_revalue(const struct plan *plan, const struct plan_request *request,
                          uint32_t *fixed);

// The request's signature, as bytes to look a plan up by; of int and float attributes only the
// numbers of those in `fixed`. Appends to `out`.
void plan_signature(const struct plan_request *request, uint32_t fixed, struct buf *out);
bool plan_same_numbers(const struct plan_request *a, const struct plan_request *b); // all of them

// The request of the operator's k-th `example` directive (dtype: what every type variable takes if
// it may). False where there is no k-th one. For warming, tests and docs.
bool plan_example(const struct op *op, int k, enum opd_dtype dtype, struct plan_request *out);
// The dtypes to ask for examples of, each once: those of scalar_t; without it, or where `all` are
// wanted, those of the other type variables too; one OPD_DTYPE_NONE where all types are fixed.
// Returns how many, at least 1.
int plan_example_dtypes(const struct op *op, bool all, enum opd_dtype out[OPD_DTYPE_COUNT]);
// What the k-th example says that an input holds: from *low to *high, and where it says single
// values, those of all elements, in *values, the caller's; else NULL. False: it says nothing, or an
// expression of it fails (err), or `values` is NULL and it does not say a range.
bool plan_example_data(const struct plan_request *request, int k, int input, double *low,
                       double *high, double **values, struct opd_err *err);
// For `wanted`: all gradients that there are for these inputs.
uint32_t plan_gradients(const struct plan_request *request);
