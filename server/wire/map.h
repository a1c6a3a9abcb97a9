#pragma once

// A table from 64-bit keys to pointers: open addressing, grows and shrinks by itself. Values are
// not owned.

#include <stddef.h>
#include <stdint.h>

struct map_slot {
    uint64_t key;
    void *value; // NULL: free
};

struct map {
    struct map_slot *slots;
    size_t count;
    size_t capacity; // 0 or a power of two
};

void *map_get(const struct map *m, uint64_t key);       // NULL: not there
void map_put(struct map *m, uint64_t key, void *value); // value not NULL; replaces
void *map_remove(struct map *m, uint64_t key);          // what was there, or NULL
void *map_next(const struct map *m,
               size_t *cursor); // start with 0; NULL at the end; no changes meanwhile
void map_finish(struct map *m);
