#pragma once

// The system's C++ compiler. Part of the host compiler (host.c).

#include <stdbool.h>

#include "base/err.h"

struct host_cxx {
    const char *words[3]; // that begin its command: "c++"; or "…/ziglang/zig", "c++"; then NULL
    char *version;        // the first line of --version
    bool clang;
    char *processor; // that it compiles for: name and features
};

// Looks for it once for each process: $OPD_CXX, then c++, g++, clang++ on $PATH, then clang in
// Python's wheel ziglang. NULL: unavailable.
const struct host_cxx *host_cxx_find(struct opd_err *err);
