#include "compiler/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    LEFT_SECONDS = 600, // a temporary file of that age has no writer any more
    LOOK_SHARE = 32,    // this process looks again when it has put that part of the limit
    FREE_SHARE = 10,    // that part of the limit is free after a trim
};

// What this process knows of the folder; it uses one.
static struct {
    bool known;
    uint64_t bytes, put; // all; of these, put by this process since it looked
} account;

struct item {
    char *path; // below the folder
    struct timespec used;
    uint64_t size;
};

struct listing {
    int folder;
    struct item *items;
    size_t n;
    uint64_t bytes;
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
static void list_file(struct listing *l, const char *sub, const char *name)
{
    const char *suffix = strstr(name, ".opd");
    struct stat st;
    char *path = mem_printf("%s/%s", sub, name);
    if (!suffix || fstatat(l->folder, path, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(st.st_mode)) {
        free(path);
        return;
    }
    bool temporary = suffix[4] == '.';
    if (temporary && st.st_mtime + LEFT_SECONDS < time(NULL) && unlinkat(l->folder, path, 0) == 0) {
        free(path);
        return;
    }
    l->bytes += (uint64_t)st.st_size;
    if (temporary || suffix[4]) {
        free(path);
        return;
    }
    if ((l->n & (l->n - 1)) == 0)
        l->items = mem_realloc(l->items, l->n ? l->n * 2 : 1, sizeof *l->items);
    l->items[l->n++] = (struct item){ path, st.st_mtim, (uint64_t)st.st_size };
}

static void list_sub(struct listing *l, const char *sub)
{
    int fd = openat(l->folder, sub, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL)
        list_file(l, sub, entry->d_name);
    if (dir)
        closedir(dir);
    else
        file_close(&fd);
}

static bool list_folder(struct listing *l, const char *folder)
{
    *l = (struct listing){ .folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
    if (l->folder < 0)
        return false;
    int fd = dup(l->folder);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL)
        if (is_hex_name(entry->d_name))
            list_sub(l, entry->d_name);
    if (dir)
        closedir(dir);
    return dir != NULL;
}

static void finish_listing(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->items[i].path);
    free(l->items);
    file_close(&l->folder);
}

static int compare_use(const void *a, const void *b)
{
    const struct timespec *p = &((const struct item *)a)->used,
                          *q = &((const struct item *)b)->used;
    if (p->tv_sec != q->tv_sec)
        return p->tv_sec < q->tv_sec ? -1 : 1;
    return (p->tv_nsec > q->tv_nsec) - (p->tv_nsec < q->tv_nsec);
}

// Others may trim at the same time, and take the same ones.
static void remove_oldest(struct listing *l, uint64_t limit)
{
    const uint64_t wanted = limit - limit / FREE_SHARE;
    size_t n = 0;
    qsort(l->items, l->n, sizeof *l->items, compare_use);
    for (size_t i = 0; i < l->n && l->bytes > wanted; i++) {
        struct stat st;
        if (unlinkat(l->folder, l->items[i].path, 0) != 0 &&
            fstatat(l->folder, l->items[i].path, &st, AT_SYMLINK_NOFOLLOW) == 0)
            continue;
        l->bytes -= l->items[i].size;
        n++;
    }
    log_debug("cache: %zu entries removed, %llu bytes are left", n, (unsigned long long)l->bytes);
}

void cache_trim(const char *folder, uint64_t limit)
{
    bool over = limit && (account.bytes > limit || account.put > limit / LOOK_SHARE);
    if (!folder[0] || (account.known && !over))
        return;
    struct listing l;
    if (list_folder(&l, folder)) {
        if (limit && l.bytes > limit)
            remove_oldest(&l, limit);
        account.known = true;
        account.bytes = l.bytes;
    }
    account.put = 0;
    finish_listing(&l);
}
