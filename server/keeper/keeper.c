#include "keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fdpass.h"
#include "base/mem.h"

struct held {
    struct keeper_message what; // as it came
    int fd;
};

struct keeper {
    int broker, listener; // broker -1: it has gone
    double seconds;
    uint64_t gone_at; // clock_ns()
    struct held *held;
    size_t n, capacity;
};

static struct held *find(struct keeper *k, const struct keeper_message *m)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->held[i].what.device == m->device && k->held[i].what.region == m->region)
            return &k->held[i];
    return NULL;
}

static void drop(struct keeper *k, struct held *h)
{
    if (!h)
        return;
    close(h->fd);
    *h = k->held[--k->n];
}

static void hold(struct keeper *k, const struct keeper_message *m, int fd)
{
    drop(k, find(k, m));
    if (k->n == k->capacity) {
        k->capacity = k->capacity ? 2 * k->capacity : 64;
        k->held = mem_realloc(k->held, k->capacity, sizeof *k->held);
    }
    k->held[k->n++] = (struct held){ *m, fd };
}

static void take_message(struct keeper *k, const struct keeper_message *m, int *fd)
{
    struct held *h = find(k, m);
    if (m->word == KEEPER_HOLD && *fd >= 0) {
        hold(k, m, *fd);
        *fd = -1;
    } else if (m->word == KEEPER_DROP) {
        drop(k, h);
    } else if (m->word == KEEPER_EXPORTED && h) {
        h->what.exported = 1;
    } else if (m->word == KEEPER_OVER) {
        exit(0);
    }
}

static void read_broker(struct keeper *k)
{
    struct keeper_message m = { 0 };
    int fds[FDPASS_MAX], n_fds = 0, fd = -1;
    ssize_t n = fdpass_recv(k->broker, &m, sizeof m, fds, &n_fds);
    if (n_fds > 0)
        fd = fds[0];
    while (n_fds > 1)
        close(fds[--n_fds]);
    if (n == (ssize_t)sizeof m)
        take_message(k, &m, &fd);
    if (fd >= 0)
        close(fd);
    // A broker that ends with this one's hello unread resets the socket once; what it has sent is
    // there.
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EMSGSIZE || errno == ECONNRESET)))
        return;
    close(k->broker);
    k->broker = -1;
    k->gone_at = clock_ns();
    if (k->n == 0)
        exit(0);
}

// A broker that does not read is none.
static bool say(int sock, const struct keeper_message *m, int fd)
{
    return fdpass_send(sock, m, sizeof *m, &fd, fd >= 0) == (ssize_t)sizeof *m;
}

static bool say_hello(int sock)
{
    struct timeval limit = { .tv_sec = 5 };
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return say(sock, &(struct keeper_message){ .word = KEEPER_HELLO, .size = (uint64_t)getpid() },
               -1);
}

static bool give_all(const struct keeper *k, int sock)
{
    bool ok = say_hello(sock);
    for (size_t i = 0; ok && i < k->n; i++)
        ok = say(sock, &k->held[i].what, k->held[i].fd);
    return ok && say(sock, &(struct keeper_message){ .word = KEEPER_GIVEN }, -1);
}

static bool is_of_this_user(int sock)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// The one that serves there holds a lock, so there are not two.
static void take_next_broker(struct keeper *k)
{
    int sock = accept4(k->listener, NULL, NULL, SOCK_CLOEXEC);
    if (sock < 0)
        return;
    if (k->broker < 0 && is_of_this_user(sock) && give_all(k, sock))
        k->broker = sock;
    else
        close(sock);
}

// Milliseconds for which it may sleep; 0: its time is over.
static int time_left(const struct keeper *k)
{
    if (k->broker >= 0)
        return -1;
    double left = k->seconds * 1000 - clock_ms_since(k->gone_at);
    return left <= 0 ? 0 : left < 1e6 ? (int)left + 1 : 1000000;
}

// Nothing of the broker's but its user: no terminal, no folder, no log that somebody waits for the
// end of.
static void leave(void)
{
    if (fork() != 0) // whoever ends the broker waits for no child of it
        _exit(0);
    setsid();
    prctl(PR_SET_NAME, "opd: keeper");
    signal(SIGPIPE, SIG_IGN);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
    if (chdir("/") < 0)
        return;
}

int keeper_main(double seconds)
{
    struct keeper k = { .broker = 3, .listener = 4, .seconds = seconds };
    leave();
    say_hello(k.broker); // which may have gone already, having sent all that is to be held
    for (int left; (left = time_left(&k)) != 0;) {
        struct pollfd fds[] = { { .fd = k.broker, .events = POLLIN },
                                { .fd = k.listener, .events = POLLIN } };
        if (poll(fds, 2, left) < 0 && errno != EINTR)
            return 1;
        if (fds[0].revents)
            read_broker(&k);
        else if (fds[1].revents)
            take_next_broker(&k);
    }
    return 0; // and with it goes what it held
}
