#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 16 };

void file_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

bool file_get(int fd, size_t limit, struct buf *out)
{
    struct stat st;
    ssize_t n;
    // No more memory than its size says, and a byte in which nothing comes.
    if (fstat(fd, &st) == 0 && st.st_size > 0 && (size_t)st.st_size <= limit)
        out->bytes = mem_alloc(out->capacity = (size_t)st.st_size + 1);
    do {
        if (out->size == out->capacity)
            buf_reserve(out, PIECE);
        n = pread(fd, out->bytes + out->size, out->capacity - out->size, (off_t)out->size);
        out->size += n > 0 ? (size_t)n : 0;
    } while ((n > 0 && out->size <= limit) || (n < 0 && errno == EINTR));
    return n >= 0;
}

bool file_put(int fd, const void *bytes, size_t size)
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

bool file_make(const char *path, const void *bytes, size_t size, struct opd_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && file_put(fd, bytes, size);
    if (!ok)
        opd_err_errno(err, OPD_E_internal, "cannot write %s", path);
    file_close(&fd);
    return ok;
}

int file_memfd(const char *name, const void *bytes, size_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || file_put(fd, bytes, size))
        return fd;
    int why = errno;
    file_close(&fd);
    errno = why;
    return -1;
}

bool file_stamp_read(const char *path, struct file_stamp *out)
{
    return file_stamp_read_in(AT_FDCWD, path, out);
}

bool file_stamp_read_in(int folder, const char *file, struct file_stamp *out)
{
    struct stat st;
    *out = (struct file_stamp){ 0 };
    if (fstatat(folder, file, &st, 0) < 0)
        return false;
    out->device = st.st_dev;
    out->inode = st.st_ino;
    out->size = st.st_size;
    out->mtime_ns = st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    out->ctime_ns = st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec;
    return true;
}

bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->mtime_ns == b->mtime_ns && a->ctime_ns == b->ctime_ns;
}

char *file_temporary(const char *name)
{
    const char *folder = getenv("TMPDIR");
    return mem_printf("%s/%s", folder && *folder ? folder : "/tmp", name);
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path); // what stays, stays
    return 0;
}

void file_remove_tree(const char *path)
{
    nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

void file_each(const char *pattern, void (*visit)(const char *path, void *data), void *data)
{
    glob_t found = { 0 };
    struct buf escaped = { 0 };
    const char *name = strrchr(pattern, '/');
    for (const char *at = pattern; name && at < name; at++) {
        buf_append_str(&escaped, strchr("*?[\\", *at) ? "\\" : "");
        buf_append(&escaped, at, 1);
    }
    buf_append_str(&escaped, name ? name : pattern);
    if (glob(buf_str(&escaped), 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            visit(found.gl_pathv[i], data);
    globfree(&found);
    buf_finish(&escaped);
}

bool file_make_folders(const char *path)
{
    char *copy = mem_strdup(path);
    for (char *at = strchr(copy + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(copy, 0700);
        *at = '/';
    }
    bool ok = mkdir(copy, 0700) == 0 || errno == EEXIST;
    int why = errno;
    free(copy);
    errno = why;
    return ok;
}
