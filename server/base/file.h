#pragma once

// Whole files, and what lies in temporary folders.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"

void file_close(int *fd); // one that is open; -1 is put in its place

// From its start to its end, or until more than `limit` bytes have come, into an empty buffer.
// False with errno.
bool file_get(int fd, size_t limit, struct buf *out);
bool file_put(int fd, const void *bytes, size_t size); // all of them; false with errno

// A new file of that content. Error: internal, also where there is one of that name.
bool file_make(const char *path, const void *bytes, size_t size, struct opd_err *err);
int file_memfd(const char *name, const void *bytes, size_t size); // a memfd; -1 with errno

// The stamp of a file, from stat(): if it is the same, so is the content.
struct file_stamp {
    dev_t device;
    ino_t inode;
    off_t size;
    int64_t mtime_ns, ctime_ns; // 0: not there
};

bool file_stamp_read(const char *path, struct file_stamp *out); // false, and all zero: not there
// Of a file in an open folder, which is found sooner.
bool file_stamp_read_in(int folder, const char *file, struct file_stamp *out);
bool file_stamp_same(const struct file_stamp *a, const struct file_stamp *b);

char *file_temporary(const char *name); // "$TMPDIR/NAME", or in /tmp; the caller frees it
void file_remove_tree(const char *path);
// A folder, which is no "", with those that it is in, as far as they are missing. False with errno.
bool file_make_folders(const char *path);

// Calls visit() for each path that a shell's pattern gives, in the order of the alphabet. Its
// folder is no pattern: it may be called anything.
void file_each(const char *pattern, void (*visit)(const char *path, void *data), void *data);
