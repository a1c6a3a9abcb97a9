#pragma once

// Tells the thread sanitizer of a block's threads: each is a thread to it, although one thread of
// the operating system runs them all. So it finds what two threads of a launch do to one place
// without a barrier, a warp operation or an atomic between them, whichever came first.
//
// Blocks of one worker are taken to come one after the other, for they use the same shared memory;
// those of different workers are not.
//
// The sanitizer is looked for in the process, which it was loaded into (LD_PRELOAD).

#include <stdbool.h>

struct cpu_race;

struct cpu_race *cpu_race_new(void); // NULL: the sanitizer is not there
void cpu_race_free(struct cpu_race *r);

// On the worker's thread, in this order: a launch begins, whose blocks have n threads; blocks
// begin; the launch has ended.
void cpu_race_begin(struct cpu_race *r, unsigned n);
void cpu_race_block(struct cpu_race *r);

void cpu_race_enter(struct cpu_race *r, unsigned thread); // this thread runs from here on
void cpu_race_exit(struct cpu_race *r);                   // it has returned

void cpu_race_abandon(struct cpu_race *r); // nothing of the launch runs any more

// A thread stops at the barrier and goes on behind it; between them, once, all are let go.
void cpu_race_arrive(struct cpu_race *r, unsigned thread);
void cpu_race_barrier(struct cpu_race *r);
void cpu_race_resume(struct cpu_race *r, unsigned thread);

// The same at a warp operation, where these lanes of a warp meet.
void cpu_race_arrive_warp(struct cpu_race *r, unsigned thread);
void cpu_race_meet(struct cpu_race *r, unsigned warp, unsigned lanes);
void cpu_race_resume_warp(struct cpu_race *r, unsigned thread);

void cpu_race_fence(void);
