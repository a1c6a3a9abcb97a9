// Whole files, and programs that are run to their end.

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "unit/own_folder.h"

static char *in_folder(const char *name)
{
    return mem_printf("%s/%s", folder, name);
}

static void test_a_file_is_made_once(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    char *path = in_folder("a");
    assert_true(file_make(path, "hello", 5, &err));
    assert_false(file_make(path, "other", 5, &err));
    assert_non_null(strstr(err.msg, "File exists"));
    assert_false(file_make(path, "other", 5, NULL));
    opd_err_clear(&err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct buf all = { 0 };
    assert_true(file_get(fd, SIZE_MAX, &all));
    assert_string_equal(buf_str(&all), "hello");
    buf_finish(&all);
    file_close(&fd);
    assert_int_equal(fd, -1);
    file_close(&fd);
    assert_false(file_get(fd, SIZE_MAX, &all));
    buf_finish(&all);
    free(path);
}

// One that is larger is read no further than it takes to know that.
static void test_a_file_is_read_to_a_limit(void **state)
{
    (void)state;
    char *large = mem_zalloc(1 << 20, 1);
    int fd = file_memfd("large", large, 1 << 20);
    struct buf all = { 0 };
    assert_true(file_get(fd, 100, &all));
    assert_true(all.size > 100 && all.size < 1 << 20);
    buf_finish(&all);
    assert_true(file_get(fd, 1 << 20, &all));
    assert_int_equal(all.size, 1 << 20);
    assert_true(all.capacity <= (1 << 20) + 1);
    buf_finish(&all);
    file_close(&fd);
    free(large);
}

static void append_path(const char *path, void *all)
{
    buf_printf(all, "%s ", strrchr(path, '/') + 1);
}

static void test_folders(void **state)
{
    (void)state;
    struct buf all = { 0 };
    char *b = in_folder("tree[?]*\\/b.x"), *a = in_folder("tree[?]*\\/a.x"),
         *tree = in_folder("tree[?]*\\"), *pattern = in_folder("tree[?]*\\/*.x");
    assert_int_equal(mkdir(tree, 0700), 0);
    assert_true(file_make(b, "", 0, NULL) && file_make(a, "", 0, NULL));
    file_each(pattern, append_path, &all);
    assert_string_equal(buf_str(&all), "a.x b.x ");
    file_remove_tree(tree);
    assert_int_equal(access(tree, F_OK), -1);
    buf_finish(&all);
    free(a), free(b), free(tree), free(pattern);
}

static bool run(const char *script, int limit_ms, size_t limit, struct buf *output, int *status,
                struct opd_err *err)
{
    char *argv[] = { (char[]){ "sh" }, (char[]){ "-c" }, mem_strdup(script), NULL };
    bool ok = child_run(argv, NULL, limit_ms, limit, output, status, err);
    free(argv[2]);
    return ok;
}

static void test_a_child_says_and_ends(void **state)
{
    (void)state;
    struct buf output = { 0 };
    int status;
    assert_true(run("echo out; echo err >&2; exit 3", 60000, 100, &output, &status, NULL));
    assert_string_equal(buf_str(&output), "out\nerr\n");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    buf_finish(&output);
    char *argv[] = { (char[]){ "/nowhere/at/all" }, NULL };
    struct opd_err err = { 0 };
    assert_false(child_run(argv, NULL, 60000, 100, &output, &status, &err));
    assert_int_equal(err.code, OPD_E_unavailable);
    opd_err_clear(&err);
}

// What it has started is ended with it: nobody holds the pipe any more.
static void test_a_child_that_is_late_is_ended(void **state)
{
    (void)state;
    struct buf output = { 0 };
    struct opd_err err = { 0 };
    int status;
    uint64_t begun = clock_ns();
    assert_false(run("sleep 1000 & sleep 1000", 100, 100, &output, &status, &err));
    assert_true(clock_ms_since(begun) < 500000);
    assert_int_equal(err.code, OPD_E_deadline_exceeded);
    assert_true(WIFSIGNALED(status));
    opd_err_clear(&err);
    buf_finish(&output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_is_made_once),
        cmocka_unit_test(test_a_file_is_read_to_a_limit),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_a_child_says_and_ends),
        cmocka_unit_test(test_a_child_that_is_late_is_ended),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
