#include "c/sock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "c/error.h"

uint64_t sock_deadline(double seconds)
{
    if (!(seconds > 0) || seconds > 1e9)
        return UINT64_MAX;
    return clock_ns() + (uint64_t)(seconds * 1e9);
}

// connect() of a Unix socket waits while the listener's queue is full, for as long as a send may.
static bool connect_within(int fd, const struct sockaddr_un *address, double timeout)
{
    if (timeout > 0 && timeout < 1e9) {
        struct timeval tv = { .tv_sec = (time_t)timeout };
        tv.tv_usec = (suseconds_t)((timeout - (double)tv.tv_sec) * 1e6) + 1;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    }
    return connect(fd, (const struct sockaddr *)address, sizeof *address) == 0;
}

// The kernel tells who called listen(). A daemon that serves a group has given its socket to that.
static bool check_peer(int fd, const char *path, bool named, struct opd_error *err)
{
    struct ucred peer;
    struct stat st;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return error_set_errno(err, OPD_CONNECTION_LOST, "%s: who serves there", path);
    if (peer.uid == geteuid() || peer.uid == 0)
        return true;
    if (named && geteuid() == 0)
        return true;
    if (named && stat(path, &st) == 0 && st.st_uid == peer.uid && (st.st_mode & S_IWGRP) &&
        (st.st_gid == getegid() || group_member(st.st_gid)))
        return true;
    return error_set(err, OPD_CONNECTION_LOST,
                     "%s is served by another user (uid %u), and not for a group of yours; nothing "
                     "was sent: start an opd of your own, and name its socket",
                     path, (unsigned)peer.uid);
}

static void tell_failure(const char *path, int number, struct opd_error *err)
{
    if (number == EACCES || number == EPERM)
        error_set(err, OPD_CONNECTION_LOST,
                  "%s is not open to you (%s): have yourself let in by the --group of the daemon "
                  "there, or start an opd of your own, and name its socket",
                  path, strerror(number));
    else
        error_set(err, OPD_CONNECTION_LOST, "no daemon at %s (%s): start opd, or name its socket",
                  path, strerror(number));
}

int sock_connect(const char *path, bool named, double timeout, struct opd_error *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof address.sun_path) {
        error_set(err, OPD_INVALID_ARGUMENT,
                  "the socket's path has %zu bytes, expected 1 to %zu: choose a shorter one (%s)",
                  length, sizeof address.sun_path - 1, path);
        return -1;
    }
    memcpy(address.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !connect_within(fd, &address, timeout))
        tell_failure(path, errno, err);
    else if (check_peer(fd, path, named, err))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int poll_timeout(uint64_t deadline)
{
    if (deadline == UINT64_MAX)
        return -1;
    uint64_t now = clock_ns();
    if (now >= deadline)
        return 0;
    uint64_t ms = (deadline - now) / 1000000 + 1;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

bool sock_poll(int fd, short events, uint64_t deadline, short *happened, struct opd_error *err)
{
    for (;;) {
        struct pollfd p = { .fd = fd, .events = events };
        int n = poll(&p, 1, poll_timeout(deadline));
        if (n > 0) {
            *happened = p.revents;
            return true;
        }
        if (n < 0 && errno != EINTR)
            return error_set_errno(err, OPD_CONNECTION_LOST, "poll");
        if (clock_ns() >= deadline)
            return error_set(err, OPD_DEADLINE_EXCEEDED,
                             "the daemon sent nothing in time: it is busy, stopped or hung");
    }
}

ssize_t sock_write(int fd, const struct iovec *parts, size_t count, int passed)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = { 0 };
    struct msghdr message = { .msg_iov = (struct iovec *)parts, .msg_iovlen = count };
    if (passed >= 0) {
        message.msg_control = control.room;
        message.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof passed);
        memcpy(CMSG_DATA(c), &passed, sizeof passed);
    }
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return n;
}
