#include "memory/tensor.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "memory/kept.h"
#include "wire/msg.h"

static struct mem_pool storages, tensors;

enum alloc_result storage_new(struct space *space, uint64_t size, struct holder *holder,
                              struct storage **out, struct opd_err *err)
{
    struct suballoc_block *block = NULL;
    if (size > 0) {
        if (!holder_allows(holder, space, size, err))
            return ALLOC_FAILED;
        enum alloc_result result = space->ops->alloc(space, size, &block, err);
        if (result != ALLOC_OK)
            return result;
    }
    *out = mem_pool_take(&storages, sizeof **out);
    **out = (struct storage){
        .refs = 1, .space = space, .holder = holder_ref(holder), .block = block, .size = size,
        .serial = ++space->n_made
    };
    if (block)
        block->owner = *out;
    holder_count(*out, 1);
    return ALLOC_OK;
}

struct storage *storage_import(struct import *m, uint64_t offset, uint64_t size)
{
    struct storage *s = mem_pool_take(&storages, sizeof *s);
    *s = (struct storage){ .refs = 1, .space = m->space, .size = size };
    if (m->fate->state != FATE_DONE)
        s->fate = fate_ref(m->fate);
    if (size == 0)
        return s;
    s->import = import_ref(m);
    s->import_offset = offset;
    return s;
}

struct storage *storage_ref(struct storage *s)
{
    s->refs++;
    return s;
}

void storage_unref(struct storage *s)
{
    if (!s || --s->refs > 0)
        return;
    holder_count(s, -1);
    holder_unref(s->holder);
    if (s->block)
        s->space->ops->release(s->space, s->block);
    import_unref(s->import);
    fate_unref(s->fate);
    writes_free(s);
    mem_pool_give(&storages, s);
}

struct tensor *tensor_new(struct storage *s, uint64_t offset, const struct tensor_desc *desc)
{
    struct tensor *t = mem_pool_take(&tensors, sizeof *t);
    *t = (struct tensor){ .refs = 1, .storage = storage_ref(s), .offset = offset };
    t->size = tensor_desc_size(desc);
    t->desc = *desc;
    s->space->n_tensors++;
    return t;
}

struct tensor *tensor_ref(struct tensor *t)
{
    t->refs++;
    return t;
}

void tensor_unref(struct tensor *t)
{
    if (!t || --t->refs > 0)
        return;
    t->storage->space->n_tensors--;
    if (t->made_at)
        *t->made_at = NULL;
    storage_unref(t->storage);
    free(t->name);
    mem_pool_give(&tensors, t);
}

uint64_t storage_place(const struct storage *s)
{
    return s->space->paged ? s->block->size - s->size : 0;
}

bool storage_address(const struct storage *s, uint64_t offset, struct dev_ref *out)
{
    if (s->import) {
        *out = (struct dev_ref){ .region = s->import->region, .offset = s->import_offset + offset };
        return true;
    }
    if (!s->block)
        return false;
    *out = (struct dev_ref){ .region = s->block->chunk->region,
                             .offset = s->block->offset + storage_place(s) + offset };
    return true;
}

bool tensor_address(const struct tensor *t, uint64_t offset, struct dev_ref *out)
{
    return storage_address(t->storage, t->offset + offset, out);
}

bool storage_overlaps(const struct storage *a, uint64_t a_offset, uint64_t a_size,
                      const struct storage *b, uint64_t b_offset, uint64_t b_size)
{
    struct dev_ref p, q;
    if (a_size == 0 || b_size == 0 || a->space != b->space || !storage_address(a, a_offset, &p) ||
        !storage_address(b, b_offset, &q) || p.region != q.region)
        return false;
    return p.offset < q.offset + b_size && q.offset < p.offset + a_size;
}

bool tensor_overlaps(const struct tensor *a, const struct tensor *b)
{
    return storage_overlaps(a->storage, a->offset, a->size, b->storage, b->offset, b->size);
}

const char *tensor_suspect(const struct tensor *t)
{
    return t->storage->writes ? writes_suspect(t->storage, t->offset, t->offset + t->size) : NULL;
}

static uint64_t name_key(const char *name)
{
    return hash_bytes(name, strlen(name), 0);
}

struct tensor *tensor_find(const struct map *names, const char *name)
{
    struct tensor *t = map_get(names, name_key(name));
    while (t && strcmp(t->name, name) != 0)
        t = t->next_named;
    return t;
}

void tensor_set_name(struct map *names, struct tensor *t, const char *name)
{
    t->name = mem_strdup(name);
    holder_count_name(t->storage, 1);
    t->next_named = map_get(names, name_key(name));
    map_put(names, name_key(name), tensor_ref(t));
    if (!t->storage->kept)
        kept_add(t->storage, t);
}

void tensor_drop_name(struct map *names, struct tensor *t)
{
    if (!t->name)
        return;
    uint64_t key = name_key(t->name);
    struct tensor *first = map_get(names, key);
    if (first == t) {
        if (t->next_named)
            map_put(names, key, t->next_named);
        else
            map_remove(names, key);
    } else {
        while (first->next_named != t)
            first = first->next_named;
        first->next_named = t->next_named;
    }
    kept_remove(t->storage);
    free(t->name);
    holder_count_name(t->storage, -1);
    t->name = NULL;
    t->next_named = NULL;
    tensor_unref(t);
}

void tensor_pack_keys(struct buf *out, uint64_t id, const struct tensor *t)
{
    pack_key_uint(out, "id", id);
    pack_key_str(out, "dtype", dtype_name(t->desc.dtype));
    pack_key_array(out, "shape", (size_t)t->desc.rank);
    for (int i = 0; i < t->desc.rank; i++)
        pack_int(out, t->desc.shape[i]);
    if (t->desc.strided) {
        pack_key_array(out, "strides", (size_t)t->desc.rank);
        for (int i = 0; i < t->desc.rank; i++)
            pack_int(out, t->desc.strides[i]);
    }
    pack_key_str(out, "device", t->storage->space->name);
    pack_key_str(out, "name", t->name);
    pack_key_uint(out, "bytes", t->size);
    pack_key_str(out, "suspect", tensor_suspect(t));
}

void tensor_pack(struct buf *out, uint64_t id, const struct tensor *t)
{
    size_t map = pack_map_begin(out);
    tensor_pack_keys(out, id, t);
    pack_map_end(out, map);
}
