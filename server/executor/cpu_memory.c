#include "executor/cpu_memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What compilers and the rest of the daemon may need beside the tensors: a part of the limit.
enum { KEPT_BACK_PART = 4 };
static const uint64_t MOST_KEPT_BACK = 256u << 20;

// The two versions of groups say the same in other words. `cache` can be given back at any time.
static const struct words {
    const char *limits[2], *used, *cache[2];
} words_of[] = {
    { { "memory.limit_in_bytes", NULL },
      "memory.usage_in_bytes",
      { "total_active_file", "total_inactive_file" } },
    { { "memory.max", "memory.high" }, "memory.current", { "active_file", "inactive_file" } },
};

// A number, or that of a line "KEY NUMBER". `otherwise` where there is none, as for "max".
static uint64_t read_number(const char *folder, const char *name, const char *key,
                            uint64_t otherwise)
{
    char path[PATH_MAX], line[256];
    uint64_t found = otherwise;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return otherwise;
    FILE *f = fopen(path, "re");
    size_t n = key ? strlen(key) : 0;
    while (f && fgets(line, sizeof line, f)) {
        if (key && (strncmp(line, key, n) != 0 || line[n] != ' '))
            continue;
        char *end;
        uint64_t value = strtoull(line + n, &end, 10);
        found = end > line + n ? value : otherwise;
        break;
    }
    if (f)
        fclose(f);
    return found;
}

static void apply_group(const struct words *w, const char *folder, struct cpu_memory *out)
{
    uint64_t limit = UINT64_MAX;
    for (int i = 0; i < 2 && w->limits[i]; i++) {
        uint64_t one = read_number(folder, w->limits[i], NULL, UINT64_MAX);
        limit = one < limit ? one : limit;
    }
    uint64_t physical = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (limit >= physical) // version 1 writes "none" as a large number
        return;
    uint64_t used = read_number(folder, w->used, NULL, 0);
    for (int i = 0; i < 2; i++) {
        uint64_t cache = read_number(folder, "memory.stat", w->cache[i], 0);
        used -= cache < used ? cache : used;
    }
    uint64_t kept = limit / KEPT_BACK_PART < MOST_KEPT_BACK ? limit / KEPT_BACK_PART
                                                            : MOST_KEPT_BACK;
    uint64_t free = limit > used + kept ? limit - used - kept : 0;
    out->limited = true;
    out->total = limit < out->total ? limit : out->total;
    out->free = free < out->free ? free : out->free;
}

// Is it one of the words, which have commas between?
static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = words; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && strncmp(at, word, n) == 0)
            return true;
    return false;
}

// The path of the group that the process is in: "9:memory:/path", or of version 2 "0::/path".
static void find_group(const char *groups, bool second, char out[PATH_MAX])
{
    char line[PATH_MAX + 256], kinds[256], path[PATH_MAX];
    FILE *f = fopen(groups, "re");
    strcpy(out, "/");
    while (f && fgets(line, sizeof line, f)) {
        bool is_second = sscanf(line, "0::%4095[^\n]", path) == 1;
        if (is_second ? second
                      : !second && sscanf(line, "%*d:%255[^:]:%4095[^\n]", kinds, path) == 2 &&
                            has_word(kinds, "memory"))
            memcpy(out, path, sizeof path);
    }
    if (f)
        fclose(f);
}

// The group's folder and those above it, as far as they are mounted.
static void apply_groups(const struct words *w, const char *point, const char *path,
                         struct cpu_memory *out)
{
    char folder[2 * PATH_MAX];
    size_t top = strlen(point);
    snprintf(folder, sizeof folder, "%s%s", point, path);
    for (;;) {
        apply_group(w, folder, out);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < top)
            return;
        *slash = '\0';
    }
}

void cpu_memory_read_groups(const char *groups, const char *mounts, struct cpu_memory *out)
{
    char line[3 * PATH_MAX], root[PATH_MAX], point[PATH_MAX], path[PATH_MAX];
    char type[64], options[PATH_MAX];
    FILE *f = fopen(mounts, "re");
    while (f && fgets(line, sizeof line, f)) {
        const char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
            sscanf(rest, " - %63s %*s %4095s", type, options) != 2)
            continue;
        bool second = strcmp(type, "cgroup2") == 0;
        if (!second && (strcmp(type, "cgroup") != 0 || !has_word(options, "memory")))
            continue;
        find_group(groups, second, path);
        size_t n = strlen(root); // what is mounted may be a part of the tree
        const char *below = strcmp(root, "/") == 0        ? path
                            : strncmp(path, root, n) == 0 ? path + n
                                                          : "";
        apply_groups(&words_of[second], point, strstr(below, "..") ? "" : below, out);
    }
    if (f)
        fclose(f);
}

void cpu_memory_read(struct cpu_memory *out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *out = (struct cpu_memory){ .total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page,
                                .free = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page };
    cpu_memory_read_groups("/proc/self/cgroup", "/proc/self/mountinfo", out);
}

uint64_t cpu_memory_own(void)
{
    return read_number("/proc/self", "smaps_rollup", "Pss:", 16 << 10) << 10;
}
