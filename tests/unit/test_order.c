// order: what must wait waits, by whatever way, nothing else does, and no edge says what others
// imply; held against all pairs of steps, of ranges drawn at random.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "executor/order.h"

enum { MOST_STEPS = 2600, MOST_RANGES = 4 };

struct step {
    struct order_range ranges[MOST_RANGES];
    size_t n;
};

static struct step steps[MOST_STEPS];
static uint8_t path[MOST_STEPS][MOST_STEPS], edge[MOST_STEPS][MOST_STEPS]; // [later][earlier]

static uint32_t draw(uint32_t below)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

static bool conflict(const struct step *a, const struct step *b)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++) {
            const struct order_range *r = &a->ranges[i], *s = &b->ranges[k];
            if ((r->written || s->written) && r->begin < s->end && s->begin < r->end)
                return true;
        }
    return false;
}

static void draw_step(struct step *s, uint32_t space, uint32_t longest)
{
    s->n = draw(MOST_RANGES + 1);
    for (size_t i = 0; i < s->n; i++) {
        uint64_t begin = draw(space);
        s->ranges[i] = (struct order_range){ begin, begin + 1 + draw(longest), draw(3) == 0 };
    }
}

static void run_all(struct order *o, int n)
{
    memset(path, 0, sizeof path);
    memset(edge, 0, sizeof edge);
    for (int i = 0; i < n; i++) {
        order_step(o, steps[i].ranges, steps[i].n);
        for (uint32_t k = 0; k < o->n_after; k++) {
            assert_true(o->after[k] < (uint32_t)i);
            assert_true(k == 0 || o->after[k] < o->after[k - 1]);
            edge[i][o->after[k]] = path[i][o->after[k]] = 1;
            for (int j = 0; j < i; j++)
                path[i][j] |= path[o->after[k]][j];
        }
    }
}

static void assert_all_wait(int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (conflict(&steps[i], &steps[k]) && !path[i][k])
                fail_msg("step %d does not wait for %d", i, k);
}

// Each edge has its reason, and no two steps on the way from one to the other say it.
static void assert_none_too_many(int n)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            if (!edge[i][k])
                continue;
            assert_true(conflict(&steps[i], &steps[k]));
            for (int j = k + 1; j < i; j++)
                assert_false(edge[i][j] && path[j][k]);
        }
}

static void what_must_wait_waits(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct order o = { 0 };
        int n = 1 + (int)draw(60);
        for (int i = 0; i < n; i++)
            draw_step(&steps[i], round % 2 ? 40 : 400, 1 + draw(30));
        run_all(&o, n);
        assert_all_wait(n);
        assert_none_too_many(n);
        order_finish(&o);
    }
}

static void long_sequences_are_cut(void **state)
{
    (void)state;
    struct order o = { 0 };
    for (int i = 0; i < MOST_STEPS; i++)
        draw_step(&steps[i], 4000, 8);
    run_all(&o, MOST_STEPS);
    assert_all_wait(MOST_STEPS);
    order_finish(&o);
}

static void what_touches_nothing_in_common_waits_for_nothing(void **state)
{
    (void)state;
    struct order o = { 0 };
    for (uint64_t i = 0; i < 100; i++) {
        const struct order_range r[] = { { 0, 1000, false }, { 1000 + i, 1001 + i, true } };
        order_step(&o, r, 2);
        assert_int_equal(o.n_after, 0);
    }
    order_step(&o, &(struct order_range){ 0, 1, true }, 1); // after all that have read it
    assert_int_equal(o.n_after, 100);
    order_step(&o, &(struct order_range){ 500, 501, false }, 1);
    assert_int_equal(o.n_after, 0);
    order_step(&o, &(struct order_range){ 0, UINT64_MAX, true }, 1); // what is not known
    assert_int_equal(o.n_after, 2);
    assert_int_equal(o.after[0], 101);
    assert_int_equal(o.after[1], 100);
    order_step(&o, &(struct order_range){ UINT64_MAX - 1, UINT64_MAX, false }, 1);
    assert_int_equal(o.n_after, 1);
    order_step(&o, &(struct order_range){ 7, 7, true }, 1); // nothing
    assert_int_equal(o.n_after, 0);
    order_finish(&o);
}

static void many_pieces_are_cut(void **state)
{
    (void)state;
    struct order o = { 0 };
    struct order_range ranges[500];
    for (uint64_t i = 0; i < 40; i++) {
        for (uint64_t k = 0; k < 500; k++)
            ranges[k] = (struct order_range){ 1000 * i + 2 * k, 1000 * i + 2 * k + 1, true };
        order_step(&o, ranges, 500);
        assert_int_equal(o.n_after, i == 9 || i == 19 || i == 29 || i == 39 ? 9 : i > 9);
    }
    order_finish(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_must_wait_waits),
        cmocka_unit_test(long_sequences_are_cut),
        cmocka_unit_test(what_touches_nothing_in_common_waits_for_nothing),
        cmocka_unit_test(many_pieces_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
