#include "base/cuda_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/python_sites.h"

static void *open_in_folder(const struct cuda_library *l, const char *folder)
{
    for (int i = 0; l->names[i]; i++) {
        char *path = mem_printf("%s/%s", folder, l->names[i]);
        void *library = NULL;
        if (access(path, R_OK) == 0) {
            if (l->before)
                l->before(folder);
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
        free(path);
        if (library)
            return library;
    }
    return NULL;
}

// Folders that match "base" + "tail"; the last in the alphabet first, as the newest version is
// wanted.
static void *open_matching(const struct cuda_library *l, const char *base, const char *tail)
{
    if (!base || !base[0])
        return NULL;
    char *pattern = mem_printf("%s%s", base, tail);
    glob_t found = { 0 };
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = found.gl_pathc; i-- > 0 && !library;)
            library = open_in_folder(l, found.gl_pathv[i]);
    }
    globfree(&found);
    free(pattern);
    return library;
}

static void *open_named(const struct cuda_library *l)
{
    const char *path = l->named;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return open_in_folder(l, path);
    char *copy = mem_strdup(path);
    if (l->before && strchr(path, '/'))
        l->before(dirname(copy));
    free(copy);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_by_linker(const struct cuda_library *l)
{
    void *library = NULL;
    for (int i = 0; l->names[i] && !library; i++)
        library = dlopen(l->names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

static void *open_in_wheels(const struct cuda_library *l)
{
    void *library = NULL;
    for (const char *const *site = python_sites(); *site && !library; site++)
        for (int i = 0; l->wheels[i] && !library; i++)
            library = open_matching(l, *site, l->wheels[i]);
    return library;
}

static void *open_anywhere(const struct cuda_library *l)
{
    return open_matching(l, getenv("CUDA_HOME"), "/lib64")
               ?: open_matching(l, getenv("CUDA_PATH"), "/lib64")
               ?: open_matching(l, "/usr/local/cuda", "/lib64")
               ?: open_matching(l, "/usr/local/cuda-", "*/lib64")
               ?: open_by_linker(l)
               ?: open_in_wheels(l);
}

void *cuda_library_open(const struct cuda_library *wanted)
{
    return wanted->named && wanted->named[0] ? open_named(wanted) : open_anywhere(wanted);
}
