#include "base/fdpass.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * FDPASS_MAX)];
};

ssize_t fdpass_send(int sock, const void *bytes, size_t size, const int *fds, int n_fds)
{
    struct iovec iov = { .iov_base = (void *)(unsigned long)bytes, .iov_len = size };
    struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
    union control control;
    if (n_fds > FDPASS_MAX) {
        errno = EINVAL;
        return -1;
    }
    if (n_fds > 0) {
        memset(&control, 0, sizeof control);
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)n_fds);
    }
    ssize_t n;
    do
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t fdpass_recv(int sock, void *bytes, size_t size, int fds[FDPASS_MAX], int *n_fds)
{
    struct iovec iov = { .iov_base = bytes, .iov_len = size };
    union control control;
    struct msghdr msg = { .msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = sizeof control.bytes };
    *n_fds = 0;
    ssize_t n;
    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return n;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (*n_fds < FDPASS_MAX)
                fds[(*n_fds)++] = fd;
            else
                close(fd);
        }
    }
    if (msg.msg_flags & MSG_CTRUNC) {
        while (*n_fds > 0)
            close(fds[--*n_fds]);
        errno = EMSGSIZE;
        return -1;
    }
    return n;
}

int fdpass_recv_one(int sock)
{
    char byte;
    int fds[FDPASS_MAX];
    int n_fds;
    if (fdpass_recv(sock, &byte, 1, fds, &n_fds) != 1)
        return -1;
    while (n_fds > 1)
        close(fds[--n_fds]);
    return n_fds == 1 ? fds[0] : -1;
}

// Each new descriptor has the lowest number that is free.
int fdpass_left(int fd)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur > INT_MAX ? INT_MAX : (int)limit.rlim_cur - 1 - fd;
}

int fdpass_claim(int fd)
{
    if (fd < 0 || fdpass_left(fd) >= FDPASS_KEPT_BACK)
        return fd;
    close(fd);
    errno = EMFILE;
    return -1;
}

int fdpass_memfd(const char *name, size_t size)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        int number = errno;
        close(fd);
        errno = number;
        return -1;
    }
    return fd;
}
