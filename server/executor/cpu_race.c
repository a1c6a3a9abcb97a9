#include "executor/cpu_race.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "executor/cpu_image.h"
#include "base/mem.h"

enum { WARP = 32, NO_SYNC = 1 };

// What orders threads has two tokens that take turns: who has passed a barrier may be at the next
// one before another has seen that it may go on, and must not be taken to have been there before.
struct race_thread {
    void *fiber;
    unsigned turn; // of its barrier, or of its own warp operations
    unsigned n_warp, met, met_turns;
    char token[2];
};

struct cpu_race {
    void *outside; // the sanitizer's thread of the worker itself
    unsigned current;
    unsigned barrier_turn, block_turn;
    char begun, barrier[2], ended[2];
    struct race_thread threads[OPD_CPU_MAX_BLOCK];
};

static struct {
    void *(*current)(void);
    void *(*create)(unsigned flags);
    void (*destroy)(void *fiber);
    void (*enter)(void *fiber, unsigned flags);
    void (*name)(void *fiber, const char *name);
    void (*acquire)(void *token);
    void (*release)(void *token);
} tsan;

static char fence;

static void find(const char *name, void *out)
{
    *(void **)out = dlsym(RTLD_DEFAULT, name);
}

static bool find_all(void)
{
    find("__tsan_get_current_fiber", &tsan.current);
    find("__tsan_create_fiber", &tsan.create);
    find("__tsan_destroy_fiber", &tsan.destroy);
    find("__tsan_switch_to_fiber", &tsan.enter);
    find("__tsan_set_fiber_name", &tsan.name);
    find("__tsan_acquire", &tsan.acquire);
    find("__tsan_release", &tsan.release);
    return tsan.current && tsan.create && tsan.destroy && tsan.enter && tsan.name && tsan.acquire &&
           tsan.release;
}

struct cpu_race *cpu_race_new(void)
{
    return find_all() ? mem_zalloc(1, sizeof(struct cpu_race)) : NULL;
}

void cpu_race_free(struct cpu_race *r)
{
    for (int i = 0; r && i < OPD_CPU_MAX_BLOCK; i++)
        if (r->threads[i].fiber)
            tsan.destroy(r->threads[i].fiber);
    free(r);
}

void cpu_race_begin(struct cpu_race *r, unsigned n)
{
    r->outside = tsan.current();
    // Not one by one as they begin: a thread comes after all that its maker has come after, and the
    // worker comes after those that have ended.
    for (unsigned i = 0; i < n; i++) {
        struct race_thread *t = &r->threads[i];
        if (t->fiber)
            continue;
        char name[32];
        snprintf(name, sizeof name, "thread %u", i);
        t->fiber = tsan.create(0);
        tsan.name(t->fiber, name);
    }
}

void cpu_race_block(struct cpu_race *r)
{
    r->block_turn ^= 1;
    tsan.release(&r->begun); // what the worker did before, and the thread-local memory it has made
}

void cpu_race_enter(struct cpu_race *r, unsigned thread)
{
    r->current = thread;
    tsan.enter(r->threads[thread].fiber, NO_SYNC);
    tsan.acquire(&r->begun);
    tsan.acquire(&r->ended[r->block_turn ^ 1]);
}

void cpu_race_exit(struct cpu_race *r)
{
    tsan.release(&r->ended[r->block_turn]);
    tsan.enter(r->outside, NO_SYNC);
    // What comes after the launch comes after all of it; the worker itself touches nothing.
    tsan.acquire(&r->ended[r->block_turn]);
}

void cpu_race_abandon(struct cpu_race *r)
{
    if (tsan.current() != r->outside) // else the thread's end would not be seen
        tsan.enter(r->outside, NO_SYNC);
}

static void stop(struct cpu_race *r, char *token)
{
    tsan.release(token);
    tsan.enter(r->outside, NO_SYNC);
}

static struct race_thread *go_on(struct cpu_race *r, unsigned thread)
{
    r->current = thread;
    tsan.enter(r->threads[thread].fiber, NO_SYNC);
    return &r->threads[thread];
}

void cpu_race_arrive(struct cpu_race *r, unsigned thread)
{
    r->threads[thread].turn = r->barrier_turn;
    stop(r, &r->barrier[r->barrier_turn]);
}

void cpu_race_barrier(struct cpu_race *r)
{
    r->barrier_turn ^= 1;
}

void cpu_race_resume(struct cpu_race *r, unsigned thread)
{
    const struct race_thread *t = go_on(r, thread);
    tsan.acquire(&r->barrier[t->turn]);
}

void cpu_race_arrive_warp(struct cpu_race *r, unsigned thread)
{
    struct race_thread *t = &r->threads[thread];
    stop(r, &t->token[++t->n_warp % 2]);
}

void cpu_race_meet(struct cpu_race *r, unsigned warp, unsigned lanes)
{
    struct race_thread *first = &r->threads[warp * WARP];
    unsigned turns = 0;
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        turns |= first[l].n_warp % 2 << l;
    }
    for (unsigned rest = lanes; rest; rest &= rest - 1) {
        struct race_thread *t = &first[__builtin_ctz(rest)];
        t->met = lanes;
        t->met_turns = turns;
    }
}

void cpu_race_resume_warp(struct cpu_race *r, unsigned thread)
{
    const struct race_thread *t = go_on(r, thread);
    struct race_thread *first = &r->threads[thread / WARP * WARP];
    for (unsigned rest = t->met; rest; rest &= rest - 1) {
        unsigned l = (unsigned)__builtin_ctz(rest);
        tsan.acquire(&first[l].token[t->met_turns >> l & 1]);
    }
}

void cpu_race_fence(void)
{
    tsan.acquire(&fence);
    tsan.release(&fence);
}
