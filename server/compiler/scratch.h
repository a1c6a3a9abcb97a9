#pragma once

// A compiler process's own folder for temporary files. It goes with the process: whatever a process
// that was killed has left is removed by the next one that starts.

// Makes the folder in $TMPDIR, or /tmp, and makes it the TMPDIR of this process and its children.
// NULL, with a line in the log, where that is not possible: $TMPDIR stays as it was.
const char *scratch_open(void);
void scratch_close(void); // removes it; TMPDIR is the folder that it was in
