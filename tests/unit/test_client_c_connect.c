// libopd: where it finds the daemon, what it makes of its greeting, and the codes of errors.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "c/opd.h"

static void test_no_daemon(void **state)
{
    (void)state;
    struct opd_error err = { 0 };
    assert_null(opd_connect("/nowhere/opd.sock", &err));
    assert_int_equal(err.code, OPD_CONNECTION_LOST);
    assert_non_null(strstr(err.message, "/nowhere/opd.sock"));
    assert_null(opd_connect("", &err));
    assert_int_equal(err.code, OPD_INVALID_ARGUMENT);
    assert_null(opd_open_fd(-1, &err));
    assert_null(opd_open_fd(open("/dev/null", O_RDONLY), &err));
    assert_null(opd_connect("/nowhere/opd.sock", NULL));
    opd_close(NULL);
    opd_error_clear(&err);
}

struct greeter {
    int listener;
    const char *bytes;
    size_t size;
    int n_before; // connections that end unanswered
};

static void *answer_greeting(void *data)
{
    struct greeter *g = data;
    char request[256];
    for (; g->n_before > 0; g->n_before--)
        close(accept(g->listener, NULL, NULL));
    int fd = accept(g->listener, NULL, NULL);
    shutdown(g->listener, SHUT_RDWR);
    if (fd < 0)
        return NULL; // nobody came
    assert_true(read(fd, request, sizeof request) > 0);
    assert_int_equal(write(fd, g->bytes, g->size), (ssize_t)g->size);
    close(fd);
    return NULL;
}

static struct opd_client *connect_to(const char *greeting, size_t size, int n_before,
                                     struct opd_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char folder[] = "/tmp/opd-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
    struct greeter g = { socket(AF_UNIX, SOCK_STREAM, 0), greeting, size, n_before };
    assert_int_equal(bind(g.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(g.listener, 1), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_greeting, &g), 0);
    struct opd_client *client = opd_connect(address.sun_path, err);
    shutdown(g.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(g.listener);
    unlink(address.sun_path);
    rmdir(folder);
    return client;
}

#define CONNECT_TO(text, err) connect_to(text, sizeof(text) - 1, 0, err)

static void test_greeting(void **state)
{
    (void)state;
    struct opd_error err = { 0 };
    struct opd_client *client = CONNECT_TO("\x94\x01\x01\xc0\x82\xa8protocol\x01\xa6limits"
                                           "\x81\xabmax_message\x64",
                                           &err);
    assert_non_null(client);
    char bytes[200] = { 0 };
    assert_false(opd_tensor_write(client, 1, 0, bytes, sizeof bytes, &err));
    assert_non_null(strstr(err.message, "at most 100"));
    opd_close(client);
    assert_null(CONNECT_TO("\x94\x01\x01\xc0\x81\xa8protocol\x02", &err));
    assert_int_equal(err.code, OPD_UNAVAILABLE);
    assert_null(CONNECT_TO("\x94\x01\x01\xc0\x80", &err));
    assert_int_equal(err.code, OPD_MALFORMED_MESSAGE);
    assert_null(CONNECT_TO("\x94\x01", &err));
    assert_int_equal(err.code, OPD_CONNECTION_LOST);
    opd_error_clear(&err);
}

// Its socket takes connections a bit longer, which end unanswered.
static void test_a_daemon_that_was_killed(void **state)
{
    (void)state;
    struct opd_error err = { 0 };
    assert_null(connect_to("", 0, 3, &err));
    assert_int_equal(err.code, OPD_CONNECTION_LOST);
    assert_non_null(strstr(err.message, "no daemon at /tmp/opd-test-"));
    static const char greeting[] = "\x94\x01\x01\xc0\x81\xa8protocol\x01";
    struct opd_client *client = connect_to(greeting, sizeof greeting - 1, 3, &err); // the next one
    assert_non_null(client);
    opd_close(client);
    opd_error_clear(&err);
}

static void test_default_socket(void **state)
{
    (void)state;
    char path[64], expected[64];
    setenv("OPD_SOCKET", "/a/b", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/5", 1);
    assert_true(opd_default_socket(path, sizeof path));
    assert_string_equal(path, "/a/b");
    unsetenv("OPD_SOCKET");
    assert_true(opd_default_socket(path, sizeof path));
    assert_string_equal(path, "/run/user/5/opd/opd.sock");
    assert_false(opd_default_socket(path, 10));
    unsetenv("XDG_RUNTIME_DIR");
    assert_true(opd_default_socket(path, sizeof path));
    snprintf(expected, sizeof expected, "/tmp/opd-%u/opd.sock", (unsigned)getuid());
    assert_string_equal(path, expected);
}

static void test_codes_are_those_of_the_table(void **state)
{
    (void)state;
    static const struct {
        int code;
        const char *name;
    } codes[] = {
        { OPD_OK, "ok" },
        { OPD_INVALID_ARGUMENT, "invalid_argument" },
        { OPD_NOT_FOUND, "not_found" },
        { OPD_COMPILE_ERROR, "compile_error" },
        { OPD_KERNEL_FAULT, "kernel_fault" },
        { OPD_DEADLINE_EXCEEDED, "deadline_exceeded" },
        { OPD_OUT_OF_MEMORY, "out_of_memory" },
        { OPD_CONNECTION_LOST, "connection_lost" },
        { OPD_MALFORMED_MESSAGE, "malformed_message" },
        { OPD_UNKNOWN_METHOD, "unknown_method" },
        { OPD_UNAVAILABLE, "unavailable" },
        { OPD_INTERNAL, "internal" },
    };
    int count = sizeof codes / sizeof *codes;
    for (int i = 0; i < count; i++) {
        assert_int_equal(codes[i].code, i);
        assert_string_equal(opd_code_name(i), codes[i].name);
    }
    assert_string_equal(opd_code_name(count), "unknown"); // a new row is wanted here and in opd.h
    assert_string_equal(opd_code_name(-1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_daemon),
        cmocka_unit_test(test_greeting),
        cmocka_unit_test(test_a_daemon_that_was_killed),
        cmocka_unit_test(test_default_socket),
        cmocka_unit_test(test_codes_are_those_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
