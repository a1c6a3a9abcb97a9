#include "run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TURN = 1 << 16 }; // instructions, after which others go on

struct windows windows;

static void make_windows(void)
{
    if (!memory_window(&windows.shared, WINDOW_SIZE) ||
        !memory_window(&windows.local, WINDOW_SIZE) || !memory_window(&windows.param, WINDOW_SIZE))
        abort();
}

void fault(struct thread *t, int error)
{
    if (!t->block->error)
        t->block->error = error;
    t->state = ENDED;
}

// --- frames

static uint64_t special(const struct thread *t, int what)
{
    const struct block *b = t->block;
    const struct launch *l = b->launch;
    switch (what) {
    case SP_TID ... SP_TID + 2: return t->tid[what - SP_TID];
    case SP_NTID ... SP_NTID + 2: return l->block[what - SP_NTID];
    case SP_CTAID ... SP_CTAID + 2: return b->id[what - SP_CTAID];
    case SP_NCTAID ... SP_NCTAID + 2: return l->grid[what - SP_NCTAID];
    case SP_LANE: return t->lane;
    case SP_WARP: return t->index / WARP;
    case SP_NWARP: return (b->n_threads + WARP - 1) / WARP;
    case SP_LANEMASK_EQ: return 1u << t->lane;
    case SP_LANEMASK_LT: return (1u << t->lane) - 1;
    case SP_LANEMASK_LE: return (2u << t->lane) - 1;
    case SP_LANEMASK_GT: return (uint32_t)~((2u << t->lane) - 1);
    case SP_LANEMASK_GE: return (uint32_t)~((1u << t->lane) - 1);
    case SP_DYNAMIC: return l->dynamic;
    case SP_TOTAL: return b->shared_size;
    case SP_SHARED_END: return l->function->module->shared_size;
    default: return 0;
    }
}

static void set_specials(struct thread *t)
{
    const struct ptx_function *f = t->frame->function;
    for (size_t k = 0; k < f->n_specials; k++)
        t->r[f->specials[k].slot] = special(t, (int)f->specials[k].value);
}

void frame_push(struct thread *t, const struct ptx_function *f, const struct ptx_call *call)
{
    struct frame *frame = malloc(sizeof *frame + f->n_slots * sizeof frame->r[0]);
    if (!frame)
        abort();
    memset(frame, 0, sizeof *frame + f->n_slots * sizeof frame->r[0]);
    frame->below = t->frame;
    frame->function = f;
    frame->back = t->next;
    frame->call = call;
    if (t->frame)
        frame->base = (t->frame->base + t->frame->function->frame_size + 255) / 256 * 256;
    for (size_t k = 0; k < f->n_fills; k++)
        frame->r[f->fills[k].slot] = f->fills[k].value;
    t->frame = frame;
    t->r = frame->r;
    t->next = f->code;
    set_specials(t);
}

void frame_pop(struct thread *t)
{
    struct frame *frame = t->frame;
    t->frame = frame->below;
    t->next = frame->back;
    t->r = t->frame ? t->frame->r : NULL;
    free(frame);
}

// --- a block

static void run_thread(struct thread *t)
{
    for (int left = TURN; t->state == READY && left > 0; left--) {
        const struct ins *i = t->next++;
        if (i->guard < 0 || (t->r[i->guard] & 1) != i->negated)
            i->run(t, i);
    }
    if (t->state == ENDED)
        t->block->n_live--;
}

// False: all of them wait, or have ended.
static bool run_warp(struct block *b, struct thread *warp, uint32_t n)
{
    bool moved = false;
    for (uint32_t k = 0; k < n && !b->error; k++)
        if (warp[k].state == READY) {
            run_thread(&warp[k]);
            moved = true;
        }
    for (uint32_t k = 0; k < n; k++)
        if (warp[k].state == READY)
            return true;
    return (!b->error && warp_step(b, warp, n, false)) || moved;
}

static bool each_warp(struct block *b, bool force)
{
    bool moved = false;
    for (uint32_t at = 0; at < b->n_threads && !b->error; at += WARP) {
        uint32_t n = b->n_threads - at < WARP ? b->n_threads - at : WARP;
        moved |= force ? warp_step(b, b->threads + at, n, true) : run_warp(b, b->threads + at, n);
    }
    return moved;
}

// What waits for what never comes waits on, as on a GPU: until the process is killed.
static void run_block(struct block *b)
{
    while (b->n_live > 0 && !b->error)
        if (!each_warp(b, false) && !barriers_step(b) && !each_warp(b, true))
            nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

static void begin_block(struct block *b)
{
    memset(b->shared, 0xcd, b->shared_size); // nobody may count on zeros
    memset(b->arrived, 0, sizeof b->arrived);
    b->n_live = b->n_threads;
    for (uint32_t k = 0; k < b->n_threads; k++) {
        struct thread *t = &b->threads[k];
        while (t->frame && t->frame->below) // it has ended in a call
            frame_pop(t);
        t->state = READY;
        t->carry = false;
        t->r = t->frame->r;
        t->next = t->frame->function->code;
        set_specials(t);
    }
}

// --- a grid

static void begin_threads(struct block *b)
{
    const struct launch *l = b->launch;
    for (uint32_t k = 0; k < b->n_threads; k++) {
        struct thread *t = &b->threads[k];
        *t = (struct thread){ .block = b, .index = k, .lane = k % WARP };
        t->tid[0] = k % l->block[0];
        t->tid[1] = k / l->block[0] % l->block[1];
        t->tid[2] = k / l->block[0] / l->block[1];
        frame_push(t, l->function, NULL);
    }
}

static void end_threads(struct block *b)
{
    for (uint32_t k = 0; k < b->n_threads; k++) {
        while (b->threads[k].frame)
            frame_pop(&b->threads[k]);
        free(b->threads[k].local);
    }
    free(b->threads);
    free(b->shared);
}

static void run_blocks(struct block *b)
{
    const struct launch *l = b->launch;
    for (unsigned z = 0; z < l->grid[2]; z++)
        for (unsigned y = 0; y < l->grid[1]; y++)
            for (unsigned x = 0; x < l->grid[0] && !b->error; x++) {
                b->id[0] = x;
                b->id[1] = y;
                b->id[2] = z;
                begin_block(b);
                run_block(b);
            }
}

int launch_run(const struct launch *l)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct block b = { .launch = l, .n_threads = l->block[0] * l->block[1] * l->block[2] };
    pthread_once(&once, make_windows);
    b.shared_size = l->function->module->shared_size + l->dynamic;
    b.shared = aligned_alloc(256, (b.shared_size + 511) / 256 * 256);
    b.threads = calloc(b.n_threads, sizeof *b.threads);
    if (!b.shared || !b.threads)
        abort();
    begin_threads(&b);
    run_blocks(&b);
    end_threads(&b);
    return b.error;
}
