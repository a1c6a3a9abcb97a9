#pragma once

// Checks that kernels make on the device: `//! check NAME : "MESSAGE"`. A kernel that has the
// parameter `report` calls opd::check(report, NAME, condition, index) of opd.cuh. What fails goes
// into 8 bytes as a key, of which the greatest stays: the first check of the file, then the
// smallest index. 0: nothing failed.

#include "op/reader.h"

// The directive; and, once all is read, whether some kernel reports where there are checks.
bool report_read(struct reader *r);
bool report_end(struct reader *r);

// The names as constants, for the prelude.
void report_write_names(const struct op *op, struct buf *out);

// The messages for one request, one after the other, each terminated, in the arena;
// REPORT_INDEX_MARK stands where the index goes. What a plan keeps for report_explain() in
// base/report.h.
char *report_texts(const struct env *env, struct arena *arena, size_t *out_size);
