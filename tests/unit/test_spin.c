// spin: how long is spun before a sleep, learnt from what came before.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/spin.h"

static void wait_for(struct spin *s, uint64_t ns)
{
    spin_begin(s, 1000);
    spin_end(s, 1000 + ns);
}

static void test_twice_as_long(void **state)
{
    (void)state;
    struct spin s;
    spin_init(&s, true);
    for (int i = 0; i < 40; i++)
        wait_for(&s, 5000);
    spin_begin(&s, 1000);
    assert_true(spin_on(&s, 1000 + 9000));
    assert_false(spin_on(&s, 1000 + 12000));
    wait_for(&s, 30000); // what took longer is learnt at once
    spin_begin(&s, 1000);
    assert_true(spin_on(&s, 1000 + 59000));
    assert_false(spin_on(&s, 1000 + 60000));
    wait_for(&s, 90000);
    spin_begin(&s, 1000);
    assert_false(spin_on(&s, 1000 + SPIN_MOST_NS));
}

static void test_sleeps_where_it_takes_long(void **state)
{
    (void)state;
    struct spin s;
    spin_init(&s, true);
    for (int i = 0; i < SPIN_MISSES; i++) {
        assert_true(spin_on(&s, s.since));
        wait_for(&s, SPIN_MOST_NS + 1);
    }
    assert_false(spin_on(&s, s.since));
    wait_for(&s, 1000); // it would have been worth it
    assert_true(spin_on(&s, s.since));
}

static void test_unwanted(void **state)
{
    (void)state;
    struct spin zeroed = { 0 }, s;
    spin_init(&s, false);
    assert_false(spin_on(&s, 0));
    assert_false(spin_on(&zeroed, 0));
    assert_true(spin_cores() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice_as_long),
        cmocka_unit_test(test_sleeps_where_it_takes_long),
        cmocka_unit_test(test_unwanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
