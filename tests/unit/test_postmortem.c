// postmortem_steps: what of a faulted command runs again, and on which copies.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "request/postmortem_steps.h"

static struct dev_command *head(struct buf *b)
{
    return (struct dev_command *)(void *)b->bytes;
}

static void begin(struct buf *b)
{
    const struct dev_command run = { .type = DEV_RUN };
    buf_append(b, &run, sizeof run);
}

static void add(struct buf *b, const void *step, size_t size)
{
    buf_append(b, step, size);
    head(b)->size++;
}

// A launch of tensors at these offsets of region 3, 100 bytes each.
static void add_launch(struct buf *b, uint32_t program, int n, const uint64_t *offsets)
{
    struct {
        struct dev_launch launch;
        struct dev_slot slots[4];
        uint64_t args[4];
    } l = { .launch = { .step = { DEV_STEP_LAUNCH, 0 }, .program = program, .n_slots = 4 } };
    for (int i = 0; i < 4; i++)
        l.slots[i] = (struct dev_slot){ .arg_offset = (uint32_t)i * 8,
                                        .region = 3,
                                        .offset = i < n ? offsets[i] : 0,
                                        .size = i < n ? 100 : 0,
                                        .low = 0,
                                        .high = 1 << 20 };
    l.launch.step.size = sizeof l;
    l.launch.args_size = 32;
    add(b, &l, sizeof l);
}

static void add_fill(struct buf *b, uint64_t offset)
{
    const struct dev_fill fill = { { DEV_STEP_FILL, sizeof fill }, { 3, 0, offset }, 64, 0, 0 };
    add(b, &fill, sizeof fill);
}

static void add_report(struct buf *b)
{
    const struct dev_report report = { { DEV_STEP_REPORT, sizeof report }, { 3, 0, 0 } };
    add(b, &report, sizeof report);
}

static void test_the_launch_alone(void **state)
{
    (void)state;
    struct buf b = { 0 };
    struct steps_again s;
    begin(&b);
    add_launch(&b, 1, 1, (uint64_t[]){ 512 });
    add_fill(&b, 4096);
    add_launch(&b, 2, 3, (uint64_t[]){ 1100, 4104, 1000 });
    add_launch(&b, 3, 1, (uint64_t[]){ 8192 });
    assert_true(steps_again_take(&s, b.bytes, 1, true)); // the fill launches nothing
    assert_int_equal(s.n, 1);
    assert_int_equal(s.first, 2);
    assert_int_equal(s.n_pieces, 3); // neighbours are two
    assert_int_equal(s.pieces[0].offset, 1000);
    assert_int_equal(s.pieces[0].size, 100);
    assert_int_equal(s.pieces[1].offset, 1100);
    assert_int_equal(s.pieces[2].offset, 4104);
    uint64_t step = 0;
    assert_int_equal(steps_again_launch(&s, &step)->program, 2);
    step = 1;
    assert_null(steps_again_launch(&s, &step));
    steps_again_finish(&s);
    assert_false(steps_again_take(&s, b.bytes, 4, true));
    steps_again_finish(&s);
    buf_finish(&b);
}

static void test_with_all_that_follow(void **state)
{
    (void)state;
    struct buf b = { 0 };
    struct steps_again s;
    begin(&b);
    add_fill(&b, 0);
    add_launch(&b, 1, 2, (uint64_t[]){ 512, 560 });
    add_fill(&b, 4096);
    add_launch(&b, 2, 2, (uint64_t[]){ 4100, 512 });
    add_report(&b);
    assert_true(steps_again_take(&s, b.bytes, 0, false));
    assert_int_equal(s.first, 1);
    assert_int_equal(s.n, 3); // no report
    assert_int_equal(s.n_pieces, 2);
    assert_int_equal(s.pieces[0].offset, 512);
    assert_int_equal(s.pieces[0].size, 148); // what overlaps is one
    assert_int_equal(s.pieces[1].offset, 4096);
    assert_int_equal(s.pieces[1].size, 104);
    steps_again_finish(&s);
    buf_finish(&b);
}

static void test_on_copies(void **state)
{
    (void)state;
    struct buf b = { 0 };
    struct steps_again s;
    begin(&b);
    add_launch(&b, 1, 2, (uint64_t[]){ 512, 560 });
    add_fill(&b, 4096);
    assert_true(steps_again_take(&s, b.bytes, 0, false));
    for (size_t i = 0; i < s.n_pieces; i++) {
        s.pieces[i].copy_region = 9;
        s.pieces[i].copy_offset = 1024 * (i + 1);
    }
    steps_again_move(&s);
    uint64_t step = 0;
    const struct dev_launch *l = steps_again_launch(&s, &step);
    const struct dev_slot *slots = (const void *)(l + 1);
    assert_int_equal(slots[0].region, 9);
    assert_int_equal(slots[0].offset, 1024);
    assert_int_equal(slots[1].offset, 1024 + 48);
    assert_int_equal(slots[1].low, 1024);
    assert_int_equal(slots[1].high, 1024 + 148);
    assert_int_equal(slots[2].region, 3); // of nothing
    const struct dev_fill *fill = (const void *)((const uint8_t *)l + l->step.size);
    assert_int_equal(fill->dst.region, 9);
    assert_int_equal(fill->dst.offset, 2048);

    uint32_t region;
    int64_t offset;
    assert_true(steps_again_origin(&s, &slots[1], 4000, &region, &offset));
    assert_int_equal(region, 3);
    assert_int_equal(offset, 560 + 4000);
    assert_true(steps_again_origin(&s, &slots[0], -1000, &region, &offset));
    assert_int_equal(offset, 512 - 1000);
    assert_false(steps_again_origin(&s, &slots[0], INT64_MAX, &region, &offset));
    assert_false(steps_again_origin(&s, &slots[2], 0, &region, &offset));
    steps_again_finish(&s);
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_launch_alone),
        cmocka_unit_test(test_with_all_that_follow),
        cmocka_unit_test(test_on_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
