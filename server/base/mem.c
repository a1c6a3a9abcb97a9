#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void mem_exhausted(size_t size)
{
    fprintf(stderr, "opd: out of host memory (%zu bytes wanted)\n", size);
    abort();
}

void *mem_alloc(size_t size)
{
    void *p = malloc(size ? size : 1);
    if (!p)
        mem_exhausted(size);
    return p;
}

// malloc() keeps small pieces at hand for each thread, calloc() in older libraries does not.
enum { SMALL = 1024 };

void *mem_zalloc(size_t count, size_t size)
{
    if (count <= SMALL && size <= SMALL && count * size <= SMALL)
        return memset(mem_alloc(count * size), 0, count * size);
    void *p = calloc(count ? count : 1, size ? size : 1);
    if (!p)
        mem_exhausted(count);
    return p;
}

void *mem_realloc(void *p, size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        mem_exhausted(SIZE_MAX);
    p = realloc(p, total ? total : 1);
    if (!p)
        mem_exhausted(total);
    return p;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { POOL_MOST = 0 }; // so that they see what is used after its end
#else
enum { POOL_MOST = 1024 }; // that many calls are in flight at once, from one client that pipelines
#endif

void *mem_pool_take(struct mem_pool *pool, size_t size)
{
    void *p = pool->first;
    if (!p)
        return mem_alloc(size);
    memcpy(&pool->first, p, sizeof pool->first);
    pool->n--;
    return p;
}

void mem_pool_give(struct mem_pool *pool, void *p)
{
    if (pool->n >= POOL_MOST) {
        free(p);
        return;
    }
    memcpy(p, &pool->first, sizeof pool->first);
    pool->first = p;
    pool->n++;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

char *mem_strndup(const char *s, size_t n)
{
    char *copy = mem_alloc(n + 1);
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *mem_printf(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char *s;
    if (vasprintf(&s, fmt, args) < 0)
        mem_exhausted(0);
    va_end(args);
    return s;
}

void buf_reserve(struct buf *b, size_t more)
{
    size_t want;
    if (__builtin_add_overflow(b->size, more, &want))
        mem_exhausted(SIZE_MAX);
    if (want <= b->capacity)
        return;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity < want && capacity < SIZE_MAX / 2)
        capacity *= 2;
    b->bytes = mem_realloc(b->bytes, capacity < want ? want : capacity, 1);
    b->capacity = capacity < want ? want : capacity;
}

void buf_append_str(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n > 0) {
        buf_reserve(b, (size_t)n + 1);
        vsnprintf((char *)b->bytes + b->size, (size_t)n + 1, fmt, again);
        b->size += (size_t)n;
    }
    va_end(again);
}

const char *buf_str(struct buf *b)
{
    buf_reserve(b, 1);
    b->bytes[b->size] = '\0';
    return (const char *)b->bytes;
}

char *buf_take(struct buf *b)
{
    buf_str(b);
    char *s = (char *)b->bytes;
    *b = (struct buf){ 0 };
    return s;
}

void buf_consume(struct buf *b, size_t size)
{
    if (size == 0)
        return;
    memmove(b->bytes, b->bytes + size, b->size - size);
    b->size -= size;
}

void buf_finish(struct buf *b)
{
    free(b->bytes);
    *b = (struct buf){ 0 };
}
