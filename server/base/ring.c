#include "ring.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

struct ring_shared {
    _Alignas(64) _Atomic uint64_t head; // consumed up to here
    _Alignas(64) _Atomic uint64_t tail; // produced up to here
    _Alignas(64) _Atomic uint32_t asleep;
    _Alignas(64) uint8_t bytes[];
};

// Before each record. A record does not wrap: where it would, a skip record fills the end.
struct record {
    uint32_t size; // of the payload
    uint32_t span; // of the whole record, header and padding included
};

enum { SKIP = 0xffffffff };

static uint32_t record_span(uint32_t size)
{
    return (uint32_t)((sizeof(struct record) + size + 15) & ~(size_t)15);
}

size_t ring_memory_size(uint32_t capacity)
{
    return sizeof(struct ring_shared) + capacity;
}

void ring_init(struct ring *r, void *memory, uint32_t capacity, int doorbell)
{
    ring_attach(r, memory, capacity, doorbell);
    atomic_store(&r->shared->head, 0);
    atomic_store(&r->shared->tail, 0);
    atomic_store(&r->shared->asleep, 0);
}

void ring_attach(struct ring *r, void *memory, uint32_t capacity, int doorbell)
{
    *r = (struct ring){ .shared = memory, .capacity = capacity, .doorbell = doorbell };
}

static struct record *record_at(const struct ring *r, uint64_t position)
{
    return (struct record *)(void *)(r->shared->bytes + (position & (r->capacity - 1)));
}

void *ring_reserve(struct ring *r, uint32_t size)
{
    if (size > r->capacity / 2)
        return NULL;
    uint32_t span = record_span(size);
    uint64_t tail = atomic_load_explicit(&r->shared->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&r->shared->head, memory_order_acquire);
    uint64_t to_end = r->capacity - (tail & (r->capacity - 1));
    uint64_t needed = span <= to_end ? span : to_end + span;
    if (tail - head + needed > r->capacity)
        return NULL;
    if (span > to_end) {
        *record_at(r, tail) = (struct record){ .size = SKIP, .span = (uint32_t)to_end };
        tail += to_end;
        // Publishing the skip alone is harmless: the consumer steps over it.
        atomic_store_explicit(&r->shared->tail, tail, memory_order_release);
    }
    struct record *rec = record_at(r, tail);
    *rec = (struct record){ .size = size, .span = span };
    return rec + 1;
}

void ring_commit(struct ring *r)
{
    uint64_t tail = atomic_load_explicit(&r->shared->tail, memory_order_relaxed);
    atomic_store(&r->shared->tail, tail + record_at(r, tail)->span);
    if (atomic_load(&r->shared->asleep)) {
        uint64_t one = 1;
        if (write(r->doorbell, &one, sizeof one) < 0)
            return; // a full counter is readable already
    }
}

void *ring_peek(struct ring *r, uint32_t *out_size, bool *out_bad)
{
    *out_bad = false;
    for (;;) {
        uint64_t head = atomic_load_explicit(&r->shared->head, memory_order_relaxed);
        uint64_t tail = atomic_load_explicit(&r->shared->tail, memory_order_acquire);
        if (head == tail)
            return NULL;
        struct record *rec = record_at(r, head);
        uint32_t size = rec->size, span = rec->span;
        uint64_t to_end = r->capacity - (head & (r->capacity - 1));
        if (span < 16 || span % 16 || span > tail - head || span > to_end ||
            (size != SKIP && sizeof(struct record) + (uint64_t)size > span)) {
            *out_bad = true;
            return NULL;
        }
        if (size != SKIP) {
            *out_size = size;
            return rec + 1;
        }
        atomic_store_explicit(&r->shared->head, head + span, memory_order_release);
    }
}

void ring_pop(struct ring *r)
{
    uint64_t head = atomic_load_explicit(&r->shared->head, memory_order_relaxed);
    atomic_store_explicit(&r->shared->head, head + record_at(r, head)->span, memory_order_release);
}

bool ring_sleep(struct ring *r)
{
    atomic_store(&r->shared->asleep, 1);
    if (atomic_load(&r->shared->head) == atomic_load(&r->shared->tail))
        return true;
    atomic_store(&r->shared->asleep, 0);
    return false;
}

void ring_wake(struct ring *r)
{
    atomic_store(&r->shared->asleep, 0);
    uint64_t count;
    if (read(r->doorbell, &count, sizeof count) < 0)
        return; // non-blocking, and not rung
}
