#include "compiler/cache.h"

#include <fts.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    LEFT_SECONDS = 600, // a temporary file of that age has no writer any more
    LOOK_SHARE = 32,    // this process looks again when it has put that part of the limit
    FREE_SHARE = 10,    // that part of the limit is free after a trim
    PCH_SHARE = 2,      // precompiled headers take that part of it at most
};

// What this process knows of the folder; it uses one.
static struct {
    bool known;
    uint64_t bytes, put; // all; of these, put by this process since it looked
} account;

struct item {
    char *path;
    struct timespec used;
    uint64_t size;
    bool is_pch;
};

struct listing {
    struct item *items;
    size_t n;
    uint64_t bytes, pch_bytes; // all; of these, of precompiled headers
};

uint64_t cache_bytes(void)
{
    return account.bytes;
}

void cache_note_put(uint64_t bytes)
{
    account.bytes += account.known ? bytes : 0;
    account.put += bytes;
}

static bool is_hex_name(const char *name)
{
    return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

// Entries are listed, leftovers removed, other files left alone.
static void list_file(struct listing *l, const FTSENT *entry)
{
    const struct stat *st = entry->fts_statp;
    const char *pch = strstr(entry->fts_name, CACHE_PCH);
    const char *suffix = pch ? pch : strstr(entry->fts_name, CACHE_IMAGE);
    bool temporary = suffix && suffix[4] == '.';
    if (!suffix ||
        (temporary && st->st_mtime + LEFT_SECONDS < time(NULL) && unlink(entry->fts_path) == 0))
        return;
    l->bytes += (uint64_t)st->st_size;
    l->pch_bytes += pch ? (uint64_t)st->st_size : 0;
    if (suffix[4])
        return;
    if ((l->n & (l->n - 1)) == 0)
        l->items = mem_realloc(l->items, l->n ? l->n * 2 : 1, sizeof *l->items);
    l->items[l->n++] = (struct item){ mem_strdup(entry->fts_path), st->st_mtim,
                                      (uint64_t)st->st_size, pch != NULL };
}

// The files in its folders of two hex digits.
static bool list_folder(struct listing *l, const char *folder)
{
    char *const roots[] = { (char *)(uintptr_t)folder, NULL };
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    bool there = false;
    for (FTSENT *e; tree && (e = fts_read(tree)) != NULL;) {
        there = there || e->fts_info == FTS_D;
        if (e->fts_info == FTS_F && e->fts_level == 2)
            list_file(l, e);
        else if (e->fts_info == FTS_D && e->fts_level > 0 &&
                 !(e->fts_level == 1 && is_hex_name(e->fts_name)))
            fts_set(tree, e, FTS_SKIP);
    }
    if (tree)
        fts_close(tree);
    return there;
}

static void finish_listing(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].path);
    free(l->items);
}

static int compare_use(const void *a, const void *b)
{
    const struct timespec *p = &((const struct item *)a)->used,
                          *q = &((const struct item *)b)->used;
    if (p->tv_sec != q->tv_sec)
        return p->tv_sec < q->tv_sec ? -1 : 1;
    return (p->tv_nsec > q->tv_nsec) - (p->tv_nsec < q->tv_nsec);
}

// Those that were used least recently, until no more than `wanted` bytes are left of what *bytes
// counts: of precompiled headers, or of all. Others may trim at the same time, and take the same.
static void remove_oldest(struct listing *l, const uint64_t *bytes, uint64_t wanted)
{
    size_t n = 0;
    for (size_t i = 0; i<l->n && * bytes> wanted; i++) {
        struct item *item = &l->items[i];
        struct stat st;
        if (!item->size || (bytes == &l->pch_bytes && !item->is_pch) ||
            (unlink(item->path) != 0 && lstat(item->path, &st) == 0))
            continue;
        l->bytes -= item->size;
        l->pch_bytes -= item->is_pch ? item->size : 0;
        item->size = 0; // it is gone
        n++;
    }
    log_debug("cache: %zu entries removed, %llu bytes are left", n, (unsigned long long)l->bytes);
}

static void remove_what_is_over(struct listing *l, uint64_t limit)
{
    if (l->n > 0)
        qsort(l->items, l->n, sizeof *l->items, compare_use);
    if (l->pch_bytes > limit / PCH_SHARE)
        remove_oldest(l, &l->pch_bytes, limit / PCH_SHARE);
    if (l->bytes > limit)
        remove_oldest(l, &l->bytes, limit - limit / FREE_SHARE);
}

void cache_trim(const char *folder, uint64_t limit)
{
    bool over = limit && (account.bytes > limit || account.put > limit / LOOK_SHARE);
    if (!folder[0] || (account.known && !over))
        return;
    struct listing l = { 0 };
    if (list_folder(&l, folder)) {
        if (limit)
            remove_what_is_over(&l, limit);
        account.known = true;
        account.bytes = l.bytes;
    }
    account.put = 0;
    finish_listing(&l);
}
