#pragma once

// For the tests of libopd: a client whose peer is the other end of a socket pair. What the peer
// says is mostly written before the client asks: the first request of a client has the number 1.
// Include after cmocka.h.

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "c/opd.h"

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
    opd_set_timeout(p->client, 120); // for what comes, however slow the machine is
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

#define ON_A_PAIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
