// The marks of a CUDA stream, on a driver that is made up: its stream is a list of what was given
// to it, and goes on when the test says so.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "executor/cuda_marks.h"

enum { MAX_WORK = 1024, DEVICE_OFFSET = 1 << 20 };

struct work {
    uint64_t *to, value; // of a write; NULL: an event
};

struct event {
    bool exists;
    int at; // which piece of work; -1: not recorded yet
};

static struct {
    struct work work[MAX_WORK];
    int n_work, n_done;
    struct event events[MAX_WORK];
    int n_events, n_destroyed;
    int n_registered;
    int fault; // what the stream says; 0: nothing
    int refuse_addresses;
} gpu;

static void advance(int n)
{
    for (; n > 0 && gpu.n_done < gpu.n_work; n--) {
        struct work *w = &gpu.work[gpu.n_done++];
        if (w->to)
            *w->to = w->value;
    }
}

static int fake_name(int result, const char **out)
{
    (void)result;
    *out = "NAME";
    return 0;
}

static int fake_host_alloc(void **host, size_t size, unsigned flags)
{
    (void)flags;
    *host = calloc(1, size);
    return 0;
}

static int fake_free_host(void *host)
{
    free(host);
    return 0;
}

static int fake_host_address(drv_addr *addr, void *host, unsigned flags)
{
    (void)flags;
    *addr = (uintptr_t)host + DEVICE_OFFSET;
    return gpu.refuse_addresses;
}

static int fake_register(void *host, size_t size, unsigned flags)
{
    (void)flags;
    assert_int_equal((uintptr_t)host % size, 0);
    gpu.n_registered++;
    return 0;
}

static int fake_unregister(void *host)
{
    (void)host;
    gpu.n_registered--;
    return 0;
}

static int fake_write(void *stream, drv_addr addr, uint64_t value, unsigned flags)
{
    (void)flags;
    assert_ptr_equal(stream, &gpu);
    uint64_t *to = (uint64_t *)(uintptr_t)(addr - DEVICE_OFFSET);
    gpu.work[gpu.n_work++] = (struct work){ .to = to, .value = value };
    return 0;
}

static int fake_query(void *stream)
{
    (void)stream;
    return gpu.fault ? gpu.fault : gpu.n_done < gpu.n_work ? DRV_ERROR_NOT_READY : 0;
}

static int fake_event_create(void **event, unsigned flags)
{
    (void)flags;
    struct event *e = &gpu.events[gpu.n_events++];
    *e = (struct event){ .exists = true, .at = -1 };
    *event = e;
    return 0;
}

static int fake_event_destroy(void *event)
{
    struct event *e = event;
    assert_true(e->exists);
    e->exists = false;
    gpu.n_destroyed++;
    return 0;
}

static int fake_event_record(void *event, void *stream)
{
    struct event *e = event;
    assert_ptr_equal(stream, &gpu);
    e->at = gpu.n_work;
    gpu.work[gpu.n_work++] = (struct work){ 0 };
    return 0;
}

static int fake_event_query(void *event)
{
    const struct event *e = event;
    return gpu.fault ? gpu.fault : e->at < gpu.n_done ? 0 : DRV_ERROR_NOT_READY;
}

static int fake_event_wait(void *event)
{
    const struct event *e = event;
    advance(e->at + 1 - gpu.n_done);
    return 0;
}

static int fake_elapsed(float *ms, void *start, void *end)
{
    *ms = (float)(((struct event *)end)->at - ((struct event *)start)->at);
    return 0;
}

static const struct cuda_driver driver = {
    .cuGetErrorName = fake_name,
    .cuGetErrorString = fake_name,
    .cuMemHostAlloc = fake_host_alloc,
    .cuMemFreeHost = fake_free_host,
    .cuMemHostGetDevicePointer = fake_host_address,
    .cuMemHostRegister = fake_register,
    .cuMemHostUnregister = fake_unregister,
    .cuStreamWriteValue64 = fake_write,
    .cuStreamQuery = fake_query,
    .cuEventCreate = fake_event_create,
    .cuEventDestroy = fake_event_destroy,
    .cuEventRecord = fake_event_record,
    .cuEventQuery = fake_event_query,
    .cuEventSynchronize = fake_event_wait,
    .cuEventElapsedTime = fake_elapsed,
};

static void start(struct cuda_marks *m, bool writes)
{
    struct opd_err err = { 0 };
    memset(&gpu, 0, sizeof gpu);
    *m = (struct cuda_marks){ 0 };
    assert_true(cuda_marks_init(m, &driver, &gpu, writes, &err));
}

static void finish(struct cuda_marks *m)
{
    cuda_marks_finish(m);
    assert_int_equal(gpu.n_destroyed, gpu.n_events);
    assert_int_equal(gpu.n_registered, 0);
}

static uint64_t poll_marks(struct cuda_marks *m)
{
    struct opd_err err = { 0 };
    uint64_t mark = 0;
    assert_true(cuda_marks_poll(m, &mark, &err));
    return mark;
}

// More than there are events: the oldest is waited for then.
static void check_order(bool writes)
{
    struct cuda_marks m;
    struct opd_err err = { 0 };
    start(&m, writes);
    assert_int_equal(poll_marks(&m), 0);
    for (uint64_t mark = 1; mark <= 200; mark++) {
        assert_true(cuda_marks_add(&m, 10 * mark, &err));
        if (mark % 3 == 0)
            advance(1);
        assert_int_equal(poll_marks(&m), 10 * gpu.n_done);
    }
    advance(MAX_WORK);
    assert_int_equal(poll_marks(&m), 2000);
    finish(&m);
}

static void test_marks_are_written(void **state)
{
    (void)state;
    check_order(true);
    assert_int_equal(gpu.n_events, 0);
}

static void test_marks_are_events(void **state)
{
    (void)state;
    check_order(false);
    assert_int_equal(gpu.n_events, CUDA_MARKS_EVENTS);
}

static void test_stream_that_stopped(void **state)
{
    (void)state;
    for (int writes = 0; writes < 2; writes++) {
        struct cuda_marks m;
        struct opd_err err = { 0 };
        uint64_t mark = 0;
        start(&m, writes);
        for (uint64_t i = 1; i <= 3; i++)
            assert_true(cuda_marks_add(&m, i, &err));
        advance(2);
        assert_int_equal(poll_marks(&m), 2);
        gpu.fault = DRV_ERROR_NO_DEVICE;
        while (cuda_marks_poll(&m, &mark, &err))
            assert_int_equal(mark, 2);
        assert_int_equal(mark, 2);
        assert_int_equal(err.code, OPD_E_kernel_fault);
        assert_non_null(strstr(err.msg, "the device: NAME (100)"));
        opd_err_clear(&err);
        finish(&m);
    }
}

static void test_shared_place(void **state)
{
    (void)state;
    struct cuda_marks m;
    struct opd_err err = { 0 };
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    _Atomic uint64_t *memory = aligned_alloc(page, page), *place = memory + 5;
    atomic_init(place, 0);
    start(&m, false);
    assert_false(cuda_marks_share(&m, place)); // nobody would write it
    finish(&m);
    start(&m, true);
    gpu.refuse_addresses = DRV_ERROR_INVALID_VALUE;
    assert_false(cuda_marks_share(&m, place));
    assert_int_equal(gpu.n_registered, 0);
    gpu.refuse_addresses = 0;
    assert_true(cuda_marks_share(&m, place));
    assert_true(cuda_marks_add(&m, 7, &err));
    advance(1);
    assert_int_equal(atomic_load(place), 7);
    assert_int_equal(poll_marks(&m), 7);
    finish(&m);
    free((void *)memory);
}

static void test_stamps(void **state)
{
    (void)state;
    struct cuda_marks m;
    struct opd_err err = { 0 };
    uint64_t ns = 0;
    start(&m, true);
    assert_true(cuda_marks_stamp(&m, 8, &err));
    assert_true(cuda_marks_add(&m, 1, &err));
    assert_true(cuda_marks_stamp(&m, 9, &err));
    assert_true(cuda_marks_elapsed(&m, 8, 9, &ns, &err));
    assert_int_equal(ns, 2000000);
    assert_true(cuda_marks_stamp(&m, 8, &err)); // the same event again
    assert_int_equal(gpu.n_events, 2);
    finish(&m);
}

// As a backend does that could not be opened.
static void test_finish_of_nothing(void **state)
{
    (void)state;
    struct cuda_marks m = { 0 };
    cuda_marks_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks_are_written),
        cmocka_unit_test(test_marks_are_events),
        cmocka_unit_test(test_stream_that_stopped),
        cmocka_unit_test(test_shared_place),
        cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_finish_of_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
