#pragma once

// suballoc_check(): true if every invariant of a map of device memory holds.

#include <stdbool.h>
#include <stddef.h>

#include "memory/suballoc.h"

static bool check_chunk(const struct suballoc_chunk *chunk, uint64_t *n_free)
{
    uint64_t offset = 0, used = 0;
    const struct suballoc_block *before = NULL;
    for (const struct suballoc_block *b = chunk->first; b; before = b, b = b->after) {
        if (b->chunk != chunk || b->offset != offset || b->before != before || b->size == 0 ||
            b->size % SUBALLOC_ALIGN || (before && !before->used && !b->used))
            return false;
        offset += b->size;
        used += b->used ? b->size : 0;
        *n_free += !b->used;
    }
    return offset == chunk->size && used == chunk->used;
}

static bool suballoc_check(const struct suballoc *a)
{
    uint64_t n_free = 0, reserved = 0, used = 0;
    for (const struct suballoc_chunk *chunk = a->chunks; chunk; chunk = chunk->next) {
        if (!check_chunk(chunk, &n_free))
            return false;
        reserved += chunk->size;
        used += chunk->used;
    }
    uint64_t binned = 0;
    for (int i = 0; i < SUBALLOC_BINS; i++)
        for (const struct suballoc_block *b = a->bins[i]; b; b = b->bin_next, binned++)
            if (b->used || b->size >> i < SUBALLOC_ALIGN || b->size >> i >= 2 * SUBALLOC_ALIGN)
                return false;
    return n_free == binned && reserved == a->reserved && used == a->used;
}
