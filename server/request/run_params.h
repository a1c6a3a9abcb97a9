#pragma once

// What requests that run operators have in common: reading their parameters, and the results of
// forward and backward.

#include "request/run.h"

// Where results go: to new ids, or into tensors that are there.
struct run_results {
    uint64_t ids[OP_MAX_INPUTS]; // 0: not wanted
};

// Ids that one request makes: no two are alike.
struct run_new_ids {
    int n;
    uint64_t ids[REQUEST_MAX_MADE];
};

// The version that is served, or the one that the options name.
struct version *run_find_version(struct request *req, const value *name, const value *options,
                                 struct opd_err *err);
bool run_read_deadline(const value *options, double *out, struct opd_err *err);
bool run_read_debug(const value *options, bool *out, struct opd_err *err);
bool run_same_device(struct run *run, const char *op, const char *name, const struct tensor *t,
                     struct opd_err *err);
bool run_default_device(struct request *req, struct run *run, const value *options,
                        struct opd_err *err);
bool run_read_inputs(struct request *req, struct run *run, const value *ids,
                     struct plan_request *pr, struct opd_err *err);

// With the inputs: no two that the operator changes in place may share memory.
bool run_check_in_place(const struct run *run, struct opd_err *err);

// [dtype, shape] for each input that is present; those that have a desc already are left alone.
bool run_read_descs(const struct op *op, const value *array, struct tensor_desc *descs,
                    struct opd_err *err);
void run_pack_desc(struct buf *out, const struct tensor_desc *d); // the same

bool run_take_id(struct request *req, const value *v, struct run_new_ids *ids, struct opd_err *err);
// n ids, and the option `into`; `optional`: a result may have neither.
bool run_read_results(struct request *req, struct run *run, const value *ids, const value *options,
                      int n, bool optional, struct run_new_ids *taken, struct run_results *out,
                      struct opd_err *err);

// With the plan: do the tensors of `into` fit, and does nothing else of the run lie there?
bool run_check_into(const struct run *run, struct opd_err *err);

// A tensor against what the plan says. `role`: "the output".
bool run_check_desc(const char *what, const struct tensor_desc *got, const struct tensor_desc *want,
                    const char *role, struct opd_err *err);
bool run_read_grads(struct request *req, struct run *run, const struct tensor_desc *outputs,
                    const value *ids, struct plan_request *pr, struct opd_err *err);

// The rest of a backward, with everything read but the gradients that are wanted.
enum request_status run_backward(struct request *req, struct run *run, struct plan_request *pr,
                                 const struct run_results *results, struct opd_err *err);
