#include "base/python_sites.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

enum { MAX_SITES = 6 };

static const char *sites[MAX_SITES + 1];

static void add_site(size_t *n, const char *base, const char *tail)
{
    if (base && base[0])
        sites[(*n)++] = mem_printf("%s%s", base, tail);
}

const char *const *python_sites(void)
{
    char program[PATH_MAX] = "";
    size_t n = 0;
    if (sites[0])
        return sites;
    if (readlink("/proc/self/exe", program, sizeof(program) - 1) > 0)
        dirname(program);
    add_site(&n, getenv("VIRTUAL_ENV"), "/lib/python3*/site-packages");
    add_site(&n, program, "/../lib/python3*/site-packages");
    add_site(&n, program, "/../.venv/lib/python3*/site-packages");
    add_site(&n, getenv("HOME"), "/.local/lib/python3*/site-packages");
    add_site(&n, "/usr/local", "/lib/python3*/*-packages");
    add_site(&n, "/usr", "/lib/python3*/dist-packages");
    return sites;
}
