#include "upgrade/recover.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "device/device.h"
#include "device/keep.h"
#include "request/parts.h"
#include "upgrade/state.h"

static const uint64_t MAX_SIZE = (uint64_t)1 << 47; // of a region: what fits into no address space
enum { MAX_PINS = 1 << 30 };                        // bytes

static struct device *find_device(struct broker *b, uint32_t row)
{
    struct kept *k = &b->devices.keep.kept;
    const char *name = row < DEV_MAX_DEVICES ? kept_device(k, (int)row)->name : "";
    return name[0] ? devices_find(&b->devices, name) : NULL;
}

// --- regions

static bool makes_sense(const struct keeper_message *m)
{
    return m->region < DEV_MAX_REGIONS && m->size > 0 && m->size <= MAX_SIZE &&
           m->size % SUBALLOC_ALIGN == 0;
}

static void take_region(struct broker *b, struct keep_given *given)
{
    struct device *d = find_device(b, given->what.device);
    if (!d || !makes_sense(&given->what))
        return;
    memcpy(d->info.uuid, kept_device(&b->devices.keep.kept, (int)given->what.device)->uuid,
           sizeof d->info.uuid);
    device_restore_region(d, given->what.region,
                          &(struct device_region){ .used = true,
                                                   .ready = true,
                                                   .kept = true,
                                                   .exported = given->what.exported != 0,
                                                   .fd = given->fd,
                                                   .size = given->what.size });
    given->fd = -1;
}

// --- operators

// The next thing is the look at all files, which finds newer versions of them.
static void take_pins(struct broker *b, const struct keep_given *given)
{
    struct buf bytes = { 0 };
    struct opd_err err = { 0 };
    bool ok = lseek(given->fd, 0, SEEK_SET) == 0 && file_get(given->fd, MAX_PINS, &bytes) &&
              state_read_pins(b, bytes.bytes, bytes.size, &err);
    if (!ok)
        log_error("the operators that were pinned cannot be taken over: %s", err.msg);
    opd_err_clear(&err);
    buf_finish(&bytes);
    b->pins_moved = true; // what the keeper has is of the daemon before
}

void recover_keep_pins(struct broker *b)
{
    struct buf bytes = { 0 };
    b->pins_moved = false;
    state_write_pins(&bytes, b);
    keep_pins(&b->devices, bytes.bytes, bytes.size);
    buf_finish(&bytes);
}

// --- tensors

// In the order of their memory, so that the map of a chunk is filled from its start to its end.
static int compare_places(const void *a, const void *b)
{
    const struct kept_entry *p = *(const struct kept_entry *const *)a,
                            *q = *(const struct kept_entry *const *)b;
    if (p->device != q->device)
        return p->device < q->device ? -1 : 1;
    if (p->region != q->region)
        return p->region < q->region ? -1 : 1;
    return p->offset < q->offset ? -1 : p->offset > q->offset;
}

static const struct kept_entry **list_entries(const struct kept *k, size_t *n)
{
    const struct kept_entry **list = mem_alloc((k->n_used + (size_t)1) * sizeof *list), *e;
    *n = 0;
    for (uint32_t cursor = 0; (e = kept_next(k, &cursor)) != NULL;)
        list[(*n)++] = e;
    qsort(list, *n, sizeof *list, compare_places);
    return list;
}

static struct suballoc_block *take_piece(struct device *d, const struct kept_entry *e,
                                         struct suballoc_block **cursor)
{
    struct suballoc_chunk *chunk = d->space.map.chunks;
    while (chunk && chunk->region != e->region)
        chunk = chunk->next;
    if (!chunk || e->room < e->size || e->room % SUBALLOC_ALIGN)
        return NULL;
    struct suballoc_block *from = *cursor && (*cursor)->chunk == chunk ? *cursor : chunk->first;
    struct suballoc_block *piece = suballoc_take(&d->space.map, from, e->offset, e->room);
    if (piece)
        *cursor = piece;
    return piece;
}

static bool read_desc(const struct kept_entry *e, struct tensor_desc *desc)
{
    char dtype[sizeof e->dtype + 1] = "";
    memcpy(dtype, e->dtype, sizeof e->dtype);
    *desc = (struct tensor_desc){ .dtype = dtype_parse(dtype), .rank = e->rank };
    if (desc->dtype == OPD_DTYPE_NONE || e->rank < 0 || e->rank > OP_MAX_RANK)
        return false;
    memcpy(desc->shape, e->shape, sizeof desc->shape[0] * (size_t)e->rank);
    return tensor_desc_check(desc, NULL) && tensor_desc_size(desc) == e->size;
}

static void make_suspect(struct storage *s)
{
    struct fate *f = fate_new();
    writes_add(s, 0, s->size, f);
    f->state = FATE_FAILED;
    f->why = mem_strdup("the daemon was killed before it was done");
    fate_unref(f);
}

static bool take_tensor(struct broker *b, struct device *d, const struct kept_entry *e,
                        struct suballoc_block **cursor)
{
    struct tensor_desc desc;
    char name[KEPT_NAME + 1] = "";
    struct suballoc_block *piece = NULL;
    memcpy(name, e->name, KEPT_NAME);
    if (!name[0] || tensor_find(&b->names, name) || !read_desc(e, &desc) ||
        (e->size > 0 && !(piece = take_piece(d, e, cursor))))
        return false;
    struct storage *s = mem_alloc(sizeof *s);
    *s = (struct storage){ .refs = 1, .space = &d->space, .block = piece, .size = e->size };
    if (piece)
        piece->owner = s;
    if (e->open)
        make_suspect(s);
    struct tensor *t = tensor_new(s, 0, &desc);
    storage_unref(s);
    tensor_set_name(&b->names, t, name);
    kept_claim(&b->devices.keep.kept, e, s);
    tensor_unref(t);
    return true;
}

static void take_tensors(struct broker *b)
{
    struct kept *k = &b->devices.keep.kept;
    size_t n, n_taken = 0, n_other = 0;
    const struct kept_entry **list = list_entries(k, &n);
    struct suballoc_block *cursor = NULL;
    for (size_t i = 0; i < n; i++) {
        struct device *d = find_device(b, list[i]->device);
        if (!d) {
            n_other++; // another daemon may serve it
        } else if (take_tensor(b, d, list[i], &cursor)) {
            n_taken++;
        } else {
            log_error("the named tensor '%.200s' of the daemon before cannot be taken over",
                      list[i]->name);
            kept_forget(k, list[i]);
        }
    }
    free(list);
    if (n_other > 0)
        log_warn("%zu named tensors of the daemon before are on devices that are not served now; "
                 "their keeper has them still",
                 n_other);
    log_info("%zu named tensors are taken over", n_taken);
}

// A chunk that others may still write to gives out nothing more.
static void close_exported(struct broker *b)
{
    for (int i = 0; i < b->devices.n; i++) {
        struct device *d = b->devices.at[i];
        for (struct suballoc_chunk *c = d->space.map.chunks; c; c = c->next)
            if (d->regions.list[c->region].exported) {
                d->regions.list[c->region].closed = true;
                suballoc_close(&d->space.map, c);
            }
    }
}

bool recover_names(struct broker *b, struct opd_err *err)
{
    struct keep_given *given;
    uint64_t began = clock_ns();
    size_t n = keep_take_back(&b->devices, &given, err);
    bool ok = n > 0 && keep_await_executors(&b->devices.keep.kept, err);
    for (size_t i = 0; i < n; i++) {
        if (ok && given[i].what.region == KEEPER_PINS && given[i].fd >= 0)
            take_pins(b, &given[i]);
        else if (ok && given[i].fd >= 0)
            take_region(b, &given[i]);
        file_close(&given[i].fd);
    }
    free(given);
    if (!ok)
        return err->code == OPD_E_none;
    take_tensors(b);
    close_exported(b);
    log_info("a daemon was killed here: what had a name is back after %.0f ms",
             clock_ms_since(began));
    return true;
}

void recover_claim(struct broker *b)
{
    struct kept *k = &b->devices.keep.kept;
    const struct kept_entry *e;
    b->pins_moved = true;
    for (uint32_t cursor = 0; (e = kept_next(k, &cursor)) != NULL;) {
        struct device *d = find_device(b, e->device);
        struct tensor *t = d ? tensor_find(&b->names, e->name) : NULL;
        if (t && t->storage->space == &d->space && !t->storage->kept) {
            kept_claim(k, e, t->storage);
            kept_settle(t->storage);
        } else if (d) {
            kept_forget(k, e);
        }
    }
}

void recover_add(struct broker *b)
{
    size_t cursor = 0;
    for (struct tensor *t; (t = map_next(&b->names, &cursor)) != NULL;)
        for (; t; t = t->next_named)
            if (!t->storage->kept) {
                kept_add(t->storage, t);
                kept_settle(t->storage);
            }
}

void recover_leave(struct broker *b, struct device *d)
{
    struct buf list = { 0 };
    size_t cursor = 0;
    for (struct tensor *t; (t = map_next(&b->names, &cursor)) != NULL;)
        for (; t; t = t->next_named)
            if (t->storage->space == &d->space)
                buf_append(&list, &t, sizeof t);
    d->space.kept = NULL;
    for (size_t i = 0; i < list.size / sizeof(struct tensor *); i++)
        tensor_drop_name(&b->names, ((struct tensor **)(void *)list.bytes)[i]);
    if (list.size > 0)
        log_error("%zu named tensors on %s stay with the keeper, for a daemon that serves it",
                  list.size / sizeof(struct tensor *), d->name);
    buf_finish(&list);
}
