// published: the page of versions, as the daemon writes it and a client reads it.

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fdpass.h"
#include "base/version_page.h"
#include "kernels/published.h"

static struct opd_err err;

static void test_words(void **state)
{
    (void)state;
    struct published p = { 0 };
    assert_true(published_open(&p, &err));
    const struct version_page *page = version_page_open(p.shared_fd, &err);
    assert_non_null(page);
    assert_true(version_page_lives(page));
    uint32_t slot = published_give(&p, &err);
    assert_int_equal(slot, 1);
    published_set(&p, slot, 7, 0);
    assert_true(version_page_word(page, slot) == 7);
    published_set(&p, slot, 0, ((uint64_t)5 << 32) + 9); // of a failure as much as fits
    assert_true(version_page_word(page, slot) == (uint64_t)9 << 32);
    published_set(&p, 0, 3, 3); // nobody's slot
    assert_true(version_page_word(page, 0) == 0);
    assert_true(published_open(&p, &err)); // it is there
    assert_true(version_page_word(page, slot) == (uint64_t)9 << 32);
    published_end(&p);
    assert_false(version_page_lives(page));
    published_finish(&p);
    published_finish(&p);
    version_page_close(page);
}

static void test_all_slots(void **state)
{
    (void)state;
    struct published p = { 0 };
    assert_true(published_open(&p, &err));
    for (uint32_t i = 1; i < VERSION_PAGE_SLOTS; i++)
        assert_int_equal(published_give(&p, &err), i);
    assert_int_equal(published_give(&p, &err), 0);
    assert_int_equal(err.code, OPD_E_unavailable);
    assert_string_equal(err.msg, "all 16383 slots of the page of versions are in use");
    opd_err_clear(&err);
    published_finish(&p);
}

static void test_a_process_that_dies(void **state)
{
    (void)state;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) { // a daemon, which ends without a word
        struct published p = { 0 };
        published_open(&p, &err);
        published_set(&p, published_give(&p, &err), 4, 0);
        char number[16];
        int n = snprintf(number, sizeof number, "%d", p.shared_fd);
        if (write(ends[1], number, (size_t)n + 1) > 0)
            pause();
        _exit(1);
    }
    char number[16], path[64];
    assert_true(read(ends[0], number, sizeof number) > 0);
    snprintf(path, sizeof path, "/proc/%d/fd/%.15s", (int)pid, number);
    int fd = open(path, O_RDONLY);
    const struct version_page *page = version_page_open(fd, &err);
    assert_non_null(page);
    assert_true(version_page_lives(page));
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    assert_false(version_page_lives(page));
    assert_true(version_page_word(page, 1) == 4);
    version_page_close(page);
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

static int run_as(int (*what)(struct published *p), struct published *p)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(what(p));
    waitpid(pid, &status, 0);
    return status;
}

// As after an upgrade: another program, with the descriptor that the one before has left open.
static int go_on(struct published *before)
{
    struct published p = { 0 };
    if (!published_resume(&p, before->fd) || !version_page_lives(p.page) ||
        version_page_word(p.page, 1) != 4)
        return 1;
    published_set(&p, 1, 5, 0);
    return 0;
}

static int be_replaced(struct published *p)
{
    if (!published_open(p, &err) || published_give(p, &err) != 1)
        return 1;
    published_set(p, 1, 4, 0);
    int status = run_as(go_on, p);
    return status != 0 || version_page_word(p->page, 1) != 5 || version_page_lives(p->page);
}

static void test_a_successor(void **state)
{
    (void)state;
    struct published p = { 0 };
    assert_int_equal(run_as(be_replaced, &p), 0);
}

static void test_what_is_no_page(void **state)
{
    (void)state;
    int small = fdpass_memfd("small", 4096),
        zeros = fdpass_memfd("zeros", sizeof(struct version_page));
    int fds[] = { -1, small, zeros };
    for (int i = 0; i < 3; i++) {
        assert_null(version_page_open(fds[i], &err));
        assert_int_equal(err.code, OPD_E_malformed_message);
        opd_err_clear(&err);
    }
    close(small);
    close(zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_all_slots),
        cmocka_unit_test(test_a_process_that_dies),
        cmocka_unit_test(test_a_successor),
        cmocka_unit_test(test_what_is_no_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
