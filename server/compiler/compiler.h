#pragma once

// A compiler process: takes jobs from the broker one at a time (job.h), answers each with an image
// or diagnostics. It lives long, so that NVRTC stays warm, and owns nothing: the broker may kill it
// at any moment. Its memory, and that of each program that it runs, is bounded: a kernel that asks
// for more fails. NVRTC may abort() then.

// COMPILER_NICE: of one that was started for what nobody waits for.
enum { COMPILER_MEMORY_GIB = 8, COMPILER_NICE = 10 };

int compiler_main(void); // until the broker closes the socket; the process's exit status
