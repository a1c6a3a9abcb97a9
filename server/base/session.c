#include "base/session.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The session of a process that has not ended; -1: there is none.
static pid_t read_session(pid_t pid)
{
    char path[32], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f)
        fclose(f);
    line[n] = '\0';
    const char *name_end = strrchr(line, ')'); // a name may have anything in it
    char state;
    int session;
    if (!name_end || sscanf(name_end, ") %c %*d %*d %d", &state, &session) != 2 || state == 'Z')
        return -1;
    return session;
}

int session_kill(pid_t session)
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
