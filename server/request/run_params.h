#pragma once

// What requests that run operators read of their parameters, each into the run: its places, its
// plan request. False with an error. First run_read_version(), then tensors, in whatever order a
// request has them; run_default_device() comes behind them.

#include "request/run.h"

// The version that is served, or the one that the options name; and the options of every run.
bool run_read_version(struct run *run, const value *name, struct opd_err *err);
bool run_read_options(struct run *run, struct opd_err *err);

// One tensor, given or for a result: nil adds no place. `what` names it in errors, behind the
// operator's name.
bool run_read_place(struct run *run, const struct place *place, const char *what, const value *id,
                    struct opd_err *err);
bool run_read_inputs(struct run *run, const value *ids, struct opd_err *err);
bool run_read_grads(struct run *run, const value *ids, struct opd_err *err); // of outputs
// Ids for the outputs (PLAN_OUTPUT), or for those gradients of inputs that are wanted
// (PLAN_GRAD_INPUT); and the option `into`.
bool run_read_results(struct run *run, enum plan_operand_kind kind, const value *ids,
                      struct opd_err *err);
// The options `saved` and `saved_into`, of forward.
bool run_read_saved(struct run *run, struct opd_err *err);
// The gradients that came, against the outputs.
bool run_check_grads(struct run *run, const struct tensor_desc *outputs, struct opd_err *err);

// The option `device`, for a run without tensors.
bool run_default_device(struct run *run, struct opd_err *err);

// [dtype, shape] for each input that is present; those that have a tensor already are left alone.
bool run_read_descs(struct run *run, const value *array, struct opd_err *err);
void run_pack_desc(struct buf *out, const struct tensor_desc *d); // the same

// The rest of a backward, with everything read.
enum request_status run_backward(struct run *run, struct opd_err *err);
