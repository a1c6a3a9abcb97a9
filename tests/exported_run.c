// Runs exported plans on the CPU as a client does that has them in its own process: it has their
// layout, the ABI of the images, and nothing else of the daemon's (the Makefile says what it
// links).
//
// Each line of standard input is "PLAN INPUTS OUTPUTS", three paths: a plan's memfd; the bytes of
// what the caller gives, operand after operand; where to write those of all operands but scratch.
// For each it says "ok VERSION", or what was wrong.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/exported.h"
#include "base/mem.h"
#include "executor/cpu_block.h"

enum { N_WORKERS = 2, ALIGNED = 64, ARGS_SIZE = 4096 };

struct client {
    struct exported x;
    struct opd_cpu_worker workers[N_WORKERS];
    void **memory; // of each operand; NULL: it has no element
    void **objects;
    int *fds; // of the objects: dlopen() knows one by its path, which must not be another's
    const struct opd_cpu_kernel **kernels;
};

static bool is_given(const struct client *c, const struct exported_operand *o)
{
    bool backward = c->x.head->direction == EXPORTED_BACKWARD;
    return o->kind == EXPORTED_INPUT || o->kind == EXPORTED_GRAD_OUTPUT ||
           (backward && (o->kind == EXPORTED_OUTPUT || o->kind == EXPORTED_SAVED));
}

// --- loading

static bool load_kernel(struct client *c, uint32_t i, struct opd_err *err)
{
    const struct exported_kernel *k = &c->x.kernels[i];
    char path[64];
    int fd = c->fds[i] = memfd_create("kernel", MFD_CLOEXEC);
    if (write(fd, c->x.payloads + k->payload, k->payload_size) != (ssize_t)k->payload_size)
        return opd_err_errno(err, OPD_E_out_of_memory, "no room for a kernel");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    c->objects[i] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!c->objects[i])
        return opd_err_set(err, OPD_E_internal, "%s", dlerror());
    const struct opd_cpu_kernel *kernel = dlsym(c->objects[i], c->x.texts + k->symbol);
    if (!kernel || kernel->abi != OPD_CPU_ABI)
        return opd_err_set(err, OPD_E_internal, "no kernel of this ABI");
    kernel->init(&cpu_runtime);
    c->kernels[i] = kernel;
    return true;
}

// --- memory

static void *find_base(const struct client *c, const struct exported_operand *o)
{
    uint32_t kind = o->kind == EXPORTED_OUTPUT ? EXPORTED_INPUT : EXPORTED_GRAD_OUTPUT;
    for (uint32_t i = 0; i < c->x.n_operands; i++)
        if (c->x.operands[i].kind == kind && (int32_t)c->x.operands[i].index == o->view_of)
            return c->memory[i];
    return NULL;
}

static bool make_memory(struct client *c, FILE *inputs, struct opd_err *err)
{
    for (uint32_t i = 0; i < c->x.n_operands; i++) {
        const struct exported_operand *o = &c->x.operands[i];
        if (o->size == 0 || (!is_given(c, o) && o->view_of >= 0))
            continue;
        c->memory[i] = aligned_alloc(ALIGNED, (o->size + ALIGNED - 1) / ALIGNED * ALIGNED);
        memset(c->memory[i], 0xa5, o->size); // nobody may count on zeros
        if (is_given(c, o) && fread(c->memory[i], 1, o->size, inputs) != o->size)
            return opd_err_set(err, OPD_E_internal, "too few bytes for %s", c->x.texts + o->name);
    }
    for (uint32_t i = 0; i < c->x.n_operands; i++)
        if (!is_given(c, &c->x.operands[i]) && c->x.operands[i].view_of >= 0)
            c->memory[i] = find_base(c, &c->x.operands[i]);
    return fgetc(inputs) == EOF || opd_err_set(err, OPD_E_internal, "too many bytes came");
}

// --- running

static bool launch(struct client *c, const struct exported_step *s, struct opd_err *err)
{
    const struct opd_cpu_kernel *k = c->kernels[s->kernel];
    const struct opd_cpu_param *last = k->n_params ? &k->params[k->n_params - 1] : NULL;
    _Alignas(16) uint8_t args[ARGS_SIZE];
    if (s->args_size > sizeof args || (last && last->offset + last->size > s->args_size))
        return opd_err_set(err, OPD_E_internal, "%s: %u bytes of arguments", k->name, s->args_size);
    memcpy(args, c->x.args + s->args, s->args_size);
    for (uint32_t i = s->slots; i < s->slots + s->n_slots; i++)
        memcpy(args + c->x.slots[i].arg_offset, &c->memory[c->x.slots[i].operand], sizeof(void *));
    struct opd_cpu_job job = { .args = args };
    memcpy(job.grid, s->grid, sizeof job.grid);
    memcpy(job.block, s->block, sizeof job.block);
    uint64_t n = (uint64_t)s->grid[0] * s->grid[1] * s->grid[2], half = n / N_WORKERS;
    return (half == 0 || cpu_worker_run(&c->workers[0], k, &job, 0, half, err)) &&
           cpu_worker_run(&c->workers[1], k, &job, half, n, err);
}

static bool run_steps(struct client *c, struct opd_err *err)
{
    for (uint32_t i = 0; i < c->x.n_steps; i++) {
        const struct exported_step *s = &c->x.steps[i];
        if (s->kind == EXPORTED_MATMUL)
            return opd_err_set(err, OPD_E_internal, "a product of matrices for a library");
        if (s->kind == EXPORTED_ZERO && c->memory[s->operand])
            memset(c->memory[s->operand], 0, c->x.operands[s->operand].size);
        if ((s->kind == EXPORTED_LAUNCH || s->kind == EXPORTED_COPY) && !launch(c, s, err))
            return false;
    }
    return true;
}

static bool check_report(const struct client *c, struct opd_err *err)
{
    uint64_t key = 0;
    if (c->x.head->report >= 0)
        memcpy(&key, c->memory[c->x.head->report], sizeof key);
    if (key == 0)
        return true;
    struct buf text = { 0 };
    exported_explain(&c->x, key, &text);
    opd_err_set(err, OPD_E_invalid_argument, "%s", buf_str(&text));
    buf_finish(&text);
    return false;
}

static void write_results(const struct client *c, FILE *outputs)
{
    for (uint32_t i = 0; i < c->x.n_operands; i++)
        if (c->x.operands[i].kind != EXPORTED_SCRATCH && c->memory[i])
            fwrite(c->memory[i], 1, c->x.operands[i].size, outputs);
}

static void free_all(struct client *c)
{
    for (uint32_t i = 0; i < c->x.n_operands; i++)
        if (is_given(c, &c->x.operands[i]) || c->x.operands[i].view_of < 0)
            free(c->memory[i]);
    for (uint32_t i = 0; i < c->x.n_kernels; i++) {
        if (c->objects[i])
            dlclose(c->objects[i]);
        if (c->fds[i] > 0)
            close(c->fds[i]);
    }
    free(c->memory);
    free(c->objects);
    free(c->fds);
    free(c->kernels);
    exported_close(&c->x);
}

static bool run_plan(struct client *c, const char *plan, FILE *inputs, FILE *outputs,
                     struct opd_err *err)
{
    int fd = open(plan, O_RDONLY | O_CLOEXEC);
    bool ok = exported_open(&c->x, fd, err);
    close(fd);
    if (!ok)
        return false;
    c->memory = mem_zalloc(c->x.n_operands + 1, sizeof *c->memory);
    c->objects = mem_zalloc(c->x.n_kernels + 1, sizeof *c->objects);
    c->fds = mem_zalloc(c->x.n_kernels + 1, sizeof *c->fds);
    c->kernels = mem_zalloc(c->x.n_kernels + 1, sizeof *c->kernels);
    for (uint32_t i = 0; i < c->x.n_kernels && ok; i++)
        ok = load_kernel(c, i, err);
    ok = ok && make_memory(c, inputs, err) && run_steps(c, err) && check_report(c, err);
    if (ok)
        write_results(c, outputs);
    return ok;
}

int main(void)
{
    struct client c = { 0 };
    struct opd_err err = { 0 };
    char plan[256], in[256], out[256];
    for (int i = 0; i < N_WORKERS; i++)
        if (!cpu_worker_init(&c.workers[i], &err))
            return 1;
    while (scanf("%255s %255s %255s", plan, in, out) == 3) {
        FILE *inputs = fopen(in, "rb"), *outputs = fopen(out, "wb");
        if (!inputs || !outputs)
            return 1;
        if (run_plan(&c, plan, inputs, outputs, &err))
            printf("ok %u\n", c.x.head->version);
        else
            printf("%s\n", err.msg);
        fclose(inputs);
        fclose(outputs);
        fflush(stdout);
        opd_err_clear(&err);
        free_all(&c);
    }
    for (int i = 0; i < N_WORKERS; i++)
        cpu_worker_finish(&c.workers[i]);
    return 0;
}
