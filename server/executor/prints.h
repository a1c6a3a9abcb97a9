#pragma once

// What kernels print: the text of the command that runs, in memory that the process shares with the
// broker, so that it is there also when the process is killed. So much is kept as has room; what
// comes after that is counted. Used by all threads of the process.

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "executor/devwire.h"

// From now on text goes there, as that of the command progress->taken. Before, it goes to the
// standard output.
void prints_attach(struct dev_prints *prints, const struct dev_progress *progress);

// The printf() of the CPU device's kernels. While muted, nothing is kept.
int prints_format(const char *format, va_list args);
void prints_mute(bool mute);

// For a device whose driver prints to the standard output: that is a file of this process from now
// on, and prints_collect() takes the text that came there. Without the file, nothing changes.
void prints_capture(void);
void prints_collect(void);

// How many bytes there are of that command; of any.
size_t prints_of(uint64_t seq);
bool prints_any(void);
// Copies so many, and tells how many more were printed. They stay until prints_clear().
uint64_t prints_read(char *out, size_t size);
void prints_clear(void);
