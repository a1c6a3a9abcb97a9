// err, mem and dtype: messages are cut and never overrun, a second failure cannot hide the first,
// buffers keep what they hold, and the table of dtypes is in order.

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/err.h"
#include "base/mem.h"

static void test_filled_once(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    assert_false(opd_err_set(&err, OPD_E_invalid_argument, "x has rank %d, expected %d", 3, 2));
    assert_string_equal(err.msg, "x has rank 3, expected 2");
    assert_string_equal(opd_err_name(err.code), "invalid_argument");
    opd_err_prefix(&err, "%s", "gelu");
    assert_string_equal(err.msg, "gelu: x has rank 3, expected 2");
    opd_err_clear(&err);
    assert_int_equal(err.code, OPD_E_none);
    errno = ENOENT;
    opd_err_errno(&err, OPD_E_internal, "opening %s", "a.cu");
    assert_string_equal(err.msg, "opening a.cu: No such file or directory");
}

static void test_long_messages_are_cut(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (size_t length = 1000; length < 1050; length++) {
        struct opd_err err = { 0 };
        text[length] = '\0';
        opd_err_set(&err, OPD_E_internal, "%s", text);
        assert_int_equal(strlen(err.msg), length < sizeof err.msg ? length : sizeof err.msg - 1);
        opd_err_prefix(&err, "%.*s", (int)(length - 900), text);
        opd_err_prefix(&err, "%s", text);
        assert_true(strlen(err.msg) < sizeof err.msg);
        opd_err_clear(&err);
        errno = ENOENT;
        opd_err_errno(&err, OPD_E_internal, "%s", text);
        assert_true(strlen(err.msg) < sizeof err.msg);
        text[length] = 'a';
    }
}

static void test_log_is_owned(void **state)
{
    (void)state;
    struct opd_err err = { 0 }, copy = { 0 };
    opd_err_set(&err, OPD_E_compile_error, "gelu.cu does not compile");
    err.log = mem_strdup("gelu.cu(3): error");
    opd_err_copy(&copy, &err);
    opd_err_clear(&err);
    opd_err_clear(&err);
    assert_string_equal(copy.log, "gelu.cu(3): error");
    assert_string_equal(copy.msg, "gelu.cu does not compile");
    opd_err_clear(&copy);
}

// True if it ends by abort(), as what cannot go on does.
static bool aborts(void (*fn)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        fn();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void fail_twice(void)
{
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_internal, "first");
    opd_err_set(&err, OPD_E_internal, "second");
}

static void multiply_too_much(void)
{
    free(mem_realloc(NULL, SIZE_MAX / 8, 16));
}

static void reserve_too_much(void)
{
    struct buf b = { 0 };
    buf_append(&b, "x", 1);
    buf_reserve(&b, SIZE_MAX);
}

static void test_what_cannot_go_on_ends(void **state)
{
    (void)state;
    assert_true(aborts(fail_twice));
    assert_true(aborts(multiply_too_much));
    assert_true(aborts(reserve_too_much));
}

static void test_buffer(void **state)
{
    (void)state;
    struct buf b = { 0 };
    char expected[20000] = "";
    size_t n = 0;
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; n < sizeof expected - 100; i++) {
        buf_printf(&b, "%d%s,", i, i % 3 ? "" : " is a third");
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%d%s,", i,
                              i % 3 ? "" : " is a third");
        assert_int_equal(b.size, n);
        if (i % 7 == 0) { // and loses some at the front
            buf_consume(&b, 3);
            memmove(expected, expected + 3, n -= 3);
        }
        assert_memory_equal(b.bytes, expected, n);
    }
    assert_memory_equal(buf_str(&b), expected, n);
    buf_append(&b, NULL, 0);
    buf_consume(&b, b.size);
    assert_int_equal(b.size, 0);
    buf_append_str(&b, "again");
    assert_string_equal(buf_str(&b), "again");
    buf_finish(&b);
    buf_finish(&b);
    buf_consume(&b, 0);
}

static void test_dtypes(void **state)
{
    (void)state;
    for (int i = 1; i < OPD_DTYPE_COUNT; i++) {
        const char *name = dtype_name((enum opd_dtype)i);
        assert_non_null(name);
        assert_int_equal(dtype_parse(name), i);
        assert_int_equal(dtype_from_number(i), i);
        assert_true(dtype_size((enum opd_dtype)i) >= 1 && dtype_size((enum opd_dtype)i) <= 8);
        bool is_float = strstr(name, "float") != NULL;
        assert_int_equal(dtype_is_float((enum opd_dtype)i), is_float);
        assert_true(strlen(dtype_type((enum opd_dtype)i)) > 0 &&
                    strlen(dtype_acc((enum opd_dtype)i)) > 0);
    }
    static const long long wrong[] = {
        0, -1, OPD_DTYPE_COUNT, INT64_MAX, INT64_MIN, (1LL << 32) + 1
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(dtype_from_number(wrong[i]), OPD_DTYPE_NONE);
    assert_int_equal(dtype_parse("none"), OPD_DTYPE_NONE);
    assert_int_equal(dtype_parse("Float32"), OPD_DTYPE_NONE);
    assert_int_equal(dtype_parse(""), OPD_DTYPE_NONE);
    assert_string_equal(dtype_name(OPD_DTYPE_NONE), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filled_once),  cmocka_unit_test(test_long_messages_are_cut),
        cmocka_unit_test(test_log_is_owned), cmocka_unit_test(test_what_cannot_go_on_ends),
        cmocka_unit_test(test_buffer),       cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
