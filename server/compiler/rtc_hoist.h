#pragma once

// Which of a file's includes may stand in the precompiled header: those that begin the file, of
// headers that do not change. Pure functions of text.

#include <stdbool.h>

enum rtc_include {
    RTC_INCLUDE_LOCAL, // may change, or is not known: stays where it is, and what follows it too
    RTC_INCLUDE_EMPTY, // nothing is in it
    RTC_INCLUDE_FIXED, // NVIDIA's: stands before opd.cuh
    RTC_INCLUDE_OURS,  // stands behind it
};
typedef enum rtc_include (*rtc_include_kind)(const char *name, void *data);

struct rtc_hoisted {
    // Heap: includes, and the macros and conditions that they may depend on; "": none.
    char *before, *behind; // opd.cuh
    bool local;            // somewhere in the file another header is included
};

// The file keeps its lines: what is included twice guards itself, and a macro may be defined twice
// alike. So there is none that would be undefined, or would mean another thing in `common` and the
// prelude, which stand before the file.
struct rtc_hoisted rtc_hoist(const char *source, const char *common, const char *prelude,
                             rtc_include_kind kind, void *data);
