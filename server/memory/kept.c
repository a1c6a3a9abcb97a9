#include "memory/kept.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "memory/tensor.h"

enum { HEADER = 4096, FIRST_ROOM = 120 };

struct kept_list {
    char magic[8];
    uint32_t format, entry_size;
    struct kept_device devices[DEV_MAX_DEVICES];
};

static const char magic[8] = "opdkept";

_Static_assert(sizeof(struct kept_list) <= HEADER, "the header has room");

// The whole of what it may become is mapped at once, so that entries stay where they are; the file
// has only as many as are needed.
static size_t size_of(uint32_t n)
{
    return HEADER + (size_t)n * sizeof(struct kept_entry);
}

static struct kept_entry *entry(const struct kept *k, uint32_t i)
{
    return (struct kept_entry *)(void *)((char *)k->list + HEADER) + i;
}

static uint64_t check_of(const struct kept_entry *e)
{
    struct kept_entry copy = *e;
    copy.check = 0;
    copy.open = 0;
    uint64_t check = hash_bytes(&copy, sizeof copy, KEPT_FORMAT);
    return check ? check : 1;
}

// --- the list

static bool map_list(struct kept *k)
{
    void *p = mmap(NULL, size_of(KEPT_MOST), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                   k->fd, 0);
    k->list = p == MAP_FAILED ? NULL : p;
    return k->list != NULL;
}

static bool make_room(struct kept *k, uint32_t n)
{
    if (n > KEPT_MOST || ftruncate(k->fd, (off_t)size_of(n)) < 0)
        return false;
    k->n_room = n;
    k->free = mem_realloc(k->free, n, sizeof *k->free);
    return true;
}

bool kept_new(struct kept *k)
{
    k->fd = memfd_create("opd-names", MFD_CLOEXEC);
    if (k->fd < 0 || !make_room(k, FIRST_ROOM) || !map_list(k)) {
        kept_finish(k);
        return false;
    }
    memcpy(k->list->magic, magic, sizeof magic);
    k->list->format = KEPT_FORMAT;
    k->list->entry_size = sizeof(struct kept_entry);
    return true;
}

bool kept_resume(struct kept *k, int fd)
{
    struct stat st = { 0 };
    k->fd = fd;
    bool ok = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= (off_t)size_of(0) &&
              st.st_size <= (off_t)size_of(KEPT_MOST) && map_list(k) &&
              memcmp(k->list->magic, magic, sizeof magic) == 0 && k->list->format == KEPT_FORMAT &&
              k->list->entry_size == sizeof(struct kept_entry);
    if (!ok) {
        kept_finish(k);
        return false;
    }
    k->n_room = k->n_used = (uint32_t)(((size_t)st.st_size - HEADER) / sizeof(struct kept_entry));
    k->free = mem_realloc(k->free, k->n_room ? k->n_room : 1, sizeof *k->free);
    for (uint32_t i = k->n_used; i-- > 0;)
        if (entry(k, i)->check != check_of(entry(k, i))) {
            entry(k, i)->check = 0;
            k->free[k->n_free++] = i;
        }
    for (int i = 0; i < DEV_MAX_DEVICES; i++) {
        k->list->devices[i].name[sizeof k->list->devices[i].name - 1] = '\0';
        k->list->devices[i].uuid[sizeof k->list->devices[i].uuid - 1] = '\0';
    }
    return true;
}

void kept_finish(struct kept *k)
{
    if (k->list)
        munmap(k->list, size_of(KEPT_MOST));
    if (k->fd >= 0)
        close(k->fd);
    free(k->free);
    *k = (struct kept){ .fd = -1, .hold = k->hold };
}

// --- devices

int kept_row(const struct kept *k, const char *device)
{
    for (int i = 0; k->list && i < DEV_MAX_DEVICES; i++)
        if (strcmp(k->list->devices[i].name, device) == 0)
            return i;
    return -1;
}

struct kept_device *kept_device(struct kept *k, int row)
{
    return &k->list->devices[row];
}

int kept_add_device(struct kept *k, const char *device, const char *uuid)
{
    int row = kept_row(k, device);
    if (row < 0 && (row = kept_row(k, "")) >= 0) {
        struct kept_device *d = kept_device(k, row);
        snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
        snprintf(d->name, sizeof d->name, "%s", device);
    }
    return row;
}

// --- entries

// NULL: there is no memory for more.
static struct kept_entry *take_entry(struct kept *k)
{
    if (k->n_free > 0)
        return entry(k, k->free[--k->n_free]);
    if (k->n_used == k->n_room &&
        !make_room(k, 2 * k->n_room < KEPT_MOST ? 2 * k->n_room : KEPT_MOST))
        return NULL;
    return k->n_used < k->n_room ? entry(k, k->n_used++) : NULL;
}

static bool is_open(const struct storage *s)
{
    if (s->armed > 0 || (s->fate && s->fate->state != FATE_DONE))
        return true;
    for (const struct write *w = s->writes; w; w = w->next)
        if (w->fate->state != FATE_DONE)
            return true;
    return false;
}

static void fill(struct kept_entry *e, const struct storage *s, const struct tensor *t, int row)
{
    struct kept_entry made = { .open = s->size > 0,
                               .device = (uint32_t)row,
                               .region = s->block ? s->block->chunk->region : KEPT_NOWHERE,
                               .rank = t->desc.rank,
                               .offset = s->block ? s->block->offset : 0,
                               .room = s->block ? s->block->size : 0,
                               .size = s->size };
    memcpy(made.shape, t->desc.shape, sizeof made.shape[0] * (size_t)t->desc.rank);
    snprintf(made.dtype, sizeof made.dtype, "%s", dtype_name(t->desc.dtype));
    snprintf(made.name, sizeof made.name, "%s", t->name);
    made.check = check_of(&made);
    memcpy((char *)e + sizeof e->check, (char *)&made + sizeof made.check,
           sizeof made - sizeof made.check);
    __atomic_store_n(&e->check, made.check, __ATOMIC_RELEASE);
}

// Until the request that makes it has begun and says so, it is open.
void kept_add(struct storage *s, const struct tensor *t)
{
    struct kept *k = s->space->kept;
    if (!k || s->import || strlen(t->name) >= KEPT_NAME ||
        !k->hold(s->space, s->block ? s->block->chunk->region : KEPT_NOWHERE))
        return;
    int row = kept_row(k, s->space->name);
    struct kept_entry *e = row < 0 ? NULL : take_entry(k);
    if (!e) {
        log_warn("'%s' would not outlive the daemon: there is no memory for the list of names",
                 t->name);
        return;
    }
    fill(e, s, t, row);
    kept_claim(k, e, s);
}

void kept_claim(struct kept *k, const struct kept_entry *e, struct storage *s)
{
    s->kept = (uint32_t)(e - entry(k, 0)) + 1;
    k->n++;
    k->bytes += s->size;
}

void kept_remove(struct storage *s)
{
    struct kept *k = s->space->kept;
    if (!s->kept || !k)
        return;
    k->n--;
    k->bytes -= s->size;
    kept_forget(k, entry(k, s->kept - 1));
    s->kept = 0;
}

void kept_forget(struct kept *k, const struct kept_entry *e)
{
    uint32_t i = (uint32_t)(e - entry(k, 0));
    __atomic_store_n(&entry(k, i)->check, 0, __ATOMIC_RELEASE);
    k->free[k->n_free++] = i;
}

void kept_say_open(struct storage *s)
{
    if (s->space->kept)
        entry(s->space->kept, s->kept - 1)->open = is_open(s);
}

const struct kept_entry *kept_next(const struct kept *k, uint32_t *cursor)
{
    while (k->list && *cursor < k->n_used) {
        const struct kept_entry *e = entry(k, (*cursor)++);
        if (e->check)
            return e;
    }
    return NULL;
}
