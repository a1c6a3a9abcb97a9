#pragma once

// Memory that is freed all at once: what belongs to one operator, or to one plan. A zeroed one is
// empty. What is taken stays where it is until arena_finish(); there is no freeing of a part, and
// no failure: the host out of memory ends the process (base/mem.h).

#include <stddef.h>

struct arena {
    struct arena_block *blocks; // newest first
    size_t left;                // bytes free at the end of the newest
};

void *arena_alloc(struct arena *a, size_t count, size_t size); // zeroed, aligned to 16 bytes
void *arena_copy(struct arena *a, const void *items, size_t count, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void arena_finish(struct arena *a);
