#pragma once

// What of a pasted file is the host's, and is not compiled, for neither device: the functions that
// launch, bind and check, and those that nothing of the device's calls.

#include "compiler/compile.h"

// Appends the source to `out`, without them: blanks stand in their place, so that all else keeps
// its line, and preprocessor lines stay. What the kernel's expression or the text behind the source
// names stays.
void host_skip(const struct compile_input *in, struct buf *out);
