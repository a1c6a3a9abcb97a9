// A device's staging memory: what comes and goes in messages passes through it.

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "broker.h"
#include "device/device.h"
#include "device/devices.h"
#include "base/fdpass.h"
#include "base/log.h"

enum { SIZE = STAGING_LARGE_SIZE + STAGING_SMALL_SIZE };

static void make_staging(struct device *d)
{
    int fd = fdpass_memfd("opd-staging", SIZE);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct opd_err err = { 0 };
    if (p == MAP_FAILED || !device_map_host(d, fd, SIZE, &d->staging_region, NULL, &err)) {
        log_error("no staging memory: %s", p == MAP_FAILED ? strerror(errno) : err.msg);
        abort();
    }
    d->staging = p;
    suballoc_add_chunk(&d->stage_pools[0].map, 0, STAGING_LARGE_SIZE);
    suballoc_add_chunk(&d->stage_pools[1].map, 1, STAGING_SMALL_SIZE);
    close(fd);
}

uint64_t device_staged_at(const struct suballoc_block *block)
{
    return block->offset + (block->chunk->region ? STAGING_LARGE_SIZE : 0);
}

static void leave(struct stage_pool *pool, uint64_t conn)
{
    int i = 0;
    while (i < pool->n_queue && pool->queue[i] != conn)
        i++;
    if (i < pool->n_queue)
        memmove(&pool->queue[i], &pool->queue[i + 1],
                (size_t)(--pool->n_queue - i) * sizeof *pool->queue);
}

static void enter(struct stage_pool *pool, uint64_t conn)
{
    for (int i = 0; i < pool->n_queue; i++)
        if (pool->queue[i] == conn)
            return;
    pool->queue = mem_realloc(pool->queue, (size_t)pool->n_queue + 1, sizeof *pool->queue);
    pool->queue[pool->n_queue++] = conn;
}

struct suballoc_block *device_stage(struct device *d, uint64_t conn, uint64_t size)
{
    if (!d->staging)
        make_staging(d);
    struct stage_pool *pool = &d->stage_pools[size <= STAGING_SMALL];
    bool first = pool->n_queue == 0 || pool->queue[0] == conn;
    struct suballoc_block *block = first ? suballoc_alloc(&pool->map, size) : NULL;
    if (!block)
        enter(pool, conn);
    else
        device_stage_leave(d, conn);
    return block;
}

void device_stage_leave(struct device *d, uint64_t conn)
{
    int before = d->stage_pools[0].n_queue + d->stage_pools[1].n_queue;
    for (int i = 0; i < STAGING_POOLS; i++)
        leave(&d->stage_pools[i], conn);
    if (d->stage_pools[0].n_queue + d->stage_pools[1].n_queue < before)
        turn_retry(d->all->turn); // it may be the next one's turn
}

void device_unstage(struct device *d, struct suballoc_block *block)
{
    suballoc_free(&d->stage_pools[block->chunk->region].map, block);
}
