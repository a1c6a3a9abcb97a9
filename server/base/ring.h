#pragma once

// A queue of variable-sized records in shared memory, from one process (or thread) to another: one
// producer, one consumer, no locks. With it goes a doorbell, an eventfd, which is rung only when
// the consumer has said that it sleeps.
//
// Neither side trusts what the other may have written into the shared memory: no access leaves the
// ring, and a record that does not lie within it reads as corruption, which the caller treats as
// the other side's death.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring_shared;

struct ring {
    struct ring_shared *shared; // in memory that both sides map
    uint32_t capacity;          // bytes of records, a power of two
    int doorbell;               // an eventfd; not owned
    uint64_t position;          // this side's: the other side cannot move it
    uint64_t other;             // the other side's, when it was last of interest: not each time,
                                // since to look takes the line from the processor that writes it
    uint32_t span;              // of the record reserved or peeked at
};

size_t ring_memory_size(uint32_t capacity);
void ring_init(struct ring *r, void *memory, uint32_t capacity,
               int doorbell); // the side that makes it
void ring_attach(struct ring *r, void *memory, uint32_t capacity,
                 int doorbell); // the other side, once

// Producer: room for a record, or NULL where there is none now (records of more than half the
// capacity never fit). Nothing is visible to the consumer before ring_publish(); ring_alert() rings
// the doorbell if the consumer sleeps, once for each sleep; ring_commit() is both.
void *ring_reserve(struct ring *r, uint32_t size);
void ring_publish(struct ring *r);
void ring_alert(struct ring *r);
void ring_commit(struct ring *r);
bool ring_is_empty(const struct ring *r); // the consumer has taken all that was published

// Consumer: the oldest record, or NULL. It stays valid until ring_pop(). *out_bad is set where the
// ring is corrupt.
void *ring_peek(struct ring *r, uint32_t *out_size, bool *out_bad);
void ring_pop(struct ring *r);

// Consumer: announces sleep. False where a record came meanwhile: do not sleep. Then wait for the
// doorbell to be readable.
bool ring_sleep(struct ring *r);
void ring_wake(struct ring *r);    // awake again
void ring_silence(struct ring *r); // takes the doorbell's count: it is not readable any more
