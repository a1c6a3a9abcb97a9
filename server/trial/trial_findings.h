#pragma once

// What a stage has found: read out of what the process and its sanitizer have written.

#include <stdbool.h>
#include <stddef.h>

enum { TRIAL_MAX_FINDINGS = 20 };

struct trial_finding {
    char what[700];    // "data race: write of 'y' at f.cu:22, read at f.cu:20"
    char where[200];   // "f.cu:22"; "": not known
    char other[200];   // of a race: the other place
    char kernel[300];  // that ran
    char context[100]; // "float32, example 1, forward"
};

struct trial_findings {
    int n, n_cases, n_done, n_launches;
    bool ended;      // all cases have run
    char error[300]; // why it could not run; "": it could
    struct trial_finding list[TRIAL_MAX_FINDINGS];
};

// `file`: the operator's name in messages; `said`: the stage's lines (trial_stage.c); `log`: its
// standard error. Both terminated; changed.
void trial_findings_read(struct trial_findings *out, const char *file, char *said, char *log);
