#pragma once

// Hands out pieces of chunks by offset. It knows no device and touches no memory, so it is tested
// without one: a chunk is a number and a size. Pieces are aligned to 512 bytes, neighbours that are
// free are one piece, and both allocation and freeing take constant time but for a short search.

#include <stdbool.h>
#include <stdint.h>

enum { SUBALLOC_ALIGN = 512, SUBALLOC_BINS = 56 };

struct suballoc_chunk {
    uint32_t region; // the caller's number for it
    uint64_t size;
    uint64_t used;
    uint64_t emptied_at; // the caller's
    bool closed;         // nothing more of it is given out
    struct suballoc_block *first;
    struct suballoc_chunk *next;
};

// A piece, used or free. The caller reads chunk, offset and size, and may set the owner.
struct suballoc_block {
    struct suballoc_chunk *chunk;
    uint64_t offset;
    uint64_t size; // rounded up to SUBALLOC_ALIGN
    bool used;
    void *owner;                                // of a used one, in the caller's terms
    struct suballoc_block *before, *after;      // neighbours in the chunk
    struct suballoc_block *bin_prev, *bin_next; // free ones of like size; else the caller's
};

// Zeroed is an empty one.
struct suballoc {
    struct suballoc_chunk *chunks;
    struct suballoc_block *bins[SUBALLOC_BINS]; // bin b: free pieces of [512 << b, 1024 << b)
    uint64_t reserved;                          // bytes of all chunks
    uint64_t used;
};

struct suballoc_chunk *suballoc_add_chunk(struct suballoc *a, uint32_t region,
                                          uint64_t size); // size: a multiple of SUBALLOC_ALIGN
void suballoc_close(struct suballoc *a, struct suballoc_chunk *chunk);        // from now on
void suballoc_remove_chunk(struct suballoc *a, struct suballoc_chunk *chunk); // must be unused

// NULL where no free piece is large enough. size > 0.
struct suballoc_block *suballoc_alloc(struct suballoc *a, uint64_t size);

// A certain piece, as another map had it: looked for from a piece of the same chunk on. NULL where
// not all of it is free, or it is not aligned.
struct suballoc_block *suballoc_take(struct suballoc *a, struct suballoc_block *from,
                                     uint64_t offset, uint64_t size);
void suballoc_free(struct suballoc *a, struct suballoc_block *block);

uint64_t suballoc_round(uint64_t size);   // what an allocation of that size takes
void suballoc_finish(struct suballoc *a); // frees the bookkeeping, used pieces too
