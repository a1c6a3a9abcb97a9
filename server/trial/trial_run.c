#include "trial/trial_run.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/cpu_guard.h"
#include "executor/cpu_race.h"
#include "base/mem.h"
#include "trial/trial_gpu.h"

enum { ALIGN = 64 };

// What memory holds before anyone writes it: NaNs, of integers -1; then large numbers. Nothing may
// count on either.
enum { FIRST_FILL = 0xff, SECOND_FILL = 0x7b };

_Noreturn void trial_run_give_up(const struct opd_err *err)
{
    printf("error\t%s\n", err->msg);
    fflush(stdout);
    _exit(1);
}

// --- tensors

static uint64_t next_random(struct trial_run *s)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random * 0x2545f4914f6cdd1du;
}

static uint16_t to_half(float f) // of what is neither subnormal nor too large
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t exponent = bits >> 23 & 255, sign = bits >> 16 & 0x8000;
    return (uint16_t)(exponent <= 112 ? sign
                                      : sign | (exponent - 112) << 10 | (bits >> 13 & 0x3ff));
}

static void put_value(struct trial_tensor *m, uint64_t at, double d)
{
    float f = (float)d;
    int64_t whole = (int64_t)d;
    uint16_t half = to_half(f);
    const void *value = &whole;
    if (m->desc.dtype == OPD_DTYPE_float32)
        value = &f;
    else if (m->desc.dtype == OPD_DTYPE_float64)
        value = &d;
    else if (m->desc.dtype == OPD_DTYPE_float16)
        value = &half;
    else if (m->desc.dtype == OPD_DTYPE_bfloat16)
        value = (const uint8_t *)&f + 2;
    memcpy(m->bytes + at, value, dtype_size(m->desc.dtype));
}

void trial_run_fill(struct trial_run *s, struct trial_tensor *m, double low, double high)
{
    size_t each = dtype_size(m->desc.dtype);
    for (uint64_t at = 0; m->bytes && at < m->size; at += each) {
        uint64_t r = next_random(s) >> 8;
        double d = low + (double)(r & 0xffffff) / 0x1p24 * (high - low);
        put_value(m, at, dtype_is_float(m->desc.dtype) ? d : (double)(r >> 20 & 1));
    }
}

// Integers take each value of their range.
static void fill_range(struct trial_run *s, struct trial_tensor *m, double low, double high)
{
    size_t each = dtype_size(m->desc.dtype);
    if (dtype_is_float(m->desc.dtype)) {
        trial_run_fill(s, m, low, high);
        return;
    }
    for (uint64_t at = 0; m->bytes && at < m->size; at += each)
        put_value(m, at, floor(low + (double)(next_random(s) >> 40) / 0x1p24 * (high - low + 1)));
}

static void fill_list(struct trial_run *s, const struct trial_case *c,
                      const struct plan_request *request, int input, double low, double high)
{
    struct opd_err ignored = { 0 };
    double least, most;
    bool said = plan_example_data(request, c->example - 1, input, &least, &most, NULL, &ignored);
    int n = request->lists ? request->lists->n[input] : 0;
    for (int k = 0; k < n; k++) {
        struct tensor_desc d = *request->lists->of[input][k];
        struct trial_tensor *m = &s->inputs[input + OP_MAX_INPUTS * k];
        d.dtype = request->inputs[input].dtype;
        trial_run_make(s, m, &d);
        if (said)
            fill_range(s, m, least, most);
        else
            trial_run_fill(s, m, low, high);
    }
}

void trial_run_fill_inputs(struct trial_run *s, const struct trial_case *c, double low, double high)
{
    struct plan_request request;
    struct opd_err err = { 0 };
    plan_example(s->cases.op, c->example - 1, c->dtype, &request);
    for (int i = 0; i < s->cases.op->n_inputs; i++) {
        struct trial_tensor *m = &s->inputs[i];
        double least, most, *values;
        if (s->cases.op->inputs[i].list) {
            fill_list(s, c, &request, i, low, high);
            continue;
        }
        trial_run_make(s, m, &request.inputs[i]);
        bool said = plan_example_data(&request, c->example - 1, i, &least, &most, &values, &err);
        if (err.code)
            trial_run_give_up(&err);
        if (!said)
            trial_run_fill(s, m, low, high);
        else if (!values)
            fill_range(s, m, least, most);
        size_t each = dtype_size(m->desc.dtype);
        int64_t n = values && m->bytes ? tensor_desc_numel(&m->desc) : 0;
        for (int64_t k = 0; k < n; k++)
            put_value(m, tensor_desc_offset(&m->desc, (uint64_t)k) * each, values[k]);
        free(values);
    }
}

void trial_tensor_free(struct trial_tensor *m)
{
    if (m->allocation_size)
        cpu_guard_drop((uintptr_t)m->allocation, m->allocation_size);
    else
        free(m->allocation);
    *m = (struct trial_tensor){ 0 };
}

void trial_run_make(struct trial_run *s, struct trial_tensor *m, const struct tensor_desc *desc)
{
    struct opd_err err = { 0 };
    trial_tensor_free(m);
    m->desc = *desc;
    m->size = desc->dtype ? tensor_desc_size(desc) : 0;
    if (m->size == 0)
        return;
    if (s->guarded) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        m->allocation_size = (m->size + page - 1) / page * page;
        m->allocation = (void *)cpu_guard_make(-1, 0, m->allocation_size);
        m->pad = s->at_start ? 0 : m->allocation_size - m->size;
        m->bytes = (uint8_t *)m->allocation + m->pad;
    } else if (posix_memalign(&m->allocation, ALIGN, m->size) == 0) {
        m->bytes = m->allocation;
    }
    if (!m->allocation) {
        opd_err_set(&err, OPD_E_out_of_memory, "no memory for a tensor of %llu bytes",
                    (unsigned long long)m->size);
        trial_run_give_up(&err);
    }
    memset(m->bytes, s->again ? SECOND_FILL : FIRST_FILL, m->size);
}

// What an operand is; those that live for this run alone are made.
static void place_operands(struct trial_run *s, const struct plan *plan)
{
    free(s->operands);
    s->operands = mem_zalloc((size_t)plan->n_operands, sizeof *s->operands);
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        int input = trial_place(o->index, OP_MAX_INPUTS),
            output = trial_place(o->index, OP_MAX_OUTPUTS);
        struct trial_tensor *kept = o->kind == PLAN_INPUT         ? &s->inputs[input]
                                    : o->kind == PLAN_OUTPUT      ? &s->outputs[output]
                                    : o->kind == PLAN_SAVED       ? &s->saved[o->index]
                                    : o->kind == PLAN_GRAD_OUTPUT ? &s->grads[output]
                                                                  : NULL;
        bool made = plan->direction == PLAN_FORWARD && o->kind != PLAN_INPUT;
        if (!kept || made)
            trial_run_make(s, kept ? kept : &s->operands[i], &o->desc);
        if (o->kind == PLAN_GRAD_OUTPUT && !kept->bytes) {
            uint64_t random = s->random; // of each its own, in whichever order a plan has them
            s->random ^= ((uint64_t)o->index + 1) << 32;
            trial_run_make(s, kept, &o->desc);
            trial_run_fill(s, kept, -2, 2);
            s->random = random;
        }
        if (kept)
            s->operands[i] = *kept;
        if (s->operands[i].bytes && !s->quiet)
            printf("tensor\t%llx\t%llu\t%s\t%s\n",
                   (unsigned long long)(uintptr_t)s->operands[i].bytes,
                   (unsigned long long)s->operands[i].size, dtype_name(o->desc.dtype), o->name);
    }
}

static void drop_operands(struct trial_run *s, const struct plan *plan)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].kind == PLAN_SCRATCH || plan->operands[i].kind == PLAN_GRAD_INPUT)
            trial_tensor_free(&s->operands[i]);
}

// --- launches

struct part {
    struct trial_run *stage;
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
    for (unsigned long long k = p->first; k < n && !p->failed; k += (unsigned)p->stage->n_workers) {
        unsigned long long b = p->stage->order >= TRIAL_BLOCKS_BACKWARDS ? n - 1 - k : k;
        p->failed = !cpu_worker_run(p->worker, p->kernel, p->job, b, b + 1, &p->err);
    }
    cpu_fault_leave(signal_stack, &before);
    return NULL;
}

static _Noreturn void report(struct part *p, const struct trial_image *image,
                             const struct plan_kernel *kernel, const struct backend_tensor *tensors,
                             int n_tensors)
{
    struct backend_param *params = mem_zalloc((size_t)kernel->n_params, sizeof *params);
    for (int i = 0; i < kernel->n_params; i++) {
        params[i] = (struct backend_param){ .offset = kernel->params[i].offset,
                                            .size = kernel->params[i].size,
                                            .is_tensor = kernel->params[i].is_tensor };
        snprintf(params[i].name, sizeof params[i].name, "%s", kernel->params[i].name);
    }
    struct cpu_fault_scene scene = { .kernel = kernel->expr,
                                     .launch = { params, kernel->n_params, tensors, n_tensors },
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

// Threads that wait for each other keep their order.
static bool is_backwards;

static void refuse_wait(struct opd_cpu_worker *w)
{
    const unsigned first[3] = { 0 };
    if (is_backwards)
        cpu_runtime.fail(w, "a thread waits", first, first);
}

static unsigned wait_barrier(struct opd_cpu_worker *w, unsigned thread, int value)
{
    refuse_wait(w);
    return cpu_runtime.barrier(w, thread, value);
}

static unsigned long long wait_warp(struct opd_cpu_worker *w, unsigned thread, unsigned mask,
                                    enum opd_cpu_warp_op op, unsigned long long value,
                                    unsigned source)
{
    refuse_wait(w);
    return cpu_runtime.warp(w, thread, mask, op, value, source);
}

static unsigned active_lanes(struct opd_cpu_worker *w, unsigned thread)
{
    refuse_wait(w);
    return cpu_runtime.active(w, thread);
}

// To nowhere: the standard output is for what we say. A fault in its arguments is found all the
// same, and leaves no lock behind.
static int print_nothing(const char *format, va_list args)
{
    return vsnprintf(NULL, 0, format, args);
}

static const struct opd_cpu_kernel *find_kernel(struct trial_run *s, const struct trial_kernel *k)
{
    struct opd_err err = { 0 };
    struct trial_image *image = &s->images[k->image];
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
        trial_run_give_up(&err);
    }
    static struct opd_cpu_runtime runtime;
    runtime = cpu_runtime;
    runtime.barrier = wait_barrier;
    runtime.warp = wait_warp;
    runtime.active = active_lanes;
    runtime.print = print_nothing;
    kernel->init(&runtime);
    free(path);
    return kernel;
}

static int fill_args(struct trial_run *s, const struct plan_step *step, uint8_t *args,
                     struct backend_tensor *tensors)
{
    int n = 0;
    memcpy(args, step->args, step->args_size);
    for (int i = 0; i < step->n_slots; i++) {
        const struct trial_tensor *m = &s->operands[step->slots[i].operand];
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
static void limit_shared(struct trial_run *s, uint32_t size)
{
    for (int i = 0; s->poison && i < TRIAL_WORKERS; i++) {
        s->unpoison(s->workers[i].shared, OPD_CPU_MAX_SHARED);
        s->poison((char *)s->workers[i].shared + size, OPD_CPU_MAX_SHARED - size);
    }
}

// Whether one failed.
static bool run_parts(struct trial_run *s, const struct opd_cpu_kernel *kernel,
                      const struct opd_cpu_job *job, struct part *parts)
{
    pthread_t threads[TRIAL_WORKERS];
    bool failed = false;
    for (unsigned i = 0; i < TRIAL_WORKERS; i++) {
        const struct cpu_stacks *stacks = &s->workers[i].stacks;
        if (s->unpoison) // what a run that was stopped has left there
            s->unpoison(stacks->base, (size_t)stacks->n_made * stacks->stride);
        parts[i] = (struct part){ s, &s->workers[i], kernel, job, i, false, { 0 } };
        s->workers[i].fault = (struct cpu_fault){ 0 };
    }
    if (s->quiet) { // thousands of launches
        run_part(&parts[0]);
        return parts[0].failed;
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
static void find_lines(struct trial_run *s, const struct opd_cpu_kernel *kernel,
                       struct opd_cpu_job *job, struct part *parts)
{
    struct cpu_fault faults[TRIAL_WORKERS];
    struct part before[TRIAL_WORKERS];
    memcpy(before, parts, sizeof before);
    for (int i = 0; i < TRIAL_WORKERS; i++)
        faults[i] = s->workers[i].fault;
    job->plain = 1;
    if ((!faults[0].signal && !faults[1].signal) || run_parts(s, kernel, job, parts))
        return;
    memcpy(parts, before, sizeof before); // this time all went well
    for (int i = 0; i < TRIAL_WORKERS; i++)
        s->workers[i].fault = faults[i];
}

static void say_run(const struct trial_run *s, const struct plan *plan)
{
    printf("run\t%s\t%d\t%s\n", dtype_name(s->which->dtype), s->which->example,
           plan->direction == PLAN_FORWARD ? "forward" : "backward");
}

static void run_launch(struct trial_run *s, const struct plan *plan, const struct plan_step *step)
{
    const struct trial_kernel *k = trial_cases_find(&s->cases, plan, step->kernel);
    const struct opd_cpu_kernel *kernel = find_kernel(s, k);
    _Alignas(16) uint8_t args[4096];
    struct backend_tensor tensors[128];
    int n_tensors = fill_args(s, step, args, tensors);
    struct opd_cpu_job job = { .grid = { step->grid[0], step->grid[1], step->grid[2] },
                               .block = { step->block[0], step->block[1], step->block[2] },
                               .args = args,
                               .plain = s->order == TRIAL_BACKWARDS ? 2 : s->order != TRIAL_ANY };
    if (!s->quiet) {
        printf("kernel\t%s\n", k->expr);
        fflush(stdout);
    }
    limit_shared(s, step->shared_size);
    if (s->guarded)
        memset(s->workers[0].shared, s->again ? SECOND_FILL : FIRST_FILL, step->shared_size);
    struct part parts[TRIAL_WORKERS];
    is_backwards = s->order == TRIAL_BACKWARDS;
    bool failed = run_parts(s, kernel, &job, parts);
    if (failed && is_backwards) {
        s->waited = true;
        return;
    }
    if (failed)
        find_lines(s, kernel, &job, parts);
    struct cpu_fault_scene pads = { .launch = { .tensors = tensors, .n_tensors = n_tensors },
                                    .kernel = "" };
    for (int i = 0; i < TRIAL_WORKERS; i++)
        if (parts[i].failed || (!failed && !cpu_fault_check_pad(&pads, NULL))) {
            say_run(s, plan); // the first that is said, where they are quiet
            printf("kernel\t%s\n", k->expr);
            report(&parts[i], &s->images[k->image], &plan->kernels[step->kernel], tensors,
                   n_tensors);
        }
    s->n_launches += !s->again;
}

static void take_operands(struct trial_run *s, const struct plan *plan, trial_take_fn *take,
                          void *arg)
{
    for (int i = 0; take && i < plan->n_operands; i++)
        if (s->operands[i].bytes)
            take(arg, plan, i, &s->operands[i]);
}

void trial_run_plan(struct trial_run *s, const struct trial_case *c, const struct plan *plan,
                    trial_take_fn *take, void *arg)
{
    s->which = c;
    if (!s->quiet)
        say_run(s, plan);
    place_operands(s, plan);
    s->waited = false;
    if (s->gpu)
        trial_gpu_run(s->gpu, s, plan);
    for (int i = 0; i < plan->n_steps && !s->waited && !s->gpu; i++) {
        const struct plan_step *step = &plan->steps[i];
        const struct trial_tensor *zeroed = &s->operands[step->operand];
        if (step->kind == PLAN_STEP_LAUNCH)
            run_launch(s, plan, step);
        else if (zeroed->bytes)
            memset(zeroed->bytes, 0, zeroed->size);
    }
    s->reported = 0;
    if (plan->report >= 0)
        memcpy(&s->reported, s->operands[plan->report].bytes, sizeof s->reported);
    take_operands(s, plan, take, arg);
    drop_operands(s, plan);
}

void trial_run_clear(struct trial_run *s)
{
    for (int i = 0; i < TRIAL_INPUTS; i++)
        trial_tensor_free(&s->inputs[i]);
    for (int i = 0; i < TRIAL_OUTPUTS; i++)
        trial_tensor_free(&s->outputs[i]);
    for (int i = 0; i < TRIAL_OUTPUTS; i++)
        trial_tensor_free(&s->grads[i]);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        trial_tensor_free(&s->saved[i]);
}
