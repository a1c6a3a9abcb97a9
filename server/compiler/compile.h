#pragma once

// Turns one operator file into the image of one kernel, for one target. Pure functions of their
// input and of the compilers that are installed; called in the compiler process only, one at a
// time.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <string.h>

#include "base/err.h"
#include "op/plan.h"

struct buf;

// What is asked of a compiler.
enum compile_kind {
    COMPILE_IMAGE,    // "compile": the image and its symbol
    COMPILE_SYNTAX,   // "syntax": errors and warnings of the front end alone, as fast as they come
    COMPILE_DESCRIBE, // "describe": what the kernel takes, in `text`
    COMPILE_PTX,      // "ptx": the listing, in `text`
    COMPILE_SASS,     // "sass": the machine's code, in `text`
};

// The translation unit is: common, prelude, '#line 1 "file"', source, and what of the prelude comes
// behind it. For NVRTC the file's leading includes of NVIDIA's headers come first of all
// (rtc_hoist.h): these and the common part are in a precompiled header.
struct compile_input {
    enum compile_kind kind;
    const char *target;  // "sm_90", "cpu"
    const char *common;  // the text of kernels_src/opd.cuh
    const char *prelude; // "using scalar_t = float;\nusing acc_t = float;\n"
    const char *file;    // name of the source in diagnostics: "gelu.cu"
    const char *folder;  // where its #include "..." are looked up; NULL: nowhere
    const char *source;  // the text of the .cu
    const char *expr;    // the kernel to instantiate: "gelu_forward<scalar_t, 1>"
    const char *cache;   // folder for what the next compile can use; "" or NULL: none

    // More kernels in the same image; of the host's compiler as SYMBOL_1, SYMBOL_2 ...
    const char *const *more;
    int n_more;

    // Of the host's compiler alone: what -fsanitize= gets, "thread"; NULL: nothing.
    const char *sanitize;
    bool trial;     // compiled soon rather than fast, for it runs but once
    bool backwards; // and that can run the threads of a block from the last to the first
};

// That part of the prelude; "" if there is none.
static inline const char *compile_behind(const struct compile_input *in)
{
    const char *mark = strstr(in->prelude, PLAN_BEHIND_SOURCE);
    return mark ? mark + strlen(PLAN_BEHIND_SOURCE) : strchr(in->prelude, '\0');
}

struct compile_output {
    uint8_t *image; // heap; the caller frees all four
    size_t size;
    char *symbol; // the kernel's name in the image
    char *log;    // warnings, or NULL
    char *text;   // of COMPILE_DESCRIBE ("registers=40 spill_stores=0 spill_loads=0 shared=1024
                  // stack=0 constant=400", in bytes but for the registers; "" for the CPU), _PTX,
                  // _SASS; else NULL
};

// Errors: compile_error, with the compiler's own output in err->log (the user's file, line and
// column); unavailable, where there is no compiler, or no disassembler (the message says what to
// install); invalid_argument, for the PTX of the CPU.
bool nvrtc_compile(const struct compile_input *in, struct compile_output *out, struct opd_err *err);
bool host_compile(const struct compile_input *in, struct compile_output *out, struct opd_err *err);

// One line that names the compiler and everything of it that changes its output (version, flags,
// processor), for status and for the cache's key. NULL with an error where there is none. Static
// storage.
const char *nvrtc_identity(struct opd_err *err);
const char *host_identity(struct opd_err *err);

// Texts that are linked into the binary, terminated by a zero byte.
extern const char
    cpu_shim_text[]; // server/compiler/cpu_shim.h: CUDA's built-ins for the host compiler

// Appends what stands behind that: the words of what the CPU device cannot run are macros, by which
// the preprocessor refuses them, for it knows file and line, and what it leaves out.
void cpu_refuse_append(struct buf *out);
