#pragma once

// Finds NVRTC, NVIDIA's compiler library, at run time: in $OPD_NVRTC, a CUDA toolkit, among the
// dynamic linker's names, or in the wheel `nvidia-cuda-nvrtc`. Nothing of CUDA is needed to build
// opd.

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct nvrtc {
#define NVRTC(name, parameters) int(*name) parameters;
#include "compiler/nvrtc_table.def"
#undef NVRTC
    bool pch; // it takes precompiled headers as pch.h has them
    int major, minor;
    char path[PATH_MAX];       // of the library; "" where the linker does not tell
    const void *base;          // where it is mapped
    long long size;            // of that file, which tells one patch level from another
    char include[2][PATH_MAX]; // see nvrtc_headers.h; "" where there are none
    int n_archs;
    int archs[64]; // 75, 80, ..., ascending
};

// Loaded once, kept for the life of the process; a failure is tried anew by the next call.
// Errors: unavailable, with where it was looked for and what to install.
const struct nvrtc *nvrtc_load(struct opd_err *err);

// The newest architecture that the library knows and whose code the target runs: same major, minor
// not above. Where it knows none of that major, the newest below, whose PTX the driver compiles:
// `*out_ptx`. 0, with an error: none.
int nvrtc_choose_arch(const struct nvrtc *rtc, const char *target, bool *out_ptx,
                      struct opd_err *err);
