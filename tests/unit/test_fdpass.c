// fdpass: bytes and descriptors arrive together and close-on-exec; too many are refused, and none
// is left open.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fdpass.h"

static int count_open(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static int open_before, pair[2];

static int setup(void **state)
{
    (void)state;
    open_before = count_open();
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
}

static int teardown(void **state)
{
    (void)state;
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(count_open(), open_before);
    return 0;
}

static bool same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Sends so many descriptors, in one message of the size of a byte each, by hand: more than
// fdpass_send() would.
static void send_raw(int count, const int *fds)
{
    char byte = 'x';
    struct iovec iov = { &byte, 1 };
    size_t size = CMSG_SPACE(sizeof(int) * (size_t)count);
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = calloc(1, size), .msg_controllen = size
    };
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)count);
    assert_int_equal(sendmsg(pair[0], &msg, 0), 1);
    free(msg.msg_control);
}

static void test_as_many_as_may_be(void **state)
{
    (void)state;
    int memfd = fdpass_memfd("test", 10), fds[FDPASS_MAX], got[FDPASS_MAX], n;
    char bytes[16];
    for (int count = 0; count <= FDPASS_MAX; count++) {
        for (int i = 0; i < count; i++)
            fds[i] = memfd;
        assert_int_equal(fdpass_send(pair[0], "hello", 5, fds, count), 5);
        assert_int_equal(fdpass_recv(pair[1], bytes, sizeof bytes, got, &n), 5);
        assert_memory_equal(bytes, "hello", 5);
        assert_int_equal(n, count);
        for (int i = 0; i < n; i++) {
            assert_true(same_file(got[i], memfd));
            assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
            close(got[i]);
        }
    }
    close(memfd);
}

static void test_too_many(void **state)
{
    (void)state;
    int fds[100], got[FDPASS_MAX], n;
    char byte;
    for (int i = 0; i < 100; i++)
        fds[i] = STDOUT_FILENO;
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, FDPASS_MAX + 1), -1);
    assert_int_equal(errno, EINVAL);
    for (int count = FDPASS_MAX + 1; count <= 100; count += 83) {
        send_raw(count, fds);
        errno = 0;
        assert_int_equal(fdpass_recv(pair[1], &byte, 1, got, &n), -1);
        assert_int_equal(errno, EMSGSIZE);
        assert_int_equal(n, 0);
    }
}

static void test_one(void **state)
{
    (void)state;
    int memfd = fdpass_memfd("test", 10), fds[] = { memfd, STDOUT_FILENO, STDOUT_FILENO };
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 1), 1);
    int fd = fdpass_recv_one(pair[1]);
    assert_true(same_file(fd, memfd));
    close(fd);
    assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 3), 1); // the others are closed
    fd = fdpass_recv_one(pair[1]);
    assert_true(same_file(fd, memfd));
    close(fd);
    assert_int_equal(fdpass_send(pair[0], "x", 1, NULL, 0), 1);
    assert_int_equal(fdpass_recv_one(pair[1]), -1);
    shutdown(pair[0], SHUT_WR);
    assert_int_equal(fdpass_recv_one(pair[1]), -1);
    close(memfd);
}

// Those that nobody received go with the socket.
static void test_never_received(void **state)
{
    (void)state;
    int fds[] = { STDOUT_FILENO, STDOUT_FILENO };
    for (int i = 0; i < 20; i++)
        assert_int_equal(fdpass_send(pair[0], "x", 1, fds, 2), 1);
}

static void test_failures_are_errno(void **state)
{
    (void)state;
    int got[FDPASS_MAX], n = 5;
    char bytes[4096] = { 0 };
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    assert_int_equal(fdpass_recv(pair[0], bytes, sizeof bytes, got, &n), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(n, 0);
    while (fdpass_send(pair[0], bytes, sizeof bytes, NULL, 0) > 0)
        continue;
    assert_int_equal(errno, EAGAIN);
    shutdown(pair[0], SHUT_WR);
    assert_int_equal(fdpass_send(pair[0], "x", 1, NULL, 0), -1); // and no SIGPIPE
    assert_int_equal(errno, EPIPE);
}

static void test_memfd(void **state)
{
    (void)state;
    int fd = fdpass_memfd("test", 5000);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 5000);
    assert_int_equal(ftruncate(fd, 10), -1);
    assert_int_equal(ftruncate(fd, 10000), -1);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    assert_int_equal(fdpass_memfd("test", SIZE_MAX), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_as_many_as_may_be, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_never_received, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failures_are_errno, setup, teardown),
        cmocka_unit_test_setup_teardown(test_memfd, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
