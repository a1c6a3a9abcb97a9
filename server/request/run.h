#pragma once

// One run of an operator, forward or backward, on its way from a request to a command. Three steps:
// its parameters are read (run_params.h), which fills its list of places; run_prepare() works out
// its plan, sees to it that the kernels are loaded, makes what it makes, and the command of all its
// steps; run_submit() sends that.

#include "request/request.h"

enum place_how {
    PLACE_GIVEN, // a tensor that is there, or memory that a context keeps
    PLACE_INTO,  // a tensor that is there takes a result
    PLACE_MADE,  // memory that this run makes: a new tensor's, a context's, or scratch
};

// Where an operand is in this run. Operands are named by kind and index, as the plan does; there
// may be places that the plan does not use.
struct place {
    enum plan_operand_kind kind;
    int index;
    enum place_how how;
    uint64_t id;             // of a result that the client gets; 0: of none
    struct tensor *tensor;   // borrowed; NULL: only memory, or a result that is not made yet
    struct storage *storage; // borrowed; MADE: a reference, NULL until it is made
    uint64_t offset, size;   // bytes
};

// Inputs and their gradients, outputs and theirs, saved tensors and scratch, zeros that stand for a
// gradient.
enum {
    RUN_FEW_PLACES = 2 * OP_MAX_INPUTS + 3 * OP_MAX_OUTPUTS + OP_MAX_TEMPS,
    // With lists.
    RUN_MAX_PLACES = RUN_FEW_PLACES + (OP_MAX_INPUTS + OP_MAX_OUTPUTS) * PLAN_MAX_MEMBERS,
};

// In the memory of the request's function.
struct run {
    struct request *req;
    const value *options; // of the request; may be nil
    struct version *version;
    struct device *device; // NULL: no tensor has been read yet
    double deadline;       // 0: the operator's
    bool alone;            // and each of its launches waited for
    bool fixed;            // a version was asked for: it follows no edits
    bool plain;            // of a prepared call: its reply has nothing but the version
    bool prepared; // `bound` and `request` are those of a prepared call, and stay as they are
    struct bound_plan *bound;
    struct bound_plan *lasting; // bound; of a first run that is checked what runs from then on
    struct command *command;
    struct plan_request *request; // `own`, or a prepared call's
    // Of lists: what `own` has of them; where the first place of each is. In the request's room, or
    // a context's; NULL: none have been read.
    const struct plan_lists *lists;
    int *first; // run_first()
    int n_places, places_capacity;
    struct place *places; // `few`, or where there are many in the request's room
    // From here on what is not used is not initialised: inputs and attributes beyond the
    // operator's.
    struct place few[RUN_FEW_PLACES];
    struct plan_request own;
};

void run_init(struct run *run, struct request *req, const value *options);
// Sets the version, and all inputs to absent.
void run_set_version(struct run *run, struct version *version);

// What an operand is, or is the gradient of; NULL: it is neither input nor output.
const struct op_tensor *run_tensor(const struct run *run, enum plan_operand_kind kind, int index);
// Where the first place of a list of inputs, outputs or their gradients is kept; -1: there is none.
int *run_first(struct run *run, enum plan_operand_kind kind, int index);
void run_take_lists(struct run *run, const struct plan_lists *lists);

void run_reserve(struct run *run, int n); // so many more places will come
struct place *run_add(struct run *run, const struct place *place);
struct place *run_find(struct run *run, enum plan_operand_kind kind, int index); // NULL: none
struct place *run_place(struct run *run, uint32_t operand); // of the plan; NULL: absent

// A tensor against what the plan says; `role` is what that stands for: "the output".
bool run_check_desc(const struct run *run, const struct place *p, const struct tensor_desc *want,
                    const char *role, struct opd_err *err);

bool run_has(const struct run *run, enum place_how how);            // a place that is so
bool run_is_in_place(const struct run *run, const struct place *p); // changed by this run

// False, with an error: places that may not lie in one memory do (run_sharing.c).
bool run_check_sharing(struct run *run, struct opd_err *err);

// What a place is called in errors: "params[3]": the operator's text, or `buf`, of RUN_NAME_SIZE
// bytes.
enum { RUN_NAME_SIZE = OP_MAX_NAME + 16 };
const char *run_place_name(const struct run *run, const struct place *p, char *buf);
// With the operator: "gelu: grad_output", "sgd_steps: params[3]". Returns out.
enum { RUN_LABEL_SIZE = 2 * OP_MAX_NAME + 48 };
const char *run_label(const struct run *run, const struct place *p, char out[RUN_LABEL_SIZE]);
// Sees to the kernels of run->bound. ANSWERED: every one is loaded. WAIT: they are on their way; or
// ERROR.
enum request_status run_load(struct run *run, struct opd_err *err);
bool run_is_alone(const struct run *run);    // asked for, or for all by --debug
void run_fill_plan_request(struct run *run); // what depends on the device, and on that

// The plan of the forward before a backward: what it makes, every saved tensor included. NULL with
// an error.
const struct plan *run_plan_forward(struct run *run, struct opd_err *err);

// All is read. ANSWERED: every kernel is loaded, results have their tensors, what is written has
// a new version (so that backward notices), and the command is there. WAIT: nothing is held, or
// ERROR.
enum request_status run_prepare(struct run *run, struct opd_err *err);

// The steps of a run; the report of what its kernels have found wrong, which is read back last.
void run_append(struct run *run, struct command *c);
void run_append_report(struct run *run, struct command *c);

// The command of a run whose plan is bound and whose memory is made. NULL with an error where it
// has more steps than a command can carry.
struct command *run_command(struct run *run, struct opd_err *err);

// False, with an error, for more steps than a request may have.
bool run_check_steps(const struct run *run, uint64_t n_steps, struct opd_err *err);

// Sends the command, or answers at once where it does nothing; lets go of what the run has made,
// which its tensors hold by now.
enum request_status run_submit(struct run *run);
// Or does not run it: it becomes a call of the graph.
void run_record(struct run *run, struct graph *g);
