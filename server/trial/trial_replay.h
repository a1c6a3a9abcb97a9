#pragma once

// A fault that was kept (op/bundle.h), run again by a trial: the same source, signature and
// attributes, forward or backward alone, on the inputs that were kept; on random ones where they
// were not.
//
// What runs it is a stage like those of `check --run`; where it was a GPU's, that of one too.

#include "base/mem.h"
#include "op/bundle.h"
#include "trial/trial_run.h"

#define TRIAL_FAULT "fault" // the file, in a stage's folder

struct trial_replay {
    struct bundle bundle;
    struct buf file; // which the bundle lies in
};

// Zeroed is fine for the finish. Errors: not_found, invalid_argument: also where others than the
// user can have written it, since its source is run.
bool trial_replay_read(struct trial_replay *r, const char *path, struct opd_err *err);
void trial_replay_finish(struct trial_replay *r);

// The one case that there is, once its request has been read; trial_cases_finish() as ever.
bool trial_replay_cases(struct trial_cases *t, struct trial_replay *r, struct op *op,
                        enum trial_aim aim, struct opd_err *err);
// Runs it: makes every tensor, fills it, and launches.
void trial_replay_run(struct trial_run *s, const struct trial_replay *r, trial_take_fn *take,
                      void *arg);

// All that are kept in a cache's folder ("": the options'), on standard output; 0, or 1 where the
// options are wrong. The path of one, the caller's: NULL, not_found.
int trial_faults_list(const char *cache, bool json);
char *trial_faults_path(const char *cache, const char *number, struct opd_err *err);
