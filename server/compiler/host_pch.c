#include "compiler/host_pch.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

// MAX: beginnings, of some megabytes each; then all go. WORTH: the uses before one is made, which
// takes as long as a compile.
enum { MAX = 4, WORTH = 3, LIMIT_MS = 20000, LOG_LIMIT = 4096, MAX_WORDS = 64 };

static struct beginning {
    uint64_t key;
    char *folder, *header;
    int n_uses;
    bool made, unusable;
} all[MAX];
static int n_all;
static const char *scratch;

static struct {
    struct beginning *of; // NULL: nothing is to be made
    char *words[MAX_WORDS];
    int n;
} wanted;

static void forget_wanted(void)
{
    while (wanted.n > 0)
        free(wanted.words[--wanted.n]);
    wanted.of = NULL;
}

static void forget_all(void)
{
    forget_wanted();
    while (n_all > 0) {
        struct beginning *b = &all[--n_all];
        file_remove_tree(b->folder);
        free(b->folder);
        free(b->header);
    }
}

void host_pch_use(const char *folder)
{
    forget_all();
    scratch = folder;
}

static struct beginning *find(uint64_t key)
{
    for (int i = 0; i < n_all; i++)
        if (all[i].key == key)
            return &all[i];
    if (n_all == MAX)
        forget_all();
    struct beginning *b = &all[n_all++];
    *b = (struct beginning){ .key = key };
    b->folder = mem_printf("%s/first-%016llx", scratch, (unsigned long long)key);
    b->header = mem_printf("%s/first.h", b->folder);
    return b;
}

// As a header of that language, and not to be linked.
static void note_words(struct beginning *b, const char *const *words)
{
    forget_wanted();
    for (int i = 0; words[i] && wanted.n < MAX_WORDS - 4; i++) {
        bool language = i > 0 && strcmp(words[i - 1], "-x") == 0;
        if (strcmp(words[i], "-shared") != 0)
            wanted.words[wanted.n++] = mem_strdup(language ? "c++-header" : words[i]);
    }
    wanted.words[wanted.n++] = mem_strdup("-o");
    wanted.words[wanted.n++] = mem_strdup("new");
    wanted.words[wanted.n++] = mem_strdup("first.h");
    wanted.words[wanted.n] = NULL;
    wanted.of = b;
}

static bool write_texts(const struct beginning *b, const char *text, const char *common)
{
    char *path = mem_printf("%s/opd.cuh", b->folder);
    bool ok = mkdir(b->folder, 0700) == 0 && file_make(path, common, strlen(common), NULL) &&
              file_make(b->header, text, strlen(text), NULL);
    free(path);
    return ok;
}

const char *host_pch_find(const char *text, const char *common, const char *const *words)
{
    if (!scratch)
        return NULL;
    uint64_t key = hash_bytes(text, strlen(text), hash_bytes(common, strlen(common), 0));
    for (int i = 0; words[i]; i++)
        key = hash_bytes(words[i], strlen(words[i]), key);
    struct beginning *b = find(key);
    if (b->made)
        return b->header;
    if (++b->n_uses < WORTH || b->unusable)
        return NULL;
    b->unusable = b->n_uses == WORTH && !write_texts(b, text, common);
    if (!b->unusable)
        note_words(b, words);
    return NULL;
}

void host_pch_make(void)
{
    struct beginning *b = wanted.of;
    if (!b)
        return;
    struct buf output = { 0 };
    int status = 0;
    char *new = mem_printf("%s/new", b->folder), *name = mem_printf("%s.gch", b->header);
    if (child_run(wanted.words, b->folder, LIMIT_MS, LOG_LIMIT, &output, &status, NULL)) {
        b->made = status == 0 && rename(new, name) == 0;
        b->unusable = !b->made;
        log_debug("the beginning of units for the CPU is %s%s",
                  b->made ? "precompiled" : "not precompiled: ", b->made ? "" : buf_str(&output));
    }
    buf_finish(&output);
    unlink(new);
    free(new);
    free(name);
    forget_wanted();
}
