#pragma once

// A trial's results, for people, in lines for the daemon (trial.h), or as JSON:
//   {"file", "op", "message": why there is no operator, "warnings": lines, "seed", "cases", "ok",
//    "stages": [{"stage": "guards" | "addresses" | "races" | "gradients",
//                "state": "ok" | "findings" | "failed" | "unfinished" | "skipped",
//                "message": why not ok, "log": the compiler's, "launches", "seconds",
//                "findings": [{"message", "where": "f.cu:22" or "", "other": of a race, "kernel",
//                              "context": "float32, example 1, forward"}]}]}

#include "op/op.h"
#include "trial/trial_findings.h"

enum trial_state { TRIAL_OK, TRIAL_FOUND, TRIAL_FAILED, TRIAL_UNFINISHED, TRIAL_SKIPPED };

struct trial_result {
    const char *name;
    enum trial_state state;
    double seconds;
    char message[600]; // why it failed, did not finish or was left out
    const char *log;   // a compiler's, or NULL
    struct trial_findings findings;
};

struct trial_print {
    bool json, lines;
    bool broken; // it does not compile
    int n_stages;
};

// op NULL: err tells why there is none.
void trial_print_head(struct trial_print *p, const struct op *op, const char *file,
                      const char *seed, int n_cases, const struct opd_err *err);
// {"number", "time", "device", "op", "version", "file", "message", "bytes"}, behind `n` others.
struct bundle;
void trial_print_fault(const struct bundle *b, int number, int n);
void trial_print_begin(struct trial_print *p, const char *stage);
void trial_print_stage(struct trial_print *p, const struct trial_result *r);
void trial_print_end(struct trial_print *p, bool ok);
