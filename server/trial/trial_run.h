#pragma once

// Runs the plans of a trial's cases in this process, on the CPU: the tensors, their random
// contents, the launches. What it says on standard output, in lines of words with tabs between, is
// for trial_findings.c: what runs, where its tensors are, what went wrong.

#include "executor/cpu_block.h"
#include "trial/trial_cases.h"

enum { TRIAL_WORKERS = 2 };

struct trial_tensor {
    uint8_t *bytes; // NULL: absent or empty
    uint64_t size, pad;
    void *allocation;
    uint64_t allocation_size; // of pages; 0: malloc's
    struct tensor_desc desc;
};

struct trial_gpu;

struct trial_image {
    void *object;
    int fd;
};

// How blocks, and the threads of a block, follow each other; the last two of images that are
// compiled for it (compile_input.backwards).
enum trial_order { TRIAL_ANY, TRIAL_ONE_BY_ONE, TRIAL_BLOCKS_BACKWARDS, TRIAL_BACKWARDS };

// The tensors of lists stand behind all that are first in theirs, or single.
enum {
    TRIAL_INPUTS = OP_MAX_INPUTS * EXAMPLE_MAX_MEMBERS,
    TRIAL_OUTPUTS = OP_MAX_OUTPUTS * EXAMPLE_MAX_MEMBERS,
};
static inline int trial_place(int operand_index, int of_all)
{
    return plan_index(operand_index) + of_all * plan_member(operand_index);
}

struct trial_run {
    struct trial_cases cases;
    const char *folder;
    struct trial_gpu *gpu; // that runs the plans; NULL: the CPU does
    bool guarded; // tensors lie between pages that may not be touched, and end at one
    bool at_start; // or begin at one
    bool again;   // memory holds something else before it is written
    bool quiet;   // says nothing but what goes wrong
    enum trial_order order;
    bool waited; // TRIAL_BACKWARDS: a thread had to wait for others, and the run was left off
    int n_workers;
    uint64_t random;
    uint64_t reported; // by the last plan's kernels: for report_explain(); 0: nothing
    struct trial_image *images;
    struct opd_cpu_worker workers[TRIAL_WORKERS];
    void (*poison)(const volatile void *p, size_t size); // of the address sanitizer, or NULL
    void (*unpoison)(const volatile void *p, size_t size);
    // Of lists: the first tensor of each input, then the second of each, and so on.
    struct trial_tensor inputs[TRIAL_INPUTS], outputs[TRIAL_OUTPUTS], saved[OP_MAX_TEMPS],
        grads[TRIAL_OUTPUTS];
    struct trial_tensor *operands;  // of the plan that runs
    const struct trial_case *which; // that it is of
    int n_launches;
};

// Ends the process: the trial itself cannot go on.
_Noreturn void trial_run_give_up(const struct opd_err *err);

// Floats from `low` to `high`; integers are 0 or 1, for they may be indices.
void trial_run_fill(struct trial_run *s, struct trial_tensor *m, double low, double high);
// Makes the inputs of a case, and fills them as its example says; else from `low` to `high`.
void trial_run_fill_inputs(struct trial_run *s, const struct trial_case *c, double low,
                           double high);
void trial_run_make(struct trial_run *s, struct trial_tensor *m, const struct tensor_desc *desc);
void trial_tensor_free(struct trial_tensor *m); // zeroed is fine

// Runs a plan on s->inputs. Forward makes s->outputs and s->saved anew; backward takes s->grads,
// and random ones where there are none. `take` gets each operand that is there when all has run,
// and may be NULL. A kernel that faults ends the process, and is told.
typedef void trial_take_fn(void *arg, const struct plan *plan, int operand,
                           const struct trial_tensor *m);
void trial_run_plan(struct trial_run *s, const struct trial_case *c, const struct plan *plan,
                    trial_take_fn *take, void *arg);
void trial_run_clear(struct trial_run *s); // inputs, outputs, what was saved
