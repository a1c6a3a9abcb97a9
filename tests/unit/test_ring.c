// ring: what comes out is what went in, in order, across the wrap and across threads; memory that
// the other side has written over is refused and never left.

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/ring.h"

enum { CAPACITY = 4096 };

struct pair {
    void *memory;
    struct ring in, out; // the producer's view, the consumer's
};

static void open_pair(struct pair *p)
{
    assert_int_equal(posix_memalign(&p->memory, 64, ring_memory_size(CAPACITY)), 0);
    memset(p->memory, 0, ring_memory_size(CAPACITY)); // as memory that is shared is
    int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(doorbell >= 0);
    ring_init(&p->in, p->memory, CAPACITY, doorbell);
    ring_attach(&p->out, p->memory, CAPACITY, doorbell);
}

static void close_pair(struct pair *p)
{
    close(p->in.doorbell);
    free(p->memory);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// Mostly small, now and then all sizes up to the largest.
static uint32_t record_size(uint64_t *state)
{
    uint32_t r = next_random(state);
    return r % 8 ? next_random(state) % 100 : next_random(state) % (CAPACITY / 2 + 1);
}

static bool put(struct ring *r, uint32_t size, uint8_t first)
{
    uint8_t *p = ring_reserve(r, size);
    if (!p)
        return false;
    for (uint32_t i = 0; i < size; i++)
        p[i] = (uint8_t)(first + i);
    ring_commit(r);
    return true;
}

// False if there is none.
static bool take(struct ring *r, uint32_t size, uint8_t first)
{
    uint32_t got;
    bool bad;
    const uint8_t *p = ring_peek(r, &got, &bad);
    assert_false(bad);
    if (!p)
        return false;
    assert_int_equal(got, size);
    for (uint32_t i = 0; i < size; i++)
        assert_int_equal(p[i], (uint8_t)(first + i));
    ring_pop(r);
    return true;
}

static void test_every_size_at_every_place(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    for (uint32_t size = 0; size <= CAPACITY / 2; size += 13)
        for (uint32_t before = 0; before < CAPACITY / 16; before++) {
            assert_true(put(&p.in, size, (uint8_t)before));
            assert_true(take(&p.out, size, (uint8_t)before));
            assert_true(put(&p.in, 0, 0)); // moves the place on by one step
            assert_true(take(&p.out, 0, 0));
        }
    assert_null(ring_reserve(&p.in, CAPACITY / 2 + 1));
    assert_null(ring_reserve(&p.in, UINT32_MAX));
    close_pair(&p);
}

static void test_full_and_empty_again(void **state)
{
    (void)state;
    struct pair p;
    uint32_t sizes[CAPACITY / 16];
    uint64_t random = 1;
    open_pair(&p);
    for (int round = 0; round < 2000; round++) {
        int n = 0;
        while (n < CAPACITY / 16 && put(&p.in, sizes[n] = record_size(&random), (uint8_t)n))
            n++;
        assert_true(n > 0);
        for (int i = 0; i < n; i++)
            assert_true(take(&p.out, sizes[i], (uint8_t)i));
        assert_false(take(&p.out, 0, 0));
    }
    close_pair(&p);
}

static void test_reserved_is_not_visible(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    assert_non_null(ring_reserve(&p.in, 40));
    assert_false(take(&p.out, 40, 0));
    assert_true(put(&p.in, 8, 3)); // a reservation that was given up leaves nothing
    assert_true(take(&p.out, 8, 3));
    close_pair(&p);
}

static bool readable(int fd, int timeout_ms)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, timeout_ms) == 1;
}

static void test_doorbell_rings_for_sleepers_only(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    assert_true(put(&p.in, 8, 0));
    assert_false(readable(p.out.doorbell, 0));
    assert_false(ring_sleep(&p.out)); // there is one already
    assert_true(take(&p.out, 8, 0));
    assert_true(ring_sleep(&p.out));
    assert_true(put(&p.in, 8, 0));
    assert_true(readable(p.out.doorbell, 0));
    assert_true(put(&p.in, 8, 1));
    uint64_t n_rung;
    assert_int_equal(read(p.out.doorbell, &n_rung, sizeof n_rung), sizeof n_rung);
    assert_int_equal(n_rung, 1); // once, however long it takes to wake
    ring_wake(&p.out);
    assert_true(take(&p.out, 8, 0) && take(&p.out, 8, 1));
    assert_true(ring_sleep(&p.out));
    assert_true(put(&p.in, 8, 2));
    ring_wake(&p.out);
    assert_true(readable(p.out.doorbell, 0));
    ring_silence(&p.out);
    assert_false(readable(p.out.doorbell, 0));
    ring_silence(&p.out); // not rung: returns at once
    assert_true(put(&p.in, 8, 0));
    assert_false(readable(p.out.doorbell, 0)); // nobody sleeps
    close_pair(&p);
}

enum { N_RECORDS = 60000, SEED = 42 };

static void *produce_work(void *data)
{
    struct ring *r = data;
    uint64_t sizes = SEED, pauses = 7;
    for (int i = 0; i < N_RECORDS; i++) {
        uint32_t size = record_size(&sizes);
        while (!put(r, size, (uint8_t)i))
            sched_yield();
        if (next_random(&pauses) % 500 == 0)
            usleep(100); // long enough for the other side to sleep
    }
    return NULL;
}

static void test_two_threads(void **state)
{
    (void)state;
    struct pair p;
    open_pair(&p);
    pthread_t producer;
    assert_int_equal(pthread_create(&producer, NULL, produce_work, &p.in), 0);
    uint64_t sizes = SEED;
    for (int i = 0; i < N_RECORDS; i++) {
        uint32_t size = record_size(&sizes);
        while (!take(&p.out, size, (uint8_t)i)) {
            if (!ring_sleep(&p.out))
                continue;
            assert_true(readable(p.out.doorbell, 120000)); // else a wake-up was lost
            ring_wake(&p.out);
            ring_silence(&p.out);
        }
    }
    pthread_join(producer, NULL);
    assert_false(take(&p.out, 0, 0));
    close_pair(&p);
}

// --- the other side has gone mad

static void test_bad_headers(void **state)
{
    (void)state;
    static const struct {
        uint32_t size, span;
    } bad[] = { { 8, 0 },          { 8, 8 },
                { 8, 24 },         { 8, 1 << 20 },
                { 8, UINT32_MAX }, { 9, 16 },
                { UINT32_MAX, 0 }, { 1 << 20, 16 },
                { 8, CAPACITY },   { UINT32_MAX - 1, 16 },
                { 8, 32 },         { UINT32_MAX, 8192 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pair p;
        uint32_t size;
        bool out_bad = false;
        open_pair(&p);
        uint32_t *header = (uint32_t *)ring_reserve(&p.in, 8) - 2;
        ring_commit(&p.in);
        header[0] = bad[i].size;
        header[1] = bad[i].span;
        assert_null(ring_peek(&p.out, &size, &out_bad));
        assert_true(out_bad);
        close_pair(&p);
    }
}

// The positions, each on a line of its own at the start: read by the other side, then written over.
static void test_moved_positions(void **state)
{
    (void)state;
    struct pair p;
    uint32_t size;
    bool bad;
    open_pair(&p);
    uint64_t *head = p.memory, *tail = head + 8;
    while (put(&p.in, 8, 0)) // it is looked at where there seems to be no room
        continue;
    for (uint64_t away = 16; away != 0; away <<= 1) {
        *head = p.in.position + away; // ahead of what was produced
        assert_null(ring_reserve(&p.in, 8));
        *tail = CAPACITY + away; // more than there can be
        assert_null(ring_peek(&p.out, &size, &bad));
        assert_true(bad);
    }
    close_pair(&p);
}

// Random words in all of the shared memory, positions too. Every access must stay inside of it (the
// sanitizers see to that), no call may go on without end, and what is handed out must lie inside.
static void test_scribbled_memory(void **state)
{
    (void)state;
    static const uint32_t words[] = { 0,
                                      1,
                                      8,
                                      15,
                                      16,
                                      32,
                                      CAPACITY - 16,
                                      CAPACITY,
                                      CAPACITY + 16,
                                      1u << 31,
                                      UINT32_MAX,
                                      UINT32_MAX - 15 };
    uint64_t random = 3;
    for (int round = 0; round < 20000; round++) {
        struct pair p;
        open_pair(&p);
        size_t memory = ring_memory_size(CAPACITY);
        for (int i = 0; i < 40; i++) {
            uint32_t size;
            bool bad;
            uint8_t *got;
            uint32_t word = next_random(&random) % 4 ? words[next_random(&random) % 12]
                                                     : next_random(&random);
            // The positions lie in the first lines, which must be hit as often as all the rest.
            size_t at = next_random(&random) % (next_random(&random) % 2 ? 256 : memory - 4);
            memcpy((char *)p.memory + (at & ~(size_t)3), &word, sizeof word);
            put(&p.in, record_size(&random), 0);
            if ((got = ring_peek(&p.out, &size, &bad)) != NULL) {
                assert_false(bad);
                assert_true(got + size <= (uint8_t *)p.memory + memory);
                memset(got, 0, size);
                ring_pop(&p.out);
            }
            ring_sleep(&p.out);
        }
        close_pair(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_size_at_every_place),
        cmocka_unit_test(test_full_and_empty_again),
        cmocka_unit_test(test_reserved_is_not_visible),
        cmocka_unit_test(test_doorbell_rings_for_sleepers_only),
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_moved_positions),
        cmocka_unit_test(test_scribbled_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
