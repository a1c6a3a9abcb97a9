#pragma once

// What of a pasted file is the host's, and is not compiled, for neither device: the functions that
// launch, bind and check, and those that nothing of the device's calls.

struct buf;

// Appends the source to `out`, without them: blanks stand in their place, so that all else keeps
// its line, and preprocessor lines stay. `behind`: the text that stands behind it, whose functions
// stay.
void host_skip(const char *source, const char *behind, struct buf *out);
