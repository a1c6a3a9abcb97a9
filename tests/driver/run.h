#pragma once

// Running a grid: its blocks one after the other, the threads of a block in turns. A thread runs
// until it waits at a barrier, or for its warp, or has had its turn; where all of a warp's threads
// wait, those at one instruction do it together.

#include "ptx.h"
#include "standin.h"

enum { WARP = 32, N_BARRIERS = 16, WINDOW_SIZE = 16 << 20 };
enum thread_state { READY, AT_BARRIER, AT_WARP, ENDED };

struct frame {
    struct frame *below;
    const struct ptx_function *function;
    const struct ins *back; // where the caller goes on
    const struct ptx_call *call;
    uint32_t base; // of its memory, in local memory
    uint64_t r[];
};

struct thread {
    uint64_t *r; // the frame's slots
    const struct ins *next;
    struct frame *frame;
    struct block *block;
    enum thread_state state;
    uint32_t index, lane, tid[3];
    uint8_t *local;
    size_t local_size;
    bool carry;
    int barrier;
    uint32_t barrier_count; // 0: all
    const struct ins *waiting;
};

struct block {
    const struct launch *launch;
    struct thread *threads;
    uint32_t n_threads, n_live, id[3];
    uint8_t *shared;
    size_t shared_size;
    uint32_t arrived[N_BARRIERS]; // without waiting
    struct range known[2];        // memory that was found last
    unsigned generation;
    int error;
};

// The generic addresses of memory that has offsets.
struct windows {
    uint64_t shared, local, param;
};
extern struct windows windows;

void fault(struct thread *t, int error);

// The bytes of an access; NULL where it is a fault, which has then been told.
void *access_at(struct thread *t, enum ptx_space space, uint64_t addr, size_t size);
static inline uint64_t address_of(const struct thread *t, const struct ins *i, uint32_t slot)
{
    return t->r[slot] + (uint64_t)i->offset + (i->framed ? t->frame->base : 0);
}

void frame_push(struct thread *t, const struct ptx_function *f, const struct ptx_call *call);
void frame_pop(struct thread *t);

// Lets the lanes that wait at the same instruction do it: those it names are all there, or, with
// `force`, none else will come. False: nobody could.
bool warp_step(struct block *b, struct thread *warp, uint32_t n, bool force);
bool barriers_step(struct block *b);

// Values (run_value.c).
uint64_t get_bits(const struct thread *t, uint32_t slot, struct ptx_type type); // zero-extended
// Sign-extended where the type has a sign.
int64_t get_signed(const struct thread *t, uint32_t slot, struct ptx_type type);
double get_float(uint64_t bits, struct ptx_type type);
uint64_t put_float(double value, struct ptx_type type);
uint64_t truncate_bits(uint64_t value, unsigned size);
static inline void put(struct thread *t, const struct ins *i, uint64_t value)
{
    t->r[i->o[0]] = truncate_bits(value, i->type.size);
}
void set_rounding(int round); // enum ptx_round

ptx_run run_int, run_float, run_carry, run_bits, run_field, run_dot, run_setp, run_set, run_selp,
    run_slct, run_mov, run_cvt, run_cvta, run_isspacep, run_ld, run_st, run_atom, run_cp,
    run_nothing, run_bra, run_brx, run_call, run_ret, run_exit, run_trap, run_bar, run_gather,
    run_clock;
