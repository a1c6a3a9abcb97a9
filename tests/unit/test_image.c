// image: what was written is read back; cut off, longer, or with any single bit wrong it is
// refused.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/image.h"
#include "base/mem.h"

static int file_of(const void *bytes, size_t size)
{
    int fd = memfd_create("image", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), (ssize_t)size);
    return fd;
}

static bool opens(const void *bytes, size_t size)
{
    struct image image;
    struct opd_err err = { 0 };
    int fd = file_of(bytes, size);
    bool ok = image_open(&image, fd, &err);
    assert_int_equal(ok, err.code == OPD_E_none);
    if (!ok)
        assert_null(image.mapping);
    image_close(&image);
    close(fd);
    return ok;
}

static void check_round_trip(const char *symbol, size_t size)
{
    struct buf out = { 0 };
    uint8_t *payload = mem_alloc(size);
    for (size_t i = 0; i < size; i++)
        payload[i] = (uint8_t)(i * 7);
    buf_append_str(&out, "before"); // it appends
    image_write(&out, symbol, payload, size);
    int fd = file_of(out.bytes + 6, out.size - 6);
    struct image image;
    struct opd_err err = { 0 };
    assert_true(image_open(&image, fd, &err));
    assert_string_equal(image.symbol, symbol);
    assert_int_equal(image.payload_size, size);
    assert_memory_equal(image.payload, payload, size);
    assert_int_equal((uintptr_t)image.payload % 16, 0);
    image_close(&image);
    close(fd);
    free(payload);
    buf_finish(&out);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const char *const symbols[] = { "", "k", "_Z3addIfEvPT_S1_", "exactly15bytes_",
                                           "exactly16_bytes_" };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        for (size_t size = 0; size < 70; size++)
            check_round_trip(symbols[i], size);
    check_round_trip("large", 3 << 20);
}

static void test_damage(void **state)
{
    (void)state;
    struct buf out = { 0 };
    image_write(&out, "gelu_forward", "the machine code", 16);
    assert_true(opens(out.bytes, out.size));
    for (size_t size = 0; size < out.size; size++)
        assert_false(opens(out.bytes, size));
    for (size_t bit = 0; bit < out.size * 8; bit++) {
        out.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(opens(out.bytes, out.size));
        out.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    buf_append(&out, "", 1);
    assert_false(opens(out.bytes, out.size));
    buf_finish(&out);
}

static void test_no_file(void **state)
{
    (void)state;
    struct image image;
    struct opd_err err = { 0 };
    assert_false(image_open(&image, -1, &err));
    image_close(&image);
    opd_err_clear(&err);
    int fd = memfd_create("sparse", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0); // not read into memory
    assert_false(image_open(&image, fd, &err));
    image_close(&image);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
