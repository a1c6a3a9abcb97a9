#include "wire/map.h"

#include <stdlib.h>

#include "base/mem.h"

// What it keeps when it is empty again: calls that are sent at once make ids, and give them up.
enum { LEAST_KEPT = 1024 };

static size_t slot_of(const struct map *m, uint64_t key)
{
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ (h >> 32)) & (m->capacity - 1);
}

static struct map_slot *find_slot(const struct map *m, uint64_t key)
{
    size_t i = slot_of(m, key);
    while (m->slots[i].value && m->slots[i].key != key)
        i = (i + 1) & (m->capacity - 1);
    return &m->slots[i];
}

static void resize(struct map *m, size_t capacity)
{
    struct map old = *m;
    m->slots = mem_zalloc(capacity, sizeof *m->slots);
    m->capacity = capacity;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].value)
            *find_slot(m, old.slots[i].key) = old.slots[i];
    free(old.slots);
}

void *map_get(const struct map *m, uint64_t key)
{
    return m->capacity ? find_slot(m, key)->value : NULL;
}

void map_put(struct map *m, uint64_t key, void *value)
{
    if ((m->count + 1) * 4 > m->capacity * 3)
        resize(m, m->capacity ? m->capacity * 2 : 16);
    struct map_slot *slot = find_slot(m, key);
    if (!slot->value)
        m->count++;
    *slot = (struct map_slot){ .key = key, .value = value };
}

void *map_remove(struct map *m, uint64_t key)
{
    if (!m->capacity)
        return NULL;
    struct map_slot *slot = find_slot(m, key);
    void *value = slot->value;
    if (!value)
        return NULL;
    // Close the gap: whatever follows and could live in an earlier place moves there.
    size_t hole = (size_t)(slot - m->slots);
    for (size_t i = (hole + 1) & (m->capacity - 1); m->slots[i].value;
         i = (i + 1) & (m->capacity - 1)) {
        size_t home = slot_of(m, m->slots[i].key);
        if (((i - home) & (m->capacity - 1)) >= ((i - hole) & (m->capacity - 1))) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].value = NULL;
    m->count--;
    if (m->capacity > LEAST_KEPT && m->count * 8 < m->capacity)
        resize(m, m->capacity / 2);
    return value;
}

void *map_next(const struct map *m, size_t *cursor)
{
    while (*cursor < m->capacity) {
        void *value = m->slots[(*cursor)++].value;
        if (value)
            return value;
    }
    return NULL;
}

void map_finish(struct map *m)
{
    free(m->slots);
    *m = (struct map){ 0 };
}
