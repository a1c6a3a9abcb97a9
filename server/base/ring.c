#include "base/ring.h"

#include <stdatomic.h>
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

static struct record *record_here(const struct ring *r)
{
    return (struct record *)(void *)(r->shared->bytes + (r->position & (r->capacity - 1)));
}

static uint64_t bytes_to_end(const struct ring *r)
{
    return r->capacity - (r->position & (r->capacity - 1));
}

static bool has_room(const struct ring *r, uint64_t needed)
{
    uint64_t used = r->position - r->other;
    return used <= r->capacity && needed <= r->capacity - used;
}

void *ring_reserve(struct ring *r, uint32_t size)
{
    if (size > r->capacity / 2)
        return NULL;
    uint32_t span = record_span(size);
    uint64_t to_end = bytes_to_end(r);
    uint64_t needed = span <= to_end ? span : to_end + span;
    if (!has_room(r, needed)) {
        r->other = atomic_load_explicit(&r->shared->head, memory_order_acquire);
        if (!has_room(r, needed))
            return NULL;
    }
    if (span > to_end) {
        *record_here(r) = (struct record){ .size = SKIP, .span = (uint32_t)to_end };
        r->position += to_end;
        // Publishing the skip alone is harmless: the consumer steps over it.
        atomic_store_explicit(&r->shared->tail, r->position, memory_order_release);
    }
    r->span = span;
    struct record *rec = record_here(r);
    *rec = (struct record){ .size = size, .span = span };
    return rec + 1;
}

void ring_publish(struct ring *r)
{
    r->position += r->span;
    atomic_store_explicit(&r->shared->tail, r->position, memory_order_release);
}

// Once for each sleep: until the consumer has woken, more would only take the time of both. Both
// sides exchange the flag, so the second one sees what the other has done before: the consumer the
// records, or this side that it sleeps.
void ring_alert(struct ring *r)
{
    if (atomic_exchange(&r->shared->asleep, 0)) {
        uint64_t one = 1;
        if (write(r->doorbell, &one, sizeof one) < 0)
            return; // a full counter is readable already
    }
}

void ring_commit(struct ring *r)
{
    ring_publish(r);
    ring_alert(r);
}

bool ring_is_empty(const struct ring *r)
{
    return atomic_load(&r->shared->head) == r->position;
}

static void pass_record(struct ring *r)
{
    r->position += r->span;
    atomic_store_explicit(&r->shared->head, r->position, memory_order_release);
}

void *ring_peek(struct ring *r, uint32_t *out_size, bool *out_bad)
{
    *out_bad = false;
    for (;;) {
        if (r->other == r->position)
            r->other = atomic_load_explicit(&r->shared->tail, memory_order_acquire);
        uint64_t filled = r->other - r->position;
        if (filled == 0)
            return NULL;
        // Copied before it is checked: the other side may write at any time.
        struct record *rec = record_here(r);
        struct record copy = *(volatile struct record *)rec;
        if (filled > r->capacity || copy.span < 16 || copy.span % 16 || copy.span > filled ||
            copy.span > bytes_to_end(r) ||
            (copy.size != SKIP && sizeof copy + (uint64_t)copy.size > copy.span)) {
            *out_bad = true;
            return NULL;
        }
        r->span = copy.span;
        if (copy.size != SKIP) {
            *out_size = copy.size;
            return rec + 1;
        }
        pass_record(r);
    }
}

void ring_pop(struct ring *r)
{
    pass_record(r);
}

bool ring_sleep(struct ring *r)
{
    atomic_exchange(&r->shared->asleep, 1);
    if (r->position == atomic_load(&r->shared->tail))
        return true;
    atomic_store(&r->shared->asleep, 0);
    return false;
}

void ring_wake(struct ring *r)
{
    atomic_store(&r->shared->asleep, 0);
}

void ring_silence(struct ring *r)
{
    uint64_t count;
    if (read(r->doorbell, &count, sizeof count) < 0)
        return; // non-blocking, and not rung
}
