#pragma once

// Whether a kernel is a plain loop of elements, of which the CPU makes vectors (cpu_launch.h). Part
// of the host compiler (host.c).

#include <stdbool.h>

#include "compiler/compile.h"

// Whether the kernel of in->expr, and each of in->more, has one CUDA_KERNEL_LOOP, and nothing but
// the loop's index tells its threads apart or counts them: neither in the kernel nor in what it
// names, of the source, the prelude and the common part, to the end. Then any number of threads
// may run it. Where the text alone cannot tell, it is none.
bool host_loop_is_plain(const struct compile_input *in);
