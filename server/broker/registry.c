#include "registry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"
#include "hash.h"
#include "log.h"
#include "mem.h"
#include "program.h"
#include "suggest.h"

// A text of more is no operator; a signature seldom has more than a few dozen plans in use.
enum { MAX_SOURCE = 1 << 20, MAX_PLANS = 4096 };

static bool read_file(const char *path, struct buf *text, struct opd_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe would be waited for
    if (fd < 0 || fstat(fd, &st) < 0)
        return opd_err_errno(err, OPD_E_invalid_argument, "%s", path);
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return opd_err_set(err, OPD_E_invalid_argument, "%s is no file", path);
    }
    FILE *f = fdopen(fd, "r");
    size_t n;
    do {
        buf_reserve(text, 65536);
        n = fread(text->bytes + text->size, 1, 65536, f);
        text->size += n;
    } while (n > 0 && text->size <= MAX_SOURCE);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed)
        return opd_err_set(err, OPD_E_invalid_argument, "%s: cannot be read", path);
    if (text->size > MAX_SOURCE)
        return opd_err_set(err, OPD_E_invalid_argument, "%s: longer than %d bytes", path, MAX_SOURCE);
    return true;
}

struct entry *entry_ref(struct entry *e)
{
    e->refs++;
    return e;
}

void entry_drop_plans(struct entry *e)
{
    size_t cursor = 0;
    struct bound_plan *bp, *next;
    while ((bp = map_next(&e->plans, &cursor)) != NULL) {
        for (; bp; bp = next) {
            next = bp->next;
            plan_free(bp->plan);
            free(bp->programs);
            free(bp->signature);
            free(bp);
        }
    }
    map_finish(&e->plans);
    e->n_plans = 0;
}

void entry_unref(struct entry *e)
{
    if (!e || --e->refs > 0)
        return;
    entry_drop_plans(e);
    op_unref(e->op);
    free(e->path);
    free(e->folder);
    free(e);
}

struct entry *registry_find(const struct registry *r, const char *name)
{
    for (struct entry *e = r->entries; e; e = e->next)
        if (strcmp(e->op->name, name) == 0)
            return e;
    return NULL;
}

const char *registry_suggest(const struct registry *r, const char *name, char *out, size_t size)
{
    struct suggest suggest;
    suggest_init(&suggest, name, strlen(name));
    for (struct entry *e = r->entries; e; e = e->next)
        suggest_add(&suggest, e->op->name);
    return suggest_text(&suggest, out, size);
}

static void insert(struct registry *r, struct entry *entry)
{
    struct entry **at = &r->entries;
    while (*at && strcmp((*at)->op->name, entry->op->name) < 0)
        at = &(*at)->next;
    if (*at && strcmp((*at)->op->name, entry->op->name) == 0) {
        struct entry *old = *at;
        log_info("operator %s: %s replaces %s", entry->op->name, entry->path, old->path);
        *at = old->next;
        r->count--;
        entry_unref(old);
    }
    entry->next = *at;
    *at = entry;
    r->count++;
}

static void load_operator(struct registry *r, const char *folder, const char *file)
{
    char *path = mem_printf("%s/%s", folder, file);
    struct buf text = { 0 };
    struct opd_err err = { 0 };
    struct op *op = NULL;
    if (read_file(path, &text, &err))
        op = op_parse(file, (const char *)text.bytes, text.size, &err);
    if (op) {
        struct entry *e = mem_zalloc(1, sizeof *e);
        *e = (struct entry){
            .refs = 1, .op = op, .version = 1, .path = path, .folder = mem_strdup(folder)
        };
        insert(r, e);
    } else {
        log_error("not served: %s", err.msg);
        free(path);
    }
    opd_err_clear(&err);
    buf_finish(&text);
}

static int is_source(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return d->d_name[0] != '.' && n > 3 && strcmp(d->d_name + n - 3, ".cu") == 0;
}

static bool load_folder(struct registry *r, const char *folder, struct opd_err *err)
{
    struct dirent **names;
    int n = scandir(folder, &names, is_source, alphasort);
    if (n < 0)
        return opd_err_errno(err, OPD_E_invalid_argument, "folder of kernels %s", folder);
    for (int i = 0; i < n; i++) {
        load_operator(r, folder, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return true;
}

bool registry_load(struct registry *r, char *const *folders, int n_folders, struct opd_err *err)
{
    if (n_folders == 0)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "the shipped operators are not beside the program; name their folder with --kernels");
    struct buf common = { 0 };
    char *path = mem_printf("%s/opd.cuh", folders[0]);
    bool ok = read_file(path, &common, err);
    free(path);
    if (ok)
        r->common = mem_strdup(buf_str(&common));
    buf_finish(&common);
    for (int i = 0; ok && i < n_folders; i++)
        ok = load_folder(r, folders[i], err);
    r->generation = 1;
    return ok;
}

void registry_finish(struct registry *r)
{
    struct entry *next;
    for (struct entry *e = r->entries; e; e = next) {
        next = e->next;
        entry_unref(e);
    }
    free(r->common);
    *r = (struct registry){ 0 };
}

static struct bound_plan *bind_plan(struct entry *e, struct device *d, struct plan *plan, const struct buf *signature)
{
    struct bound_plan *bp = mem_zalloc(1, sizeof *bp);
    *bp = (struct bound_plan){
        .device = d,
        .plan = plan,
        .signature = mem_alloc(signature->size),
        .signature_size = signature->size,
        .programs = mem_zalloc((size_t)plan->n_kernels, sizeof *bp->programs),
    };
    memcpy(bp->signature, signature->bytes, signature->size);
    for (int i = 0; i < plan->n_kernels; i++)
        bp->programs[i] = program_get(d, e, plan, i);
    return bp;
}

struct bound_plan *entry_plan(struct entry *e, struct device *d, const struct plan_request *request, struct opd_err *err)
{
    struct buf signature = { 0 };
    plan_signature(request, &signature);
    uint64_t key = hash_bytes(signature.bytes, signature.size, (uint64_t)d->index);
    struct bound_plan *first = map_get(&e->plans, key), *bp = first;
    while (bp && (bp->device != d || bp->signature_size != signature.size ||
                  memcmp(bp->signature, signature.bytes, signature.size) != 0))
        bp = bp->next;
    if (!bp) {
        struct plan *plan = plan_build(request, err);
        if (plan) {
            if (e->n_plans == MAX_PLANS) {
                entry_drop_plans(e);
                first = NULL;
            }
            bp = bind_plan(e, d, plan, &signature);
            bp->next = first;
            map_put(&e->plans, key, bp);
            e->n_plans++;
        }
    }
    buf_finish(&signature);
    return bp;
}
