// executor/lanes: what a client writes into its lane decides no more than which of its own commands
// runs, whatever it is.

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "executor/lanes.h"

enum { REGION = 3, N_BYTES = 4096, ROUNDS = 100000 };

// Host memory, as the executor has it mapped.
static union {
    uint8_t bytes[N_BYTES];
    struct lane lane[2]; // of two clients
} memory;

bool regions_resolve(const struct regions *r, struct dev_ref ref, uint64_t size, device_addr *out,
                     struct opd_err *err)
{
    (void)r;
    if (ref.region != REGION || ref.offset > N_BYTES || size > N_BYTES - ref.offset)
        return opd_err_set(err, OPD_E_internal, "no such memory");
    *out = (device_addr)(uintptr_t)(memory.bytes + ref.offset);
    return true;
}

static struct dev_lanes shared;
static struct lanes lanes;
static int bells[2];

static void open_lane(uint32_t lane, uint64_t offset)
{
    struct {
        struct dev_command head;
        struct dev_ref at;
    } cmd = { { .type = DEV_LANE_OPEN, .id = lane }, { .region = REGION, .offset = offset } };
    struct opd_err err = { 0 };
    bells[lane] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(lanes_open(&lanes, &cmd.head, sizeof cmd, bells[lane], NULL, &err));
}

static void arm(uint32_t slot, uint64_t serial)
{
    struct {
        struct dev_command head;
        struct dev_arm arm;
    } cmd = { { .type = DEV_LANE_ARM, .id = slot, .size = slot }, { .serial = serial } };
    struct opd_err err = { 0 };
    assert_true(lanes_arm(&lanes, &cmd.head, sizeof cmd, &err));
    atomic_store(&shared.armed[slot], serial);
}

static int set_up(void **state)
{
    (void)state;
    memset(&memory, 0, sizeof memory);
    memset(&shared, 0, sizeof shared);
    memset(&lanes, 0, sizeof lanes);
    lanes_init(&lanes, &shared);
    open_lane(0, 0);
    open_lane(1, sizeof(struct lane));
    arm(2, 100);
    arm(DEV_LANE_ARMS + 5, 101);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    lanes_finish(&lanes);
    close(bells[0]);
    close(bells[1]);
    return 0;
}

static uint32_t enter(int lane, uint32_t slot, uint64_t serial)
{
    const struct lane_entry entry = { .request = 7, .slot = slot, .serial = serial };
    atomic_store(&memory.lane[lane].word.state, WORD_AWAITED);
    return lane_enter(&memory.lane[lane], &entry, bells[lane]);
}

static void test_an_entry(void **state)
{
    (void)state;
    struct dev_begun begun;
    struct word *word;
    assert_null(lanes_take(&lanes, &begun, &word));
    uint32_t number = enter(0, 2, 100);
    const struct dev_command *cmd = lanes_take(&lanes, &begun, &word);
    assert_non_null(cmd);
    assert_int_equal(cmd->type, DEV_RUN);
    assert_int_equal(cmd->size, 2);
    assert_ptr_equal(word, &memory.lane[0].word);
    assert_int_equal(begun.request, 7);
    assert_int_equal(begun.serial, 100);
    struct word_waits waits = { 0 };
    assert_false(lane_was_refused(&memory.lane[0], number, &waits));
    enter(0, 2, 100); // one at a time
    assert_null(lanes_take(&lanes, &begun, &word));
    lanes_ended(&lanes, 2);
    assert_non_null(lanes_take(&lanes, &begun, &word));
    assert_null(lanes_take(&lanes, &begun, &word));
}

static void assert_refused(int lane, uint32_t slot, uint64_t serial)
{
    struct dev_begun begun;
    struct word *word;
    uint32_t number = enter(lane, slot, serial);
    assert_null(lanes_take(&lanes, &begun, &word));
    struct word_waits waits = { .n_missed = 1, .n_passed = 1 };
    assert_true(lane_was_refused(&memory.lane[lane], number, &waits));
    assert_int_equal(waits.n_missed + waits.n_passed, 0);
    assert_int_equal(atomic_load(&memory.lane[lane].word.state), WORD_IDLE);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    assert_refused(0, 2, 101);
    assert_refused(0, 3, 100);
    assert_refused(0, 3, 0);
    assert_refused(0, DEV_LANE_ARMS + 5, 101); // the other's
    assert_refused(0, UINT32_MAX, 100);
    atomic_store(&shared.armed[2], 0); // by the broker
    assert_refused(0, 2, 100);
    atomic_store(&shared.armed[2], 100);
    lanes_disarm(&lanes, 2);
    assert_refused(0, 2, 100);
}

static void test_turns(void **state)
{
    (void)state;
    struct dev_begun begun;
    struct word *word, *last = NULL;
    for (int i = 0; i < 6; i++) {
        enter(0, 2, 100);
        enter(1, DEV_LANE_ARMS + 5, 101);
        assert_non_null(lanes_take(&lanes, &begun, &word));
        assert_ptr_not_equal(word, last);
        lanes_ended(&lanes, begun.slot);
        last = word;
    }
}

static bool is_rung(void)
{
    struct pollfd p = { .fd = lanes.epoll, .events = POLLIN };
    return poll(&p, 1, 0) == 1;
}

static void test_the_bell(void **state)
{
    (void)state;
    struct dev_begun begun;
    struct word *word;
    enter(0, 2, 100);
    assert_false(is_rung()); // nobody sleeps
    assert_false(lanes_sleep(&lanes));
    assert_non_null(lanes_take(&lanes, &begun, &word));
    lanes_ended(&lanes, 2);
    for (int i = 0; i < 3; i++) {
        assert_true(lanes_sleep(&lanes));
        assert_false(is_rung());
        enter(0, 2, 100);
        assert_true(is_rung()); // though nobody has read it
        lanes_wake(&lanes);
        assert_false(is_rung());
        assert_non_null(lanes_take(&lanes, &begun, &word));
        lanes_ended(&lanes, 2);
    }
}

static void test_memory_that_goes(void **state)
{
    (void)state;
    struct dev_begun begun;
    struct word *word;
    lanes_leave(&lanes, REGION + 1);
    assert_int_equal(lanes.n_open, 2);
    lanes_leave(&lanes, REGION);
    assert_int_equal(lanes.n_open, 0);
    memory.lane[0].entry = 1;
    assert_null(lanes_take(&lanes, &begun, &word));
    assert_true(lanes_sleep(&lanes));
}

// Bytes at random, and beside them an honest client.
static void test_a_hostile_client(void **state)
{
    (void)state;
    struct dev_begun begun;
    struct word *word;
    srand(1);
    for (int i = 0; i < ROUNDS; i++) {
        uint8_t *bytes = (uint8_t *)&memory.lane[0];
        bytes[(size_t)rand() % sizeof memory.lane[0]] = (uint8_t)rand();
        if (i % 100 == 0)
            memory.lane[0].serial = 100;
        if (i % 10 == 0)
            enter(1, DEV_LANE_ARMS + 5, 101);
        for (const struct dev_command *cmd; (cmd = lanes_take(&lanes, &begun, &word)) != NULL;) {
            assert_int_equal(cmd->size, begun.slot);
            assert_true(word == &memory.lane[1].word ? begun.slot == DEV_LANE_ARMS + 5
                                                     : begun.slot == 2 && begun.serial == 100);
            lanes_ended(&lanes, begun.slot);
        }
        assert_int_equal(lanes.list[1].seen, memory.lane[1].entry);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_entry, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_turns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_bell, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_memory_that_goes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_hostile_client, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
