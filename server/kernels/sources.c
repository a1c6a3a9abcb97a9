#include "kernels/sources.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

void sources_add(struct sources *ss, struct source *s)
{
    if (ss->n % 64 == 0)
        ss->at = mem_realloc(ss->at, ss->n + 64, sizeof(struct source *));
    ss->at[ss->n++] = s;
    ss->unsorted = true;
}

// --- by place

struct place {
    int folder;
    const char *file;
};

static int compare_place(const void *place, const void *source)
{
    const struct place *p = place;
    const struct source *s = *(struct source *const *)source;
    return p->folder != s->folder_index ? p->folder - s->folder_index : strcmp(p->file, s->file);
}

static int compare_sources(const void *a, const void *b)
{
    const struct source *s = *(struct source *const *)a;
    return compare_place(&(struct place){ s->folder_index, s->file }, b);
}

// Among the first n, which are in order.
static struct source *find(const struct sources *ss, size_t n, struct place place)
{
    struct source **found = n > 0 ? bsearch(&place, ss->at, n, sizeof *found, compare_place) : NULL;
    return found ? *found : NULL;
}

struct source *sources_find(const struct sources *ss, const char *path)
{
    const char *file = strrchr(path, '/') + 1;
    size_t length = (size_t)(file - path) - 1;
    for (int i = 0; i < ss->n_folders; i++)
        if (strncmp(ss->folders[i], path, length) == 0 && ss->folders[i][length] == '\0')
            return find(ss, ss->n, (struct place){ i, file });
    return NULL;
}

// --- by operator

static uint64_t key_of(const char *op)
{
    return hash_bytes(op, strlen(op), 0);
}

static void unlink_op(struct sources *ss, struct source *s)
{
    if (!s->linked)
        return;
    uint64_t key = key_of(s->op);
    struct source *first = map_get(&ss->by_op, key), **at = &first;
    while (*at != s)
        at = &(*at)->next_of_op;
    *at = s->next_of_op;
    if (first)
        map_put(&ss->by_op, key, first);
    else
        map_remove(&ss->by_op, key);
    s->linked = false;
}

static void link_op(struct sources *ss, struct source *s)
{
    uint64_t key = key_of(s->op);
    s->next_of_op = map_get(&ss->by_op, key);
    map_put(&ss->by_op, key, s);
    s->linked = true;
}

void sources_rename(struct sources *ss, struct source *s, const char *op)
{
    unlink_op(ss, s);
    snprintf(s->op, sizeof s->op, "%s", op);
    link_op(ss, s);
}

struct source *sources_winner(const struct sources *ss, const char *op)
{
    struct source *found = NULL;
    for (struct source *s = map_get(&ss->by_op, key_of(op)); s; s = s->next_of_op)
        if (!s->missing_since && strcmp(s->op, op) == 0 &&
            (!found || compare_sources(&s, &found) > 0))
            found = s;
    return found;
}

// --- reading the folders

static void settle(struct sources *ss)
{
    if (!ss->unsorted)
        return;
    qsort(ss->at, ss->n, sizeof(struct source *), compare_sources);
    for (size_t i = 0; i < ss->n; i++)
        if (ss->at[i]->op[0] && !ss->at[i]->linked)
            link_op(ss, ss->at[i]);
    ss->unsorted = false;
}

static void judge(struct source *s, bool there)
{
    if (there)
        s->missing_since = 0;
    else if (!s->missing_since)
        s->missing_since = clock_ns();
}

// False: it is not there, which need not last: its operators are served as they were.
static bool read_folder(struct sources *ss, int index)
{
    size_t n_known = ss->n;
    DIR *dir = opendir(ss->folders[index]);
    if (!dir) {
        for (size_t i = 0; i < ss->n; i++)
            if (ss->at[i]->folder_index == index)
                ss->at[i]->away = true;
        return false;
    }
    struct dirent *d;
    while ((d = readdir(dir)) != NULL) {
        size_t length = strlen(d->d_name);
        if (d->d_name[0] == '.' || length <= 3 || strcmp(d->d_name + length - 3, ".cu") != 0)
            continue;
        struct source *s = find(ss, n_known, (struct place){ index, d->d_name });
        if (!s)
            sources_add(ss, s = source_new(ss->folders[index], d->d_name, index));
        s->seen = true;
        judge(s, file_stamp_read_in(dirfd(dir), d->d_name, &s->now));
    }
    closedir(dir);
    settle(ss);
    return true;
}

void sources_list(struct sources *ss)
{
    bool missing = false;
    settle(ss);
    for (size_t i = 0; i < ss->n; i++)
        ss->at[i]->seen = ss->at[i]->away = false;
    for (int i = 0; i < ss->n_folders; i++) {
        if (read_folder(ss, i))
            continue;
        missing = true;
        if (!ss->folder_missing)
            log_warn("%s is not there; its operators are served as they were", ss->folders[i]);
    }
    ss->folder_missing = missing;
    for (size_t i = 0; i < ss->n; i++)
        if (!ss->at[i]->away && !ss->at[i]->seen)
            judge(ss->at[i], false);
}

void sources_remove(struct sources *ss, size_t i)
{
    unlink_op(ss, ss->at[i]);
    source_free(ss->at[i]);
    memmove(&ss->at[i], &ss->at[i + 1], (--ss->n - i) * sizeof(struct source *));
}

void sources_finish(struct sources *ss)
{
    for (size_t i = 0; i < ss->n; i++)
        source_free(ss->at[i]);
    free(ss->at);
    map_finish(&ss->by_op);
    *ss = (struct sources){ 0 };
}
