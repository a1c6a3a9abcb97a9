// map against an array that holds the same: random puts and removes, keys that all want one place.

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/map.h"

enum { N_KEYS = 3000 };

static uint64_t random_state;

static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static uint64_t keys[N_KEYS];
static char targets[N_KEYS + 1]; // values: pointers into it
static void *model[N_KEYS];

static void check_all(const struct map *m)
{
    size_t count = 0, seen = 0, cursor = 0;
    for (int i = 0; i < N_KEYS; i++) {
        assert_ptr_equal(map_get(m, keys[i]), model[i]);
        count += model[i] != NULL;
    }
    assert_int_equal(m->count, count);
    while (map_next(m, &cursor))
        seen++;
    assert_int_equal(seen, count);
    assert_true(m->capacity == 0 || (m->capacity & (m->capacity - 1)) == 0);
    assert_true(m->count * 4 <= m->capacity * 3);
}

static void change(struct map *m, int i, bool remove)
{
    if (remove) {
        assert_ptr_equal(map_remove(m, keys[i]), model[i]);
        model[i] = NULL;
    } else {
        model[i] = &targets[next_random(N_KEYS + 1)];
        map_put(m, keys[i], model[i]);
    }
}

static void run(void)
{
    struct map m = { 0 };
    memset(model, 0, sizeof model);
    for (int phase = 0; phase < 12; phase++) {
        // Only a few of the keys in some phases, so that it shrinks again.
        uint32_t live = phase % 3 == 2 ? 20 : N_KEYS;
        for (int i = 0; i < 10000; i++)
            change(&m, (int)next_random(live), next_random(100) < (phase % 2 ? 60u : 40u));
        for (int i = (int)live; i < N_KEYS; i++)
            change(&m, i, true);
        check_all(&m);
    }
    map_finish(&m);
    assert_int_equal(m.capacity, 0);
}

static void test_keys_in_a_row(void **state)
{
    (void)state;
    random_state = 1;
    for (uint64_t i = 0; i < N_KEYS; i++)
        keys[i] = i; // zero is a key as any other
    run();
}

static void test_keys_of_all_sizes(void **state)
{
    (void)state;
    random_state = 2;
    for (uint64_t i = 0; i < N_KEYS; i++)
        keys[i] = i % 2 ? UINT64_MAX - i : (uint64_t)1 << (i % 64) ^ i << 20;
    run();
}

// Each key wants the same place in a small table: gaps close over long runs, across the end too.
static void test_keys_that_collide(void **state)
{
    (void)state;
    random_state = 3;
    size_t n = 0;
    for (uint64_t key = 0; n < N_KEYS; key++) {
        uint64_t h = key * 0x9e3779b97f4a7c15u;
        if (((h ^ (h >> 32)) & 63) == 62)
            keys[n++] = key;
    }
    run();
}

static void test_empty(void **state)
{
    (void)state;
    struct map m = { 0 };
    size_t cursor = 0;
    assert_null(map_get(&m, 1));
    assert_null(map_remove(&m, 1));
    assert_null(map_next(&m, &cursor));
    map_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_keys_in_a_row),
        cmocka_unit_test(test_keys_of_all_sizes),
        cmocka_unit_test(test_keys_that_collide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
