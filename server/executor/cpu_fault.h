#pragma once

// What ends a kernel from below: a bad access, a division by zero, abort(), exit(). The thread that
// runs it is taken out of it and goes on where the kernel was called, so that what happened can be
// told in peace; the process should then end, for nobody knows what else the kernel has done.

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "executor/access.h"

struct opd_cpu_worker;

enum { CPU_FAULT_MAX_PCS = 32 };

struct cpu_fault {
    int signal; // 0: none, or exit()
    int code;   // si_code
    uintptr_t addr;
    bool is_write, is_known; // is_known: whether it was a write
    bool is_exit, in_stack;
    int exit_status;
    int n_pcs; // where it was, then who called that
    uintptr_t pcs[CPU_FAULT_MAX_PCS];
};

// For the process: handlers, which leave alone what happens outside of kernels.
void cpu_fault_watch(void);

// For the calling thread: a stack to handle a stack overflow on. `old` is the one before.
bool cpu_fault_enter(void **out_stack, stack_t *old, struct opd_err *err);
void cpu_fault_leave(void *stack, const stack_t *old);

// The kernel that the calling thread runs from here on; NULL: none.
void cpu_fault_set_running(struct opd_cpu_worker *w);

// What the message is made of, besides the fault.
struct cpu_fault_scene {
    const char *kernel;
    struct access_scene launch;
    uintptr_t image, image_end; // in memory
    int image_fd;               // the file; -1: lines are not looked up
};

// Where a loaded object lies in memory; `inside`: an address in it.
void cpu_fault_find_image(struct cpu_fault_scene *scene, void *object, const void *inside);

// The bytes before a tensor, where no page ends: filled before a launch, so that what reads them
// gets NaNs, and looked at after it.
void cpu_fault_fill_pad(const struct backend_tensor *t);
bool cpu_fault_check_pad(const struct cpu_fault_scene *scene, struct opd_err *err);

// "out-of-bounds read of 'x': element 1000 of 1000 (float32), gelu.cu:58"
void cpu_fault_describe(const struct cpu_fault *f, const struct cpu_fault_scene *scene,
                        struct opd_err *err);
