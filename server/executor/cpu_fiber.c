#include "executor/cpu_fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

enum { STAGGER = 4096 };

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool cpu_stacks_init(struct cpu_stacks *s, int n, struct opd_err *err)
{
    *s = (struct cpu_stacks){ .n = n, .stride = CPU_STACK_SIZE + page_size() };
    void *base = mmap(NULL, (size_t)n * s->stride, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return opd_err_errno(err, OPD_E_out_of_memory, "cpu: no address space for %d stacks", n);
    s->base = base;
    s->free = mem_zalloc((size_t)n, sizeof *s->free);
    s->tsan = mem_zalloc((size_t)n, sizeof *s->tsan);
    return true;
}

void cpu_stacks_finish(struct cpu_stacks *s)
{
#if defined(__SANITIZE_THREAD__)
    for (int i = 0; i < s->n_made; i++)
        __tsan_destroy_fiber(s->tsan[i]);
#endif
    if (s->base)
        munmap(s->base, (size_t)s->n * s->stride);
    free(s->free);
    free(s->tsan);
    *s = (struct cpu_stacks){ 0 };
}

static void make_stack(struct cpu_stacks *s, int stack)
{
    char *low = s->base + (size_t)stack * s->stride;
    // Each guard page costs the kernel a mapping, of which it grants some ten thousand: beyond, do
    // without.
    if (mprotect(low + page_size(), CPU_STACK_SIZE, PROT_READ | PROT_WRITE) != 0 &&
        mprotect(low, s->stride, PROT_READ | PROT_WRITE) != 0)
        abort();
#if defined(__SANITIZE_THREAD__)
    s->tsan[stack] = __tsan_create_fiber(0);
#endif
}

int cpu_stacks_take(struct cpu_stacks *s)
{
    if (s->n_free)
        return s->free[--s->n_free];
    make_stack(s, s->n_made);
    return s->n_made++;
}

void cpu_stacks_give(struct cpu_stacks *s, int stack)
{
    s->free[s->n_free++] = stack;
}

void cpu_stacks_reset(struct cpu_stacks *s)
{
    s->n_free = 0;
    for (int i = s->n_made; i-- > 0;)
        cpu_stacks_give(s, i);
}

#if defined(__x86_64__)

// Saves what the calling convention says a function preserves, and continues with a jump: a return
// would be mispredicted each time, since its call was made on another stack.
__asm__(".text\n"
        ".p2align 4\n"
        ".globl cpu_switch_stacks\n"
        ".hidden cpu_switch_stacks\n"
        ".type cpu_switch_stacks, @function\n"
        "cpu_switch_stacks:\n"
        "    endbr64\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    popq %rcx\n"
        "    notrack jmp *%rcx\n"
        ".size cpu_switch_stacks, . - cpu_switch_stacks\n"
        ".type cpu_begin_stack, @function\n"
        "cpu_begin_stack:\n"
        "    movq %r12, %rdi\n"
        "    call *%r13\n"
        "    ud2\n"
        ".size cpu_begin_stack, . - cpu_begin_stack\n");

void cpu_switch_stacks(void **from_sp, void *to_sp);

static void *begin_address(void)
{
    void *p;
    __asm__("leaq cpu_begin_stack(%%rip), %0" : "=r"(p));
    return p;
}

static void make_context(struct cpu_context *ctx, const struct cpu_stacks *s, int stack,
                         void (*entry)(void *), void *arg)
{
    // Tops differ in their place within a page, or all stacks would compete for the same lines of
    // the cache.
    size_t stagger = (size_t)stack * 7 * 64 % STAGGER;
    uintptr_t *top = (uintptr_t *)(s->base + (size_t)(stack + 1) * s->stride - stagger);
    *--top = 0; // keeps the call in cpu_begin_stack aligned
    *--top = 0;
    *--top = (uintptr_t)begin_address();
    *--top = 0;                // rbp
    *--top = 0;                // rbx
    *--top = (uintptr_t)arg;   // r12
    *--top = (uintptr_t)entry; // r13
    *--top = 0;                // r14
    *--top = 0;                // r15
    ctx->sp = top;
}

static void switch_context(struct cpu_context *from, const struct cpu_context *to)
{
    cpu_switch_stacks(&from->sp, to->sp);
}

#else

static void begin_context(unsigned hi_entry, unsigned lo_entry, unsigned hi_arg, unsigned lo_arg)
{
    void (*entry)(void *) = (void (*)(void *))(((uintptr_t)hi_entry << 16 << 16) | lo_entry);
    entry((void *)(((uintptr_t)hi_arg << 16 << 16) | lo_arg));
    abort();
}

static void make_context(struct cpu_context *ctx, const struct cpu_stacks *s, int stack,
                         void (*entry)(void *), void *arg)
{
    uintptr_t e = (uintptr_t)entry, a = (uintptr_t)arg;
    getcontext(&ctx->uc);
    ctx->uc.uc_stack.ss_sp = s->base + (size_t)stack * s->stride + page_size();
    ctx->uc.uc_stack.ss_size = CPU_STACK_SIZE;
    ctx->uc.uc_link = NULL;
    makecontext(&ctx->uc, (void (*)(void))begin_context, 4, (unsigned)(e >> 16 >> 16), (unsigned)e,
                (unsigned)(a >> 16 >> 16), (unsigned)a);
}

static void switch_context(struct cpu_context *from, const struct cpu_context *to)
{
    swapcontext(&from->uc, &to->uc);
}

#endif

void cpu_context_make(struct cpu_context *ctx, const struct cpu_stacks *s, int stack,
                      void (*entry)(void *), void *arg)
{
#if defined(__SANITIZE_ADDRESS__)
    // Who had it before has left it in the middle of his frames.
    __asan_unpoison_memory_region(s->base + (size_t)stack * s->stride + page_size(),
                                  CPU_STACK_SIZE);
#endif
    make_context(ctx, s, stack, entry, arg);
#if defined(__SANITIZE_THREAD__)
    ctx->tsan = s->tsan[stack];
#endif
}

void cpu_context_switch(struct cpu_context *from, const struct cpu_context *to)
{
#if defined(__SANITIZE_THREAD__)
    from->tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    switch_context(from, to);
}
