#pragma once

// What the broker and a compiler say to each other through a stream socket: jobs one way, results
// the other, each a frame of a fixed header and strings. An image comes as a memfd with the
// result's first byte.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { JOB_FD_SOCKET = 3, JOB_MAX_FRAME = 64 << 20, JOB_MAX_STRINGS = 10 };

struct job_header {
    uint32_t size; // of the whole frame
    uint32_t id;
    uint32_t code;        // result: enum opd_err_code
    uint32_t cached;      // result: it came from the cache
    uint64_t cache_bytes; // result: what the cache takes, as the compiler last knew it; 0: unknown
};

// The strings of a job, and of a result. A string may be empty; none is NULL.
enum job_string {
    JOB_KIND, // "identity", or a name of compile.h; "cancel" asks for an early answer to the job
              // before it, and has none itself
    JOB_TARGET,
    JOB_COMMON,
    JOB_PRELUDE,
    JOB_FILE,
    JOB_FOLDER,
    JOB_SOURCE,
    JOB_EXPR,
    JOB_CACHE,       // folder; "": no cache
    JOB_CACHE_LIMIT, // bytes that it may take, in decimal digits; "" or "0": any number
};
// RESULT_TEXT: compile_output.text in compile.h.
enum result_string { RESULT_MESSAGE, RESULT_LOG, RESULT_COMPILER, RESULT_TEXT, RESULT_STRINGS };

struct job_frame {
    struct job_header header;
    const char *strings[JOB_MAX_STRINGS]; // inside the frame's bytes, terminated
};

struct buf;
void job_pack(struct buf *out, const struct job_header *header, const char *const *strings, int n);

// The frame at the start of `bytes`. Returns its size; 0 where it is not whole yet; -1 where it is
// no frame.
long job_unpack(const void *bytes, size_t size, int n_strings, struct job_frame *out);
