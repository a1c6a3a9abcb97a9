#pragma once

// Compiles the images of a trial's stage, side by side, and finds what a sanitizer needs. The CPU's
// are N.so, each with all kernels of one prelude; a GPU's N.ptx, of kernel N, behind a line with
// its symbol.

#include "kernels/source.h"
#include "trial/trial_cases.h"

struct trial_build {
    const struct trial_cases *cases;
    const struct source *source;
    const char *common; // the text of opd.cuh
    const char *folder; // where images go: 0.so, 1.so, ...
    bool backwards;     // compile_input.backwards
    const char *target; // a GPU's: "sm_90"; NULL: the CPU
};

// `sanitize`: "thread"; NULL: nothing. Error: compile_error with the compiler's log.
bool trial_compile(const struct trial_build *b, const char *sanitize, struct opd_err *err);

// What the dynamic linker is to load first for that sanitizer, with ':' between; the caller frees
// it. NULL: it is not installed; the message says what to install.
char *trial_find_runtime(const char *sanitize, struct opd_err *err);
