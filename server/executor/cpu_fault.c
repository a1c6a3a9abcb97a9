#include "executor/cpu_fault.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "executor/cpu_block.h"
#include "executor/cpu_guard.h"
#include "executor/cpu_line.h"

enum { HANDLER_STACK = 128 * 1024, NULL_ZONE = 1 << 16, PAD_SIZE = 64, PAD_BYTE = 0xff };

static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
enum { N_SIGNALS = sizeof signals / sizeof *signals };

static struct sigaction before[N_SIGNALS];
static _Thread_local struct opd_cpu_worker *running;

void cpu_fault_set_running(struct opd_cpu_worker *w)
{
    running = w;
}

static void read_context(const ucontext_t *uc, struct cpu_fault *f)
{
#if defined(__x86_64__)
    f->pcs[f->n_pcs++] = (uintptr_t)uc->uc_mcontext.gregs[REG_RIP];
    f->is_known = f->signal == SIGSEGV || f->signal == SIGBUS;
    f->is_write = uc->uc_mcontext.gregs[REG_ERR] & 2;
#elif defined(__aarch64__)
    f->pcs[f->n_pcs++] = (uintptr_t)uc->uc_mcontext.pc;
#else
    (void)uc;
#endif
}

static void read_callers(struct cpu_fault *f)
{
    void *pcs[CPU_FAULT_MAX_PCS / 2 - 1];
    int n = backtrace(pcs, CPU_FAULT_MAX_PCS / 2 - 1);
    for (int i = 0; i < n && f->n_pcs < CPU_FAULT_MAX_PCS; i++)
        f->pcs[f->n_pcs++] = (uintptr_t)pcs[i] - 1;
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
    struct opd_cpu_worker *w = running;
    bool sent = info->si_code <= 0 && signal != SIGABRT; // by another process
    if (!w || sent) {                                    // as if this handler were not there
        for (int i = 0; i < N_SIGNALS; i++)
            if (signals[i] == signal)
                sigaction(signal, &before[i], NULL);
        if (sent)
            raise(signal);
        return;
    }
    running = NULL; // a second fault in here ends the process
    w->fault = (struct cpu_fault){ .signal = signal, .code = info->si_code };
    if (signal == SIGSEGV || signal == SIGBUS)
        w->fault.addr = (uintptr_t)info->si_addr;
    read_context(context, &w->fault);
    read_callers(&w->fault);
    cpu_worker_leave(w);
}

// exit() runs this on the thread that called it.
static void on_process_exit(int status, void *arg)
{
    (void)arg;
    struct opd_cpu_worker *w = running;
    if (!w)
        return;
    running = NULL;
    w->fault = (struct cpu_fault){ .is_exit = true, .exit_status = status };
    read_callers(&w->fault);
    cpu_worker_leave(w);
}

void cpu_fault_watch(void)
{
    static bool done;
    if (done)
        return;
    done = true;
    void *pc;
    backtrace(&pc, 1); // loads what it needs, which a handler may not
    struct sigaction action = { .sa_sigaction = on_signal,
                                .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &action, &before[i]);
    on_exit(on_process_exit, NULL);
}

bool cpu_fault_enter(void **out_stack, stack_t *old, struct opd_err *err)
{
    void *p = mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return opd_err_errno(err, OPD_E_out_of_memory, "cpu: no memory for a signal stack");
    *out_stack = p;
    stack_t stack = { .ss_sp = p, .ss_size = HANDLER_STACK };
    sigaltstack(&stack, old);
    return true;
}

void cpu_fault_leave(void *stack, const stack_t *old)
{
    if (!stack)
        return;
    sigaltstack(old, NULL);
    munmap(stack, HANDLER_STACK);
}

// --- the message

void cpu_fault_find_image(struct cpu_fault_scene *scene, void *object, const void *inside)
{
    struct link_map *map;
    Dl_info info;
    if (dlinfo(object, RTLD_DI_LINKMAP, &map) != 0 || !dladdr(inside, &info))
        return;
    const ElfW(Ehdr) *file = info.dli_fbase;
    const ElfW(Phdr) *part = (const void *)((const char *)info.dli_fbase + file->e_phoff);
    scene->image = scene->image_end = (uintptr_t)map->l_addr;
    for (int i = 0; i < file->e_phnum; i++) {
        uintptr_t end = (uintptr_t)(map->l_addr + part[i].p_vaddr + part[i].p_memsz);
        if (part[i].p_type == PT_LOAD && end > scene->image_end)
            scene->image_end = end;
    }
}

static size_t pad_size(const struct backend_tensor *t)
{
    return t->pad < PAD_SIZE ? t->pad : PAD_SIZE;
}

void cpu_fault_fill_pad(const struct backend_tensor *t)
{
    size_t n = pad_size(t);
    memset((void *)(t->addr - n), PAD_BYTE, n);
}

bool cpu_fault_check_pad(const struct cpu_fault_scene *scene, struct opd_err *err)
{
    static const uint8_t pad[PAD_SIZE] = { [0 ... PAD_SIZE - 1] = PAD_BYTE };
    for (int i = 0; i < scene->launch.n_tensors; i++) {
        const struct backend_tensor *t = &scene->launch.tensors[i];
        const uint8_t *end = (const uint8_t *)t->addr, *at = end;
        if (memcmp(end - pad_size(t), pad, pad_size(t)) == 0)
            continue;
        char what[256];
        do
            at--;
        while (*at == PAD_BYTE);
        access_describe(&scene->launch, "write", (uintptr_t)at, t, what, sizeof what);
        return opd_err_set(err, OPD_E_kernel_fault, "%s, seen after the launch of %s", what,
                           scene->kernel);
    }
    return true;
}

static void describe_access(const struct cpu_fault *f, const struct cpu_fault_scene *scene,
                            char *out, size_t size)
{
    const struct backend_tensor *t = access_nearest(&scene->launch, f->addr, CPU_GUARD_ZONE);
    const char *verb = !f->is_known ? "access" : f->is_write ? "write" : "read";
    if (f->signal == SIGSEGV && f->code == SI_KERNEL)
        snprintf(out, size,
                 "an access that is misaligned, or far outside of all memory; tensors are aligned "
                 "to their elements only, test it before reading several at once");
    else if (f->in_stack)
        snprintf(out, size, "stack overflow: a thread of a kernel has %d KiB",
                 CPU_STACK_SIZE / 1024);
    else if (f->addr < NULL_ZONE)
        access_describe_null(&scene->launch, f->is_known ? verb : "use", out, size);
    else if (t)
        access_describe(&scene->launch, verb, f->addr, t, out, size);
    else
        snprintf(out, size, "%s at address 0x%llx, which is in no tensor", verb,
                 (unsigned long long)f->addr);
}

static void describe_what(const struct cpu_fault *f, const struct cpu_fault_scene *scene, char *out,
                          size_t size)
{
    if (f->is_exit)
        snprintf(out, size, "it called exit(%d)", f->exit_status);
    else if (f->signal == SIGSEGV || f->signal == SIGBUS)
        describe_access(f, scene, out, size);
    else if (f->signal == SIGFPE)
        snprintf(out, size, "SIGFPE: integer division by zero, or of the least integer by -1");
    else if (f->signal == SIGILL)
        snprintf(out, size, "SIGILL: an illegal instruction, or code that must not be reached");
    else
        snprintf(out, size, "%s: it called abort()", "SIGABRT");
}

void cpu_fault_describe(const struct cpu_fault *f, const struct cpu_fault_scene *scene,
                        struct opd_err *err)
{
    char what[600], line[200] = "";
    describe_what(f, scene, what, sizeof what);
    for (int i = 0; i < f->n_pcs && !line[0] && scene->image_fd >= 0; i++)
        if (f->pcs[i] >= scene->image && f->pcs[i] < scene->image_end)
            cpu_line_find(scene->image_fd, f->pcs[i] - scene->image, line, sizeof line);
    opd_err_set(err, OPD_E_kernel_fault, "%s, %s%s%s", what, line, line[0] ? " in " : "in ",
                scene->kernel);
}
