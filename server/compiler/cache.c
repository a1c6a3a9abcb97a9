#include "compiler/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/image.h"
#include "base/log.h"
#include "base/mem.h"

enum { CACHE_FORMAT = 1, MAX_INCLUDE_DEPTH = 16, MAX_INCLUDE_SIZE = 4 << 20 };

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

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return NULL;
    struct buf text = { 0 };
    char piece[4096];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, f)) > 0 && text.size < MAX_INCLUDE_SIZE)
        buf_append(&text, piece, n);
    fclose(f);
    buf_str(&text);
    return (char *)text.bytes;
}

// Adds what the text includes by quotes, and what that includes. A header that is not there adds
// its name only.
static void digest_includes(struct digest *d, const char *folder, const char *text, int depth)
{
    if (!folder || !folder[0] || depth == MAX_INCLUDE_DEPTH)
        return;
    for (const char *p = text; (p = strstr(p, "include")) != NULL; p++) {
        const char *name = p + strlen("include");
        name += strspn(name, " \t");
        size_t length = *name == '"' ? strcspn(name + 1, "\"\n") : 0;
        if (length == 0 || name[1 + length] != '"')
            continue;
        char *path = mem_printf("%s/%.*s", folder, (int)length, name + 1);
        char *included = read_text(path);
        digest_string(d, path);
        digest_string(d, included);
        if (included)
            digest_includes(d, folder, included, depth + 1);
        free(included);
        free(path);
    }
}

void cache_make_key(struct cache_key *key, const struct compile_input *in, const char *identity)
{
    struct digest d = { .a = CACHE_FORMAT, .b = ~(uint64_t)CACHE_FORMAT };
    const char *parts[] = { identity, in->target, in->common, in->prelude,
                            in->file, in->source, in->expr };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        digest_string(&d, parts[i]);
    digest_includes(&d, in->folder, in->source, 0);
    snprintf(key->hex, sizeof key->hex, "%016llx%016llx", (unsigned long long)d.a,
             (unsigned long long)d.b);
}

static char *entry_path(const char *folder, const struct cache_key *key)
{
    return mem_printf("%s/%.2s/%s.opd", folder, key->hex, key->hex + 2);
}

int cache_get(const char *folder, const struct cache_key *key)
{
    if (!folder[0])
        return -1;
    char *path = entry_path(folder, key);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); // whatever lies there
    if (fd >= 0) {
        struct image image;
        struct opd_err err = { 0 };
        if (!image_open(&image, fd, &err)) {
            log_warn("cache: %s: %s; compiling anew", path, err.msg);
            close(fd);
            fd = -1;
        } else {
            futimens(fd, NULL);
        }
        image_close(&image);
        opd_err_clear(&err);
    }
    free(path);
    return fd;
}

static bool write_all(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size > 0) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

void cache_put(const char *folder, const struct cache_key *key, const struct buf *image)
{
    if (!folder[0])
        return;
    char *path = entry_path(folder, key);
    char *temporary = mem_printf("%s.XXXXXX", path);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    mkdir(path, 0700); // there already, or the next call says what is wrong
    *slash = '/';
    int fd = mkostemp(temporary, O_CLOEXEC);
    bool ok = fd >= 0 && write_all(fd, image->bytes, image->size);
    if (fd >= 0)
        ok = close(fd) == 0 && ok;
    if (!ok || rename(temporary, path) < 0) {
        log_warn("cache: not kept: %s: %s", path, strerror(errno));
        if (fd >= 0)
            unlink(temporary);
    } else {
        cache_note_put(image->size);
    }
    free(temporary);
    free(path);
}
