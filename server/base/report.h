#pragma once

// What kernels have reported of an operator's `check` lines, in words.

#include <stddef.h>
#include <stdint.h>

// Where the index goes in a message.
enum { REPORT_INDEX_MARK = 1 };

// Appends the message to `out`. `texts` are those of all checks, one after the other, each
// terminated, and `key` the 8 bytes that opd::check() of opd.cuh has left, not 0; a key of no check
// is said to be one.
struct buf;
void report_explain(const char *texts, size_t size, uint64_t key, struct buf *out);
