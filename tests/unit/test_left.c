// What a left executor may do still, beside what others want to change meanwhile.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"
#include "executor/devuse.h"

enum { OWN, OTHER, SHARED, STAGING, N_REGIONS };

static struct device_region regions[N_REGIONS] = { [SHARED] = { .host = true },
                                                   [STAGING] = { .host = true } };
static uint8_t staging[1];
static struct device device = { .regions = { .list = regions, .n = N_REGIONS },
                                .staging = { .memory = staging, .region = STAGING } };

static struct dev_ref at(uint32_t region, uint64_t offset)
{
    return (struct dev_ref){ .region = region, .offset = offset };
}

static void add_copy(struct command *c, struct dev_ref dst, struct dev_ref src, uint64_t size)
{
    const struct dev_copy copy = {
        .step = { DEV_STEP_COPY, sizeof copy }, .dst = dst, .src = src, .size = size
    };
    buf_append(&c->bytes, &copy, sizeof copy);
    ((struct dev_command *)(void *)c->bytes.bytes)->size++;
}

static void add_launch(struct command *c, struct dev_ref read, struct dev_ref written)
{
    const struct dev_slot slots[] = {
        { .region = read.region, .offset = read.offset, .size = 64 },
        { .region = written.region, .offset = written.offset, .size = 64, .written = 1 },
    };
    const struct dev_launch launch = { .step = { DEV_STEP_LAUNCH, sizeof launch + sizeof slots },
                                       .n_slots = 2 };
    buf_append(&c->bytes, &launch, sizeof launch);
    buf_append(&c->bytes, slots, sizeof slots);
    ((struct dev_command *)(void *)c->bytes.bytes)->size++;
}

static bool copy_meets(struct dev_ref dst, struct dev_ref src)
{
    struct command *c = command_new(DEV_RUN, 0, 0);
    add_copy(c, dst, src, 64);
    bool meets = device_left_meets(&device, c);
    command_free(c);
    return meets;
}

static void leave_launch(struct dev_ref read, struct dev_ref written)
{
    struct command *c = command_new(DEV_RUN, 0, 0);
    add_copy(c, at(STAGING, 0), at(OWN, 4096), 64);
    add_launch(c, read, written);
    device_left_add(&device, c);
    command_free(c);
}

static int clear(void **state)
{
    (void)state;
    device_left_clear(&device);
    return 0;
}

static void test_what_it_touches_is_not_changed(void **state)
{
    (void)state;
    leave_launch(at(OWN, 1024), at(OTHER, 2048));
    assert_true(copy_meets(at(OWN, 1024), at(OWN, 8192))); // it reads that
    assert_true(copy_meets(at(OWN, 1087), at(STAGING, 0)));
    assert_true(copy_meets(at(OTHER, 2048 - 63), at(STAGING, 0))); // it writes that
    assert_true(copy_meets(at(OWN, 4096), at(STAGING, 0)));
}

static void test_all_else_may_be(void **state)
{
    (void)state;
    assert_false(copy_meets(at(OWN, 1024), at(STAGING, 0)));
    leave_launch(at(OWN, 1024), at(OTHER, 2048));
    assert_false(copy_meets(at(OWN, 1088), at(STAGING, 0))); // beside it
    assert_false(copy_meets(at(OWN, 1024 - 64), at(STAGING, 0)));
    assert_false(copy_meets(at(OTHER, 1024), at(OTHER, 2048))); // the next one has made that too
}

static void test_memory_with_a_second_mapping(void **state)
{
    (void)state;
    leave_launch(at(OWN, 1024), at(OTHER, 2048));
    assert_true(copy_meets(at(SHARED, 0), at(OWN, 8192)));
    leave_launch(at(SHARED, 0), at(OTHER, 2048));
    assert_true(copy_meets(at(OWN, 8192), at(STAGING, 0)));
    clear(NULL);
    assert_false(copy_meets(at(OWN, 8192), at(STAGING, 0)));
}

static void test_what_ends_early_is_not_known(void **state)
{
    (void)state;
    struct command *c = command_new(DEV_RUN, 0, 3);
    device_left_add(&device, c);
    command_free(c);
    assert_true(copy_meets(at(OWN, 8192), at(STAGING, 0)));
    clear(NULL);
    c = command_new(DEV_LOAD, 0, 3); // no RUN
    device_left_add(&device, c);
    command_free(c);
    assert_false(copy_meets(at(OWN, 8192), at(STAGING, 0)));
}

static void test_what_it_has_staged(void **state)
{
    (void)state;
    assert_false(device_left_has_staged(&device, 0, 64));
    leave_launch(at(OWN, 1024), at(OTHER, 2048)); // and a copy to what is staged at 0
    assert_true(device_left_has_staged(&device, 0, 64));
    assert_true(device_left_has_staged(&device, 63, 1));
    assert_false(device_left_has_staged(&device, 64, 64));
    assert_false(copy_meets(at(STAGING, 0), at(OTHER, 8192))); // who has it goes on with it
    leave_launch(at(SHARED, 0), at(OTHER, 2048));
    assert_true(device_left_has_staged(&device, 64, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_what_it_touches_is_not_changed, clear),
        cmocka_unit_test_teardown(test_all_else_may_be, clear),
        cmocka_unit_test_teardown(test_memory_with_a_second_mapping, clear),
        cmocka_unit_test_teardown(test_what_ends_early_is_not_known, clear),
        cmocka_unit_test_teardown(test_what_it_has_staged, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
