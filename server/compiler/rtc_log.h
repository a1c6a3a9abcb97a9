#pragma once

// NVRTC's diagnostics in the form that editors and people know. Pure functions of text.

// "x.cu(3): error: ..." becomes "x.cu:3:7: error: ...", with the column from the caret below it;
// remarks of the library and of ptxas go. NULL where nothing is left. The caller frees it.
char *rtc_log_rewrite(const char *log);

// The first error of a rewritten log, on one line. Where the kernel's name itself is wrong, the
// message names it. The caller frees it.
char *rtc_log_first_error(const char *log, const char *file, const char *expr);
