// opctl stop: ends the daemon, and returns when it has ended.

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "opctl/command.h"

enum { PATIENCE = 30 }; // seconds for what is in flight

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
