#pragma once

// A compiler process: takes jobs from the broker one at a time (job.h), answers each with an image or diagnostics. It lives
// long, so that NVRTC stays warm, and owns nothing: the broker may kill it at any moment.

int compiler_main(void); // until the broker closes the socket; the process's exit status
