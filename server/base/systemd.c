#include "base/systemd.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_FD = 3 }; // SD_LISTEN_FDS_START

static bool read_number(const char *name, long *out)
{
    const char *text = getenv(name);
    char *end;
    *out = text ? strtol(text, &end, 10) : 0;
    return text && text[0] && !*end;
}

static bool is_listening(int fd)
{
    struct sockaddr_un address = { 0 };
    socklen_t size = sizeof address, n = sizeof(int);
    int listens = 0, type = 0;
    return getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
           address.sun_family == AF_UNIX && size > offsetof(struct sockaddr_un, sun_path) &&
           address.sun_path[0] == '/' &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) == 0 && listens &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_STREAM;
}

bool systemd_take_socket(int *out_fd, struct opd_err *err)
{
    long pid, n;
    *out_fd = -1;
    bool ours = read_number("LISTEN_PID", &pid) && pid == getpid() &&
                read_number("LISTEN_FDS", &n) && n > 0;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (!ours)
        return true;
    if (n != 1 || !is_listening(FIRST_FD))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "LISTEN_FDS: %ld sockets were handed over, or one of another kind; "
                           "expected one, with ListenStream= and a path",
                           n);
    fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC);
    fcntl(FIRST_FD, F_SETFL, O_NONBLOCK);
    *out_fd = FIRST_FD;
    return true;
}

void systemd_notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = path ? strlen(path) : 0;
    if (length < 2 || length >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; // an abstract name
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    close(fd);
}
