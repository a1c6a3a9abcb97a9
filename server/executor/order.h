#pragma once

// Which steps of a sequence must wait for which, told by the memory that they touch: each may then
// run as soon as those have, and all memory ends as if they had run one after the other.
//
// Steps are given one by one, in that sequence, as ranges of addresses: a step waits for the last
// that wrote what it reads, and for the last that wrote and all that have read since what it
// writes. Ranges are compared, not what they are called: memory that is given up and given out
// again orders who had it before against who has it next. What is not known is a range that holds
// all that it may be, at worst from 0 to UINT64_MAX. Of what a step waits for only that is told
// which nothing else implies, so edges are few.
//
// What is looked at is bounded: after ORDER_SECTION steps, or where their ranges are in too many
// pieces, one step waits for all before it, and all after it wait for that.
//
// A pure function of what it is given. One thread.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORDER_SECTION = 1024, ORDER_WORDS = ORDER_SECTION / 64 };

struct order_range {
    uint64_t begin, end; // nothing if they are the same
    bool written;        // it may be; else it is read
};

struct order_piece; // of memory: who touched it last
struct order_reader;

// A set of the section's steps.
struct order_set {
    uint64_t words[ORDER_WORDS];
};

// Zeroed, no step has come.
struct order {
    uint32_t after[ORDER_SECTION]; // what the step that came last waits for, the latest first: from
    uint32_t n_after;              // 0, in the order in which they came
    // Of the section: its first step, how many have come, and what is known of them.
    uint32_t first, n;
    struct order_set *before;  // of each step: which come before it, by whatever way
    struct order_set followed; // some other waits for these
    struct order_piece *pieces; // sorted, none overlaps another
    size_t n_pieces, pieces_room;
    struct order_reader *readers;
    size_t n_readers, readers_room;
};

// The next step, which touches these: sets o->after.
void order_step(struct order *o, const struct order_range *ranges, size_t n);
void order_finish(struct order *o);
