#pragma once

// The steps of a command that a post-mortem runs again, and the memory that they use: a list of
// pieces, and the same steps on copies of these. Nothing here knows requests or runs anything.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "executor/devwire.h"

// A piece of memory that steps use, and where its copy is. The copy lies as the original does
// between multiples of POSTMORTEM_ALIGN bytes.
struct steps_piece {
    uint32_t region, copy_region;
    uint64_t offset, size, copy_offset;
};

enum { POSTMORTEM_ALIGN = 512 };

// Launches, products, fills and copies, one after the other, as they stand in a command.
struct steps_again {
    struct buf bytes;
    uint64_t n;
    uint64_t first; // of the command's steps
    struct steps_piece *pieces; // they do not overlap
    size_t n_pieces;
};

// Takes the launch at `step` of a command, or the next one behind it; not `alone`: with all that
// follows. False: there is none. The command is well-formed. Finish it in either case.
bool steps_again_take(struct steps_again *s, const void *command, uint64_t step, bool alone);
void steps_again_finish(struct steps_again *s); // zeroed is fine

// The launch that is one of its steps, by number; or the next: NULL. Start with *step 0.
struct dev_launch *steps_again_launch(struct steps_again *s, uint64_t *step);

// Puts copies in place of the pieces, in all steps.
void steps_again_move(struct steps_again *s);

// Where a place in a copy is in the memory that was copied; a negative offset, or one behind the
// piece, is so there too.
bool steps_again_origin(const struct steps_again *s, const struct dev_slot *slot, int64_t offset,
                        uint32_t *out_region, int64_t *out_offset);
