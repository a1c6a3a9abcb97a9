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
#include "base/dtype.h"

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

static const struct backend_param *param_of(const struct cpu_fault_scene *scene, uint32_t offset)
{
    for (int i = 0; i < scene->n_params; i++)
        if (offset >= scene->params[i].offset &&
            offset - scene->params[i].offset < scene->params[i].size)
            return &scene->params[i];
    return NULL;
}

// The tensor that the kernel most likely meant: that which is nearest.
static const struct backend_tensor *find_tensor(const struct cpu_fault_scene *scene, uintptr_t addr)
{
    const struct backend_tensor *best = NULL;
    uintptr_t least = CPU_GUARD_ZONE + 1;
    for (int i = 0; i < scene->n_tensors; i++) {
        const struct backend_tensor *t = &scene->tensors[i];
        uintptr_t end = t->addr + t->size;
        uintptr_t away = addr < t->addr ? t->addr - addr : addr >= end ? addr - end : 0;
        if (away < least) {
            least = away;
            best = t;
        }
    }
    return best;
}

static void describe_outside(const char *verb, uintptr_t addr, const struct cpu_fault_scene *scene,
                             const struct backend_tensor *t, char *out, size_t size)
{
    const struct backend_param *p = param_of(scene, t->arg_offset);
    long long each = (long long)dtype_size((enum opd_dtype)t->dtype);
    long long away = (long long)(addr - t->addr);
    long long element = each ? (away - (away < 0 ? each - 1 : 0)) / each : away;
    bool named = p && p->name[0];
    snprintf(out, size, "out-of-bounds %s of %s'%s': element %lld of %lld (%s)", verb,
             named && !p->is_tensor ? "a tensor in " : "", named ? p->name : "a tensor", element,
             (long long)t->size / (each ? each : 1), dtype_name((enum opd_dtype)t->dtype));
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
    for (int i = 0; i < scene->n_tensors; i++) {
        const struct backend_tensor *t = &scene->tensors[i];
        const uint8_t *end = (const uint8_t *)t->addr, *at = end;
        if (memcmp(end - pad_size(t), pad, pad_size(t)) == 0)
            continue;
        char what[256];
        do
            at--;
        while (*at == PAD_BYTE);
        describe_outside("write", (uintptr_t)at, scene, t, what, sizeof what);
        return opd_err_set(err, OPD_E_kernel_fault, "%s, seen after the launch of %s", what,
                           scene->kernel);
    }
    return true;
}

// Null are the tensors that are absent, empty or not wanted.
static void describe_null(const struct cpu_fault *f, const struct cpu_fault_scene *scene, char *out,
                          size_t size)
{
    const char *verb = !f->is_known ? "use" : f->is_write ? "write" : "read";
    int n = 0, at = snprintf(out, size, "%s through a null pointer: ", verb);
    for (int i = 0; i < scene->n_params && at >= 0 && (size_t)at < size; i++) {
        const struct backend_param *p = &scene->params[i];
        bool given = !p->is_tensor;
        for (int t = 0; t < scene->n_tensors; t++)
            given = given || scene->tensors[t].arg_offset == p->offset;
        if (!given)
            at += snprintf(out + at, size - (size_t)at, "%s'%s'", n++ ? " or " : "", p->name);
    }
    if (at < 0 || (size_t)at >= size)
        return;
    snprintf(out + at, size - (size_t)at, "%s",
             n == 1  ? " is null here (absent, empty or not wanted): test it first"
             : n > 1 ? " (null here: absent, empty or not wanted); test them first"
                     : "no tensor of this launch is null, the kernel has made it itself");
}

static void describe_access(const struct cpu_fault *f, const struct cpu_fault_scene *scene,
                            char *out, size_t size)
{
    const struct backend_tensor *t = find_tensor(scene, f->addr);
    const char *verb = !f->is_known ? "access" : f->is_write ? "write" : "read";
    if (f->signal == SIGSEGV && f->code == SI_KERNEL)
        snprintf(out, size,
                 "an access that is misaligned, or far outside of all memory; tensors are aligned "
                 "to their elements only, test it before reading several at once");
    else if (f->in_stack)
        snprintf(out, size, "stack overflow: a thread of a kernel has %d KiB",
                 CPU_STACK_SIZE / 1024);
    else if (f->addr < NULL_ZONE)
        describe_null(f, scene, out, size);
    else if (t)
        describe_outside(verb, f->addr, scene, t, out, size);
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
