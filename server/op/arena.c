#include "op/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct arena_block {
    struct arena_block *next;
    size_t size;
    _Alignas(16) uint8_t bytes[];
};

enum { BLOCK_SIZE = 4096 - sizeof(struct arena_block) };

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    size_t want = 0;
    if (__builtin_mul_overflow(count, size, &want) || want > SIZE_MAX / 2)
        abort();
    want = (want + 15) & ~(size_t)15;
    if (!a->blocks || want > a->left) {
        size_t room = want > BLOCK_SIZE ? want : BLOCK_SIZE;
        struct arena_block *block = mem_alloc(sizeof *block + room);
        block->next = a->blocks;
        block->size = room;
        a->blocks = block;
        a->left = room;
    }
    void *p = a->blocks->bytes + (a->blocks->size - a->left);
    a->left -= want;
    return memset(p, 0, want);
}

void *arena_copy(struct arena *a, const void *items, size_t count, size_t size)
{
    void *copy = arena_alloc(a, count, size);
    if (count > 0)
        memcpy(copy, items, count * size);
    return copy;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *copy = arena_alloc(a, n + 1, 1);
    if (n > 0)
        memcpy(copy, s, n);
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *s = arena_alloc(a, n < 0 ? 1 : (size_t)n + 1, 1);
    if (n > 0)
        vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

void arena_finish(struct arena *a)
{
    for (struct arena_block *block = a->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    *a = (struct arena){ 0 };
}
