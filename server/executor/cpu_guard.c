#include "executor/cpu_guard.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"

// Each view is three of the mappings of which the kernel grants a process some 65000, and costs
// page tables as it is used.
enum { MAX_VIEWS = 4096, POPULATE_SIZE = 1 << 16 };
static const uint64_t MAX_BYTES = (uint64_t)1 << 36;

struct view {
    uintptr_t low, high, addr;
    uint64_t used; // the clock's time
};

uintptr_t cpu_guard_make(int fd, uint64_t offset, uint64_t size)
{
    uint8_t *all = mmap(NULL, size + 2 * CPU_GUARD_ZONE, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return 0;
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *p = mmap(all + CPU_GUARD_ZONE, size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd,
                   (off_t)offset);
    if (p == MAP_FAILED) {
        munmap(all, size + 2 * CPU_GUARD_ZONE);
        return 0;
    }
#ifdef MADV_POPULATE_WRITE
    if (fd >= 0 && size >= POPULATE_SIZE) // at once it takes a fraction of the time
        madvise(p, size, MADV_POPULATE_WRITE);
#endif
    return (uintptr_t)p;
}

void cpu_guard_drop(uintptr_t addr, uint64_t size)
{
    munmap((void *)(addr - CPU_GUARD_ZONE), size + 2 * CPU_GUARD_ZONE);
}

void cpu_guards_add(struct cpu_guards *g, uintptr_t addr, uint64_t size, int fd)
{
    int i = 0;
    while (i < g->n_chunks && g->chunks[i].addr)
        i++;
    int kept = i < CPU_GUARD_MAX_CHUNKS ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (kept < 0)
        return;
    if (i == g->n_chunks)
        g->n_chunks++;
    g->chunks[i] = (struct cpu_guard_chunk){ addr, size, kept };
}

uint64_t cpu_guards_promised(const struct cpu_guards *g)
{
    uint64_t promised = 0;
    struct stat st;
    for (int i = 0; i < g->n_chunks; i++) {
        const struct cpu_guard_chunk *c = &g->chunks[i];
        uint64_t has = c->addr && fstat(c->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : c->size;
        promised += has < c->size ? c->size - has : 0;
    }
    return promised;
}

static uint64_t key_of(uintptr_t low, uintptr_t high)
{
    uint64_t bounds[2] = { low, high };
    return hash_bytes(bounds, sizeof bounds, 0);
}

static void drop_view(struct cpu_guards *g, struct view *v)
{
    map_remove(&g->views, key_of(v->low, v->high));
    cpu_guard_drop(v->addr, v->high - v->low);
    g->bytes -= v->high - v->low;
    free(v);
}

// False: all that there are belong to this launch.
static bool drop_oldest(struct cpu_guards *g)
{
    struct view *oldest = NULL;
    size_t cursor = 0;
    for (struct view *v; (v = map_next(&g->views, &cursor)) != NULL;)
        if (!oldest || v->used < oldest->used)
            oldest = v;
    if (oldest->used == g->clock)
        return false;
    drop_view(g, oldest);
    return true;
}

static void remove_chunk(struct cpu_guards *g, struct cpu_guard_chunk *c)
{
    struct view *inside[MAX_VIEWS];
    size_t n = 0, cursor = 0;
    for (struct view *v; (v = map_next(&g->views, &cursor)) != NULL;)
        if (v->low >= c->addr && v->low < c->addr + c->size)
            inside[n++] = v;
    while (n > 0)
        drop_view(g, inside[--n]);
    close(c->fd);
    *c = (struct cpu_guard_chunk){ 0 };
}

void cpu_guards_remove(struct cpu_guards *g, uintptr_t addr)
{
    for (int i = 0; i < g->n_chunks; i++)
        if (g->chunks[i].addr == addr)
            remove_chunk(g, &g->chunks[i]);
}

void cpu_guards_finish(struct cpu_guards *g)
{
    for (int i = 0; i < g->n_chunks; i++)
        if (g->chunks[i].addr)
            remove_chunk(g, &g->chunks[i]);
    map_finish(&g->views);
    memset(g, 0, sizeof *g);
}

static uintptr_t make_view(struct cpu_guards *g, uintptr_t low, uintptr_t high)
{
    const struct cpu_guard_chunk *c = g->chunks, *end = g->chunks + g->n_chunks;
    while (c < end && (low < c->addr || high > c->addr + c->size))
        c++;
    if (c == end)
        return low;
    while (g->views.count > 0 &&
           (g->views.count == MAX_VIEWS || g->bytes + (high - low) > MAX_BYTES))
        if (!drop_oldest(g))
            return low;
    uintptr_t addr = cpu_guard_make(c->fd, low - c->addr, high - low);
    if (!addr)
        return low;
    struct view *v = mem_alloc(sizeof *v);
    *v = (struct view){ low, high, addr, g->clock };
    map_put(&g->views, key_of(low, high), v);
    g->bytes += high - low;
    return addr;
}

void cpu_guards_begin(struct cpu_guards *g)
{
    g->clock++;
}

uintptr_t cpu_guards_map(struct cpu_guards *g, uintptr_t low, uintptr_t high)
{
    struct view *v = map_get(&g->views, key_of(low, high));
    if (!v)
        return make_view(g, low, high);
    if (v->low != low || v->high != high) // of the same hash
        return low;
    v->used = g->clock;
    return v->addr;
}
