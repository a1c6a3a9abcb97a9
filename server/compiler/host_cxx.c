#include "compiler/host_cxx.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/child.h"
#include "base/hash.h"
#include "base/python_sites.h"

enum { PROBE_LIMIT = 4096, PROBE_LIMIT_MS = 10000 };

// By the first line of what it says to --version; false: that does not run.
static bool try_command(struct host_cxx *cxx, const char *program, const char *mode)
{
    struct buf output = { 0 };
    const char *argv[] = { program, mode ?: "--version", mode ? "--version" : NULL, NULL };
    int status = 0;
    bool ok = child_run((char *const *)argv, NULL, PROBE_LIMIT_MS, PROBE_LIMIT, &output, &status,
                        NULL) &&
              status == 0 && output.size;
    if (ok) {
        const char *text = buf_str(&output);
        cxx->words[0] = mem_strdup(program);
        cxx->words[1] = mode;
        cxx->version = mem_strndup(text, strcspn(text, "\n"));
    }
    buf_finish(&output);
    return ok;
}

static bool try_wheels(struct host_cxx *cxx)
{
    for (const char *const *site = python_sites(); *site && !cxx->version; site++) {
        char *pattern = mem_printf("%s/ziglang/zig", *site);
        glob_t found = { 0 };
        if (glob(pattern, 0, NULL, &found) == 0)
            try_command(cxx, found.gl_pathv[found.gl_pathc - 1], "c++");
        globfree(&found);
        free(pattern);
    }
    return cxx->version != NULL;
}

// Its name and its features: virtual machines give one name to many.
static char *read_processor(void)
{
    char *line = NULL, *name = NULL;
    size_t capacity = 0;
    uint64_t features = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && getline(&line, &capacity, f) > 1) { // an empty line ends the first core
        char *colon = strchr(line, ':');
        if (colon && !name &&
            (strncmp(line, "model name", 10) == 0 || strncmp(line, "CPU part", 8) == 0))
            name = mem_strndup(colon + 1, strcspn(colon + 1, "\n"));
        else if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0)
            features = hash_bytes(line, strlen(line), features);
    }
    if (f)
        fclose(f);
    char *processor = mem_printf("%s, features %016llx", name ? name : " unknown processor",
                                 (unsigned long long)features);
    free(name);
    free(line);
    return processor;
}

const struct host_cxx *host_cxx_find(struct opd_err *err)
{
    static struct host_cxx cxx;
    if (cxx.version)
        return &cxx;
    const char *chosen = getenv("OPD_CXX");
    bool is_chosen = chosen && *chosen;
    if (!(is_chosen ? try_command(&cxx, chosen, NULL)
                    : try_command(&cxx, "c++", NULL) || try_command(&cxx, "g++", NULL) ||
                          try_command(&cxx, "clang++", NULL) || try_wheels(&cxx))) {
        opd_err_set(err, OPD_E_unavailable,
                    "cpu device: no C++17 compiler found (tried %s); install g++ or clang++, "
                    "\"pip install ziglang\", or set OPD_CXX",
                    is_chosen ? chosen : "c++, g++, clang++, Python's ziglang");
        return NULL;
    }
    cxx.clang = strstr(cxx.version, "clang") != NULL;
    cxx.processor = read_processor();
    return &cxx;
}
