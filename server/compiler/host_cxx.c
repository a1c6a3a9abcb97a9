#include "compiler/host_cxx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/child.h"
#include "base/hash.h"

enum { PROBE_LIMIT = 4096, PROBE_LIMIT_MS = 10000 };

// The first line of `command --version`, or NULL if that does not run.
static char *ask_version(const char *command)
{
    struct buf output = { 0 };
    char *name = mem_strdup(command), *argv[] = { name, (char[]){ "--version" }, NULL };
    int status = 0;
    char *version = NULL;
    if (child_run(argv, NULL, PROBE_LIMIT_MS, PROBE_LIMIT, &output, &status, NULL) && status == 0 &&
        output.size) {
        const char *text = buf_str(&output);
        version = mem_strndup(text, strcspn(text, "\n"));
    }
    buf_finish(&output);
    free(name);
    return version;
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
    if (cxx.path)
        return &cxx;
    const char *chosen = getenv("OPD_CXX");
    const char *names[] = { chosen && *chosen ? chosen : "c++", "g++", "clang++" };
    for (size_t i = 0; i < sizeof names / sizeof *names && !cxx.path; i++) {
        cxx.version = ask_version(names[i]);
        if (cxx.version)
            cxx.path = mem_strdup(names[i]);
        else if (names[i] == chosen)
            break;
    }
    if (!cxx.path) {
        opd_err_set(err, OPD_E_unavailable,
                    "cpu device: no C++17 compiler found (tried %s); install g++ or clang++, "
                    "or set OPD_CXX",
                    chosen && *chosen ? chosen : "c++, g++, clang++");
        return NULL;
    }
    cxx.clang = strstr(cxx.version, "clang") != NULL;
    cxx.processor = read_processor();
    return &cxx;
}
