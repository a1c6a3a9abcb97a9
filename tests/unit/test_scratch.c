// scratch: a folder of one's own that goes with the process, and what killed ones have left goes
// with the next.

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/own_folder.h"
#include "compiler/scratch.h"

static int setup(void **state)
{
    return make_folder(state) ? -1 : setenv("TMPDIR", folder, 1);
}

static void make(const char *name, bool old)
{
    char *path = mem_printf("%s/%s", folder, name), *file = mem_printf("%s/x.pch", path);
    struct timespec times[2] = { { .tv_sec = time(NULL) - 1000 }, { .tv_sec = time(NULL) - 1000 } };
    assert_int_equal(mkdir(path, 0700), 0);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    if (old)
        utimensat(AT_FDCWD, path, times, 0);
    free(file);
    free(path);
}

static void test_folder(void **state)
{
    (void)state;
    const char *own = scratch_open();
    assert_non_null(own);
    assert_string_equal(getenv("TMPDIR"), own);
    char *name = mem_strdup(own), *file = mem_printf("%s/file", own);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    scratch_close();
    assert_int_not_equal(access(name, F_OK), 0);
    assert_string_equal(getenv("TMPDIR"), folder);
    scratch_close(); // twice is fine
    free(file);
    free(name);
}

static void test_left(void **state)
{
    (void)state;
    make("opd-compiler-aaaaaa", true);
    make("opd-compiler-bbbbbb", false);
    make("opd-compiler-cccccc", true);
    make("other", true);
    char *held = mem_printf("%s/opd-compiler-cccccc", folder);
    int fd = open(held, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    assert_non_null(scratch_open());
    assert_false(exists("opd-compiler-aaaaaa"));
    assert_true(exists("opd-compiler-bbbbbb")); // perhaps not locked yet
    assert_true(exists("opd-compiler-cccccc"));
    assert_true(exists("other/x.pch"));
    scratch_close();
    close(fd);
    free(held);
}

static void test_remove(void **state)
{
    (void)state;
    make("opd-compiler-123-aaaaaa", false);
    make("opd-compiler-1234-aaaaaa", false);
    make("opd-compiler-123-cccccc", false);
    char *held = mem_printf("%s/opd-compiler-123-cccccc", folder);
    int fd = open(held, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_SH), 0);
    scratch_remove(123);
    assert_false(exists("opd-compiler-123-aaaaaa"));
    assert_true(exists("opd-compiler-1234-aaaaaa"));
    assert_true(exists("opd-compiler-123-cccccc")); // a process of that number in another container
    close(fd);
    free(held);
}

static void test_no_folder(void **state)
{
    (void)state;
    char *none = mem_printf("%s/none", folder);
    setenv("TMPDIR", none, 1);
    assert_null(scratch_open());
    assert_string_equal(getenv("TMPDIR"), none);
    scratch_close();
    free(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_folder, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_left, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_remove, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_no_folder, setup, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
