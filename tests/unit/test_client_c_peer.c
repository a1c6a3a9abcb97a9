// libopd against a peer that misbehaves.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>

#include "unit/client_pair.h"

static void expect_failure(struct pair *p, int code, const char *words)
{
    assert_false(call(p));
    assert_int_equal(p->err.code, code);
    assert_string_equal(p->err.name, opd_code_name(code));
    assert_true(p->err.local);
    if (!strstr(p->err.message, words))
        fail_msg("'%s' is not in '%s'", words, p->err.message);
}

// ---- it lies ------------------------------------------------------------------------------------

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

// ---- it goes away or falls silent ---------------------------------------------------------------

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

static void test_silence(void **state)
{
    struct pair *p = *state;
    uint32_t request;
    opd_set_timeout(p->client, 0.1);
    SAY(p, "\x94\x01\x01\xc0\xa4"
           "ha");
    assert_true(opd_send(p->client, "a", NULL, -1, &request, &p->err));
    assert_false(opd_wait(p->client, request, &p->reply, &p->err));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
