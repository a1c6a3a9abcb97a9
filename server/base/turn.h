#pragma once

// The broker's loop, as every room of the broker sees it. One thread turns it; whoever changes
// something that a waiting request may have waited for asks for another look at all of them, and
// whoever needs a process starts it here.

#include <stdbool.h>
#include <stdint.h>
#include <signal.h>
#include <uv.h>

#include "base/err.h"

enum { TURN_MAX_ERRORS = 32 };

struct turn {
    uv_loop_t loop;
    bool retry_wanted;
    uint64_t ended_at;                   // clock_ns() of the last turn's end
    uint64_t read_at, worked_ns;         // when the processor's time was last read, and what it was
    uint64_t longest_ns;                 // of it, in one turn; short ones are not measured
    uint64_t n_errors;                   // replies that were one
    uint64_t errors_of[TURN_MAX_ERRORS]; // of them, by code
};

// Waiting requests are tried again, and edits looked at, before the loop sleeps.
void turn_retry(struct turn *turn);

// A turn is over, and the loop may sleep.
void turn_end(struct turn *turn);

// A reply is an error.
void turn_count_error(struct turn *turn, const struct opd_err *err);

// Signals that the daemon takes: SIGTERM, ^C, a terminal that closes. The last two not where
// whoever started it had them ignored, as nohup and a shell's & do.
enum { TURN_N_SIGNALS = 3 };
bool turn_signal(int i, int *out); // false: it is ignored
void turn_hold_signals(bool held); // what comes meanwhile waits

// Starts this same program in another role: `args` ends with NULL, and the level of the log goes
// behind it. fds become 3, 4, … there. Negative: libuv's error.
int turn_spawn(struct turn *turn, uv_process_t *process, const char *const *args, const int *fds,
               int n_fds, uv_exit_cb exited);
