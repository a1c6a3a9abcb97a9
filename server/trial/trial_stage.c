// One stage of a trial: runs every case, in a process that may have a sanitizer in it. What it says
// on its standard output, in lines of words with tabs between, is for trial.c: what runs, where its
// tensors are, what went wrong.

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/cpu_block.h"
#include "executor/cpu_confine.h"
#include "executor/cpu_guard.h"
#include "executor/cpu_race.h"
#include "base/mem.h"
#include "kernels/source.h"
#include "trial/trial.h"
#include "trial/trial_cases.h"
#include "trial/trial_results.h"

enum { N_WORKERS = 2, ALIGN = 64 };

// What memory holds before anyone writes it: NaNs, of integers -1; then large numbers. Nothing may
// count on either.
enum { FIRST_FILL = 0xff, SECOND_FILL = 0x7b };

struct tensor_memory {
    uint8_t *bytes; // NULL: absent or empty
    uint64_t size, pad;
    void *allocation;
    uint64_t allocation_size; // of pages; 0: malloc's
    struct tensor_desc desc;
};

struct image {
    void *object;
    int fd;
};

struct stage {
    struct trial_cases cases;
    const char *folder;
    bool guarded; // tensors lie between pages that may not be touched, and each case runs twice
    bool again;   // the second time
    struct trial_results results;
    int n_workers; // in the guarded stage one, so that the blocks come in the same order
    uint64_t random;
    struct image *images;
    struct opd_cpu_worker workers[N_WORKERS];
    void (*poison)(const volatile void *p, size_t size); // of the address sanitizer, or NULL
    void (*unpoison)(const volatile void *p, size_t size);
    struct tensor_memory inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS], saved[OP_MAX_TEMPS],
        grads[OP_MAX_OUTPUTS];
    struct tensor_memory *operands; // of the plan that runs
    int n_launches;
};

static _Noreturn void give_up(const struct opd_err *err)
{
    printf("error\t%s\n", err->msg);
    fflush(stdout);
    _exit(1);
}

// --- tensors

static uint64_t next_random(struct stage *s)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random * 0x2545f4914f6cdd1du;
}

// Floats between -2 and 2; integers are 0 or 1, for they may be indices.
static void fill_random(struct stage *s, struct tensor_memory *m)
{
    size_t each = dtype_size(m->desc.dtype);
    for (uint64_t at = 0; at < m->size; at += each) {
        uint64_t r = next_random(s) >> 8;
        float f = (float)(r & 0xffffff) / 4194304.0f - 2.0f;
        double d = (double)(r & 0xffffff) / 4194304.0 - 2.0;
        uint64_t whole = r >> 20 & 1;
        uint16_t half = (uint16_t)((r & 0x83ff) | (11 + (r >> 16 & 3)) << 10);
        uint16_t bfloat = (uint16_t)((r & 0x807f) | (124 + (r >> 16 & 3)) << 7);
        const void *value = &whole;
        if (m->desc.dtype == OPD_DTYPE_float32)
            value = &f;
        else if (m->desc.dtype == OPD_DTYPE_float64)
            value = &d;
        else if (m->desc.dtype == OPD_DTYPE_float16)
            value = &half;
        else if (m->desc.dtype == OPD_DTYPE_bfloat16)
            value = &bfloat;
        memcpy(m->bytes + at, value, each);
    }
}

static void free_tensor(struct tensor_memory *m)
{
    if (m->allocation_size)
        cpu_guard_drop((uintptr_t)m->allocation, m->allocation_size);
    else
        free(m->allocation);
    *m = (struct tensor_memory){ 0 };
}

static void make_tensor(struct stage *s, struct tensor_memory *m, const struct tensor_desc *desc)
{
    struct opd_err err = { 0 };
    free_tensor(m);
    m->desc = *desc;
    m->size = desc->dtype ? tensor_desc_size(desc) : 0;
    if (m->size == 0)
        return;
    if (s->guarded) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        m->allocation_size = (m->size + page - 1) / page * page;
        m->allocation = (void *)cpu_guard_make(-1, 0, m->allocation_size);
        m->pad = m->allocation_size - m->size;
        m->bytes = (uint8_t *)m->allocation + m->pad;
    } else if (posix_memalign(&m->allocation, ALIGN, m->size) == 0) {
        m->bytes = m->allocation;
    }
    if (!m->allocation) {
        opd_err_set(&err, OPD_E_out_of_memory, "no memory for a tensor of %llu bytes",
                    (unsigned long long)m->size);
        give_up(&err);
    }
    memset(m->bytes, s->again ? SECOND_FILL : FIRST_FILL, m->size);
}

// What an operand is; those that live for this run alone are made.
static void place_operands(struct stage *s, const struct plan *plan)
{
    free(s->operands);
    s->operands = mem_zalloc((size_t)plan->n_operands, sizeof *s->operands);
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        struct tensor_memory *kept = o->kind == PLAN_INPUT         ? &s->inputs[o->index]
                                     : o->kind == PLAN_OUTPUT      ? &s->outputs[o->index]
                                     : o->kind == PLAN_SAVED       ? &s->saved[o->index]
                                     : o->kind == PLAN_GRAD_OUTPUT ? &s->grads[o->index]
                                                                   : NULL;
        bool made = plan->direction == PLAN_FORWARD && o->kind != PLAN_INPUT;
        if (!kept || made)
            make_tensor(s, kept ? kept : &s->operands[i], &o->desc);
        if (o->kind == PLAN_GRAD_OUTPUT && !kept->bytes) {
            make_tensor(s, kept, &o->desc);
            fill_random(s, kept);
        }
        if (kept)
            s->operands[i] = *kept;
        if (s->operands[i].bytes)
            printf("tensor\t%llx\t%llu\t%s\t%s\n",
                   (unsigned long long)(uintptr_t)s->operands[i].bytes,
                   (unsigned long long)s->operands[i].size, dtype_name(o->desc.dtype), o->name);
    }
}

static void drop_operands(struct stage *s, const struct plan *plan)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].kind == PLAN_SCRATCH || plan->operands[i].kind == PLAN_GRAD_INPUT)
            free_tensor(&s->operands[i]);
}

// --- launches

struct part {
    struct stage *stage;
    struct opd_cpu_worker *worker;
    const struct opd_cpu_kernel *kernel;
    const struct opd_cpu_job *job;
    unsigned first;
    bool failed;
    struct opd_err err;
};

// Every other block, so that neighbours meet: the sanitizer takes blocks of one worker for ordered.
static void *run_part(void *arg)
{
    struct part *p = arg;
    void *signal_stack = NULL;
    stack_t before;
    unsigned long long n = (unsigned long long)p->job->grid[0] * p->job->grid[1] * p->job->grid[2];
    if (!cpu_fault_enter(&signal_stack, &before, &p->err))
        p->failed = true;
    if (p->worker->race)
        cpu_race_begin(p->worker->race, p->job->block[0] * p->job->block[1] * p->job->block[2]);
    for (unsigned long long b = p->first; b < n && !p->failed; b += (unsigned)p->stage->n_workers)
        p->failed = !cpu_worker_run(p->worker, p->kernel, p->job, b, b + 1, &p->err);
    cpu_fault_leave(signal_stack, &before);
    return NULL;
}

static _Noreturn void report(struct part *p, const struct image *image,
                             const struct plan_kernel *kernel, const struct backend_tensor *tensors,
                             int n_tensors)
{
    struct backend_param *params = mem_zalloc((size_t)kernel->n_params, sizeof *params);
    for (int i = 0; i < kernel->n_params; i++) {
        params[i] = (struct backend_param){ .offset = kernel->params[i].offset,
                                            .is_tensor = kernel->params[i].is_tensor };
        snprintf(params[i].name, sizeof params[i].name, "%s", kernel->params[i].name);
    }
    struct cpu_fault_scene scene = { .kernel = kernel->expr,
                                     .params = params,
                                     .n_params = kernel->n_params,
                                     .tensors = tensors,
                                     .n_tensors = n_tensors,
                                     .image_fd = image->fd };
    cpu_fault_find_image(&scene, image->object, p->kernel);
    unsetenv("LD_PRELOAD"); // not for what looks up lines
    const struct cpu_fault *fault = &p->worker->fault;
    struct opd_err err = { 0 };
    if (!p->failed)
        cpu_fault_check_pad(&scene, &err);
    else if (fault->signal || fault->is_exit)
        cpu_fault_describe(fault, &scene, &err);
    else
        opd_err_copy(&err, &p->err);
    printf("fault\t%s\n", err.msg);
    fflush(stdout);
    _exit(0);
}

static const struct opd_cpu_kernel *find_kernel(struct stage *s, const struct trial_kernel *k)
{
    struct opd_err err = { 0 };
    struct image *image = &s->images[k->image];
    char *path = mem_printf("%s/%d.so", s->folder, k->image);
    char symbol[64];
    snprintf(symbol, sizeof symbol, k->place ? "opd_cpu_kernel_export_%d" : "opd_cpu_kernel_export",
             k->place);
    if (!image->object) {
        image->fd = open(path, O_RDONLY | O_CLOEXEC);
        image->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    const struct opd_cpu_kernel *kernel = image->object ? dlsym(image->object, symbol) : NULL;
    if (!kernel || kernel->abi != OPD_CPU_ABI) {
        opd_err_set(&err, OPD_E_compile_error, "the image does not load: %s",
                    image->object ? "it lacks a kernel" : dlerror());
        give_up(&err);
    }
    kernel->init(&cpu_runtime);
    free(path);
    return kernel;
}

static int fill_args(struct stage *s, const struct plan_step *step, uint8_t *args,
                     struct backend_tensor *tensors)
{
    int n = 0;
    memcpy(args, step->args, step->args_size);
    for (int i = 0; i < step->n_slots; i++) {
        const struct tensor_memory *m = &s->operands[step->slots[i].operand];
        if (!m->bytes)
            continue;
        tensors[n] = (struct backend_tensor){ .arg_offset = step->slots[i].arg_offset,
                                              .dtype = m->desc.dtype,
                                              .addr = (uintptr_t)m->bytes,
                                              .size = m->size,
                                              .pad = (uint32_t)m->pad };
        memcpy(args + step->slots[i].arg_offset, &tensors[n].addr, sizeof tensors[n].addr);
        cpu_fault_fill_pad(&tensors[n++]);
    }
    return n;
}

// The shared memory that a launch did not ask for is out of bounds too.
static void limit_shared(struct stage *s, uint32_t size)
{
    for (int i = 0; s->poison && i < N_WORKERS; i++) {
        s->unpoison(s->workers[i].shared, OPD_CPU_MAX_SHARED);
        s->poison((char *)s->workers[i].shared + size, OPD_CPU_MAX_SHARED - size);
    }
}

// Whether one failed.
static bool run_parts(struct stage *s, const struct opd_cpu_kernel *kernel,
                      const struct opd_cpu_job *job, struct part *parts)
{
    pthread_t threads[N_WORKERS];
    bool failed = false;
    for (unsigned i = 0; i < N_WORKERS; i++) {
        const struct cpu_stacks *stacks = &s->workers[i].stacks;
        if (s->unpoison) // what a run that was stopped has left there
            s->unpoison(stacks->base, (size_t)stacks->n_made * stacks->stride);
        parts[i] = (struct part){ s, &s->workers[i], kernel, job, i, false, { 0 } };
        s->workers[i].fault = (struct cpu_fault){ 0 };
    }
    for (int i = 0; i < s->n_workers; i++)
        if (pthread_create(&threads[i], NULL, run_part, &parts[i]) != 0)
            abort();
    for (int i = 0; i < s->n_workers; i++) {
        pthread_join(threads[i], NULL);
        failed = failed || parts[i].failed;
    }
    return failed;
}

// Runs what was stopped once more, thread by thread: the compiler knows the lines of that.
static void find_lines(struct stage *s, const struct opd_cpu_kernel *kernel,
                       struct opd_cpu_job *job, struct part *parts)
{
    struct cpu_fault faults[N_WORKERS];
    struct part before[N_WORKERS];
    memcpy(before, parts, sizeof before);
    for (int i = 0; i < N_WORKERS; i++)
        faults[i] = s->workers[i].fault;
    job->plain = 1;
    if ((!faults[0].signal && !faults[1].signal) || run_parts(s, kernel, job, parts))
        return;
    memcpy(parts, before, sizeof before); // this time all went well
    for (int i = 0; i < N_WORKERS; i++)
        s->workers[i].fault = faults[i];
}

static void run_launch(struct stage *s, const struct plan *plan, const struct plan_step *step)
{
    const struct trial_kernel *k = trial_cases_find(&s->cases, plan, step->kernel);
    const struct opd_cpu_kernel *kernel = find_kernel(s, k);
    _Alignas(16) uint8_t args[4096];
    struct backend_tensor tensors[128];
    int n_tensors = fill_args(s, step, args, tensors);
    struct opd_cpu_job job = { .grid = { step->grid[0], step->grid[1], step->grid[2] },
                               .block = { step->block[0], step->block[1], step->block[2] },
                               .args = args };
    printf("kernel\t%s\n", k->expr);
    fflush(stdout);
    limit_shared(s, step->shared_size);
    if (s->guarded)
        memset(s->workers[0].shared, s->again ? SECOND_FILL : FIRST_FILL, step->shared_size);
    struct part parts[N_WORKERS];
    bool failed = run_parts(s, kernel, &job, parts);
    if (failed)
        find_lines(s, kernel, &job, parts);
    struct cpu_fault_scene pads = { .tensors = tensors, .n_tensors = n_tensors, .kernel = "" };
    for (int i = 0; i < N_WORKERS; i++)
        if (parts[i].failed || (!failed && !cpu_fault_check_pad(&pads, NULL)))
            report(&parts[i], &s->images[k->image], &plan->kernels[step->kernel], tensors,
                   n_tensors);
    s->n_launches += !s->again;
}

static void take_results(struct stage *s, const struct plan *plan)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (s->operands[i].bytes)
            trial_results_take(&s->results, plan, i, s->operands[i].bytes, s->operands[i].size);
}

static void run_plan(struct stage *s, const struct trial_case *c, const struct plan *plan)
{
    printf("run\t%s\t%d\t%s\n", dtype_name(c->dtype), c->example,
           plan->direction == PLAN_FORWARD ? "forward" : "backward");
    place_operands(s, plan);
    for (int i = 0; i < plan->n_steps; i++) {
        const struct plan_step *step = &plan->steps[i];
        const struct tensor_memory *zeroed = &s->operands[step->operand];
        if (step->kind == PLAN_STEP_LAUNCH)
            run_launch(s, plan, step);
        else if (zeroed->bytes)
            memset(zeroed->bytes, 0, zeroed->size);
    }
    if (s->guarded)
        take_results(s, plan);
    drop_operands(s, plan);
}

static void run_once(struct stage *s, const struct trial_case *c)
{
    struct plan_request request;
    plan_example(s->cases.op, c->example - 1, c->dtype, &request);
    for (int i = 0; i < s->cases.op->n_inputs; i++) {
        make_tensor(s, &s->inputs[i], &request.inputs[i]);
        if (s->inputs[i].bytes)
            fill_random(s, &s->inputs[i]);
    }
    run_plan(s, c, c->forward);
    if (c->backward)
        run_plan(s, c, c->backward);
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        free_tensor(&s->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        free_tensor(&s->outputs[i]);
        free_tensor(&s->grads[i]);
    }
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        free_tensor(&s->saved[i]);
}

static void run_case(struct stage *s, const struct trial_case *c)
{
    uint64_t random = s->random;
    for (int round = 0; round < (s->guarded ? 2 : 1); round++) {
        s->random = random;
        s->again = round > 0;
        trial_results_begin(&s->results, s->again);
        run_once(s, c);
    }
}

static void find_poison(struct stage *s)
{
    *(void **)&s->poison = dlsym(RTLD_DEFAULT, "__asan_poison_memory_region");
    *(void **)&s->unpoison = dlsym(RTLD_DEFAULT, "__asan_unpoison_memory_region");
}

static bool prepare(struct stage *s, char **argv, struct opd_err *err)
{
    size_t size;
    char *path = mem_printf("%s/source", argv[0]), *text = file_read(path, &size, err);
    struct op *op = text ? op_parse(argv[1], text, size, err) : NULL;
    free(path);
    free(text);
    if (!op || !trial_cases_init(&s->cases, op, argv[3], err))
        return false;
    s->folder = argv[0];
    s->guarded = strcmp(argv[4], "guards") == 0;
    s->n_workers = s->guarded ? 1 : N_WORKERS;
    s->random = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    s->images = mem_zalloc((size_t)s->cases.n_images, sizeof *s->images);
    if (s->guarded) // a sanitizer may start what looks up its lines
        cpu_confine(NULL);
    cpu_fault_watch();
    for (int i = 0; i < N_WORKERS; i++) {
        if (!cpu_worker_init(&s->workers[i], err))
            return false;
        s->workers[i].running = cpu_fault_set_running;
        if (strcmp(argv[4], "races") == 0 && !(s->workers[i].race = cpu_race_new()))
            return opd_err_set(err, OPD_E_unavailable,
                               "the thread sanitizer is not in the process");
    }
    for (int i = 0; i < N_WORKERS; i++)
        printf("stacks\t%llx\t%llu\n", (unsigned long long)(uintptr_t)s->workers[i].stacks.base,
               (unsigned long long)s->workers[i].stacks.n * s->workers[i].stacks.stride);
    if (strcmp(argv[4], "addresses") == 0)
        find_poison(s);
    return true;
}

int trial_stage_main(int argc, char **argv)
{
    static struct stage stage;
    struct opd_err err = { 0 };
    if (argc != 5)
        return 2;
    if (!prepare(&stage, argv, &err))
        give_up(&err);
    printf("cases\t%d\n", stage.cases.n);
    for (int i = 0; i < stage.cases.n; i++) {
        run_case(&stage, &stage.cases.cases[i]);
        printf("done\t%d\n", stage.n_launches);
    }
    printf("end\n");
    fflush(stdout);
    _exit(0); // nothing of the sanitizers is wanted at exit
}
