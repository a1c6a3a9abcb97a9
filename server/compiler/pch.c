#include "compiler/pch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/trust.h"

enum {
    MAX_HELD = 8,
    MAX_HELD_SIZE = 512 << 20,
    MAX_FAILED = 4, // from then on this process has none
    CHUNK = 1 << 20,
    SLACK = 4 << 20, // by which the kernel may align the heap
};

// Behind what NVRTC wrote, which does not mind.
struct trailer {
    char magic[8];
    uint64_t size, digest;
};
static const char magic[8] = "opd-pch";

struct held {
    struct cache_key key;
    int fd;
    uint64_t size;   // of the file
    uint64_t used;   // the turn of its last use
    char *temporary; // not published yet: its name in the cache; else NULL
};

static const char *scratch;
static bool shares;      // other processes have the same addresses
static void *reserved;   // keeps the heap's place until NVRTC takes it
static const void *heap; // NULL: not known yet
static struct held held[MAX_HELD];
static int n_held, n_failed;
static uint64_t n_turns;

// The compile under way.
static struct {
    struct cache_key key;
    const char *cache;
    char option[4096];
    char *path;      // of what it makes; NULL: it uses one
    bool in_cache;   // that path
    bool cache_full; // or read-only: no more there
} now;

static void remove_held(int i)
{
    close(held[i].fd);
    if (held[i].temporary)
        unlink(held[i].temporary);
    free(held[i].temporary);
    held[i] = held[--n_held];
}

void pch_use(const char *folder)
{
    while (n_held > 0)
        remove_held(0);
    int flags = personality(0xffffffff);
    shares = flags != -1 && (flags & ADDR_NO_RANDOMIZE);
    n_failed = 0;
    scratch = folder;
    if (!scratch || heap || reserved)
        return;
    reserved = mmap(NULL, PCH_HEAP + SLACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (reserved == MAP_FAILED)
        reserved = NULL;
}

// What NVRTC cannot write there is a signal, not an error.
static bool is_small_memory(const char *folder)
{
    struct statfs fs;
    return statfs(folder, &fs) == 0 && fs.f_type == TMPFS_MAGIC && fs.f_blocks > 0 &&
           (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize < PCH_HEAP;
}

bool pch_ready(void)
{
    return scratch && n_failed < MAX_FAILED && !is_small_memory(scratch);
}

const void *pch_heap(void)
{
    if (heap)
        return heap;
    if (reserved)
        munmap(reserved, PCH_HEAP + SLACK);
    reserved = NULL;
    void *there = mmap(NULL, PCH_HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (there != MAP_FAILED)
        munmap(there, PCH_HEAP);
    heap = there;
    return heap;
}

static bool digest_file(int fd, uint64_t size, uint64_t *out)
{
    char *chunk = mem_alloc(CHUNK);
    uint64_t at = 0;
    *out = 0;
    while (at < size) {
        size_t wanted = size - at < CHUNK ? (size_t)(size - at) : CHUNK;
        ssize_t n = pread(fd, chunk, wanted, (off_t)at);
        if (n <= 0)
            break;
        *out = hash_bytes(chunk, (size_t)n, *out);
        at += (uint64_t)n;
    }
    free(chunk);
    return at == size;
}

static uint64_t file_size(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static bool is_whole(int fd, uint64_t size)
{
    struct trailer t;
    uint64_t digest;
    return size > sizeof t && pread(fd, &t, sizeof t, (off_t)(size - sizeof t)) == sizeof t &&
           memcmp(t.magic, magic, sizeof magic) == 0 && t.size == size - sizeof t &&
           digest_file(fd, t.size, &digest) && digest == t.digest;
}

static int find_held(const struct cache_key *key)
{
    for (int i = 0; i < n_held; i++)
        if (strcmp(held[i].key.hex, key->hex) == 0)
            return i;
    return -1;
}

static void make_room(uint64_t size)
{
    for (;;) {
        uint64_t sum = size;
        int oldest = 0;
        for (int i = 0; i < n_held; i++) {
            sum += held[i].size;
            oldest = held[i].used < held[oldest].used ? i : oldest;
        }
        if (n_held == 0 || (n_held < MAX_HELD && sum <= MAX_HELD_SIZE))
            return;
        remove_held(oldest);
    }
}

static struct held *hold(int fd, char *temporary)
{
    uint64_t size = file_size(fd);
    make_room(size);
    held[n_held] = (struct held){ now.key, fd, size, n_turns, temporary };
    return &held[n_held++];
}

// Of this process, else of the cache.
static struct held *find(void)
{
    int i = find_held(&now.key);
    if (i >= 0 && file_size(held[i].fd) == held[i].size)
        return &held[i];
    if (i >= 0)
        remove_held(i);
    int fd = shares ? cache_open(now.cache, &now.key, CACHE_PCH) : -1;
    if (fd < 0)
        return NULL;
    if (is_whole(fd, file_size(fd)))
        return hold(fd, NULL);
    log_warn("cache: a precompiled header is damaged; it is made anew");
    cache_remove(now.cache, &now.key, CACHE_PCH);
    close(fd);
    return NULL;
}

// A name in the cache, where we can write and nobody else, else in the folder. NVRTC makes the file
// anew, by its name.
static void choose_path(void)
{
    bool keeps = shares && !now.cache_full && trust_folder(now.cache, NULL);
    now.path = keeps ? cache_temporary(now.cache, &now.key, CACHE_PCH) : NULL;
    int fd = now.path ? mkostemp(now.path, O_CLOEXEC) : -1;
    now.in_cache = fd >= 0;
    if (now.in_cache) {
        close(fd);
        return;
    }
    free(now.path);
    now.path = mem_printf("%s/new.pch", scratch);
}

const char *pch_option(const struct cache_key *key, const char *cache)
{
    now.key = *key;
    now.cache = cache;
    n_turns++;
    struct held *h = find();
    int n;
    if (h) {
        h->used = n_turns;
        n = snprintf(now.option, sizeof now.option, "--use-pch=/proc/self/fd/%d", h->fd);
    } else {
        choose_path();
        n = snprintf(now.option, sizeof now.option, "--create-pch=%s", now.path);
    }
    if (n < (int)sizeof now.option)
        return now.option;
    pch_done(PCH_NEITHER);
    return NULL;
}

// What is not in the cache has no name any more, and ends with the process.
static void take_new(void)
{
    int fd = open(now.path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    fchmod(fd, 0600);
    hold(fd, now.in_cache ? mem_strdup(now.path) : NULL);
    if (!now.in_cache)
        unlink(now.path);
}

void pch_done(enum pch_result result)
{
    int i = find_held(&now.key);
    n_failed += result == PCH_FAILED;
    if (result == PCH_FAILED && i >= 0) {
        remove_held(i);
        cache_remove(now.cache, &now.key, CACHE_PCH);
    }
    if (now.path && result == PCH_MADE)
        take_new();
    else if (now.path)
        unlink(now.path);
    now.cache_full = now.cache_full || (now.path && now.in_cache && result == PCH_FAILED);
    free(now.path);
    now.path = NULL;
}

static bool finish_file(struct held *h)
{
    struct trailer t = { .size = h->size };
    memcpy(t.magic, magic, sizeof magic);
    if (!digest_file(h->fd, h->size, &t.digest) ||
        pwrite(h->fd, &t, sizeof t, (off_t)h->size) != sizeof t)
        return false;
    h->size += sizeof t;
    return true;
}

void pch_publish(const char *cache, uint64_t limit)
{
    for (int i = 0; i < n_held; i++) {
        struct held *h = &held[i];
        if (!h->temporary)
            continue;
        bool fits = limit == 0 || h->size <= limit / 2;
        if (!fits || !finish_file(h) ||
            !cache_rename(cache, &h->key, CACHE_PCH, h->temporary, h->size)) {
            log_debug("cache: a precompiled header of %llu bytes is not kept",
                      (unsigned long long)h->size);
            unlink(h->temporary);
        }
        free(h->temporary);
        h->temporary = NULL;
    }
}
