#include "memory/suballoc.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

// How many pieces of the first bin that may fit are looked at before a larger bin is taken.
enum { SEARCH_LIMIT = 32 };

static struct mem_pool blocks;

static int bin_of(uint64_t size)
{
    return 63 - __builtin_clzll(size) - 9;
}

static void bin_insert(struct suballoc *a, struct suballoc_block *b)
{
    if (b->chunk->closed)
        return;
    struct suballoc_block **bin = &a->bins[bin_of(b->size)];
    b->bin_prev = NULL;
    b->bin_next = *bin;
    if (*bin)
        (*bin)->bin_prev = b;
    *bin = b;
}

static void bin_remove(struct suballoc *a, struct suballoc_block *b)
{
    if (b->chunk->closed)
        return;
    if (b->bin_prev)
        b->bin_prev->bin_next = b->bin_next;
    else
        a->bins[bin_of(b->size)] = b->bin_next;
    if (b->bin_next)
        b->bin_next->bin_prev = b->bin_prev;
    b->bin_prev = b->bin_next = NULL;
}

uint64_t suballoc_round(uint64_t size)
{
    return (size + SUBALLOC_ALIGN - 1) & ~(uint64_t)(SUBALLOC_ALIGN - 1);
}

struct suballoc_chunk *suballoc_add_chunk(struct suballoc *a, uint32_t region, uint64_t size)
{
    assert(size > 0 && size % SUBALLOC_ALIGN == 0);
    struct suballoc_chunk *chunk = mem_zalloc(1, sizeof *chunk);
    struct suballoc_block *block = mem_zalloc(1, sizeof *block);
    *chunk = (struct suballoc_chunk){
        .region = region, .size = size, .first = block, .next = a->chunks
    };
    *block = (struct suballoc_block){ .chunk = chunk, .size = size };
    a->chunks = chunk;
    a->reserved += size;
    bin_insert(a, block);
    return chunk;
}

void suballoc_close(struct suballoc *a, struct suballoc_chunk *chunk)
{
    for (struct suballoc_block *b = chunk->first; b; b = b->after)
        if (!b->used)
            bin_remove(a, b);
    chunk->closed = true;
}

void suballoc_remove_chunk(struct suballoc *a, struct suballoc_chunk *chunk)
{
    assert(chunk->used == 0 && !chunk->first->after);
    struct suballoc_chunk **link = &a->chunks;
    while (*link != chunk)
        link = &(*link)->next;
    *link = chunk->next;
    a->reserved -= chunk->size;
    bin_remove(a, chunk->first);
    free(chunk->first);
    free(chunk);
}

static struct suballoc_block *find_free(const struct suballoc *a, uint64_t size)
{
    int bin = bin_of(size);
    int looked = 0;
    for (struct suballoc_block *b = a->bins[bin]; b && looked < SEARCH_LIMIT;
         b = b->bin_next, looked++)
        if (b->size >= size)
            return b;
    for (int i = bin + 1; i < SUBALLOC_BINS; i++)
        if (a->bins[i])
            return a->bins[i];
    // Rather a long search than more memory.
    for (struct suballoc_block *b = a->bins[bin]; b; b = b->bin_next)
        if (b->size >= size)
            return b;
    return NULL;
}

static void split(struct suballoc *a, struct suballoc_block *b, uint64_t size)
{
    if (b->size == size)
        return;
    struct suballoc_block *rest = mem_pool_take(&blocks, sizeof *rest);
    *rest = (struct suballoc_block){ .chunk = b->chunk,
                                     .offset = b->offset + size,
                                     .size = b->size - size,
                                     .before = b,
                                     .after = b->after };
    if (b->after)
        b->after->before = rest;
    b->after = rest;
    b->size = size;
    bin_insert(a, rest);
}

// The first bytes of a piece that is in no bin.
static struct suballoc_block *use(struct suballoc *a, struct suballoc_block *b, uint64_t size)
{
    split(a, b, size);
    b->used = true;
    b->chunk->used += size;
    a->used += size;
    return b;
}

struct suballoc_block *suballoc_alloc(struct suballoc *a, uint64_t size)
{
    assert(size > 0 && size < (uint64_t)1 << 62);
    size = suballoc_round(size);
    struct suballoc_block *b = find_free(a, size);
    if (!b)
        return NULL;
    bin_remove(a, b);
    return use(a, b, size);
}

struct suballoc_block *suballoc_take(struct suballoc *a, struct suballoc_block *from,
                                     uint64_t offset, uint64_t size)
{
    struct suballoc_block *b = from;
    while (b && b->offset + b->size <= offset)
        b = b->after;
    if (!b || b->used || b->offset > offset || offset % SUBALLOC_ALIGN || size == 0 ||
        size > b->offset + b->size - offset)
        return NULL;
    bin_remove(a, b);
    if (b->offset < offset) {
        split(a, b, offset - b->offset);
        bin_insert(a, b);
        b = b->after;
        bin_remove(a, b);
    }
    size = suballoc_round(size); // fits: all pieces are aligned
    return use(a, b, size);
}

// Makes `b` and its neighbour `after` one piece.
static void merge(struct suballoc *a, struct suballoc_block *b, struct suballoc_block *after)
{
    bin_remove(a, after);
    b->size += after->size;
    b->after = after->after;
    if (b->after)
        b->after->before = b;
    mem_pool_give(&blocks, after);
}

void suballoc_free(struct suballoc *a, struct suballoc_block *b)
{
    assert(b->used);
    b->used = false;
    b->chunk->used -= b->size;
    a->used -= b->size;
    if (b->after && !b->after->used)
        merge(a, b, b->after);
    struct suballoc_block *before = b->before;
    if (before && !before->used) {
        bin_insert(a, b);
        bin_remove(a, before);
        merge(a, before, b);
        b = before;
    }
    bin_insert(a, b);
}

void suballoc_finish(struct suballoc *a)
{
    struct suballoc_chunk *next;
    for (struct suballoc_chunk *chunk = a->chunks; chunk; chunk = next) {
        next = chunk->next;
        struct suballoc_block *after;
        for (struct suballoc_block *b = chunk->first; b; b = after) {
            after = b->after;
            free(b);
        }
        free(chunk);
    }
    *a = (struct suballoc){ 0 };
}
