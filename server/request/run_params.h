#pragma once

// What requests that run operators read of their parameters, each into the run: its places, its
// plan request. False with an error. First run_read_version(), then tensors, in whatever order a
// request has them; run_default_device() comes behind them.

#include "request/run.h"

// The version that is served, or the one that the options name; and the options of every run.
bool run_read_version(struct run *run, const value *name, struct opd_err *err);
bool run_read_options(struct run *run, struct opd_err *err);
// An option that is true or false, which it is where it is absent.
bool run_read_flag(const struct run *run, const char *name, bool *out, struct opd_err *err);

// Ids of tensors, nil where there is none: a part of an array that a request has.
struct run_ids {
    const value *array;
    int first, n;
};
struct run_ids run_ids(const value *array);     // all of it
const value *run_id(struct run_ids ids, int i); // NULL: beyond its end
// False, with an error, for an operator of lists.
bool run_refuse_lists(const struct run *run, const char *what, struct opd_err *err);

// Of a list: as many as the lists that came have; its places come next, beginning with this one.
bool run_check_ids(struct run *run, const struct place *first, const value *ids,
                   struct opd_err *err);
// One tensor, given or for a result.
bool run_read_place(struct run *run, const struct place *place, const value *id,
                    struct opd_err *err);
bool run_read_inputs(struct run *run, struct run_ids ids, struct opd_err *err);
// Outputs and saved tensors of a forward, which backward reads.
bool run_read_kept(struct run *run, struct run_ids outputs, struct run_ids saved,
                   struct opd_err *err);
bool run_read_grads(struct run *run, struct run_ids ids, struct opd_err *err); // of outputs
// run_results.c, where results go. Ids for the outputs (PLAN_OUTPUT), or for those gradients of
// inputs that are wanted (PLAN_GRAD_INPUT); and the option `into`.
bool run_read_results(struct run *run, enum plan_operand_kind kind, const value *ids,
                      struct opd_err *err);
// A result: a new id, or with `into` a tensor that is there.
bool run_read_result(struct run *run, const struct place *place, const value *id,
                     struct opd_err *err);
// Of lists, once all results are read: no two new tensors have one id.
bool run_check_new_ids(struct run *run, struct opd_err *err);
// The options `saved` and `saved_into`, of forward.
bool run_read_saved(struct run *run, struct opd_err *err);
// The gradients that came, against the outputs; and what run_read_kept() has read, against all that
// forward's plan makes.
bool run_check_grads(struct run *run, const struct tensor_desc *outputs, struct opd_err *err);
bool run_check_kept(struct run *run, const struct plan *plan, struct opd_err *err);

// The option `device`, for a run without tensors.
bool run_default_device(struct run *run, struct opd_err *err);

// [dtype, shape] for each input that is present; those that have a tensor already are left alone.
bool run_read_descs(struct run *run, const value *array, struct opd_err *err);
// What a forward's plan makes, the same of each: the keys outputs, and saved with the first
// n_saved.
void run_pack_results(struct buf *out, const struct plan *plan, int n_saved);
void run_pack_views(struct buf *out, const struct op *op); // the key views: of what each output is

// A backward's plan is for those gradients of inputs that have a place, and without those of
// outputs that have none: bits as in struct plan_request.
uint32_t run_wanted(struct run *run);
uint32_t run_absent(struct run *run);
// The rest of a backward, with everything read.
enum request_status run_backward(struct run *run, struct opd_err *err);

// The id of a context to make; made once the run is prepared.
bool run_read_context(struct run *run, const value *id, uint64_t *out, struct opd_err *err);
void run_keep_context(struct run *run, uint64_t id);
// The failure of the operator's last edit, for a client that has not heard of it; NULL: there is
// none.
bool run_has_warning(const struct request *req, const struct opd_operator *o); // the same, untaken
const char *run_take_warning(struct request *req, const struct opd_operator *o);
