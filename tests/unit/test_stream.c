// stream: bytes and descriptors through the loop, whole and in order however they are cut; bounds
// that hold against a peer that does not read, or sends descriptors that nobody takes.

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "wire/stream.h"

struct fixture {
    uv_loop_t loop;
    struct stream s;
    int peer;
    int open_before;
    size_t take_at; // readable() consumes when so many bytes are there
    size_t taken;   // bytes, of which each must be the next of the sequence
    int n_failed, n_drained, n_closed;
};

static int count_open(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

// The n-th byte of everything that is sent here; the period is no power of two.
static uint8_t byte_at(size_t n)
{
    return (uint8_t)(n % 251);
}

static void readable(struct stream *s)
{
    struct fixture *f = s->owner;
    while (stream_size(s) >= f->take_at && stream_size(s) > 0) {
        size_t n = f->take_at;
        for (size_t i = 0; i < n; i++)
            assert_int_equal(stream_bytes(s)[i], byte_at(f->taken + i));
        f->taken += n;
        stream_consume(s, n);
    }
}

static void drained(struct stream *s)
{
    ((struct fixture *)s->owner)->n_drained++;
}

static void failed(struct stream *s, const char *why)
{
    assert_true(strlen(why) > 0);
    ((struct fixture *)s->owner)->n_failed++;
    stream_close(s);
}

static void closed(struct stream *s)
{
    ((struct fixture *)s->owner)->n_closed++;
    assert_int_equal(s->fd, -1);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    int pair[2];
    uv_loop_init(&f->loop);
    f->open_before = count_open();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    f->peer = pair[1];
    f->take_at = 1;
    f->s = (struct stream){
        .owner = f, .readable = readable, .drained = drained, .failed = failed, .closed = closed
    };
    stream_start(&f->s, &f->loop, pair[0]);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->peer >= 0)
        close(f->peer);
    stream_close(&f->s);
    stream_close(&f->s);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(f->n_closed, 1);
    assert_int_equal(count_open(), f->open_before);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
    return 0;
}

static void turn(struct fixture *f)
{
    uv_run(&f->loop, UV_RUN_NOWAIT);
}

static void test_in(void **state)
{
    struct fixture *f = *state;
    uint8_t bytes[5000];
    size_t sent = 0;
    for (int i = 0; i < 3000; i++) {
        size_t n = 1 + (size_t)(i * 7919) % sizeof bytes;
        for (size_t k = 0; k < n; k++)
            bytes[k] = byte_at(sent + k);
        assert_int_equal(write(f->peer, bytes, n), (ssize_t)n);
        sent += n;
        f->take_at = i % 10 ? 1 + (size_t)i % 9000 : 1; // parts wait for a while
        turn(f);
        assert_true(stream_size(&f->s) < 10000);
    }
    assert_true(f->taken + stream_size(&f->s) == sent && f->taken > sent - 10000);
    assert_true(f->s.in.capacity <= 1 << 20); // what was taken is not kept
}

static void test_out_to_a_slow_reader(void **state)
{
    struct fixture *f = *state;
    size_t sent = 0, got = 0;
    uint8_t bytes[60000], back[50000];
    for (int i = 0; i < 3000; i++) {
        // A little less than 4 MB stay unsent; the memory must not grow with what was.
        while (stream_unsent(&f->s) < 4u << 20 && sent - got < 8u << 20) {
            for (size_t k = 0; k < sizeof bytes; k++)
                bytes[k] = byte_at(sent + k);
            buf_append(&f->s.out, bytes, sizeof bytes);
            sent += sizeof bytes;
            stream_flush(&f->s);
        }
        ssize_t n = read(f->peer, back, sizeof back);
        assert_true(n > 0);
        for (ssize_t k = 0; k < n; k++)
            assert_int_equal(back[k], byte_at(got + (size_t)k));
        got += (size_t)n;
        turn(f);
        assert_true(f->s.out.capacity <= 32u << 20);
    }
    f->n_drained = 0;
    while (got < sent) {
        ssize_t n = read(f->peer, back, sizeof back);
        assert_true(n > 0);
        got += (size_t)n;
        turn(f);
    }
    assert_true(f->n_drained > 0);
    assert_int_equal(stream_unsent(&f->s), 0);
    assert_true(f->s.out.capacity <= 1 << 20);
}

static void test_descriptors_in_order(void **state)
{
    struct fixture *f = *state;
    int pipes[4][2];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        uint8_t byte = byte_at((size_t)i);
        assert_int_equal(fdpass_send(f->peer, &byte, 1, &pipes[i][1], 1), 1);
    }
    for (int i = 0; i < 8; i++)
        turn(f);
    assert_int_equal(f->taken, 4);
    for (int i = 0; i < 4; i++) {
        char byte = (char)('a' + i), back;
        int fd = stream_take_fd(&f->s);
        assert_int_equal(write(fd, &byte, 1), 1);
        assert_int_equal(read(pipes[i][0], &back, 1), 1);
        assert_int_equal(back, byte);
        close(fd);
        close(pipes[i][0]);
        close(pipes[i][1]);
    }
    assert_int_equal(stream_take_fd(&f->s), -1);
}

// Each goes with its own byte, also behind more than the socket takes at once.
static void test_descriptors_out(void **state)
{
    struct fixture *f = *state;
    enum { N = 20, PIECE = 50000 };
    static uint8_t bytes[PIECE];
    int pipes[N][2], n_fds = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        memset(bytes, i, sizeof bytes);
        stream_attach_fd(&f->s, pipes[i][1]);
        buf_append(&f->s.out, bytes, i % 2 ? sizeof bytes : 1);
        if (i % 3 == 0)
            stream_flush(&f->s);
    }
    for (int idle = 0; n_fds < N && idle < 100000; idle++) {
        int fds[FDPASS_MAX], n;
        stream_flush(&f->s);
        ssize_t size = fdpass_recv(f->peer, bytes, sizeof bytes, fds, &n);
        assert_true(size > 0 && n <= 1);
        for (int i = 0; i < n; i++, n_fds++) {
            char back;
            assert_int_equal(bytes[size - 1], n_fds); // bytes before it may come along
            assert_int_equal(write(fds[i], "x", 1), 1);
            assert_int_equal(read(pipes[n_fds][0], &back, 1), 1);
            close(fds[i]);
            close(pipes[n_fds][0]);
        }
    }
    assert_int_equal(n_fds, N);
    // One that is never sent is closed with the stream: teardown counts.
    int left[2];
    assert_int_equal(pipe(left), 0);
    close(left[0]);
    stream_attach_fd(&f->s, left[1]);
}

static void test_descriptors_that_nobody_takes(void **state)
{
    struct fixture *f = *state;
    int fds[FDPASS_MAX];
    for (int i = 0; i < FDPASS_MAX; i++)
        fds[i] = STDOUT_FILENO;
    size_t sent = 0;
    for (int i = 0; i < 10 && !f->n_failed; i++, sent++) {
        uint8_t byte = byte_at(sent);
        if (fdpass_send(f->peer, &byte, 1, fds, 10) < 0)
            break;
        turn(f);
        assert_true(f->s.n_fds <= STREAM_MAX_FDS);
    }
    assert_int_equal(f->n_failed, 1); // teardown counts that all are closed
}

static void test_paused(void **state)
{
    struct fixture *f = *state;
    uint8_t byte = byte_at(0);
    stream_set_reading(&f->s, false);
    assert_int_equal(write(f->peer, &byte, 1), 1);
    turn(f);
    assert_int_equal(f->taken, 0);
    stream_set_reading(&f->s, true);
    turn(f);
    assert_int_equal(f->taken, 1);
}

static void test_peer_goes(void **state)
{
    struct fixture *f = *state;
    uint8_t byte = byte_at(0);
    assert_int_equal(write(f->peer, &byte, 1), 1);
    close(f->peer);
    f->peer = -1;
    for (int i = 0; i < 4; i++)
        turn(f);
    assert_int_equal(f->taken, 1); // what it had sent still comes
    assert_int_equal(f->n_failed, 1);
    assert_int_equal(f->n_closed, 1);
}

static void test_peer_goes_before_the_reply(void **state)
{
    struct fixture *f = *state;
    close(f->peer);
    f->peer = -1;
    buf_append(&f->s.out, "reply", 5);
    stream_flush(&f->s);
    assert_int_equal(f->n_failed, 1);
    stream_flush(&f->s); // closing: nothing
    assert_int_equal(f->n_failed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_in, setup, teardown),
        cmocka_unit_test_setup_teardown(test_out_to_a_slow_reader, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptors_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptors_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptors_that_nobody_takes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_paused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_peer_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_peer_goes_before_the_reply, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
