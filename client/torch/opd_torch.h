#pragma once

// libopd_torch, as the Python package opd.torch calls it (client/python/opd/torch/_inproc.py): it
// runs the daemon's operators in torch's own process. Of no use without that package; nothing here
// is for others.
//
// A call goes through torch's dispatcher to a kernel of ours (boxed.h), which looks for a plan
// (loaded.h) and runs it (run.h). Where there is none it throws, and Python has the daemon run the
// call, asks it for the plan (`plan_export` of protocol/README.md), and loads that for the calls
// that follow.
//
// What returns a text returns NULL for success, else what went wrong: valid on the calling thread
// until its next call of any of these.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OPD_TORCH __attribute__((visibility("default")))

enum { OPD_TORCH_ABI = 3 }; // of what follows; the package checks it
OPD_TORCH int opd_torch_abi(void);

// Before all else, in a process that has torch. `isolated`: threads run all in the daemon that have
// not said otherwise.
OPD_TORCH const char *opd_torch_start(bool isolated);

// Registers opd::NAME with torch, with a kernel of `kind` (enum loaded_kind). `reads`, of a
// backward: for each input and then each output, whether it is given to it.
OPD_TORCH const char *opd_torch_register(const char *name, const char *schema, int kind,
                                         const char *op, const char *layout, uint32_t n_inputs,
                                         uint32_t n_outputs, uint32_t n_saved, uint32_t mutated,
                                         const uint8_t *reads, int *number);

// The plan in this memfd, for the call that the calling thread made last of that kernel, and that
// found none. `serial`: what a backward of it is called with.
OPD_TORCH const char *opd_torch_load(int number, int fd, uint32_t slot, uint64_t *serial);

// Calls that do not go through torch's dispatcher (direct.h). False: this torch lacks what they
// need.
OPD_TORCH bool opd_torch_set_direct(size_t tensor_at, size_t keys_at, uint64_t of_names);
OPD_TORCH void opd_torch_add_plain(uint64_t keys);
// Does the calling thread as torch does by default?
OPD_TORCH bool opd_torch_is_plain(void);
OPD_TORCH bool opd_torch_is_grad_enabled(void);
// If so. 1: done, and `results` are to be wrapped; 0: not for here; -1: the text is what went
// wrong, as the dispatcher would have raised it.
OPD_TORCH int opd_torch_call(int number, void *const *objects, const uint64_t *words,
                             unsigned n_words, uint64_t *results, const char **error);
// A tensor as an object of Python's, or None; with its lock held. The tensor goes.
OPD_TORCH void *opd_torch_wrap(uint64_t tensor);

// For the calling thread's calls: all in the daemon; a version other than the one that serves (0).
OPD_TORCH void opd_torch_set_options(bool isolated, uint32_t version);

// The calling thread has looked for another daemon, and found none: what is loaded serves.
OPD_TORCH void opd_torch_set_alone(bool alone);

// The daemon's page of versions, of which the descriptor stays the caller's. `same`: it is the page
// of the daemon as before. A descriptor of -1: there is none, and what is loaded goes.
OPD_TORCH const char *opd_torch_set_page(int fd, bool *same);

// Waits for what runs on CUDA, and tells what kernels found wrong in calls that returned long ago.
OPD_TORCH const char *opd_torch_synchronize(void);

// "gelu version 3, ...": what ran here last.
OPD_TORCH const char *opd_torch_tell_last(void);
OPD_TORCH void opd_torch_count(unsigned *loaded, unsigned *retired);
