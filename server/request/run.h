#pragma once

// One run of an operator, forward or backward, on its way from a request to a command: its plan
// with every kernel loaded, memory for what it makes, and the command that holds all of its steps.

#include "request/request.h"

// What the operands of a plan are in this run.
struct run {
    struct version *version;
    struct device *device;
    struct bound_plan *bound;
    struct tensor *inputs[OP_MAX_INPUTS]; // borrowed
    struct tensor *outputs[OP_MAX_OUTPUTS];
    struct tensor *grad_outputs[OP_MAX_OUTPUTS];
    struct storage *saved[OP_MAX_TEMPS]; // the context's, or the client's; forward: of saved_into
    uint64_t saved_offset[OP_MAX_TEMPS];
    struct tensor *into[OP_MAX_INPUTS]; // results that go into a tensor that is there: the outputs,
                                        // or the gradients of inputs; borrowed
    struct tensor *saved_into[OP_MAX_TEMPS]; // forward: tensors that are there for saved ones
    struct storage **made; // for each operand that this run makes: a reference; else NULL
    double deadline;
    bool alone; // and each of its launches waited for
};

// The plan, and its kernels. ANSWERED: all are loaded. WAIT: they are on their way. ERROR: err.
enum request_status run_bind(struct request *req, struct run *run, struct plan_request *pr,
                             struct opd_err *err);

// Memory for what the run makes: ANSWERED, WAIT (nothing is held) or ERROR.
enum request_status run_allocate(struct request *req, struct run *run, struct opd_err *err);

// The tensor of the i-th operand, a result: new, in the memory that was made for it or in that of
// which it is a view, or one of `into`. It has one reference, the caller's, and its id.
struct tensor *run_make_result(struct request *req, const struct run *run, int i, uint64_t id);

// The command. NULL with an error, and nothing is held any more, where the plan has more steps than
// a command can carry.
struct command *run_command(struct broker *b, struct run *run, struct opd_err *err);

// In-place arguments and `into` are written: whoever kept them for backward must know.
void run_bump_versions(const struct run *run);

// Sends the command, or answers at once where it does nothing; lets go of what the run has made,
// which its tensors hold by now.
enum request_status run_submit(struct request *req, struct run *run, struct command *c);
