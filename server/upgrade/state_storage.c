// The part of the state that is storages: what is where in the memory of devices and of clients,
// who made it, and what of it is suspect. Nothing is in flight when it is written for good, so
// every request's fate is settled.

#include "upgrade/archive.h"

#include "request/request.h"

static bool is_lost(const struct fate *f)
{
    return f && f->state == FATE_FAILED;
}

static struct fate *make_fate(enum fate_state state, char *why)
{
    struct fate *f = mem_zalloc(1, sizeof *f);
    *f = (struct fate){ .refs = 1, .state = state, .why = why };
    return f;
}

static void archive_space(struct archive *a, struct space **space)
{
    struct device *d = *space ? (*space)->device : NULL;
    state_device_ref(a, "device", &d);
    *space = &d->space;
}

// --- holders and imports

bool state_holder(struct archive *a, void *thing)
{
    struct holder *h = thing ? thing : holder_new(0);
    if (a->reading)
        archive_made(a, RECORD_holder, h);
    archive_int(a, "pid", &h->pid, 0, INT32_MAX);
    archive_chars(a, "client", h->client, sizeof h->client);
    return true;
}

static bool is_in_region(const struct import *m)
{
    const struct device *d = m->space->device;
    const struct device_region *r = m->region < d->regions.n ? &d->regions.list[m->region] : NULL;
    return r && r->used && (r->host || r->ipc) && m->size <= r->size;
}

bool state_import(struct archive *a, void *thing)
{
    struct import m = thing ? *(const struct import *)thing : (struct import){ .refs = 1 };
    bool lost = is_lost(m.fate);
    archive_space(a, &m.space);
    archive_int(a, "region", &m.region, 0, IMPORT_UNMAPPED);
    archive_int(a, "size", &m.size, 0, ARCHIVE_MAX_SIZE);
    archive_bool(a, "lost", &lost);
    if (thing)
        return true;
    if (!archive_good(a) || !((m.region == IMPORT_UNMAPPED && lost) || is_in_region(&m)))
        return archive_fail(a, "its region is not that of a client's memory, or too small");
    m.fate = make_fate(lost ? FATE_FAILED : FATE_DONE, NULL);
    struct import *made = mem_alloc(sizeof *made);
    *made = m;
    archive_made(a, RECORD_import, made);
    return true;
}

// --- storages

// A piece of a chunk.
struct piece {
    uint32_t region;
    uint64_t offset, size;
};

static struct suballoc_block *take_piece(struct archive *a, struct suballoc *map,
                                         const struct piece *piece)
{
    struct suballoc_chunk *chunk = map->chunks;
    while (chunk && chunk->region != piece->region)
        chunk = chunk->next;
    if (!chunk)
        return NULL;
    struct suballoc_block *from = a->cursor && a->cursor->chunk == chunk ? a->cursor : chunk->first;
    return a->cursor = suballoc_take(map, from, piece->offset, piece->size);
}

static bool take_memory(struct archive *a, struct storage *s, const struct piece *piece)
{
    const struct import *m = s->import;
    if (m)
        return piece->size == 0 && s->size > 0 && m->space == s->space &&
               s->import_offset <= m->size && s->size <= m->size - s->import_offset;
    if (s->size == 0 || piece->size < s->size || piece->size % SUBALLOC_ALIGN)
        return s->size == 0 && piece->size == 0;
    s->block = take_piece(a, &s->space->map, piece);
    return s->block != NULL;
}

bool state_storage(struct archive *a, void *thing)
{
    struct storage s = thing ? *(const struct storage *)thing : (struct storage){ .refs = 1 };
    struct piece piece = { 0 };
    if (s.block)
        piece = (struct piece){ s.block->chunk->region, s.block->offset, s.block->size };
    bool lost = is_lost(s.fate);
    archive_space(a, &s.space);
    archive_int(a, "region", &piece.region, 0, DEV_MAX_REGIONS - 1);
    archive_int(a, "offset", &piece.offset, 0, ARCHIVE_MAX_SIZE);
    archive_int(a, "room", &piece.size, 0, ARCHIVE_MAX_SIZE);
    s.import = archive_ref(a, "import", RECORD_import, s.import);
    archive_count(a, "import_offset", &s.import_offset);
    archive_int(a, "size", &s.size, 0, ARCHIVE_MAX_SIZE);
    archive_count(a, "version", &s.version);
    s.holder = archive_ref(a, "holder", RECORD_holder, s.holder);
    archive_bool(a, "lost", &lost);
    if (archive_has(a, "shared")) // absent in programs from before it was known
        archive_bool(a, "shared", &s.shared);
    else
        s.shared = true;
    a->storage = thing;
    if (thing)
        return true;
    if (!archive_good(a) || !take_memory(a, &s, &piece))
        return archive_fail(a, "its memory is not there, or something else's too");
    if (s.import)
        import_ref(s.import);
    if (s.holder)
        holder_ref(s.holder);
    s.fate = lost ? make_fate(FATE_FAILED, NULL) : NULL;
    a->storage = mem_alloc(sizeof s);
    *a->storage = s;
    if (s.block)
        s.block->owner = a->storage;
    holder_count(a->storage, 1);
    archive_made(a, RECORD_storage, a->storage);
    return true;
}

// A write that has failed: none is under way.
bool state_suspect_write(struct archive *a, void *thing)
{
    struct write w = thing ? *(const struct write *)thing : (struct write){ 0 };
    char *why = thing ? w.fate->why : NULL;
    archive_count(a, "begin", &w.begin);
    archive_count(a, "end", &w.end);
    archive_text(a, "why", &why);
    if (thing)
        return true;
    struct write **last = &a->storage->writes;
    while (*last) // in the order in which they were
        last = &(*last)->next;
    *last = mem_alloc(sizeof **last);
    **last = (struct write){ .begin = w.begin, .end = w.end, .fate = make_fate(FATE_FAILED, why) };
    return (archive_good(a) && w.begin < w.end && w.end <= a->storage->size) ||
           archive_fail(a, "it is of nothing, or ends behind its storage");
}

// --- all of it

static void put_storage(struct archive *a, struct storage *s)
{
    if (!archive_need(a, RECORD_storage, s))
        return;
    for (struct write *w = s->writes; w; w = w->next)
        if (is_lost(w->fate))
            archive_put(a, RECORD_suspect_write, w);
}

struct storage *state_storage_ref(struct archive *a, const char *key, struct storage *s)
{
    uint64_t address = (uint64_t)(uintptr_t)s;
    if (s && !a->reading && !map_get(&a->reached, address)) {
        map_put(&a->reached, address, s);
        a->reached_size += s->block ? s->block->size : 0;
        put_storage(a, s);
    }
    return archive_ref(a, key, RECORD_storage, s);
}

// The map of a chunk is filled from its start to its end.
void state_write_chunks(struct archive *a, const struct device *d)
{
    for (const struct suballoc_chunk *c = d->space.map.chunks; c; c = c->next)
        for (const struct suballoc_block *block = c->first; block; block = block->after)
            if (block->used && block->owner)
                put_storage(a, block->owner);
}
