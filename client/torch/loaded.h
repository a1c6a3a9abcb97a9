#pragma once

// Plans that are loaded in this process, and how a call finds its own.
//
// Each operator that torch knows has three kernels of ours (boxed.h), and each of these a table of
// plans by what the calls give: device, dtypes, shapes and attributes. A plan is of one version of
// the operator; which version serves is in the daemon's page (base/version_page.h), read once by
// each call. What is not there, or not of that version, is loaded by Python (opd_torch.h).
//
// A plan is counted: by its table, by each call that runs it, and by each CUDA graph that holds
// launches of it. One whose count is 0 is retired: freed when the device has done what was
// launched.

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/exported.h"
#include "torch/call.h"

struct version_page;
struct image;

enum loaded_kind {
    LOADED_FORWARD, // gives outputs
    LOADED_KEEP,    // gives saved tensors, too, and the plan's serial, for backward
    LOADED_BACKWARD,
};

enum bound_to { BOUND_ARG, BOUND_RESULT, BOUND_SCRATCH, BOUND_REPORT };

struct binding { // of an operand of the plan
    enum bound_to to;
    uint32_t index;  // ARG: which of the call's tensors; RESULT: which
    bool changed;    // ARG: in place
    uint64_t offset; // SCRATCH: in the call's scratch memory
};

struct result { // a tensor that the call makes
    uint32_t operand;
    uint32_t at;  // on the stack; where those are one list, in that
    int32_t same; // it is that argument; -1: it is made
};

struct cuda_use; // what the device may still be at; of cuda.c

struct loaded {
    atomic_int refs;
    struct torch_op *op;
    struct loaded *next; // of its bucket, or of those that are retired
    uint64_t serial;
    uint64_t hash;
    unsigned n_words;
    uint64_t *key;
    uint32_t version;
    bool outlived;    // the daemon that made it has been replaced
    int device_index; // CUDA's; -1: the CPU
    uint8_t *bytes;   // what x points into
    struct exported x;
    struct binding *operands;
    struct result *results;
    uint32_t n_results;
    uint64_t scratch_size;
    uint64_t workspace, workspace_size; // of products: where it is in the scratch memory
    bool computes;         // something; else its results are all tensors that it is given
    struct image **images; // of each kernel
    atomic_bool *small;    // of each step, on the CPU: it was done before others could be woken
    struct cuda_use *cuda;
};

enum { KEPT_VERSIONS = 4 }; // of an operator: the plans of others go

// One kernel of an operator. Never freed, as torch frees none.
struct torch_op {
    struct torch_op *next; // under the lock: of all
    enum loaded_kind kind;
    char *name; // of the daemon's operator
    struct call_argument arguments[CALL_MAX_ARGS + 1];
    uint32_t n_inputs, n_outputs, n_saved;
    uint32_t mutated; // bit i: input i is written
    bool lists;       // some arguments are lists of tensors: then so is all that it returns
    // BACKWARD: the argument that is each input, output and saved tensor that it reads, behind the
    // gradients; -1: it does not.
    int16_t inputs_at[32], outputs_at[16], saved_at;
    // Under the lock.
    uint32_t slot;                    // in the page; 0: not known yet
    uint32_t heard;                   // upper half of the page's word, when Python last asked
    uint32_t versions[KEPT_VERSIONS]; // of plans here, the last that came first
    unsigned n_loaded;
    struct loaded **buckets;
};

// What the calls of a thread may do.
struct loaded_options {
    bool is_set;
    bool isolated;    // nothing runs here
    bool alone;       // the daemon is known to be gone: what is loaded serves
    uint32_t version; // 0: the one that serves
};
extern _Thread_local struct loaded_options loaded_options;
extern bool loaded_isolated; // of threads that have set none

enum loaded_answer {
    LOADED_YES,
    LOADED_NO,   // Python is to load it
    LOADED_GONE, // the daemon has ended: Python is to look for another, now and then
};

// Makes an operator known, which is the caller's to fill; it must stay.
void loaded_register(struct torch_op *op);

// The plan for a call, counted; the caller gives it back by loaded_unref(). What was looked for in
// vain is remembered, for loaded_add() on the same thread.
enum loaded_answer loaded_find(struct torch_op *op, struct call *call, struct loaded **out);
// The one that a call of `operator` looked for in vain; takes the descriptor's plan. `slot` is the
// operator's in the page. Errors: those of exported_open(); unavailable, where it cannot run here.
bool loaded_add(struct torch_op *op, int fd, uint32_t slot, uint64_t *serial, struct opd_err *err);
void loaded_ref(struct loaded *p);
void loaded_unref(struct loaded *p); // may be called from anywhere; NULL is fine

// The daemon's page, from now on. What is loaded stays where the page is of the same daemon, else
// it is retired, but for backwards: forwards may have run that wait for theirs. True: it was the
// same.
bool loaded_set_page(const struct version_page *page);
// Frees what was retired, where the device has done with it. Not while it captures a graph.
void loaded_tidy(void);
// For tests and status: plans that are loaded, and that are retired and not yet freed.
void loaded_count(unsigned *loaded, unsigned *retired);
// "gelu version 3, ...": those that ran last.
void loaded_tell_last(char *out, size_t size);

// Held while the process forks.
void loaded_lock(void);
void loaded_unlock(void);
