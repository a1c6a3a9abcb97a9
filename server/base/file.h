#pragma once

// Whole files, and what lies in temporary folders.

#include <stdbool.h>
#include <stddef.h>

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

char *file_temporary(const char *name); // "$TMPDIR/NAME", or in /tmp; the caller frees it
void file_remove_tree(const char *path);
// A folder, which is no "", with those that it is in, as far as they are missing. False with errno.
bool file_make_folders(const char *path);

// Calls visit() for each path that a shell's pattern gives, in the order of the alphabet. Its
// folder is no pattern: it may be called anything.
void file_each(const char *pattern, void (*visit)(const char *path, void *data), void *data);
