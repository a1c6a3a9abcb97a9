// opctl stop: ends the daemon, and returns when it has ended. Where it was killed before, what its
// keeper holds is given up.

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/keeping.h"
#include "opctl/command.h"

enum { PATIENCE = 30, KEEPER_PATIENCE = 5 }; // seconds: for what is in flight; for the keeper

static void show_nothing(FILE *out, const msgpack_object *result)
{
    (void)out;
    (void)result;
}

// The daemon's last act is to close its connections.
static bool wait_for_end(int fd)
{
    time_t end = time(NULL) + PATIENCE;
    while (time(NULL) < end) {
        char byte;
        struct pollfd p = { .fd = fd, .events = POLLIN };
        if (poll(&p, 1, 1000) > 0 && recv(fd, &byte, 1, MSG_DONTWAIT) <= 0)
            return true;
    }
    return false;
}

int cmd_stop(struct session *session, const struct args *args)
{
    (void)args;
    int code = session_ask(session, "stop", NULL, show_nothing);
    if (code == EXIT_GOOD && !wait_for_end(opd_fd(session->client))) {
        fprintf(stderr, "opctl: the daemon is still finishing requests after %d s\n", PATIENCE);
        return EXIT_ANSWERED;
    }
    return code;
}

// A keeper that has a broker hangs up. The descriptors that it gives are not taken.
static bool end_keeper(int fd)
{
    struct keeper_message m = { 0 };
    struct timeval limit = { .tv_sec = KEEPER_PATIENCE };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while (m.word != KEEPER_GIVEN)
        if (recv(fd, &m, sizeof m, 0) != (ssize_t)sizeof m)
            return false;
    m = (struct keeper_message){ .word = KEEPER_OVER };
    return send(fd, &m, sizeof m, MSG_NOSIGNAL) == (ssize_t)sizeof m && recv(fd, &m, 1, 0) <= 0;
}

bool stop_keeper(const char *socket_path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const size_t size = sizeof address.sun_path;
    char path[sizeof address.sun_path];
    if (socket_path ? snprintf(path, size, "%s", socket_path) >= (int)size
                    : !opd_default_socket(path, size))
        return false;
    if (snprintf(address.sun_path, size, "%s.keep", path) >= (int)size)
        return false;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool ended = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                 end_keeper(fd);
    if (fd >= 0)
        close(fd);
    if (ended)
        puts("no daemon serves there; the named tensors that were kept of one that was killed are "
             "given up");
    return ended;
}
