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
enum { MAX_VIEWS = 4096, N_SLOTS = 2 * MAX_VIEWS, POPULATE_SIZE = 1 << 16 };
static const uint64_t MAX_BYTES = (uint64_t)1 << 36;

struct cpu_guard_view {
    uintptr_t low, high, addr;
    uint64_t used; // the clock's time
    struct cpu_guard_view *next;
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

static struct cpu_guard_view **slot_of(const struct cpu_guards *g, uintptr_t low, uintptr_t high)
{
    uint64_t key[2] = { low, high };
    return &g->slots[hash_bytes(key, sizeof key, 0) % N_SLOTS];
}

static void drop_view(struct cpu_guards *g, struct cpu_guard_view *v)
{
    struct cpu_guard_view **link = slot_of(g, v->low, v->high);
    while (*link != v)
        link = &(*link)->next;
    *link = v->next;
    cpu_guard_drop(v->addr, v->high - v->low);
    g->bytes -= v->high - v->low;
    struct cpu_guard_view *last = &g->views[--g->n_views];
    if (last == v)
        return;
    link = slot_of(g, last->low, last->high);
    while (*link != last)
        link = &(*link)->next;
    *v = *last;
    *link = v;
}

// False: all that there are belong to this launch.
static bool drop_oldest(struct cpu_guards *g)
{
    struct cpu_guard_view *oldest = &g->views[0];
    for (unsigned i = 1; i < g->n_views; i++)
        if (g->views[i].used < oldest->used)
            oldest = &g->views[i];
    if (oldest->used == g->clock)
        return false;
    drop_view(g, oldest);
    return true;
}

void cpu_guards_remove(struct cpu_guards *g, uintptr_t addr)
{
    for (int i = 0; i < g->n_chunks; i++) {
        struct cpu_guard_chunk *c = &g->chunks[i];
        if (c->addr != addr)
            continue;
        for (unsigned v = g->n_views; v-- > 0;)
            if (g->views[v].low >= addr && g->views[v].low < addr + c->size)
                drop_view(g, &g->views[v]);
        close(c->fd);
        *c = (struct cpu_guard_chunk){ 0 };
    }
}

void cpu_guards_finish(struct cpu_guards *g)
{
    for (int i = 0; i < g->n_chunks; i++)
        if (g->chunks[i].addr)
            cpu_guards_remove(g, g->chunks[i].addr);
    free(g->views);
    free(g->slots);
    memset(g, 0, sizeof *g);
}

static uintptr_t make_view(struct cpu_guards *g, uintptr_t low, uintptr_t high)
{
    const struct cpu_guard_chunk *c = g->chunks, *end = g->chunks + g->n_chunks;
    while (c < end && (low < c->addr || high > c->addr + c->size))
        c++;
    if (c == end)
        return low;
    if (!g->views) {
        g->views = mem_zalloc(MAX_VIEWS, sizeof *g->views);
        g->slots = mem_zalloc(N_SLOTS, sizeof *g->slots);
    }
    while (g->n_views && (g->n_views == MAX_VIEWS || g->bytes + (high - low) > MAX_BYTES))
        if (!drop_oldest(g))
            return low;
    uintptr_t addr = cpu_guard_make(c->fd, low - c->addr, high - low);
    if (!addr)
        return low;
    struct cpu_guard_view *v = &g->views[g->n_views++], **slot = slot_of(g, low, high);
    *v = (struct cpu_guard_view){ low, high, addr, g->clock, *slot };
    *slot = v;
    g->bytes += high - low;
    return addr;
}

void cpu_guards_begin(struct cpu_guards *g)
{
    g->clock++;
}

uintptr_t cpu_guards_map(struct cpu_guards *g, uintptr_t low, uintptr_t high)
{
    for (struct cpu_guard_view *v = g->slots ? *slot_of(g, low, high) : NULL; v; v = v->next)
        if (v->low == low && v->high == high) {
            v->used = g->clock;
            return v->addr;
        }
    return make_view(g, low, high);
}
