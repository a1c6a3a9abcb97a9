// libopd against a peer that misbehaves.
//
// The peer is the other end of a socket pair. What it says is mostly written before the client
// asks: the first request of a client has the number 1.

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
#include <time.h>
#include <unistd.h>

#include "opd.h"

struct pair {
    struct opd_client *client;
    int peer;
    struct opd_error err;
    struct opd_reply reply;
};

static int setup(void **state)
{
    struct pair *p = calloc(1, sizeof *p);
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    p->client = opd_open_fd(fds[0], &p->err);
    p->peer = fds[1];
    assert_non_null(p->client);
    opd_set_timeout(p->client, 5);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct pair *p = *state;
    opd_close(p->client);
    opd_reply_clear(&p->reply); // outlives its client
    opd_error_clear(&p->err);
    if (p->peer >= 0)
        close(p->peer);
    free(p);
    return 0;
}

static void say(struct pair *p, const char *bytes, size_t size)
{
    assert_int_equal(write(p->peer, bytes, size), (ssize_t)size);
}

#define SAY(p, text) say(p, text, sizeof(text) - 1)

static void hang_up(struct pair *p)
{
    close(p->peer);
    p->peer = -1;
}

static bool call(struct pair *p)
{
    return opd_call(p->client, "status", NULL, &p->reply, &p->err);
}

static void expect_failure(struct pair *p, int code, const char *words)
{
    assert_false(call(p));
    assert_int_equal(p->err.code, code);
    assert_string_equal(p->err.name, opd_code_name(code));
    assert_true(p->err.local);
    if (!strstr(p->err.message, words))
        fail_msg("'%s' is not in '%s'", words, p->err.message);
}

// ---- calls that go well -------------------------------------------------------------------------

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

// ---- a peer that lies ---------------------------------------------------------------------------

static void test_garbage(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *words;
    } lies[] = {
#define LIE(text, words) { text, sizeof(text) - 1, words }
        LIE("\xc1", "0xc1"),
        LIE("HTTP/1.1 400 Bad Request\r\n", "response"),
        LIE("\xdd\xff\xff\xff\xff", "elements"),
        LIE("\x94\x01\x01\xc0\xdf\x80\x00\x00\x00", "elements"),
        LIE("\x94\x01\x01\xc0\xc6\xff\xff\xff\xff", "bytes"),
        LIE("\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91", "deeper"),
        LIE("\x93\x01\x01\xc0", "response"),
        LIE("\x95\x01\x01\xc0\xc0\xc0", "response"),
        LIE("\x94\x00\x01\xa1"
            "a\x90",
            "response"),
        LIE("\x94\x03\x01\xc0\xc0", "response"),
        LIE("\x94\x01\xa1"
            "1\xc0\xc0",
            "response"),
        LIE("\x94\x01\xff\xc0\xc0", "response"),
        LIE("\x94\x01\xcf\x00\x00\x00\x01\x00\x00\x00\x01\xc0\xc0", "response"),
        LIE("\x94\x01\x07\xc0\xc0", "request 7"),
        LIE("\x93\x02\x01\x90", "response"),
        LIE("\x93\x02\xa1n\xc0", "response"),
        LIE("\x94\x02\xa1n\x90\x90", "response"),
        LIE("\x90", "response"),
        LIE("\x80", "response"),
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        void *pair;
        setup(&pair);
        struct pair *p = pair;
        say(p, lies[i].bytes, lies[i].size);
        expect_failure(p, OPD_MALFORMED_MESSAGE, lies[i].words);
        expect_failure(p, OPD_MALFORMED_MESSAGE, lies[i].words); // and stays so
        teardown(&pair);
    }
}

static void test_last_word_of_the_daemon(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x94\x01\xc0\x83\xa4"
           "code\xb1malformed_message\xa6number\x08\xa7message\xa3"
           "bad\xc0");
    hang_up(p);
    assert_false(call(p));
    assert_int_equal(p->err.code, OPD_MALFORMED_MESSAGE);
    assert_string_equal(p->err.message, "bad");
    assert_false(p->err.local);
}

static void test_random_bytes(void **state)
{
    (void)state;
    srand(7);
    for (int round = 0; round < 2000; round++) {
        void *pair;
        setup(&pair);
        struct pair *p = pair;
        char bytes[60] = "\x94\x01\x01\xc0";
        for (size_t i = rand() % 5; i < sizeof bytes; i++)
            bytes[i] = (char)(rand() % 3 ? 0x80 + rand() % 0x64 : rand());
        say(p, bytes, sizeof bytes);
        hang_up(p);
        if (!call(p))
            assert_int_not_equal(p->err.code, OPD_OK);
        teardown(&pair);
    }
}

static void test_replies_of_the_wrong_shape(void **state)
{
    struct pair *p = *state;
    struct opd_tensor tensor = { .dtype = "float32", .rank = 1, .shape = { 2 } };
    char bytes[8];
    SAY(p, "\x94\x01\x01\xc0\xc0"); // no map
    SAY(p, "\x94\x01\x02\xc0\x81\xa2id\xa1"
           "1"); // a map of other things
    SAY(p, "\x94\x01\x03\xc0\xc4\x07"
           "1234567"); // a byte too few
    SAY(p, "\x94\x01\x04\xc0\xc0");
    SAY(p, "\x94\x01\x05\xc0\x81\xa7outputs\x90"); // no outputs
    for (int i = 0; i < 2; i++) {
        assert_false(opd_tensor_new(p->client, &tensor, &p->err));
        assert_int_equal(p->err.code, OPD_MALFORMED_MESSAGE);
        assert_int_equal(tensor.id, 0);
    }
    for (int i = 0; i < 2; i++) {
        assert_false(opd_tensor_read(p->client, 1, 0, bytes, sizeof bytes, &p->err));
        assert_int_equal(p->err.code, OPD_MALFORMED_MESSAGE);
    }
    struct opd_forward_params forward = { .op = "gelu",
                                          .outputs = (int64_t[]){ 2 },
                                          .output_count = 1 };
    assert_false(opd_forward(p->client, &forward, &p->err));
    assert_int_equal(p->err.code, OPD_MALFORMED_MESSAGE);
}

// ---- a peer that goes away or falls silent ------------------------------------------------------

static void test_closed_before_the_request(void **state)
{
    struct pair *p = *state;
    hang_up(p);
    expect_failure(p, OPD_CONNECTION_LOST, "closed the connection");
    expect_failure(p, OPD_CONNECTION_LOST, "closed the connection");
}

static void test_closed_in_a_message(void **state)
{
    struct pair *p = *state;
    SAY(p, "\x94\x01\x01\xc0\xc4\x20"
           "half");
    hang_up(p);
    expect_failure(p, OPD_CONNECTION_LOST, "closed the connection");
}

static void test_answers_before_the_end_count(void **state)
{
    struct pair *p = *state;
    uint32_t first, second;
    assert_true(opd_send(p->client, "a", NULL, -1, &first, &p->err));
    assert_true(opd_send(p->client, "b", NULL, -1, &second, &p->err));
    SAY(p, "\x94\x01\x01\xc0\x05");
    hang_up(p);
    assert_false(opd_wait(p->client, second, &p->reply, &p->err));
    assert_int_equal(p->err.code, OPD_CONNECTION_LOST);
    assert_true(opd_wait(p->client, first, &p->reply, &p->err));
    assert_int_equal(p->reply.result.via.u64, 5);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_silence(void **state)
{
    struct pair *p = *state;
    uint32_t request;
    opd_set_timeout(p->client, 0.1);
    SAY(p, "\x94\x01\x01\xc0\xa4"
           "ha");
    assert_true(opd_send(p->client, "a", NULL, -1, &request, &p->err));
    double begin = seconds_now();
    assert_false(opd_wait(p->client, request, &p->reply, &p->err));
    assert_true(seconds_now() - begin < 3);
    assert_int_equal(p->err.code, OPD_DEADLINE_EXCEEDED);
    assert_true(p->err.local);
    SAY(p, "lf");
    assert_true(opd_wait(p->client, request, &p->reply, &p->err)); // still to be had
    assert_memory_equal(p->reply.result.via.str.ptr, "half", 4);

    expect_failure(p, OPD_DEADLINE_EXCEEDED, "in time"); // opd_call() forgets it
    SAY(p, "\x94\x01\x02\xc0\x02\x94\x01\x03\xc0\x03");
    assert_true(call(p));
    assert_int_equal(p->reply.result.via.u64, 3);
}

static void test_peer_that_does_not_read(void **state)
{
    struct pair *p = *state;
    size_t size = 4 << 20;
    char *bytes = calloc(1, size);
    opd_set_timeout(p->client, 0.1);
    assert_false(opd_tensor_write(p->client, 1, 0, bytes, size, &p->err));
    assert_int_equal(p->err.code, OPD_DEADLINE_EXCEEDED);
    free(bytes);
    expect_failure(p, OPD_CONNECTION_LOST, "in part only");
}

static void test_peer_that_reads_no_more(void **state)
{
    struct pair *p = *state;
    shutdown(p->peer, SHUT_RD);
    expect_failure(p, OPD_CONNECTION_LOST, "sending");
}

// Answers every message of 12 bytes, and reads none while its own answers are not taken.
static void *answer_before_reading(void *data)
{
    int peer = *(int *)data;
    char request[12];
    static char answer[5 + 3 + 60000];
    memcpy(answer, "\x94\x01\xcc\x00\xc0\xc5\xea\x60", 8);
    for (int i = 0; i < 200; i++) {
        if (recv(peer, request, i < 127 ? 11 : 12, MSG_WAITALL) <= 0)
            break;
        answer[3] = (char)(i + 1);
        for (size_t n = 0; n < sizeof answer;) {
            ssize_t written = write(peer, answer + n, sizeof answer - n);
            if (written <= 0)
                return NULL;
            n += (size_t)written;
        }
    }
    return NULL;
}

static void test_pipelining_does_not_deadlock(void **state)
{
    struct pair *p = *state;
    pthread_t thread;
    uint32_t requests[200];
    int small = 4096;
    setsockopt(opd_fd(p->client), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    assert_int_equal(pthread_create(&thread, NULL, answer_before_reading, &p->peer), 0);
    for (int i = 0; i < 200; i++)
        assert_true(opd_send(p->client, "status", NULL, -1, &requests[i], &p->err));
    for (int i = 199; i >= 0; i--) {
        assert_true(opd_wait(p->client, requests[i], &p->reply, &p->err));
        assert_int_equal(p->reply.result.via.bin.size, 60000);
    }
    pthread_join(thread, NULL);
}

// ---- what is refused here -----------------------------------------------------------------------

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
};

static void *answer_greeting(void *data)
{
    struct greeter *g = data;
    char request[256];
    int fd = accept(g->listener, NULL, NULL);
    assert_true(read(fd, request, sizeof request) > 0);
    assert_int_equal(write(fd, g->bytes, g->size), (ssize_t)g->size);
    close(fd);
    return NULL;
}

static struct opd_client *connect_to(const char *greeting, size_t size, struct opd_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char folder[] = "/tmp/opd-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
    struct greeter g = { socket(AF_UNIX, SOCK_STREAM, 0), greeting, size };
    assert_int_equal(bind(g.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(g.listener, 1), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer_greeting, &g), 0);
    struct opd_client *client = opd_connect(address.sun_path, err);
    pthread_join(thread, NULL);
    close(g.listener);
    unlink(address.sun_path);
    rmdir(folder);
    return client;
}

#define CONNECT_TO(text, err) connect_to(text, sizeof(text) - 1, err)

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

#define ON_A_PAIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_A_PAIR(test_call),
        ON_A_PAIR(test_replies_out_of_order_and_in_pieces),
        ON_A_PAIR(test_forgotten_replies_are_dropped),
        ON_A_PAIR(test_answered_error),
        ON_A_PAIR(test_error_of_another_shape),
        ON_A_PAIR(test_fd_goes_along),
        ON_A_PAIR(test_notifications),
        ON_A_PAIR(test_notifications_before_the_end_count),
        ON_A_PAIR(test_notifications_that_nobody_takes),
        cmocka_unit_test(test_garbage),
        ON_A_PAIR(test_last_word_of_the_daemon),
        cmocka_unit_test(test_random_bytes),
        ON_A_PAIR(test_replies_of_the_wrong_shape),
        ON_A_PAIR(test_closed_before_the_request),
        ON_A_PAIR(test_closed_in_a_message),
        ON_A_PAIR(test_answers_before_the_end_count),
        ON_A_PAIR(test_silence),
        ON_A_PAIR(test_peer_that_does_not_read),
        ON_A_PAIR(test_peer_that_reads_no_more),
        ON_A_PAIR(test_pipelining_does_not_deadlock),
        ON_A_PAIR(test_refused_before_sending),
        cmocka_unit_test(test_no_daemon),
        cmocka_unit_test(test_greeting),
        cmocka_unit_test(test_default_socket),
        cmocka_unit_test(test_codes_are_those_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
