#include "compiler/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

enum { GRACE_SECONDS = 60 }; // between a folder's making and its lock

static char *own;
static int own_fd = -1;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    remove(path); // what stays, stays
    return 0;
}

static void remove_tree(const char *path)
{
    nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

// Nobody holds it, and it is old enough to have been held.
static bool is_left(const char *path, int grace_seconds)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool left = fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
                st.st_mtime + grace_seconds <= time(NULL) && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return left;
}

static void remove_left(const char *parent, const char *names, int grace_seconds)
{
    char *pattern = mem_printf("%s/%s", parent, names);
    glob_t found = { 0 };
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            if (is_left(found.gl_pathv[i], grace_seconds))
                remove_tree(found.gl_pathv[i]);
    }
    globfree(&found);
    free(pattern);
}

static const char *find_parent(void)
{
    const char *parent = getenv("TMPDIR");
    return parent && *parent ? parent : "/tmp";
}

void scratch_remove(pid_t pid)
{
    char names[64];
    snprintf(names, sizeof names, "opd-compiler-%d-*", (int)pid);
    remove_left(find_parent(), names, 0);
}

const char *scratch_open(void)
{
    const char *parent = find_parent();
    remove_left(parent, "opd-compiler-*", GRACE_SECONDS);
    own = mem_printf("%s/opd-compiler-%d-XXXXXX", parent, (int)getpid());
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
    remove_tree(own);
    close(own_fd);
    *strrchr(own, '/') = '\0';
    setenv("TMPDIR", own, 1);
    free(own);
    own = NULL;
}
