#include "base/process.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STAT_SIZE = 1024 };

// What stands behind a process's name, which may have anything in it: its state, its parent ...
// NULL: there is no such process.
static const char *read_stat(pid_t pid, char text[STAT_SIZE])
{
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, STAT_SIZE - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end ? name_end + 1 : NULL;
}

uint64_t process_started(pid_t pid)
{
    enum { FIELD = 22, BEHIND_NAME = 2 };
    char text[STAT_SIZE];
    const char *at = read_stat(pid, text);
    for (int field = BEHIND_NAME; at && field < FIELD; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

// The session of a process that has not ended; -1: there is none.
static pid_t read_session(pid_t pid)
{
    char text[STAT_SIZE], state;
    const char *stat = read_stat(pid, text);
    int session;
    bool known = stat && sscanf(stat, " %c %*d %*d %d", &state, &session) == 2 && state != 'Z';
    return known ? session : -1;
}

int process_kill_session(pid_t session)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int n = 0;
    while (proc && (entry = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && pid != getpid() && read_session(pid) == session)
            n += kill(pid, SIGKILL) == 0;
    }
    if (proc)
        closedir(proc);
    return n;
}
