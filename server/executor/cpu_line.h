#pragma once

// From a place in an image to the line of the operator's file.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Asks addr2line, which comes with the compilers, in a process of its own. Of inlined code: the
// place in the operator's file that it was called from. False: not known; `out` is "" then.
bool cpu_line_find(int image_fd, uintptr_t offset, char *out, size_t size);

// From now on a thread of its own starts that process, for callers that may start none. They call
// one at a time.
void cpu_line_serve(void);

// Whether that is a name of what stands before an operator's source, not of a user's file.
bool cpu_line_is_internal(const char *file);
