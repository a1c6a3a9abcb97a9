#include "request/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "request/parts.h"
#include "base/clock.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "base/systemd.h"
#include "request/conn.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/msg.h"
#include "wire/trust.h"

// Lets the group of --group in, if there is one.
static bool give_to_group(const char *path, mode_t mode, struct opd_err *err)
{
    gid_t group;
    if (!trust_group(&group))
        return true;
    if (chown(path, (uid_t)-1, group) < 0 || chmod(path, mode) < 0)
        return opd_err_errno(err, OPD_E_invalid_argument,
                             "--group: %s cannot be given to the group", path);
    return true;
}

// A folder that was there before: its owner says who can enter it.
static bool check_group_enters(const char *folder, const struct stat *st, struct opd_err *err)
{
    gid_t group;
    if (!trust_group(&group) || (st->st_mode & S_IXOTH) ||
        (st->st_gid == group && (st->st_mode & S_IXGRP)))
        return true;
    return opd_err_set(err, OPD_E_invalid_argument,
                       "--group: its members cannot enter %s: chgrp %u %s; chmod g+x %s", folder,
                       (unsigned)group, folder, folder);
}

static bool make_folder(const char *socket, struct opd_err *err)
{
    char *folder = mem_strdup(socket);
    char *slash = strrchr(folder, '/');
    bool ok = true;
    if (slash && slash != folder) {
        *slash = '\0';
        bool made = mkdir(folder, 0700) == 0;
        if (!made && errno != EEXIST)
            ok = opd_err_errno(err, OPD_E_invalid_argument, "making %s for the socket", folder);
        else if (made)
            ok = give_to_group(folder, 0750, err);
    }
    free(folder);
    return ok;
}

// A folder under /tmp that someone made before us could be theirs.
static bool check_folder(const char *socket, struct opd_err *err)
{
    char *folder = mem_strdup(socket);
    char *slash = strrchr(folder, '/');
    struct stat st;
    bool ok = true;
    if (slash && slash != folder) {
        *slash = '\0';
        if (stat(folder, &st) < 0)
            ok = opd_err_errno(err, OPD_E_invalid_argument, "%s", folder);
        else if (st.st_uid != geteuid() && st.st_uid != 0)
            ok = opd_err_set(err, OPD_E_invalid_argument,
                             "%s belongs to another user (uid %u); put the socket into a folder of "
                             "your own",
                             folder, (unsigned)st.st_uid);
        else if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
            ok = opd_err_set(
                err, OPD_E_invalid_argument,
                "%s can be written by others; put the socket into a folder of your own", folder);
        else
            ok = check_group_enters(folder, &st, err);
    }
    free(folder);
    return ok;
}

enum { LOCK_MS = 500, LOCK_AGAIN_US = 10000 };

// Whether somebody answers there before `left` milliseconds are over.
static bool is_served(const char *path, int left)
{
    static const char hello[] = "\x94\x00\x01\xa5hello\x90", *end = hello + sizeof hello - 1;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct pollfd p = { .events = POLLIN };
    char byte;
    p.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    bool served = p.fd >= 0 && connect(p.fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                  send(p.fd, hello, (size_t)(end - hello), MSG_NOSIGNAL) == end - hello &&
                  poll(&p, 1, left) > 0 && recv(p.fd, &byte, 1, 0) == 1;
    file_close(&p.fd);
    return served;
}

// What one that was killed had just forked holds its lock, and the socket that it listened on,
// until it runs a program of its own.
static bool lock_soon(int fd, const char *path)
{
    uint64_t began = clock_ns();
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int left = LOCK_MS - (int)clock_ms_since(began);
        if (left <= 0 || is_served(path, left))
            return false;
        usleep(LOCK_AGAIN_US);
    }
    return true;
}

static bool take_lock(struct broker *b, struct opd_err *err)
{
    char *path = mem_printf("%s.lock", b->options.socket);
    b->listener.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = true;
    if (b->listener.lock_fd < 0)
        ok = opd_err_errno(err, OPD_E_invalid_argument, "lock %s", path);
    else if (!lock_soon(b->listener.lock_fd, b->options.socket))
        ok = opd_err_set(err, OPD_E_unavailable,
                         "another opd serves on %s; stop it with 'opctl --socket %s stop', or "
                         "choose another --socket",
                         b->options.socket, b->options.socket);
    free(path);
    return ok;
}

static bool bind_socket(struct broker *b, struct opd_err *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const char *path = b->options.socket;
    if (strlen(path) >= sizeof address.sun_path)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "socket %s: the path is longer than %zu bytes", path,
                           sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    struct stat st;
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s is there and is no socket; it is left alone", path);
        log_info("replacing the socket that a daemon left behind: %s", path);
        unlink(path);
    }
    b->listener.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (b->listener.fd < 0)
        return opd_err_errno(err, OPD_E_internal, "socket");
    mode_t mask = umask(0177);
    int result = bind(b->listener.fd, (struct sockaddr *)&address, sizeof address);
    umask(mask);
    if (result < 0 || listen(b->listener.fd, 128) < 0)
        return opd_err_errno(err, OPD_E_invalid_argument, "socket %s", path);
    return give_to_group(path, 0660, err);
}

// The daemon itself takes some dozens of descriptors.
enum { OWN_FDS = 64 };

// A connection takes one, and those that it sends.
void listen_raise_limit(struct options *o)
{
    enum { OF_CONNECTION = 2 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t most = limit.rlim_cur > OWN_FDS ? (limit.rlim_cur - OWN_FDS) / OF_CONNECTION : 1;
    if (most < (uint64_t)o->max_connections) {
        log_warn("%llu file descriptors (ulimit -Hn) are enough for %llu connections",
                 (unsigned long long)limit.rlim_cur, (unsigned long long)most);
        o->max_connections = (int)most;
    }
}

static bool check_fd_limit(struct opd_err *err)
{
    int limit = fdpass_left(-1);
    return limit >= OWN_FDS ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%d file descriptors are too few for the daemon, it takes at least %d; "
                       "raise the limit (ulimit -n)",
                       limit, OWN_FDS);
}

static bool take_socket(struct broker *b, struct opd_err *err)
{
    struct sockaddr_un address = { 0 };
    socklen_t size = sizeof address - 1; // a path that fills it is not terminated
    if (!systemd_take_socket(&b->listener.fd, err))
        return false;
    if (b->listener.fd < 0)
        return true;
    getsockname(b->listener.fd, (struct sockaddr *)&address, &size);
    free(b->options.socket);
    b->options.socket = mem_strdup(address.sun_path);
    b->listener.lent = true;
    return true;
}

bool listen_open(struct broker *b, struct opd_err *err)
{
    return check_fd_limit(err) && take_socket(b, err) && make_folder(b->options.socket, err) &&
           check_folder(b->options.socket, err) && take_lock(b, err) &&
           (b->listener.lent || bind_socket(b, err));
}

static bool may_connect(const struct broker *b, int fd, struct opd_err *err)
{
    if (!trust_peer(fd))
        return opd_err_set(
            err, OPD_E_unavailable,
            "this daemon serves another user; start one of your own, or have yourself "
            "let in by its --group");
    if (fdpass_left(fd) < FDPASS_KEPT_BACK)
        return opd_err_set(err, OPD_E_unavailable,
                           "the daemon keeps its last %d file descriptors for itself; close "
                           "connections, or raise its limit (ulimit -n)",
                           FDPASS_KEPT_BACK);
    if (b->clients.n >= b->options.max_connections)
        return opd_err_set(
            err, OPD_E_unavailable,
            "there are %d connections, which is all that --max-connections allows; close one",
            b->clients.n);
    return true;
}

// Says why, as far as that goes without waiting.
static void refuse(int fd, struct opd_err *err)
{
    log_warn("a connection was refused: %s", err->msg);
    struct buf out = { 0 };
    pack_reply_error(&out, 0, err, NULL);
    send(fd, out.bytes, out.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    buf_finish(&out);
    close(fd);
}

// Without a descriptor for it a connection would stay in the queue and wake the loop for ever.
static void refuse_without_fd(struct broker *b)
{
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_unavailable,
                "the daemon has no file descriptor left; raise its limit (ulimit -n)");
    close(b->listener.spare_fd);
    int fd = accept4(b->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        refuse(fd, &err);
    b->listener.spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void connection_cb(uv_poll_t *handle, int status, int events)
{
    (void)status, (void)events;
    struct broker *b = handle->data;
    int fd;
    while ((fd = accept4(b->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct opd_err err = { 0 };
        if (may_connect(b, fd, &err))
            conn_open(b, fd);
        else
            refuse(fd, &err);
    }
    if ((errno == EMFILE || errno == ENFILE) && b->listener.spare_fd >= 0)
        refuse_without_fd(b);
}

void listen_start(struct broker *b)
{
    b->listener.spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    uv_poll_init(&b->turn.loop, &b->listener.poll, b->listener.fd);
    b->listener.poll.data = b;
    uv_poll_start(&b->listener.poll, UV_READABLE, connection_cb);
    b->listener.open = true;
}

void listen_pause(struct broker *b, bool paused)
{
    if (!b->listener.open)
        return;
    if (paused)
        uv_poll_stop(&b->listener.poll);
    else
        uv_poll_start(&b->listener.poll, UV_READABLE, connection_cb);
}

static void closed_cb(uv_handle_t *handle)
{
    struct broker *b = handle->data;
    close(b->listener.fd);
    close(b->listener.spare_fd);
    b->listener.fd = -1;
}

void listen_close(struct broker *b)
{
    if (b->listener.fd < 0)
        return;
    if (!b->listener.lent)
        unlink(b->options.socket);
    if (b->listener.open) {
        uv_close((uv_handle_t *)&b->listener.poll, closed_cb);
    } else {
        close(b->listener.fd);
        b->listener.fd = -1;
    }
    b->listener.open = false;
}
