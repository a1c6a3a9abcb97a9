#pragma once

// Runs the threads of a block, on one thread of the operating system.
//
// An image walks through a block's threads in a plain loop. The first that must wait for others
// keeps the stack that it is on, and the loop goes on behind it on another stack: so kernels
// without barriers pay nothing for those that have them, and threads need no stack before they
// wait.

#include "executor/cpu_fault.h"
#include "executor/cpu_fiber.h"
#include "executor/cpu_image.h"
#include "base/err.h"

struct cpu_race;
struct cpu_thread;
struct cpu_warp;

// One worker of the pool. Used by one operating-system thread at a time.
struct opd_cpu_worker {
    const struct opd_cpu_kernel *kernel; // of the run
    const struct opd_cpu_job *job;
    unsigned long long begin, end;
    void *shared; // OPD_CPU_MAX_SHARED bytes, the same for the worker's life

    struct cpu_race *race; // NULL: nobody looks for races
    // Told which worker's kernel the calling thread runs from here on, NULL: none. NULL: nobody is.
    void (*running)(struct opd_cpu_worker *w);
    struct cpu_stacks stacks;
    struct cpu_thread *threads; // OPD_CPU_MAX_BLOCK of them
    struct cpu_warp *warps;
    unsigned *ready;            // a ring of threads that can go on
    struct cpu_context outside; // whoever called cpu_worker_run()
    struct cpu_context joined;  // the loop over blocks, while it waits for the last thread

    // The block that runs, once one of its threads has waited.
    bool split;
    unsigned n;               // threads
    unsigned n_begun;         // those from here on have not begun
    unsigned n_ended, n_held; // have returned; wait at the barrier
    unsigned n_voted;         // of those that wait there, with a value other than 0
    unsigned ready_head, ready_count;
    unsigned first; // what runs now are the threads from here on: this one alone, or the rest of
                    // the block
    bool alone;
    int stack; // what it runs on

    bool failed;
    char what[512];
    struct cpu_fault fault; // of the run; zero if it ended otherwise
};

bool cpu_worker_init(struct opd_cpu_worker *w, struct opd_err *err);
void cpu_worker_finish(struct opd_cpu_worker *w); // zeroed is fine

// Ends the run, for a kernel that was stopped from below; w->fault tells how.
_Noreturn void cpu_worker_leave(struct opd_cpu_worker *w);

// Runs blocks begin .. end - 1. Error: kernel_fault; those that were left are abandoned.
bool cpu_worker_run(struct opd_cpu_worker *w, const struct opd_cpu_kernel *kernel,
                    const struct opd_cpu_job *job, unsigned long long begin, unsigned long long end,
                    struct opd_err *err);

extern const struct opd_cpu_runtime cpu_runtime;
