// How long a device was busy, which is told while it is, and never less than before.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "device/device.h"
#include "device/device_queue.h"

static const struct opd_err good;

// Its oldest has begun that long ago.
static void begin(struct device *d, struct device_link *link, struct command *c, uint64_t ago)
{
    link->flight = c;
    d->link = link;
    d->queue.head_since = clock_ns() - ago;
}

static void end(struct device *d, uint64_t at)
{
    const struct command *c = d->link->flight;
    d->link->flight = NULL;
    device_count_run(d, c, at, &good);
}

static void test_an_end_that_is_heard_of_late(void **state)
{
    (void)state;
    struct device d = { 0 };
    struct device_link link = { 0 };
    struct command c = { 0 };
    begin(&d, &link, &c, 1000000);
    uint64_t began = d.queue.head_since, told = device_busy_ns(&d);
    assert_true(told >= 1000000);
    end(&d, began + 1000);
    assert_int_equal(device_busy_ns(&d), told);
    link.flight = &c; // the next one began when that had ended
    end(&d, began + 3000);
    assert_int_equal(device_busy_ns(&d), told);
    link.flight = &c;
    end(&d, began + told + 5);
    assert_int_equal(device_busy_ns(&d), told + 5);
}

static void test_ends_alone_count(void **state)
{
    (void)state;
    struct device d = { 0 };
    struct device_link link = { 0 };
    struct command c = { 0 };
    begin(&d, &link, &c, 1000000);
    end(&d, d.queue.head_since + 1000);
    assert_int_equal(device_busy_ns(&d), 1000);
    begin(&d, &link, &c, 0); // it had rested
    end(&d, d.queue.head_since + 70);
    assert_int_equal(device_busy_ns(&d), 1070);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_end_that_is_heard_of_late),
        cmocka_unit_test(test_ends_alone_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
