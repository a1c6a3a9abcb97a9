// What a daemon before has left with its keeper, taken over from that, and the end of its
// executors.

#include "device/keep.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "device/devices.h"

enum { GIVE_LIMIT_S = 10, TAKE_LIMIT_MS = 5000, END_LIMIT_MS = 30000 };

// -1: nobody is there; err: somebody who is not to be trusted, or does not answer.
static int connect_keeper(const char *path, struct opd_err *err)
{
    struct sockaddr_un address = keep_address(path);
    struct ucred peer = { 0 };
    socklen_t size = sizeof peer;
    if (strlen(path) >= sizeof address.sun_path)
        return -1;
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock >= 0)
        keep_limit_waiting(sock, GIVE_LIMIT_S);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) < 0) {
        if (errno == EAGAIN)
            opd_err_set(err, OPD_E_unavailable, "the keeper at %s does not answer", path);
        file_close(&sock);
        return -1;
    }
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid())
        return sock;
    opd_err_set(err, OPD_E_unavailable, "%s is a socket of another user (uid %u); remove it", path,
                (unsigned)peer.uid);
    file_close(&sock);
    return -1;
}

static void free_given(struct keep_given *given, size_t n)
{
    for (size_t i = 0; i < n; i++)
        file_close(&given[i].fd);
    free(given);
}

// All that it gives, up to its word that these were all: true.
static bool receive(struct keep *k, struct keep_given **out, size_t *n)
{
    for (size_t capacity = 0;;) {
        struct keep_given g = { .fd = -1 };
        int fds[FDPASS_MAX], n_fds = 0;
        ssize_t size = fdpass_recv(k->sock, &g.what, sizeof g.what, fds, &n_fds);
        if (n_fds > 0)
            g.fd = fds[0];
        while (n_fds > 1)
            close(fds[--n_fds]);
        if (size == (ssize_t)sizeof g.what && g.what.word == KEEPER_HOLD && g.fd >= 0) {
            if (*n == capacity)
                *out = mem_realloc(*out, capacity = capacity ? 2 * capacity : 64, sizeof **out);
            (*out)[(*n)++] = g;
            continue;
        }
        file_close(&g.fd);
        if (size != (ssize_t)sizeof g.what)
            return false;
        if (g.what.word == KEEPER_HELLO)
            k->pid = (int)g.what.size;
        else if (g.what.word == KEEPER_GIVEN)
            return true;
    }
}

// The list is the first of it from then on.
static bool take_list(struct keep *k, struct keep_given *given, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (given[i].what.region == KEEPER_LIST) {
            struct keep_given list = given[i];
            given[i] = given[0];
            given[0] = (struct keep_given){ .what = list.what, .fd = -1 };
            return kept_resume(&k->kept, list.fd);
        }
    return false;
}

// The keeper may not have noticed yet that the broker before, whose lock is this one's now, is
// gone.
static bool ask_keeper(struct keep *k, struct keep_given **out, size_t *n, struct opd_err *err)
{
    uint64_t began = clock_ns();
    while (clock_ms_since(began) < TAKE_LIMIT_MS) {
        k->sock = connect_keeper(k->path, err);
        if (k->sock < 0)
            return false;
        if (receive(k, out, n))
            return true;
        free_given(*out, *n);
        *out = NULL;
        *n = 0;
        file_close(&k->sock);
        poll(NULL, 0, 100);
    }
    return opd_err_set(err, OPD_E_unavailable,
                       "the keeper at %s, which holds the named tensors of a daemon that was "
                       "killed, does not give them; try again, or end it",
                       k->path);
}

size_t keep_take_back(struct devices *all, struct keep_given **out, struct opd_err *err)
{
    struct keep *k = &all->keep;
    size_t n = 0;
    *out = NULL;
    if (!ask_keeper(k, out, &n, err))
        return 0;
    if (!take_list(k, *out, n)) {
        log_error("the list of named tensors that a daemon has left is none; they are lost");
        free_given(*out, n);
        *out = NULL;
        keep_over(all);
        return 0;
    }
    keep_adopt(all);
    return n;
}

static bool await_end(int pid, uint64_t started)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0 && errno == ESRCH)
        return true;
    if (fd < 0)
        return process_started(pid) != started;
    bool ended = process_started(pid) != started;
    if (!ended) {
        syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
        ended = poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, END_LIMIT_MS) > 0;
    }
    close(fd);
    return ended;
}

bool keep_await_executors(struct kept *k, struct opd_err *err)
{
    for (int row = 0; row < DEV_MAX_DEVICES; row++) {
        const struct kept_device *d = kept_device(k, row);
        if (d->name[0] && d->executor > 0 && !await_end(d->executor, d->executor_started))
            return opd_err_set(err, OPD_E_unavailable,
                               "the executor of %s of the daemon before (pid %d) does not end, and "
                               "could still write into its tensors; try again",
                               d->name, d->executor);
    }
    return true;
}
