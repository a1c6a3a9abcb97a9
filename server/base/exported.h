#pragma once

// A plan for another process: an operator applied to dtypes, shapes and attributes, worked out to
// the last argument byte, with its compiled kernels, in one sealed memfd. A client that has it runs
// the operator by itself, on memory and a stream of its own. It is what op/plan.h says of struct
// plan, in a fixed layout of plain numbers; the daemon writes it (kernels/exports.h), whoever maps
// it reads it with what is here.
//
// How it is run. Every operand gets an address: inputs, outputs that backward reads and gradients
// of outputs are the caller's, with the operand's strides; the others are made, uninitialised, of
// the operand's dtype, shape and strides, which are contiguous, unless `view_of` says whose memory
// they are. Forward gives outputs and saved tensors back, backward the gradients of inputs. An
// address is 0 where an operand has no element, and a multiple of the element's size otherwise.
// Then all steps, in their order, each behind what the one before it wrote:
//   ZERO    fills the operand with zero bytes
//   LAUNCH  copies the step's argument bytes, puts the address of slots[i].operand at
//           slots[i].arg_offset, and launches kernels[step.kernel] with them: on CUDA as its
//           CU_LAUNCH_PARAM_BUFFER
//   COPY    is a launch as well, that copies the step's operand, as it is, to all others in its
//           slots; who may give away what is the caller's can make these that very tensor instead
//   MATMUL  is left to a library; none is there unless the export asked for it (`blas`)
// If `report` is not -1, that operand of 8 bytes is read when all is done: what is not 0 there is
// an error, and exported_explain() has its message.
//
// On CUDA a kernel's payload is a cubin for `target`, and its symbol a function in it; above 48 KiB
// of shared_size the function must be allowed it first. On the CPU the payload is a shared object,
// for dlopen() (from a memfd that stays open as long as it is loaded: dlopen() knows an object by
// its path), and the symbol a struct opd_cpu_kernel (executor/cpu_image.h): check its `abi` and
// that args_size reaches the end of its last parameter, call init() with a struct opd_cpu_runtime
// once, then run() for all blocks, in any pieces, on any number of workers. executor/cpu_block.h is
// the runtime and the worker; it and cpu_fiber.c, cpu_race.c and what they use of base/ need
// nothing else of the daemon.
//
// A client holds such a plan against the page of versions (base/version_page.h).

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { EXPORTED_LAYOUT = 2, EXPORTED_MAX_RANK = 16, EXPORTED_MAX_INDEX = 128 };
enum { EXPORTED_MEMBER = 256, EXPORTED_MAX_MEMBERS = 4096 }; // of a list
enum { EXPORTED_ALIGNED = 64, EXPORTED_ARGS_ALIGNED = 16 }; // bytes

enum exported_device { EXPORTED_CPU = 1, EXPORTED_CUDA };
enum exported_direction { EXPORTED_FORWARD, EXPORTED_BACKWARD };

enum exported_kind { // of an operand; the values of enum plan_operand_kind
    EXPORTED_INPUT,
    EXPORTED_OUTPUT,
    EXPORTED_SAVED,
    EXPORTED_SCRATCH, // lives for this run only
    EXPORTED_GRAD_OUTPUT,
    EXPORTED_GRAD_INPUT,
};

enum exported_step_kind { // the values of enum plan_step_kind, and one more
    EXPORTED_LAUNCH,
    EXPORTED_ZERO,
    EXPORTED_MATMUL,
    EXPORTED_COPY,
};

// Arrays of what follows, one behind the other, each aligned to EXPORTED_ALIGNED. Texts are
// terminated, and named by where they begin in the section of texts.
enum exported_section {
    EXPORTED_OPERANDS, // struct exported_operand: first those that the caller gets, in order
    EXPORTED_STEPS,    // struct exported_step
    EXPORTED_SLOTS,    // struct exported_slot: of all steps
    EXPORTED_MATMULS,  // struct exported_matmul
    EXPORTED_KERNELS,  // struct exported_kernel
    EXPORTED_ARGS,     // bytes: of all steps, each aligned to EXPORTED_ARGS_ALIGNED
    EXPORTED_TEXTS,    // bytes
    EXPORTED_CHECKS,   // bytes: for exported_explain()
    EXPORTED_PAYLOADS, // bytes: of all kernels, each aligned to EXPORTED_ALIGNED
    EXPORTED_N_SECTIONS
};

size_t exported_element_size(enum exported_section section); // 1 of bytes

struct exported_header {
    char magic[8];   // "opdplan"
    uint32_t layout; // EXPORTED_LAYOUT
    uint32_t device, direction;
    uint32_t version; // of the operator; of one that a client has loaded, the daemon's own number
    uint32_t op;      // text: its name
    uint32_t target;  // text: "sm_90", "cpu"
    int32_t report;   // operand, or -1
    uint32_t reserved;
    uint64_t size; // of all
    struct {
        uint64_t offset; // bytes from the start
        uint64_t n;
    } sections[EXPORTED_N_SECTIONS];
};

struct exported_operand {
    uint32_t kind;
    uint32_t index;  // which input, output, ...; below EXPORTED_MAX_INDEX. Of the tensors in a list
                     // each is an operand: to this is added its place * EXPORTED_MEMBER
    int32_t view_of; // it is the memory of this input (an output), or of this output's gradient (a
                     // gradient), whether that is an operand or not; -1: it has its own
    uint32_t dtype;  // base/dtype.def
    uint32_t rank;
    uint32_t name; // text: "input", "grad_weight"
    uint64_t size; // bytes, from its first element to the end of the last one in memory
    int64_t shape[EXPORTED_MAX_RANK], strides[EXPORTED_MAX_RANK]; // in elements
};

static inline uint32_t exported_index(const struct exported_operand *o)
{
    return o->index % EXPORTED_MEMBER;
}
static inline uint32_t exported_member(const struct exported_operand *o)
{
    return o->index / EXPORTED_MEMBER;
}

struct exported_slot {
    uint32_t arg_offset; // 8 bytes there take the operand's address
    uint32_t operand;
};

struct exported_matrix {
    uint32_t operand;
    uint32_t transposed; // to be used so; never the result
    uint64_t offset;     // bytes to its first element
    uint64_t size;       // bytes from there to the end of its last
    int64_t stride;      // elements from one row to the next
};

// d [m, n] = a [m, k] @ b [k, n], or += where `accumulate`. All of m, n and k are > 0, and these
// and the strides fit into an int.
struct exported_matmul {
    uint32_t dtype, result; // of a and b; of d: the same, or float32 where that has 16 bits
    uint32_t accumulate;
    uint32_t tf32; // float32 may be rounded to TF32
    int64_t m, n, k;
    struct exported_matrix d, a, b;
};

struct exported_step {
    uint32_t kind;
    uint32_t operand; // ZERO, COPY
    uint32_t matmul;  // MATMUL: which
    uint32_t kernel;  // LAUNCH, COPY: which, and the rest
    uint32_t grid[3], block[3], shared_size;
    uint32_t args_size, n_slots;
    uint32_t slots; // the first
    uint64_t args;  // where they begin in the section
};

struct exported_kernel {
    uint64_t id; // of its image: two of the same symbol and id are the same, in other plans too
    uint64_t payload, payload_size; // where it begins in the section
    uint32_t symbol;                // text: in the payload
    uint32_t name;                  // text: as the file has it: "gelu_forward<scalar_t, 0>"
};

// One that is mapped. The pointers are into the mapping, all checked: indexes, lengths, texts.
struct exported {
    const struct exported_header *head;
    const struct exported_operand *operands;
    const struct exported_step *steps;
    const struct exported_slot *slots;
    const struct exported_matmul *matmuls;
    const struct exported_kernel *kernels;
    const uint8_t *args;
    const char *texts;
    const uint8_t *payloads;
    uint32_t n_operands, n_steps, n_kernels;
    void *mapping; // or NULL
    size_t mapping_size;
};

// Maps the memfd, which must be sealed, and checks it. Does not take the descriptor over. Errors:
// malformed_message.
bool exported_open(struct exported *x, int fd, struct opd_err *err);
void exported_close(struct exported *x); // zeroed is fine
// The same of bytes that stay where they are until the last use, aligned to EXPORTED_ALIGNED.
bool exported_read(struct exported *x, const void *bytes, size_t size, struct opd_err *err);

// The message for what kernels reported, appended to `out`: `key` are the 8 bytes, not 0.
struct buf;
void exported_explain(const struct exported *x, uint64_t key, struct buf *out);
