#pragma once

// The system's C++ compiler as a child process. Part of the host compiler (host.c).

#include "base/err.h"
#include "base/mem.h"

struct host_cxx {
    char *path;    // as found: "/usr/bin/c++"
    char *version; // the first line of --version
    bool clang;
    char *processor; // that it compiles for: name and features
};

// Looks for it once for each process: $OPD_CXX, then c++, g++, clang++ on $PATH. NULL: unavailable.
const struct host_cxx *host_cxx_find(struct opd_err *err);

// From here on what runs is killed when the other side of this socket hangs up, or writes to it.
void host_cxx_watch(int socket);

// Runs argv[0] in folder `cwd` (NULL: here) and collects what it prints, both streams, cut at
// `limit` bytes. False only if it could not be run, took longer than limit_ms, or something came
// from the watched socket: then it was killed. *out_status is waitpid()'s.
bool host_cxx_run(char *const argv[], const char *cwd, int limit_ms, size_t limit,
                  struct buf *output, int *out_status, struct opd_err *err);
