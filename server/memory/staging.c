#include "memory/staging.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/turn.h"

void staging_open(struct staging *s, struct turn *turn, uint8_t *memory, uint32_t region)
{
    s->turn = turn;
    s->memory = memory;
    s->region = region;
    suballoc_add_chunk(&s->pools[0].map, 0, STAGING_LARGE_SIZE);
    suballoc_add_chunk(&s->pools[1].map, 1, STAGING_SMALL_SIZE);
}

void staging_finish(struct staging *s)
{
    if (s->memory)
        munmap(s->memory, STAGING_SIZE);
    for (int i = 0; i < STAGING_POOLS; i++) {
        suballoc_finish(&s->pools[i].map);
        free(s->pools[i].queue);
    }
}

uint64_t staging_offset(const struct suballoc_block *block)
{
    return block->offset + (block->chunk->region ? STAGING_LARGE_SIZE : 0);
}

static void leave(struct staging_pool *pool, uint64_t conn)
{
    int i = 0;
    while (i < pool->n_queue && pool->queue[i] != conn)
        i++;
    if (i < pool->n_queue)
        memmove(&pool->queue[i], &pool->queue[i + 1],
                (size_t)(--pool->n_queue - i) * sizeof *pool->queue);
}

static void enter(struct staging_pool *pool, uint64_t conn)
{
    for (int i = 0; i < pool->n_queue; i++)
        if (pool->queue[i] == conn)
            return;
    pool->queue = mem_realloc(pool->queue, (size_t)pool->n_queue + 1, sizeof *pool->queue);
    pool->queue[pool->n_queue++] = conn;
}

struct suballoc_block *staging_take(struct staging *s, uint64_t conn, uint64_t size)
{
    struct staging_pool *pool = &s->pools[size <= STAGING_SMALL];
    bool first = pool->n_queue == 0 || pool->queue[0] == conn;
    struct suballoc_block *block = first ? suballoc_alloc(&pool->map, size) : NULL;
    if (!block)
        enter(pool, conn);
    else
        staging_leave(s, conn);
    return block;
}

void staging_leave(struct staging *s, uint64_t conn)
{
    int before = s->pools[0].n_queue + s->pools[1].n_queue;
    for (int i = 0; i < STAGING_POOLS; i++)
        leave(&s->pools[i], conn);
    if (s->pools[0].n_queue + s->pools[1].n_queue < before)
        turn_retry(s->turn); // it may be the next one's turn
}

void staging_give(struct staging *s, struct suballoc_block *block)
{
    suballoc_free(&s->pools[block->chunk->region].map, block);
}
