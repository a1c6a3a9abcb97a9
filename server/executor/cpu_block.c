#include "executor/cpu_block.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "executor/cpu_race.h"
#include "base/mem.h"

enum thread_state { RUNS, AT_BARRIER, IN_WARP, ENDED };

struct cpu_thread {
    struct cpu_context context;
    enum thread_state state;
    int stack;
    enum opd_cpu_warp_op op;
    unsigned mask, source;
    unsigned long long value, result; // of a warp operation
};

struct cpu_warp {
    unsigned ended, waiting; // bit l: lane l
};

enum { WARP = 32, N_STACKS = OPD_CPU_MAX_BLOCK + 2, MAX_WARPS = OPD_CPU_MAX_BLOCK / WARP };

bool cpu_worker_init(struct opd_cpu_worker *w, struct opd_err *err)
{
    *w = (struct opd_cpu_worker){ 0 };
    void *shared = mmap(NULL, OPD_CPU_MAX_SHARED, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED)
        return opd_err_errno(err, OPD_E_out_of_memory,
                             "cpu: no memory for a block's shared memory");
    w->shared = shared;
    w->threads = mem_zalloc(OPD_CPU_MAX_BLOCK, sizeof *w->threads);
    w->warps = mem_zalloc(MAX_WARPS, sizeof *w->warps);
    w->ready = mem_zalloc(OPD_CPU_MAX_BLOCK, sizeof *w->ready);
    return cpu_stacks_init(&w->stacks, N_STACKS, err);
}

void cpu_worker_finish(struct opd_cpu_worker *w)
{
    cpu_stacks_finish(&w->stacks);
    cpu_race_free(w->race);
    if (w->shared)
        munmap(w->shared, OPD_CPU_MAX_SHARED);
    free(w->threads);
    free(w->warps);
    free(w->ready);
    *w = (struct opd_cpu_worker){ 0 };
}

// The run ends here, for whatever thread it is that runs.
static _Noreturn void abandon(struct opd_cpu_worker *w)
{
    struct cpu_context lost;
    w->failed = true;
    if (w->race)
        cpu_race_abandon(w->race);
    cpu_context_switch(&lost, &w->outside);
    abort();
}

_Noreturn void cpu_worker_leave(struct opd_cpu_worker *w)
{
    uintptr_t low = (uintptr_t)w->stacks.base;
    w->fault.in_stack = w->fault.addr - low < (uintptr_t)w->stacks.n * w->stacks.stride;
    snprintf(w->what, sizeof w->what, "%s was stopped", w->kernel->name);
    abandon(w);
}

static void push_ready(struct opd_cpu_worker *w, unsigned thread)
{
    w->threads[thread].state = RUNS;
    w->ready[(w->ready_head + w->ready_count++) % OPD_CPU_MAX_BLOCK] = thread;
}

static unsigned pop_ready(struct opd_cpu_worker *w)
{
    unsigned thread = w->ready[w->ready_head];
    w->ready_head = (w->ready_head + 1) % OPD_CPU_MAX_BLOCK;
    w->ready_count--;
    return thread;
}

static void split_block(struct opd_cpu_worker *w)
{
    const unsigned *b = w->job->block;
    w->split = true;
    w->n = b[0] * b[1] * b[2];
    w->n_begun = w->n_ended = w->n_held = w->n_voted = 0;
    w->ready_head = w->ready_count = 0;
    w->first = 0;
    w->alone = false;
    for (unsigned i = 0; i * WARP < w->n; i++) {
        unsigned lanes = w->n - i * WARP;
        w->warps[i] = (struct cpu_warp){ .ended = lanes >= WARP ? 0 : ~0u << lanes };
    }
}

// What a lane gets, from the values of those in `lanes`.
static unsigned long long exchange(const struct cpu_thread *warp, unsigned lane, unsigned lanes)
{
    const struct cpu_thread *self = &warp[lane];
    unsigned long long result = 0;
    if (self->op == OPD_CPU_SHUFFLE)
        return lanes >> self->source & 1 ? warp[self->source].value : self->value;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        bool bit = self->op == OPD_CPU_MATCH ? warp[l].value == self->value : warp[l].value != 0;
        result |= (unsigned long long)bit << l;
    }
    return result;
}

// Lets the lanes of a mask go on if all have come or ended; those that wait with another mask hold
// it up.
static bool release_lanes(struct opd_cpu_worker *w, unsigned warp, unsigned mask, unsigned running)
{
    struct cpu_thread *lane = &w->threads[warp * WARP];
    unsigned lanes = mask & w->warps[warp].waiting;
    if (mask & ~(w->warps[warp].waiting | w->warps[warp].ended))
        return false;
    for (unsigned rest = lanes; rest; rest &= rest - 1)
        if (lane[__builtin_ctz(rest)].mask != mask)
            return false;
    w->warps[warp].waiting &= ~lanes;
    if (w->race)
        cpu_race_meet(w->race, warp, lanes);
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        lane[l].result = lane[l].op == OPD_CPU_SYNC ? 0 : exchange(lane, l, lanes);
        if (warp * WARP + l != running)
            push_ready(w, warp * WARP + l);
    }
    return true;
}

static bool release_barrier(struct opd_cpu_worker *w, unsigned running)
{
    if (!w->n_held || w->n_held + w->n_ended < w->n)
        return false;
    unsigned result = w->n_voted | w->n_held << 16;
    w->n_held = w->n_voted = 0;
    if (w->race)
        cpu_race_barrier(w->race);
    for (unsigned i = 0; i < w->n; i++) {
        if (w->threads[i].state != AT_BARRIER)
            continue;
        w->threads[i].result = result;
        w->threads[i].state = RUNS;
        if (i != running)
            push_ready(w, i);
    }
    return true;
}

static void end_thread(struct opd_cpu_worker *w, unsigned thread)
{
    struct cpu_warp *warp = &w->warps[thread / WARP];
    w->threads[thread].state = ENDED;
    w->n_ended++;
    warp->ended |= 1u << thread % WARP;
    for (unsigned rest = warp->waiting; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        if (warp->waiting >> l & 1)
            release_lanes(w, thread / WARP, w->threads[thread / WARP * WARP + l].mask, UINT_MAX);
    }
}

// The loop has come to `thread`: those before it have returned, those behind it are for others to
// begin.
static void arrive(struct opd_cpu_worker *w, unsigned thread)
{
    if (!w->split)
        split_block(w);
    if (!w->alone) {
        w->n_begun = thread + 1;
        for (unsigned i = w->first; i < thread; i++)
            end_thread(w, i);
    }
    w->first = thread;
    w->alone = true;
    w->threads[thread].state = RUNS;
}

// The loop, or the thread that it was left to, has returned.
static void depart(struct opd_cpu_worker *w)
{
    unsigned end = w->alone ? w->first + 1 : w->n;
    if (!w->alone)
        w->n_begun = w->n;
    for (unsigned i = w->first; i < end; i++)
        end_thread(w, i);
    release_barrier(w, UINT_MAX);
}

static void begin_rest(struct opd_cpu_worker *w)
{
    w->first = w->n_begun;
    w->alone = false;
    w->kernel->start(w->job, w->first);
    depart(w);
}

static bool may_begin(const struct opd_cpu_worker *w)
{
    return !w->ready_count && w->n_begun < w->n;
}

static _Noreturn void report_deadlock(struct opd_cpu_worker *w)
{
    unsigned first[ENDED + 1] = { 0 }, count[ENDED + 1] = { 0 };
    for (unsigned i = w->n; i-- > 0;) {
        first[w->threads[i].state] = i;
        count[w->threads[i].state]++;
    }
    int n = snprintf(w->what, sizeof w->what, "deadlock in %s: of %u threads ", w->kernel->name,
                     w->n);
    size_t at = n > 0 && (size_t)n < sizeof w->what ? (size_t)n : sizeof w->what - 1;
    if (count[AT_BARRIER]) {
        n = snprintf(w->what + at, sizeof w->what - at,
                     "%u wait at __syncthreads() (the first: %u), ", count[AT_BARRIER],
                     first[AT_BARRIER]);
        at += n > 0 && (size_t)n < sizeof w->what - at ? (size_t)n : 0;
    }
    snprintf(w->what + at, sizeof w->what - at,
             "%u in a warp operation (the first: %u, mask 0x%08x), %u have returned; all threads "
             "of a block or mask "
             "must reach the same one",
             count[IN_WARP], first[IN_WARP], count[IN_WARP] ? w->threads[first[IN_WARP]].mask : 0,
             count[ENDED]);
    abandon(w);
}

// Where to go on when the running thread cannot.
static const struct cpu_context *choose_next(struct opd_cpu_worker *w)
{
    if (w->ready_count)
        return &w->threads[pop_ready(w)].context;
    if (w->n_ended < w->n)
        report_deadlock(w);
    return &w->joined;
}

// The life of a stack: as long as there are threads to begin, it begins them.
static void fiber_main(void *arg)
{
    struct opd_cpu_worker *w = arg;
    while (may_begin(w))
        begin_rest(w);
    struct cpu_context lost;
    const struct cpu_context *next = choose_next(w);
    cpu_stacks_give(&w->stacks, w->stack);
    cpu_context_switch(&lost, next);
    abort();
}

// Runs others until `thread` can go on. Inline: every return behind a switch is mispredicted.
static inline __attribute__((always_inline)) void leave(struct opd_cpu_worker *w, unsigned thread)
{
    struct cpu_thread *self = &w->threads[thread];
    self->stack = w->stack;
    if (may_begin(w)) {
        struct cpu_context fresh;
        w->stack = cpu_stacks_take(&w->stacks);
        cpu_context_make(&fresh, &w->stacks, w->stack, fiber_main, w);
        cpu_context_switch(&self->context, &fresh);
    } else {
        cpu_context_switch(&self->context, choose_next(w));
    }
    w->stack = self->stack;
    w->first = thread;
    w->alone = true;
}

static unsigned wait_barrier(struct opd_cpu_worker *w, unsigned thread, int value)
{
    if (w->race)
        cpu_race_arrive(w->race, thread);
    arrive(w, thread);
    w->threads[thread].state = AT_BARRIER;
    w->n_held++;
    w->n_voted += value != 0;
    if (!release_barrier(w, thread))
        leave(w, thread);
    if (w->race)
        cpu_race_resume(w->race, thread);
    return (unsigned)w->threads[thread].result;
}

static unsigned long long wait_warp(struct opd_cpu_worker *w, unsigned thread, unsigned mask,
                                    enum opd_cpu_warp_op op, unsigned long long value,
                                    unsigned source)
{
    struct cpu_thread *self = &w->threads[thread];
    unsigned lane = thread % WARP;
    if (w->race)
        cpu_race_arrive_warp(w->race, thread);
    arrive(w, thread);
    self->mask = mask | 1u << lane;
    self->op = op;
    self->value = value;
    self->source = source % WARP;
    self->state = IN_WARP;
    w->warps[thread / WARP].waiting |= 1u << lane;
    if (release_lanes(w, thread / WARP, self->mask, thread))
        self->state = RUNS;
    else
        leave(w, thread);
    if (w->race)
        cpu_race_resume_warp(w->race, thread);
    return self->result;
}

static unsigned active_lanes(struct opd_cpu_worker *w, unsigned thread)
{
    unsigned ended = 0, first = w->split ? w->first : 0;
    if (w->split)
        ended = w->warps[thread / WARP].ended;
    else if (thread / WARP == (w->job->block[0] * w->job->block[1] * w->job->block[2]) / WARP)
        ended = ~0u << (w->job->block[0] * w->job->block[1] * w->job->block[2]) % WARP;
    for (unsigned i = first; i < thread; i++)
        if (i / WARP == thread / WARP && !(w->split && w->alone))
            ended |= 1u << i % WARP;
    return ~ended;
}

// Runs on the stack of the loop over blocks.
static void join_block(struct opd_cpu_worker *w)
{
    if (!w->split)
        return;
    depart(w);
    while (may_begin(w))
        begin_rest(w);
    if (w->n_ended < w->n) {
        int stack = w->stack;
        cpu_context_switch(&w->joined, choose_next(w));
        w->stack = stack;
    }
    w->split = false;
}

static void fail_run(struct opd_cpu_worker *w, const char *what, const unsigned block[3],
                     const unsigned thread[3])
{
    snprintf(w->what, sizeof w->what, "%s in %s, block (%u, %u, %u), thread (%u, %u, %u)", what,
             w->kernel->name, block[0], block[1], block[2], thread[0], thread[1], thread[2]);
    abandon(w);
}

static void begin_race_block(struct opd_cpu_worker *w)
{
    if (w->race)
        cpu_race_block(w->race);
}

static void enter_thread(struct opd_cpu_worker *w, unsigned thread)
{
    if (w->race)
        cpu_race_enter(w->race, thread);
}

static void exit_thread(struct opd_cpu_worker *w)
{
    if (w->race)
        cpu_race_exit(w->race);
}

static void fence_race(struct opd_cpu_worker *w)
{
    if (w->race)
        cpu_race_fence();
}

static void run_main(void *arg)
{
    struct opd_cpu_worker *w = arg;
    struct cpu_context lost;
    w->kernel->run(w, w->job, w->shared, w->begin, w->end);
    cpu_context_switch(&lost, &w->outside);
    abort();
}

bool cpu_worker_run(struct opd_cpu_worker *w, const struct opd_cpu_kernel *kernel,
                    const struct opd_cpu_job *job, unsigned long long begin, unsigned long long end,
                    struct opd_err *err)
{
    w->kernel = kernel;
    w->job = job;
    w->begin = begin;
    w->end = end;
    w->split = false;
    w->failed = false;
    w->fault = (struct cpu_fault){ 0 };
    struct cpu_context inside;
    w->stack = cpu_stacks_take(&w->stacks);
    cpu_context_make(&inside, &w->stacks, w->stack, run_main, w);
    if (w->running)
        w->running(w);
    cpu_context_switch(&w->outside, &inside);
    if (w->running)
        w->running(NULL);
    cpu_stacks_reset(&w->stacks);
    return !w->failed || opd_err_set(err, OPD_E_kernel_fault, "%s", w->what);
}

// At once: the kernel may fault, and others write to the same place by themselves.
static int print_out(const char *format, va_list args)
{
    int n = vprintf(format, args);
    fflush(stdout);
    return n;
}

const struct opd_cpu_runtime cpu_runtime = {
    .barrier = wait_barrier,
    .warp = wait_warp,
    .active = active_lanes,
    .join = join_block,
    .fail = fail_run,
    .print = print_out,
    .race_block = begin_race_block,
    .race_enter = enter_thread,
    .race_exit = exit_thread,
    .race_fence = fence_race,
};
