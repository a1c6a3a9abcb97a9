// job: frames are read back, not before they are whole, and refused where their lengths do not add
// up.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "compiler/job.h"
#include "base/mem.h"

static const char *const strings[] = { "sm_90", "", "a longer text with\nlines\n", "gelu.cu" };
enum { N_STRINGS = sizeof strings / sizeof *strings };

static void pack(struct buf *out)
{
    struct job_header header = { .id = 7, .code = OPD_E_compile_error, .cached = 1 };
    job_pack(out, &header, strings, N_STRINGS);
}

static void check(const struct job_frame *frame)
{
    assert_int_equal(frame->header.id, 7);
    assert_int_equal(frame->header.code, OPD_E_compile_error);
    assert_int_equal(frame->header.cached, 1);
    for (int i = 0; i < N_STRINGS; i++)
        assert_string_equal(frame->strings[i], strings[i]);
}

static void test_back_to_back(void **state)
{
    (void)state;
    struct buf b = { 0 };
    struct job_frame frame;
    pack(&b);
    size_t one = b.size;
    pack(&b);
    assert_int_equal(job_unpack(b.bytes, b.size, N_STRINGS, &frame), (long)one);
    check(&frame);
    assert_int_equal(job_unpack(b.bytes + one, b.size - one, N_STRINGS, &frame), (long)one);
    check(&frame);
    assert_int_equal(job_unpack(b.bytes, b.size, N_STRINGS - 1, &frame), -1);
    assert_int_equal(job_unpack(b.bytes, b.size, N_STRINGS + 1, &frame), -1);
    buf_finish(&b);
}

static void test_not_whole_yet(void **state)
{
    (void)state;
    struct buf b = { 0 };
    pack(&b);
    for (size_t size = 0; size < b.size; size++) {
        uint8_t *bytes = mem_alloc(size); // of that size, so that reading on shows
        struct job_frame frame;
        memcpy(bytes, b.bytes, size);
        assert_int_equal(job_unpack(bytes, size, N_STRINGS, &frame), 0);
        free(bytes);
    }
    buf_finish(&b);
}

// Any byte changed to anything: refused, not whole, or strings that lie inside and end.
static void test_every_byte_changed(void **state)
{
    (void)state;
    struct buf b = { 0 };
    pack(&b);
    for (size_t at = 0; at < b.size; at++) {
        uint8_t old = b.bytes[at];
        for (int byte = 0; byte < 256; byte++) {
            struct job_frame frame = { 0 };
            b.bytes[at] = (uint8_t)byte;
            long size = job_unpack(b.bytes, b.size, N_STRINGS, &frame);
            assert_true(size >= -1 && size <= (long)b.size);
            for (int i = 0; size > 0 && i < N_STRINGS; i++)
                assert_true(frame.strings[i] + strlen(frame.strings[i]) < (char *)b.bytes + b.size);
        }
        b.bytes[at] = old;
    }
    buf_finish(&b);
}

static void test_sizes_out_of_bounds(void **state)
{
    (void)state;
    static const uint32_t sizes[] = { 0, 1, sizeof(struct job_header) - 1, JOB_MAX_FRAME + 1,
                                      UINT32_MAX };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct buf b = { 0 };
        struct job_frame frame;
        pack(&b);
        memcpy(b.bytes, &sizes[i], sizeof sizes[i]);
        assert_int_equal(job_unpack(b.bytes, b.size, N_STRINGS, &frame), -1);
        buf_finish(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_back_to_back),
        cmocka_unit_test(test_not_whole_yet),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_sizes_out_of_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
