// listen: one daemon to a socket; what a killed one left behind is replaced, what is not a socket
// is left alone, and a folder that others can write to is refused.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "broker.h"
#include "request/parts.h"
#include "request/listen.h"
#include "base/log.h"
#include "unit/own_folder.h"

static char path[80];

static int setup(void **state)
{
    int failed = make_folder(state);
    snprintf(path, sizeof path, "%s/sub/opd.sock", folder); // a folder that is made
    return failed;
}

static struct broker *new_broker(char *socket)
{
    struct broker *b = calloc(1, sizeof *b);
    *b = (struct broker){ .options.socket = socket, .listener = { .fd = -1, .lock_fd = -1 } };
    return b;
}

// As the process's end does; the socket stays where it is not closed in order.
static void end(struct broker *b)
{
    if (b->listener.fd >= 0)
        close(b->listener.fd);
    if (b->listener.lock_fd >= 0)
        close(b->listener.lock_fd);
    free(b);
}

static void refuse(char *socket, enum opd_err_code code, const char *says)
{
    struct opd_err err = { 0 };
    struct broker *b = new_broker(socket);
    assert_false(listen_open(b, &err));
    assert_int_equal(err.code, code);
    if (!strstr(err.msg, says))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
    listen_close(b);
    end(b);
}

static void test_one_daemon(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct stat st;
    struct broker *b = new_broker(path);
    assert_true(listen_open(b, &err));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0600);
    refuse(path, OPD_E_unavailable, "another opd serves on");
    assert_int_equal(stat(path, &st), 0); // that one has not touched it
    listen_close(b);
    assert_int_equal(stat(path, &st), -1);
    end(b);
}

static void test_left_behind(void **state)
{
    (void)state;
    struct opd_err err = { 0 };
    struct broker *b = new_broker(path);
    assert_true(listen_open(b, &err));
    end(b); // killed
    b = new_broker(path);
    assert_true(listen_open(b, &err));
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    listen_close(b);
    end(b);
}

static void test_no_place_for_a_socket(void **state)
{
    (void)state;
    char file[100], text[300];
    struct stat st;
    snprintf(file, sizeof file, "%s/file", folder);
    FILE *f = fopen(file, "w");
    fputs("precious", f);
    fclose(f);
    refuse(file, OPD_E_invalid_argument, "is no socket");
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_size, 8);
    snprintf(text, sizeof text, "%s/no/such/opd.sock", folder);
    refuse(text, OPD_E_invalid_argument, "/no/such");
    snprintf(text, sizeof text, "%s/%0*d", folder, 120, 0);
    refuse(text, OPD_E_invalid_argument, "longer than 107 bytes");
    chmod(folder, 0777);
    snprintf(text, sizeof text, "%s/opd.sock", folder);
    refuse(text, OPD_E_invalid_argument, "can be written by others");
}

int main(void)
{
    log_init("test", LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_daemon, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_left_behind, setup, remove_folder),
        cmocka_unit_test_setup_teardown(test_no_place_for_a_socket, setup, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
