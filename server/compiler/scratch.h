#pragma once

// A compiler process's own folder for temporary files. It goes with the process; of one that was
// killed the broker removes it, or where that was killed too, the next compiler that starts.

#include <sys/types.h>

// Makes the folder in $TMPDIR, or /tmp, and makes it the TMPDIR of this process and its children.
// NULL, with a line in the log, where that is not possible: $TMPDIR stays as it was.
const char *scratch_open(void);
void scratch_remove(pid_t pid); // what that compiler has left, of which nothing runs any more
void scratch_close(void);       // removes it; TMPDIR is the folder that it was in
