#pragma once

// The host compiler's diagnostics, in the user's terms: of the shim and of the temporary files
// around the source, nothing is shown. Pure functions of text. Part of the host compiler (host.c).

// NULL where nothing is left. The caller frees it.
char *host_log_rewrite(const char *log);

// The first error of a rewritten log, on one line; what says that the compiler failed, where there
// is none. The caller frees it.
char *host_log_first_error(const char *log, const char *file, const char *expr);
