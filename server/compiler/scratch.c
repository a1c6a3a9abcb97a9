#include "compiler/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

enum { GRACE_SECONDS = 60 }; // between a folder's making and its lock

static char *own;
static int own_fd = -1;

// Nobody holds it, and it is old enough to have been held. Without a grace its age is nothing to
// ask for: time() may be a tick behind the clock that files are dated by.
static bool is_left(const char *path, int grace_seconds)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool left = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
                (!grace_seconds || st.st_mtime + grace_seconds <= time(NULL)) &&
                flock(fd, LOCK_EX | LOCK_NB) == 0;
    file_close(&fd);
    return left;
}

static void remove_left(const char *path, void *grace_seconds)
{
    if (is_left(path, *(int *)grace_seconds))
        file_remove_tree(path);
}

static void remove_all_left(const char *names, int grace_seconds)
{
    char *pattern = file_temporary(names);
    file_each(pattern, remove_left, &grace_seconds);
    free(pattern);
}

void scratch_remove(pid_t pid)
{
    char names[64];
    snprintf(names, sizeof names, "opd-compiler-%d-*", (int)pid);
    remove_all_left(names, 0);
}

const char *scratch_open(void)
{
    char name[64];
    snprintf(name, sizeof name, "opd-compiler-%d-XXXXXX", (int)getpid());
    remove_all_left("opd-compiler-*", GRACE_SECONDS);
    own = file_temporary(name);
    if (!mkdtemp(own)) {
        log_warn("no temporary folder %s: %s", own, strerror(errno));
        free(own);
        own = NULL;
        return NULL;
    }
    own_fd = open(own, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (own_fd >= 0)
        flock(own_fd, LOCK_SH | LOCK_NB);
    setenv("TMPDIR", own, 1);
    return own;
}

void scratch_close(void)
{
    if (!own)
        return;
    file_remove_tree(own);
    close(own_fd);
    *strrchr(own, '/') = '\0';
    setenv("TMPDIR", own, 1);
    free(own);
    own = NULL;
}
