#pragma once

// What every unit for the CPU begins with, precompiled by GCC: a fifth of the time of an edit. Each
// compiler process has its own; it makes one when a beginning has come several times and nobody
// waits. Part of the host compiler (host.c).

// From now on in that folder (scratch.h), which stays valid. NULL, as at first: there are none.
void host_pch_use(const char *scratch);

// The header to give to -include in place of that text, which includes "opd.cuh", the text
// `common`. NULL: there is none yet. `words`, with a NULL behind them: the compiler's command, up
// to its inputs. Where the compiler does not take what was precompiled, the header has the text.
const char *host_pch_find(const char *text, const char *common, const char *const *words);

// Makes the one that was last asked for in vain, if it is time. Gives way to the next job
// (child_watch()).
void host_pch_make(void);
