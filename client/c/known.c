#include "c/known.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DESCS = 256, MAX_TENSORS = 1 << 20, FIRST = 64 };

struct known_tensor {
    int64_t id; // 0: none
    const struct known_desc *desc;
};

static bool is_same(const struct known_desc *a, const struct known_desc *b)
{
    size_t size = (size_t)a->rank * sizeof a->shape[0];
    return a->rank == b->rank && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->device, b->device) == 0 && memcmp(a->shape, b->shape, size) == 0 &&
           a->strided == b->strided && (!a->strided || memcmp(a->strides, b->strides, size) == 0);
}

const struct known_desc *known_desc(struct known *k, const struct known_desc *desc)
{
    struct known_desc **at = &k->descs, *found;
    while (*at && !is_same(*at, desc))
        at = &(*at)->next;
    if (!(found = *at)) {
        if (k->n_descs == MAX_DESCS || !(found = malloc(sizeof *found)))
            return NULL;
        *found = *desc;
        k->n_descs++;
    } else {
        *at = found->next;
    }
    // The last one that was asked for is the first that is looked at.
    found->next = k->descs;
    return k->descs = found;
}

static size_t slot_of(const struct known *k, int64_t id)
{
    return (size_t)(((uint64_t)id * 0x9e3779b97f4a7c15u) >> 32) & (k->capacity - 1);
}

static struct known_tensor *find_slot(const struct known *k, int64_t id)
{
    size_t i = slot_of(k, id);
    while (k->tensors[i].id && k->tensors[i].id != id)
        i = (i + 1) & (k->capacity - 1);
    return &k->tensors[i];
}

const struct known_desc *known_find(const struct known *k, int64_t id)
{
    return k->capacity && id > 0 ? find_slot(k, id)->desc : NULL;
}

static bool grow(struct known *k)
{
    struct known old = *k;
    k->capacity = old.capacity ? 2 * old.capacity : FIRST;
    k->tensors = calloc(k->capacity, sizeof *k->tensors);
    if (!k->tensors) {
        *k = old;
        return false;
    }
    for (size_t i = 0; i < old.capacity; i++)
        if (old.tensors[i].id)
            *find_slot(k, old.tensors[i].id) = old.tensors[i];
    free(old.tensors);
    return true;
}

void known_put(struct known *k, int64_t id, const struct known_desc *desc)
{
    if (id <= 0 || k->count >= MAX_TENSORS || (2 * (k->count + 1) > k->capacity && !grow(k)))
        return;
    struct known_tensor *slot = find_slot(k, id);
    k->count += slot->id == 0;
    *slot = (struct known_tensor){ id, desc };
}

void known_remove(struct known *k, int64_t id)
{
    if (!known_find(k, id))
        return;
    // Whatever follows and could stand in an earlier place goes there.
    size_t hole = (size_t)(find_slot(k, id) - k->tensors), last = k->capacity - 1;
    for (size_t i = (hole + 1) & last; k->tensors[i].id; i = (i + 1) & last) {
        size_t home = slot_of(k, k->tensors[i].id);
        if (((i - home) & last) >= ((i - hole) & last)) {
            k->tensors[hole] = k->tensors[i];
            hole = i;
        }
    }
    k->tensors[hole] = (struct known_tensor){ 0 };
    k->count--;
}

void known_finish(struct known *k)
{
    while (k->descs) {
        struct known_desc *next = k->descs->next;
        free(k->descs);
        k->descs = next;
    }
    free(k->tensors);
    *k = (struct known){ 0 };
}
