#pragma once

// A checked build of a GPU's kernel: PTX in which every access to memory is held against what it is
// to stay in (compiler/ptx_check.h). It begins with the line CHECKED_SLOTS, with the offsets of
// tensors' addresses among the arguments: one row of the table for each. At its end there is a line
// for each place that is checked: CHECKED_SITE.

#include <stdint.h>

#define CHECKED_SLOTS "//@slots"
// Number from 1, what it does, bytes, bytes of one element of these, of what, its number, its name
// or "-", line, file.
#define CHECKED_SITE_FORMAT "//@%u %s %u %u %s %lld %s %u %s\n"
#define CHECKED_TABLE "opd_table" // in constant memory: struct checked_row, filled before a launch
#define CHECKED_REPORT "opd_report" // in global memory: zeros before it, read behind it

enum { CHECKED_MAX_SLOTS = 512, CHECKED_WIDTHS = 6, CHECKED_NULL_ZONE = 4096 };

// A tensor: its address, and for accesses of 1, 2, 4 ... 32 bytes the first offset that is too far.
struct checked_row {
    uint64_t base, limits[CHECKED_WIDTHS], reserved;
};

// Of all misses that of the first block, and in it of the first thread.
struct checked_report {
    uint32_t n, lock; // n: misses
    uint64_t key, address;
    uint32_t site, block[3], thread[3], reserved[3];
};

_Static_assert(sizeof(struct checked_row) == 64 && sizeof(struct checked_report) == 64,
               "as the code in ptx_check.c has them");
