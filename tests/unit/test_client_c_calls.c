// libopd: calls, replies and notifications; what is refused before it is sent.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/client_pair.h"

static void test_call(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x94\x01\x01\xc0\xa2hi");
    assert_true(call(p));
    assert_int_equal(p->reply.result.type, MSGPACK_OBJECT_STR);
    assert_memory_equal(p->reply.result.via.str.ptr, "hi", 2);
    char request[64];
    ssize_t n = read(p->peer, request, sizeof request);
    assert_int_equal(n, 11);
    assert_memory_equal(request, "\x94\x00\x01\xa6status\x90", 11);
}

static void test_replies_out_of_order_and_in_pieces(void **state)
{
    struct pair *p = *state;
    uint32_t first, second;
    assert_true(opd_send(p->client, "a", NULL, -1, &first, &p->err));
    assert_true(opd_send(p->client, "b", NULL, -1, &second, &p->err));
    SAY(p, "\x94\x01\x02\xc0\x2a\x93\x02\xa1n\x90\x94\x01\x01"); // b, a notification, half of a
    assert_true(opd_wait(p->client, second, &p->reply, &p->err));
    assert_int_equal(p->reply.result.via.u64, 42);
    SAY(p, "\xc0\x07");
    assert_true(opd_wait(p->client, first, &p->reply, &p->err));
    assert_int_equal(p->reply.result.via.u64, 7);
    assert_false(opd_wait(p->client, first, NULL, &p->err));
    assert_int_equal(p->err.code, OPD_INVALID_ARGUMENT);
}

static void test_forgotten_replies_are_dropped(void **state)
{
    struct pair *p = *state;
    uint32_t request;
    assert_true(opd_send(p->client, "a", NULL, -1, &request, &p->err));
    opd_forget(p->client, request);
    opd_forget(p->client, request);
    opd_forget(p->client, 99);
    SAY(p, "\x94\x01\x01\xc0\x01\x94\x01\x02\xc0\x02");
    assert_true(call(p));
    assert_int_equal(p->reply.result.via.u64, 2);
    assert_false(opd_wait(p->client, request, NULL, NULL));
}

static void test_answered_error(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x94\x01\x01\x85\xa4"
           "code\xa9not_found\xa6number\x02\xa7message\xa4"
           "none"
           "\xa2op\xa4gelu\xa3log\xa5"
           "a\nb\nc\xc0");
    assert_false(call(p));
    assert_int_equal(p->err.code, OPD_NOT_FOUND);
    assert_string_equal(p->err.name, "not_found");
    assert_string_equal(p->err.message, "none");
    assert_string_equal(p->err.op, "gelu");
    assert_string_equal(p->err.log, "a\nb\nc");
    assert_false(p->err.local);
    SAY(p, "\x94\x01\x02\xc0\xc0"); // the connection goes on
    assert_true(call(p));
}

static void test_error_of_another_shape(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x94\x01\x01\xc3\xc0\x94\x01\x02\x81\xa6number\xff\xc0");
    for (int i = 0; i < 2; i++) {
        assert_false(call(p));
        assert_int_equal(p->err.code, OPD_INTERNAL);
        assert_true(strlen(p->err.message) > 0);
    }
}

static void test_fd_goes_along(void **state)
{
    struct pair *p = *state;
    uint32_t request;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_true(opd_send(p->client, "shm_open", NULL, fds[1], &request, &p->err));
    char bytes[64], room[CMSG_SPACE(sizeof(int))];
    struct iovec part = { bytes, sizeof bytes };
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room
    };
    assert_true(recvmsg(p->peer, &message, 0) > 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    assert_non_null(c);
    assert_int_equal(c->cmsg_type, SCM_RIGHTS);
    int passed;
    memcpy(&passed, CMSG_DATA(c), sizeof passed);
    assert_int_equal(write(passed, "x", 1), 1);
    assert_int_equal(read(fds[0], bytes, 1), 1);
    close(passed);
    close(fds[0]);
    close(fds[1]);
}

static void test_refused_before_sending(void **state)
{
    struct pair *p = *state;
    msgpack_sbuffer params = { .data = (char *)"\x92\x01", .size = 2 }; // half an array
    uint32_t request;
    assert_false(opd_send(p->client, "a", &params, -1, &request, &p->err));
    assert_int_equal(p->err.code, OPD_INVALID_ARGUMENT);
    params = (msgpack_sbuffer){ .data = (char *)"\x01", .size = 1 }; // no array
    assert_false(opd_send(p->client, "a", &params, -1, &request, &p->err));
    struct opd_tensor tensor = { .dtype = "float32", .rank = OPD_MAX_RANK + 1 };
    assert_false(opd_tensor_new(p->client, &tensor, &p->err));
    tensor.rank = -1;
    assert_false(opd_tensor_view(p->client, 1, 0, &tensor, &p->err));
    char byte;
    assert_int_equal(recv(p->peer, &byte, 1, MSG_DONTWAIT), -1);
}

// ---- notifications ------------------------------------------------------------------------------

static bool next_notice(struct pair *p, const char *method, double seconds)
{
    return opd_wait_notification(p->client, method, seconds, &p->reply, &p->err);
}

static void expect_notice(struct pair *p, const char *method, uint64_t number)
{
    assert_true(next_notice(p, method, 5));
    assert_int_equal(p->reply.result.type, MSGPACK_OBJECT_ARRAY);
    assert_int_equal(p->reply.result.via.array.ptr[0].via.u64, number);
}

static void test_notifications(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x93\x02\xa1n\x91\x01\x93\x02\xa1m\x91\x02\x93\x02\xa1n\x91\x03");
    SAY(p, "\x94\x01\x01\xc0\x07\x93\x02\xa1n\x91\x04\x93\x02\xa1n"); // half of one
    assert_true(call(p)); // those that come before a reply are kept
    expect_notice(p, "n", 1);
    expect_notice(p, "n", 3);
    expect_notice(p, "n", 4);
    expect_notice(p, "m", 2);
    assert_false(next_notice(p, "m", 0));
    assert_int_equal(p->err.code, OPD_DEADLINE_EXCEEDED);
    assert_true(p->err.local);
    assert_false(next_notice(p, "n", 0.05));
    SAY(p, "\x91\x05");
    expect_notice(p, "n", 5);
}

static void test_notifications_before_the_end_count(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x93\x02\xa1n\x91\x01\x93\x02\xa1n\x91\x02");
    hang_up(p);
    expect_notice(p, "n", 1);
    expect_notice(p, "n", 2);
    for (int i = 0; i < 2; i++) {
        assert_false(next_notice(p, "n", -1));
        assert_int_equal(p->err.code, OPD_CONNECTION_LOST);
    }
}

static void test_notifications_that_nobody_takes(void **state)
{
    struct pair *p = *state;
    for (unsigned i = 0; i < OPD_MAX_NOTIFICATIONS + 3; i++) {
        char bytes[] = "\x93\x02\xa1n\x91\xcd..";
        bytes[6] = (char)(i >> 8);
        bytes[7] = (char)i;
        say(p, bytes, 8);
        assert_false(next_notice(p, "other", 0)); // reads it
    }
    for (unsigned i = 3; i < OPD_MAX_NOTIFICATIONS + 3; i++)
        expect_notice(p, "n", i);
    assert_false(next_notice(p, "n", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_PAIR(test_call),
        ON_A_PAIR(test_replies_out_of_order_and_in_pieces),
        ON_A_PAIR(test_forgotten_replies_are_dropped),
        ON_A_PAIR(test_answered_error),
        ON_A_PAIR(test_error_of_another_shape),
        ON_A_PAIR(test_fd_goes_along),
        ON_A_PAIR(test_refused_before_sending),
        ON_A_PAIR(test_notifications),
        ON_A_PAIR(test_notifications_before_the_end_count),
        ON_A_PAIR(test_notifications_that_nobody_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
