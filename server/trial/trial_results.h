#pragma once

// What a case has made, kept to be compared with what it makes in memory that held something else
// before: a result that differs is made of what nothing has written. And what the CPU makes of all
// cases, to be held against what a GPU makes of them.

#include "base/mem.h"
#include "op/plan.h"

enum { TRIAL_MAX_TOLD = 64 };

// Zeroed is an empty one.
struct trial_results {
    bool compare;
    bool rough;      // floats that are near each other are the same: a GPU adds up in any order
    struct buf kept; // of the round before
    size_t at;
    const char *told[TRIAL_MAX_TOLD]; // names of those that differed: once is enough
    int n_told;
    uint64_t of;     // which case it is: the same number on both devices
    struct buf made; // what the CPU makes of what was written: a struct made each, and its bytes
    bool by_cpu;     // `made` grows; else it is compared with
};

// A round of a case: the first is kept, the second compared with it.
void trial_results_begin(struct trial_results *r, bool compare);

// An operand once its plan has run; those that are no results are passed over. What differs is a
// line for trial_findings.c.
void trial_results_take(struct trial_results *r, const struct plan *plan, int operand,
                        const uint8_t *bytes, size_t size);
