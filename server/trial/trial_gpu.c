#include "trial/trial_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "memory/suballoc.h"
#include "trial/trial_run.h"

enum { PROBE_SECONDS = 30, MAX_IMAGE = 64 << 20 };

struct trial_gpu {
    const struct backend_ops *ops;
    struct backend *be;
    struct backend_info info;
    device_addr memory; // for all operands of a plan
    uint64_t size;
    uint64_t mark;
    struct backend_program **programs; // by the number of the kernel; NULL: not loaded yet
    device_addr *places;               // of the plan that runs, by operand; 0: absent
};

bool trial_gpu_is(const char *stage)
{
    return strncmp(stage, "cuda:", 5) == 0;
}

struct trial_gpu *trial_gpu_open(const char *device, struct opd_err *err)
{
    int index;
    struct trial_gpu *g = mem_zalloc(1, sizeof *g);
    g->ops = backend_find(device, &index);
    if (!g->ops)
        opd_err_set(err, OPD_E_invalid_argument, "no device is called '%s'; one is: cuda:0",
                    device);
    if (g->ops && g->ops->open(&g->be, index, err)) {
        g->ops->info(g->be, &g->info);
        return g;
    }
    free(g);
    return NULL;
}

struct probe {
    struct backend_info info;
    struct opd_err err;
};

// The driver's threads and its context would not outlive a fork.
static _Noreturn void probe_it(const char *device, int out)
{
    struct probe p = { .err = { 0 } };
    alarm(PROBE_SECONDS);
    struct trial_gpu *g = trial_gpu_open(device, &p.err);
    if (g)
        p.info = g->info;
    ssize_t n = write(out, &p, sizeof p);
    _exit(n == (ssize_t)sizeof p ? 0 : 1);
}

bool trial_gpu_probe(const char *device, struct backend_info *out, struct opd_err *err)
{
    struct probe p;
    size_t got = 0;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return opd_err_errno(err, OPD_E_internal, "a pipe");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        probe_it(device, fds[1]);
    close(fds[1]);
    for (ssize_t n; got < sizeof p && pid > 0; got += (size_t)n)
        if ((n = read(fds[0], (char *)&p + got, sizeof p - got)) <= 0)
            break;
    close(fds[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    if (got < sizeof p)
        return opd_err_set(err, OPD_E_unavailable, "%s does not answer", device);
    if (p.err.code)
        return opd_err_set(err, p.err.code, "%.900s", p.err.msg);
    *out = p.info;
    return true;
}

// --- memory

static uint64_t round_up(uint64_t size, uint64_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static void make_room(struct trial_gpu *g, uint64_t size)
{
    struct opd_err err = { 0 };
    uint64_t unit = g->info.chunk_granularity ? g->info.chunk_granularity : SUBALLOC_ALIGN;
    int fd;
    if (size <= g->size)
        return;
    if (g->size)
        g->ops->chunk_unmap(g->be, g->memory, g->size);
    g->size = round_up(size, unit);
    if (!g->ops->chunk_new(g->be, g->size, &fd, &err) ||
        !g->ops->chunk_map(g->be, fd, g->size, &g->memory, &err))
        trial_run_give_up(&err);
    close(fd);
}

static void must(bool ok, const struct opd_err *err)
{
    if (!ok)
        trial_run_give_up(err);
}

// Each in a piece of its own, as the daemon lays them.
static void upload(struct trial_gpu *g, const struct trial_run *s, const struct plan *plan)
{
    struct opd_err err = { 0 };
    uint64_t size = SUBALLOC_ALIGN, at = 0;
    for (int i = 0; i < plan->n_operands; i++)
        size += round_up(s->operands[i].size, SUBALLOC_ALIGN);
    make_room(g, size);
    free(g->places);
    g->places = mem_zalloc((size_t)plan->n_operands + 1, sizeof *g->places);
    for (int i = 0; i < plan->n_operands; i++) {
        const struct trial_tensor *m = &s->operands[i];
        if (!m->bytes)
            continue;
        g->places[i] = g->memory + at;
        at += round_up(m->size, SUBALLOC_ALIGN);
        must(g->ops->copy(g->be, g->places[i], (device_addr)(uintptr_t)m->bytes, m->size, &err),
             &err);
    }
}

// False: the device has failed.
static bool wait_for_it(struct trial_gpu *g, struct opd_err *err)
{
    uint64_t passed = 0;
    if (!g->ops->mark(g->be, ++g->mark, err))
        return false;
    while (passed < g->mark) {
        if (!g->ops->poll(g->be, &passed, err))
            return false;
        sched_yield();
    }
    return true;
}

static void download(struct trial_gpu *g, const struct trial_run *s, const struct plan *plan)
{
    struct opd_err err = { 0 };
    for (int i = 0; i < plan->n_operands; i++)
        if (g->places[i])
            must(g->ops->copy(g->be, (device_addr)(uintptr_t)s->operands[i].bytes, g->places[i],
                              s->operands[i].size, &err),
                 &err);
    must(wait_for_it(g, &err), &err);
}

// --- launches

// "N.ptx" has a line with the kernel's symbol before the image.
static struct backend_program *load(struct trial_gpu *g, const struct trial_run *s,
                                    const struct plan_kernel *kernel, long number)
{
    struct opd_err err = { 0 };
    struct backend_program *program = NULL;
    struct backend_param *params = mem_zalloc((size_t)kernel->n_params + 1, sizeof *params);
    struct buf file = { 0 };
    char *path = mem_printf("%s/%ld.ptx", s->folder, number);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    must((fd >= 0 && file_get(fd, MAX_IMAGE, &file) && strchr(buf_str(&file), '\n')) ||
             opd_err_errno(&err, OPD_E_internal, "%s", path),
         &err);
    close(fd);
    char *text = buf_take(&file), *end = strchr(text, '\n');
    *end = '\0';
    for (int i = 0; i < kernel->n_params; i++) {
        params[i] = (struct backend_param){ .offset = kernel->params[i].offset,
                                            .size = kernel->params[i].size,
                                            .is_tensor = kernel->params[i].is_tensor };
        snprintf(params[i].name, sizeof params[i].name, "%s", kernel->params[i].name);
    }
    struct backend_image image = { .bytes = end + 1,
                                   .size = strlen(end + 1) + 1,
                                   .symbol = text,
                                   .params = params,
                                   .n_params = kernel->n_params };
    must(g->ops->load(g->be, &image, &program, &err), &err);
    free(params);
    free(text);
    free(path);
    return program;
}

static int fill_args(const struct trial_gpu *g, const struct trial_run *s,
                     const struct plan_step *step, uint8_t *args, struct backend_tensor *tensors)
{
    int n = 0;
    memcpy(args, step->args, step->args_size);
    for (int i = 0; i < step->n_slots; i++) {
        uint32_t operand = step->slots[i].operand;
        const struct trial_tensor *m = &s->operands[operand];
        device_addr addr = g->places[operand];
        if (!addr)
            continue;
        tensors[n++] = (struct backend_tensor){ .arg_offset = step->slots[i].arg_offset,
                                                .dtype = m->desc.dtype,
                                                .addr = addr,
                                                .size = m->size,
                                                .low = addr,
                                                .high = addr + m->size };
        memcpy(args + step->slots[i].arg_offset, &addr, sizeof addr);
    }
    return n;
}

static _Noreturn void report(const struct plan_kernel *kernel, const struct opd_err *err)
{
    printf("\nfault\t%s in %s\n", err->msg, kernel->expr); // it may have printed half a line
    fflush(stdout);
    _exit(1);
}

static void launch(struct trial_gpu *g, struct trial_run *s, const struct plan *plan,
                   const struct plan_step *step)
{
    const struct plan_kernel *kernel = &plan->kernels[step->kernel];
    long number = trial_cases_find(&s->cases, plan, step->kernel) - s->cases.kernels;
    struct opd_err err = { 0 };
    _Alignas(16) uint8_t args[4096];
    struct backend_tensor tensors[128];
    if (!g->programs)
        g->programs = mem_zalloc((size_t)s->cases.n_kernels, sizeof(struct backend_program *));
    if (!g->programs[number])
        g->programs[number] = load(g, s, kernel, number);
    printf("kernel\t%s\n", kernel->expr);
    fflush(stdout);
    struct backend_launch l = { .program = g->programs[number],
                                .shared_size = step->shared_size,
                                .args = args,
                                .args_size = step->args_size,
                                .tensors = tensors,
                                .n_tensors = fill_args(g, s, step, args, tensors) };
    memcpy(l.grid, step->grid, sizeof l.grid);
    memcpy(l.block, step->block, sizeof l.block);
    if (!g->ops->launch(g->be, &l, &err) || !wait_for_it(g, &err))
        report(kernel, &err);
    s->n_launches += !s->again;
}

void trial_gpu_run(struct trial_gpu *g, struct trial_run *s, const struct plan *plan)
{
    struct opd_err err = { 0 };
    upload(g, s, plan);
    for (int i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        device_addr zeroed = g->places[step->operand];
        if (step->kind == PLAN_STEP_LAUNCH)
            launch(g, s, plan, step);
        else if (zeroed)
            must(g->ops->fill(g->be, zeroed, 0, s->operands[step->operand].size, &err), &err);
    }
    download(g, s, plan);
}
