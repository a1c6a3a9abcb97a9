#pragma once

// Host memory. Out of it, the process ends with a message: nothing sensible can go on. Sizes that
// come from outside are checked against a limit before they reach these.

#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Noreturn void mem_exhausted(size_t wanted); // ends the process, for who allocates otherwise
void *mem_alloc(size_t size);                // uninitialised
void *mem_zalloc(size_t count, size_t size); // zeroed; overflow of the product ends the process
void *mem_realloc(void *p, size_t count, size_t size);

// Pieces of one size that come and go with each request: some that are given back stay for the next
// ones. Zeroed is empty; for one thread. What was allocated otherwise can be given too.
struct mem_pool {
    void *first; // each begins with the next
    size_t n;
};
void *mem_pool_take(struct mem_pool *pool, size_t size); // uninitialised
void mem_pool_give(struct mem_pool *pool, void *p);

char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2))); // freed by the caller

// A growing byte buffer. Zeroed is empty; the owner calls buf_finish().
struct buf {
    uint8_t *bytes;
    size_t size;
    size_t capacity;
};

void buf_reserve(struct buf *b, size_t more); // room for so many more bytes
static inline void buf_append(struct buf *b, const void *bytes, size_t size)
{
    if (size == 0)
        return;
    if (size > b->capacity - b->size)
        buf_reserve(b, size);
    memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}
void buf_append_str(struct buf *b, const char *s); // without the terminator
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *buf_str(struct buf *b);           // terminated; valid until the next change
char *buf_take(struct buf *b);                // the same, the caller's; the buffer is empty then
void buf_consume(struct buf *b, size_t size); // drops bytes from the front
void buf_finish(struct buf *b);
