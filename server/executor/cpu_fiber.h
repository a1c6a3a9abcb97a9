#pragma once

// Stacks, and switching between them on one operating-system thread.

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

enum { CPU_STACK_SIZE = 128 * 1024 };

// A place to continue at. Filled by cpu_context_make() or by switching away from it.
struct cpu_context {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t uc;
#endif
#if defined(__SANITIZE_THREAD__)
    void *tsan; // the sanitizer's own record of the fiber
#endif
};

// Stacks of one size, each above a page that may not be touched, made on first use.
struct cpu_stacks {
    char *base;
    size_t stride;
    int n, n_made, n_free;
    int *free; // a stack of stacks: the last used first, for the cache
    void **tsan;
};

bool cpu_stacks_init(struct cpu_stacks *s, int n, struct opd_err *err);
void cpu_stacks_finish(struct cpu_stacks *s); // zeroed is fine
int cpu_stacks_take(struct cpu_stacks *s);    // never fails while fewer than n are taken
void cpu_stacks_give(struct cpu_stacks *s, int stack);
void cpu_stacks_reset(struct cpu_stacks *s); // gives all back; what ran on them is abandoned

// entry(arg) runs on that stack when it is first switched to; it must never return.
void cpu_context_make(struct cpu_context *ctx, const struct cpu_stacks *s, int stack,
                      void (*entry)(void *), void *arg);
void cpu_context_switch(struct cpu_context *from, const struct cpu_context *to);
