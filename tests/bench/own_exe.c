// Before all else in a daemon that runs in valgrind (LD_PRELOAD): there /proc/self/exe is
// valgrind's own program, and what the daemon starts from it is to be itself, outside of valgrind.

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int execvp(const char *file, char *const args[]);

int execvp(const char *file, char *const args[])
{
    int (*next)(const char *, char *const[]) = dlsym(RTLD_NEXT, "execvp");
    const char *own = getenv("OPD_BIN");
    if (own && strcmp(file, "/proc/self/exe") == 0) {
        unsetenv("LD_PRELOAD");
        file = own;
    }
    return next(file, args);
}
