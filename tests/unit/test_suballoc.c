// suballoc against a model that only knows which bytes are taken: no two pieces overlap, nothing is
// lost, and what is asked for is refused only where no gap would hold it.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memory/suballoc.h"
#include "unit/suballoc_check.h"

enum { UNITS = 512, MAX_CHUNKS = 6, MAX_PIECES = MAX_CHUNKS * UNITS, OPERATIONS = 100000 };

static uint64_t random_state;

static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

// Every unit of SUBALLOC_ALIGN bytes of every chunk.
struct model {
    struct suballoc a;
    struct suballoc_chunk *chunks[MAX_CHUNKS]; // NULL: not there
    uint32_t units[MAX_CHUNKS];
    bool taken[MAX_CHUNKS][UNITS];
    struct suballoc_block *pieces[MAX_PIECES];
    int n_pieces;
};

static void mark(struct model *m, const struct suballoc_block *b, bool taken)
{
    uint32_t chunk = b->chunk->region;
    assert_ptr_equal(m->chunks[chunk], b->chunk);
    assert_int_equal(b->offset % SUBALLOC_ALIGN, 0);
    assert_true(b->offset + b->size <= b->chunk->size);
    for (uint64_t at = b->offset; at < b->offset + b->size; at += SUBALLOC_ALIGN) {
        assert_int_equal(m->taken[chunk][at / SUBALLOC_ALIGN], !taken);
        m->taken[chunk][at / SUBALLOC_ALIGN] = taken;
    }
}

static bool fits_somewhere(const struct model *m, uint64_t size)
{
    for (int c = 0; c < MAX_CHUNKS; c++) {
        uint64_t gap = 0;
        for (uint32_t i = 0; m->chunks[c] && i < m->units[c]; i++) {
            gap = m->taken[c][i] ? 0 : gap + SUBALLOC_ALIGN;
            if (gap >= size)
                return true;
        }
    }
    return false;
}

static uint64_t random_size(void)
{
    uint32_t units = next_random(8) ? 1 + next_random(8) : 1 + next_random(UNITS);
    return (uint64_t)units * SUBALLOC_ALIGN - next_random(SUBALLOC_ALIGN);
}

static void allocate(struct model *m)
{
    uint64_t size = random_size();
    struct suballoc_block *b = suballoc_alloc(&m->a, size);
    if (!b) {
        assert_false(fits_somewhere(m, size));
        return;
    }
    assert_true(b->used);
    assert_int_equal(b->size, suballoc_round(size));
    mark(m, b, true);
    m->pieces[m->n_pieces++] = b;
}

static void release(struct model *m)
{
    if (m->n_pieces == 0)
        return;
    uint32_t i = next_random((uint32_t)m->n_pieces);
    mark(m, m->pieces[i], false);
    suballoc_free(&m->a, m->pieces[i]);
    m->pieces[i] = m->pieces[--m->n_pieces];
}

static void change_chunks(struct model *m)
{
    uint32_t c = next_random(MAX_CHUNKS);
    if (!m->chunks[c]) {
        m->units[c] = 1 + next_random(UNITS);
        m->chunks[c] = suballoc_add_chunk(&m->a, c, (uint64_t)m->units[c] * SUBALLOC_ALIGN);
    } else if (m->chunks[c]->used == 0) {
        suballoc_remove_chunk(&m->a, m->chunks[c]);
        m->chunks[c] = NULL;
    }
}

static void check_sums(const struct model *m)
{
    uint64_t reserved = 0, used = 0;
    for (int c = 0; c < MAX_CHUNKS; c++)
        for (uint32_t i = 0; m->chunks[c] && i < m->units[c]; i++) {
            reserved += SUBALLOC_ALIGN;
            used += m->taken[c][i] ? SUBALLOC_ALIGN : 0;
        }
    assert_int_equal(m->a.reserved, reserved);
    assert_int_equal(m->a.used, used);
    assert_true(suballoc_check(&m->a));
}

// Fills up for a while, then empties for a while.
static void test_random_operations(void **state)
{
    (void)state;
    static struct model m;
    random_state = 5;
    for (int i = 0; i < OPERATIONS; i++) {
        uint32_t filling = i / 2000 % 2 ? 6 : 3;
        if (next_random(200) == 0)
            change_chunks(&m);
        else if (next_random(10) < filling)
            allocate(&m);
        else
            release(&m);
        if (i % 50 == 0)
            check_sums(&m);
    }
    while (m.n_pieces > 0)
        release(&m);
    check_sums(&m);
    suballoc_finish(&m.a);
}

static void test_whole_chunk_comes_back(void **state)
{
    (void)state;
    struct suballoc a = { 0 };
    struct suballoc_block *pieces[64];
    suballoc_add_chunk(&a, 0, sizeof pieces / sizeof *pieces * SUBALLOC_ALIGN);
    for (uint32_t step = 1; step < 64; step += 2) { // freed in many orders
        for (int i = 0; i < 64; i++)
            assert_non_null(pieces[i] = suballoc_alloc(&a, 1));
        assert_null(suballoc_alloc(&a, 1));
        for (uint32_t i = 0; i < 64; i++)
            suballoc_free(&a, pieces[i * step % 64]);
        struct suballoc_block *whole = suballoc_alloc(&a, 64 * SUBALLOC_ALIGN);
        assert_non_null(whole);
        suballoc_free(&a, whole);
    }
    suballoc_finish(&a);
}

// Of a chunk that is closed nothing more is given out, and it is empty in the end as others are.
static void test_closed_chunk(void **state)
{
    (void)state;
    struct suballoc a = { 0 };
    struct suballoc_chunk *chunk = suballoc_add_chunk(&a, 0, 64 * SUBALLOC_ALIGN);
    struct suballoc_block *pieces[8];
    for (int i = 0; i < 8; i++)
        assert_non_null(pieces[i] = suballoc_alloc(&a, 4 * SUBALLOC_ALIGN));
    suballoc_free(&a, pieces[2]);
    suballoc_free(&a, pieces[5]);
    suballoc_close(&a, chunk);
    assert_null(suballoc_alloc(&a, 1));
    for (int i = 0; i < 8; i++) {
        if (i != 2 && i != 5)
            suballoc_free(&a, pieces[i]);
        assert_null(suballoc_alloc(&a, 1));
    }
    assert_int_equal(chunk->used, 0);
    struct suballoc_chunk *other = suballoc_add_chunk(&a, 1, SUBALLOC_ALIGN);
    struct suballoc_block *one = suballoc_alloc(&a, 1);
    assert_ptr_equal(one->chunk, other);
    suballoc_remove_chunk(&a, chunk);
    suballoc_free(&a, one);
    suballoc_finish(&a);
}

static void test_huge_sizes(void **state)
{
    (void)state;
    struct suballoc a = { 0 };
    uint64_t huge = (uint64_t)1 << 61;
    assert_null(suballoc_alloc(&a, huge));
    suballoc_add_chunk(&a, 0, huge);
    struct suballoc_block *b = suballoc_alloc(&a, huge - 1);
    assert_non_null(b);
    assert_int_equal(b->size, huge);
    assert_null(suballoc_alloc(&a, 1));
    assert_true(suballoc_check(&a));
    suballoc_finish(&a);
}

// A map is made again from the places of its pieces, as after an upgrade; in any order, from the
// chunk's first piece on.
static void test_certain_places(void **state)
{
    (void)state;
    struct suballoc a = { 0 };
    random_state = 11;
    for (int round = 0; round < 200; round++) {
        struct suballoc again = { 0 };
        struct suballoc_chunk *chunk = suballoc_add_chunk(&a, 3, UNITS * SUBALLOC_ALIGN);
        struct suballoc_chunk *other = suballoc_add_chunk(&again, 3, UNITS * SUBALLOC_ALIGN);
        struct suballoc_block *pieces[UNITS];
        int n = 0;
        while ((pieces[n] = suballoc_alloc(&a, 1 + next_random(16 * SUBALLOC_ALIGN))) != NULL)
            n++;
        for (int i = 0; i < n; i++) {
            int j = (int)next_random((uint32_t)n);
            struct suballoc_block *swapped = pieces[i];
            pieces[i] = pieces[j];
            pieces[j] = swapped;
        }
        int kept = n / 2;
        for (int i = kept; i < n; i++)
            suballoc_free(&a, pieces[i]);
        for (int i = 0; i < kept; i++) {
            uint64_t size = pieces[i]->size - next_random(SUBALLOC_ALIGN);
            const struct suballoc_block *b = suballoc_take(&again, other->first, pieces[i]->offset,
                                                           size);
            assert_non_null(b);
            assert_int_equal(b->offset, pieces[i]->offset);
            assert_int_equal(b->size, pieces[i]->size);
            assert_null(suballoc_take(&again, other->first, b->offset, 1)); // not twice
        }
        assert_int_equal(again.used, a.used);
        assert_true(suballoc_check(&again) && suballoc_check(&a));
        const struct suballoc_block *x = chunk->first, *y = other->first;
        for (; x && y; x = x->after, y = y->after)
            assert_true(x->offset == y->offset && x->size == y->size && x->used == y->used);
        assert_true(!x && !y);
        suballoc_finish(&a);
        suballoc_finish(&again);
    }
}

static void test_places_that_cannot_be(void **state)
{
    (void)state;
    struct suballoc a = { 0 };
    struct suballoc_chunk *chunk = suballoc_add_chunk(&a, 0, 8 * SUBALLOC_ALIGN);
    assert_null(suballoc_take(&a, NULL, 0, 1));
    assert_null(suballoc_take(&a, chunk->first, 0, 0));
    assert_null(suballoc_take(&a, chunk->first, 1, 1));
    assert_null(suballoc_take(&a, chunk->first, 8 * SUBALLOC_ALIGN, 1));
    assert_null(suballoc_take(&a, chunk->first, 7 * SUBALLOC_ALIGN, SUBALLOC_ALIGN + 1));
    assert_null(suballoc_take(&a, chunk->first, 0, UINT64_MAX));
    struct suballoc_block *b = suballoc_take(&a, chunk->first, 4 * SUBALLOC_ALIGN, 1);
    assert_non_null(b);
    assert_null(suballoc_take(&a, chunk->first, 3 * SUBALLOC_ALIGN, SUBALLOC_ALIGN + 1));
    assert_null(suballoc_take(&a, b, 0, 1)); // before where it is looked from
    assert_true(suballoc_check(&a));
    suballoc_finish(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations), cmocka_unit_test(test_whole_chunk_comes_back),
        cmocka_unit_test(test_closed_chunk),      cmocka_unit_test(test_huge_sizes),
        cmocka_unit_test(test_certain_places),    cmocka_unit_test(test_places_that_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
