#pragma once

// The executor process: owns one device's context and loaded kernels, and nothing that must last.
// It takes commands from the broker's ring, runs them in order and reports each one done
// (devwire.h). It ends when the broker closes the socket or says stop, and at once when its device
// fails: the broker then starts another, which maps the same memory.

#include <stdbool.h>

// The library that multiplies matrices.
enum executor_blas {
    EXECUTOR_BLAS_NONE,
    EXECUTOR_BLAS_NOW,   // look for it at start, so that the broker learns of it
    EXECUTOR_BLAS_LATER, // it was there before: when it is first needed, for a quick start
};

// What ps and top call it.
void executor_take_name(const char *device, bool spare);

// Runs until told to end; the process's exit status. `device` is "cpu", "cuda:0". The descriptors
// are devwire.h's.
int executor_main(const char *device, enum executor_blas blas, bool spare);
