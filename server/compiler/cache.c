#include "compiler/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/image.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/trust.h"

enum { CACHE_FORMAT = 2, MAX_INCLUDES = 256, MAX_INCLUDE_SIZE = 4 << 20 };

struct digest {
    uint64_t a, b;
};

static void digest_bytes(struct digest *d, const void *bytes, size_t size)
{
    uint64_t length = size;
    d->a = hash_bytes(bytes, size, hash_bytes(&length, sizeof length, d->a));
    d->b = hash_bytes(bytes, size, hash_bytes(&length, sizeof length, d->b));
}

static void digest_string(struct digest *d, const char *s)
{
    digest_bytes(d, s ? s : "", s ? strlen(s) : 0);
}

// NULL where there is no regular file.
static char *read_text(const char *path)
{
    struct stat st;
    struct buf text = { 0 };
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // whatever lies there
    bool is_file = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (is_file)
        file_get(fd, MAX_INCLUDE_SIZE, &text);
    file_close(&fd);
    return is_file ? buf_take(&text) : NULL;
}

// Headers of the folder that text includes, each once.
struct includes {
    char *paths[MAX_INCLUDES];
    int n;
};

static void add_include(struct includes *all, char *path)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->paths[i], path) == 0) {
            free(path);
            return;
        }
    all->paths[all->n++] = path;
}

static void add_includes(struct includes *all, const char *folder, const char *text)
{
    for (const char *p = text; (p = strstr(p, "include")) != NULL && all->n < MAX_INCLUDES; p++) {
        const char *name = p + strlen("include");
        name += strspn(name, " \t");
        const char *end = *name == '"' ? "\"" : *name == '<' ? ">" : NULL;
        size_t length = end ? strcspn(name + 1, *end == '>' ? ">\n" : "\"\n") : 0;
        if (length == 0 || name[1 + length] != *end)
            continue;
        char *path = mem_printf("%s/%.*s", folder, (int)length, name + 1);
        if (*end == '"' || access(path, R_OK) == 0) // else it is found elsewhere, if at all
            add_include(all, path);
        else
            free(path);
    }
}

// What the text includes, and what that includes. A header that is not there adds its name only.
static void digest_includes(struct digest *d, const char *folder, const char *text)
{
    struct includes all = { .n = 0 };
    add_includes(&all, folder, text);
    for (int i = 0; i < all.n; i++) {
        char *included = read_text(all.paths[i]);
        digest_string(d, all.paths[i]);
        digest_string(d, included);
        if (included)
            add_includes(&all, folder, included);
        free(included);
    }
    while (all.n > 0)
        free(all.paths[--all.n]);
}

static void write_key(struct cache_key *key, const struct digest *d)
{
    snprintf(key->hex, sizeof key->hex, "%016llx%016llx", (unsigned long long)d->a,
             (unsigned long long)d->b);
}

static void digest_strings(struct digest *d, const char *const *strings, size_t n)
{
    *d = (struct digest){ .a = CACHE_FORMAT, .b = ~(uint64_t)CACHE_FORMAT };
    for (size_t i = 0; i < n; i++)
        digest_string(d, strings[i]);
}

void cache_make_key_of(struct cache_key *key, const char *const *parts, size_t n)
{
    struct digest d;
    digest_strings(&d, parts, n);
    write_key(key, &d);
}

void cache_make_key(struct cache_key *key, const struct compile_input *in, const char *identity)
{
    struct digest d;
    const char *parts[] = { identity, in->target, in->common, in->prelude,
                            in->file, in->source, in->expr };
    digest_strings(&d, parts, sizeof parts / sizeof parts[0]);
    if (in->folder && in->folder[0])
        digest_includes(&d, in->folder, in->source);
    write_key(key, &d);
}

static char *entry_path(const char *folder, const struct cache_key *key, const char *suffix)
{
    return mem_printf("%s/%.2s/%s%s", folder, key->hex, key->hex + 2, suffix);
}

// What is run must be such that nobody else can change it, nor put another entry in its place.
static bool check_trust(int fd, char *path, struct opd_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return opd_err_errno(err, OPD_E_internal, "%s", path);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    bool ok = trust_folder(path, err);
    *slash = '/';
    return ok && trust_check(path, &st, err);
}

int cache_open(const char *folder, const struct cache_key *key, const char *suffix)
{
    if (!folder[0])
        return -1;
    char *path = entry_path(folder, key, suffix);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // whatever lies there
    struct opd_err err = { 0 };
    if (fd >= 0 && !check_trust(fd, path, &err)) {
        log_warn("cache: %s: %s; compiling anew", path, err.msg);
        file_close(&fd);
    }
    if (fd >= 0)
        futimens(fd, NULL);
    opd_err_clear(&err);
    free(path);
    return fd;
}

int cache_get(const char *folder, const struct cache_key *key)
{
    int fd = cache_open(folder, key, CACHE_IMAGE);
    struct image image = { 0 };
    struct opd_err err = { 0 };
    if (fd >= 0 && !image_open(&image, fd, &err)) {
        log_warn("cache: %s/%.2s/%s: %s; compiling anew", folder, key->hex, key->hex + 2, err.msg);
        file_close(&fd);
    }
    image_close(&image);
    opd_err_clear(&err);
    return fd;
}

char *cache_temporary(const char *folder, const struct cache_key *key, const char *suffix)
{
    if (!folder[0])
        return NULL;
    char *path = entry_path(folder, key, suffix);
    char *temporary = mem_printf("%s.XXXXXX", path);
    struct opd_err err = { 0 };
    *strrchr(path, '/') = '\0';
    mkdir(path, 0700); // there already, or who makes the file is told what is wrong
    if (!trust_folder(path, &err)) {
        log_warn("cache: not kept: %s", err.msg);
        free(temporary);
        temporary = NULL;
    }
    opd_err_clear(&err);
    free(path);
    return temporary;
}

bool cache_rename(const char *folder, const struct cache_key *key, const char *suffix,
                  const char *temporary, uint64_t size)
{
    char *path = entry_path(folder, key, suffix);
    bool ok = rename(temporary, path) == 0;
    if (ok)
        cache_note_put(size);
    free(path);
    return ok;
}

void cache_remove(const char *folder, const struct cache_key *key, const char *suffix)
{
    char *path = entry_path(folder, key, suffix);
    unlink(path);
    free(path);
}

void cache_put(const char *folder, const struct cache_key *key, const struct buf *image)
{
    char *temporary = cache_temporary(folder, key, CACHE_IMAGE);
    if (!temporary)
        return;
    int fd = mkostemp(temporary, O_CLOEXEC);
    bool ok = fd >= 0 && file_put(fd, image->bytes, image->size);
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (!ok || !cache_rename(folder, key, CACHE_IMAGE, temporary, image->size)) {
        log_warn("cache: not kept: %s: %s", temporary, strerror(errno));
        if (fd >= 0)
            unlink(temporary);
    }
    free(temporary);
}
