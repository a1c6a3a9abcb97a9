#pragma once

// The arguments of one call, as torch hands them to a kernel: a stack of 64-bit words, whose
// tensors, lists and strings belong to the kernel. Read once, into what plans are looked up by.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum {
    CALL_MAX_ARGS = 160, // an operator's inputs and attributes, or what backward is given
    CALL_OWN_KEY = 640,  // words: dtypes, shapes and attributes; more of lists
};

struct call_tensor {
    void *handle; // torch's; NULL: the argument is absent
    void *data;
    const int64_t *sizes, *strides; // strides: of one that is taken as it lies, else NULL
    int64_t rank;
    enum opd_dtype dtype;
    bool contiguous;
};

struct call {
    int n_tensors; // arguments that may be tensors, absent ones too, and those of lists
    int64_t last[2];                   // the last two integers
    int32_t device_type, device_index; // of all tensors; -1: there is none
    uint32_t absent;                   // bit i: argument i is, or is an empty list of tensors
    const char *refused;               // why no plan can be for this call, or NULL
    unsigned n_words;
    struct call_tensor *tensors; // own_tensors where these are enough, and so with the key
    uint64_t *key;               // the device, then each argument
    size_t tensors_capacity, key_capacity;
    int first[CALL_MAX_ARGS + 1]; // the tensor that each argument begins with
    struct call_tensor own_tensors[CALL_MAX_ARGS];
    uint64_t own_key[CALL_OWN_KEY];
};

struct call_argument { // of a kernel
    char type;         // t(ensor) i(nt) f(loat) b(ool) s(tr); 0 behind the last
    bool optional, is_list;
    bool strided; // a tensor that is taken as it lies in memory
};

// layout: a letter for each argument, v for a tensor that is taken as it lies, behind '?' where it
// may be None, behind '*' where it is a list. `out` has CALL_MAX_ARGS + 1 places. False: there are
// more.
bool call_parse(const char *layout, struct call_argument *out);

// The words stay on the stack, with all that they own. The caller ends with call_finish().
void call_read(struct call *call, const struct call_argument *arguments, const uint64_t *stack);

// The same of a call that has not come by torch: tensors, of which NULL is absent, then words of
// the key. Nothing changes hands.
void call_gather(struct call *call, const struct call_argument *arguments, void *const *tensors,
                 const uint64_t *words, unsigned n_words);

// What call_read() and call_gather() have allocated.
void call_finish(struct call *call);

// Gives back what the stack owns.
void call_free(const struct call_argument *arguments, uint64_t *stack);
