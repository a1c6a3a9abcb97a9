#pragma once

// Calls that Python makes without torch's dispatcher, for which that would do nothing but find our
// kernel: of plain tensors, in a thread that has no mode, transform or autocast of torch at work.
// It takes as long as all else that is done for a small call.
//
// What must be known for that is of no stable interface of torch: where a tensor of Python's holds
// its tensor, and where that keeps its dispatch keys. Python finds it out by looking for values
// that it knows (opd/torch/_direct.py); where it does not find it, all calls go by torch.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "torch/loaded.h"

// False: this torch has not all that is needed. of_names: the key of tensors with named dimensions,
// which no plain one has, and which a torch that knows it leaves out of every backward.
bool direct_set(size_t tensor_at, size_t keys_at, uint64_t of_names);
// The dispatch keys of tensors that are plain.
void direct_add_plain(uint64_t keys);

// The calling thread has no mode, transform or autocast of torch at work.
bool direct_is_plain(void);
// It does what autograd is to follow.
bool direct_is_grad_enabled(void);

// A call of these objects of Python's, NULL where there is none, and of the words of its key that
// come behind them, where direct_is_plain(). `out`: as run_plan() fills it. LOADED_NO with an
// error: the call has failed.
enum loaded_answer direct_call(struct torch_op *op, void *const *objects, const uint64_t *words,
                               unsigned n_words, uint64_t *out, struct opd_err *err);
