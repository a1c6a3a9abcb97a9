#pragma once

// The executor process: owns one device's context and loaded kernels, and nothing that must last.
// It takes commands from the broker's ring, runs them in order and reports each one done
// (devwire.h). It ends when the broker closes the socket or says stop, and at once when its device
// fails: the broker then starts another, which maps the same memory.

#include <stdbool.h>

// Runs until told to end; the process's exit status. `device` is "cpu", "cuda:0". The descriptors
// are devwire.h's. `vendor_blas`: matrices are multiplied by a library where there is one.
int executor_main(const char *device, bool vendor_blas);
