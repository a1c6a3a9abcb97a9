#include "device/keep.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/process.h"
#include "device/device.h"
#include "device/devices.h"

// A keeper only takes messages: one that does not for so long is none.
enum { SAY_LIMIT_S = 1 };
enum { AGAIN_MS = 1000 }; // not two keepers within

static const uint64_t NS_OF_MS = 1000000;

static void free_handle(uv_handle_t *handle)
{
    free(handle);
}

static void lose_keeper(struct keep *k)
{
    if (k->sock < 0)
        return;
    if (k->poll)
        uv_close((uv_handle_t *)k->poll, free_handle);
    k->poll = NULL;
    close(k->sock);
    k->sock = -1;
    k->pid = 0;
}

static bool say(struct keep *k, const struct keeper_message *m, int fd)
{
    if (k->sock < 0)
        return false;
    if (fdpass_send(k->sock, m, sizeof *m, &fd, fd >= 0) == (ssize_t)sizeof *m)
        return true;
    log_warn("the keeper of named tensors takes nothing any more: %s", strerror(errno));
    if (errno == EAGAIN && k->pid > 0) // it is there, and would hold what it has for nobody
        kill(k->pid, SIGKILL);
    shutdown(k->sock, SHUT_RDWR); // heard() starts another, which is told all
    return false;
}

static bool say_region(struct keep *k, const struct device *d, uint32_t region)
{
    const struct device_region *r = &d->regions.list[region];
    struct keeper_message m = { .word = KEEPER_HOLD,
                                .device = (uint32_t)kept_row(&k->kept, d->name),
                                .region = region,
                                .exported = r->exported,
                                .size = r->size };
    return say(k, &m, r->fd);
}

static bool say_all(struct keep *k, const struct devices *all)
{
    const struct keeper_message list = { .word = KEEPER_HOLD, .region = KEEPER_LIST };
    const struct keeper_message pins = { .word = KEEPER_HOLD, .region = KEEPER_PINS };
    bool ok = say(k, &list, k->kept.fd) && (k->pins_fd < 0 || say(k, &pins, k->pins_fd));
    for (int i = 0; i < all->n; i++)
        for (uint32_t id = 0; ok && id < all->at[i]->regions.n; id++)
            if (all->at[i]->regions.list[id].kept)
                ok = say_region(k, all->at[i], id);
    return ok;
}

// --- its process

struct sockaddr_un keep_address(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = keep_address(path);
    struct stat st;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) // nothing else that somebody has there
        unlink(path);
    mode_t mask = umask(0177);
    bool ok = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 8) == 0;
    umask(mask);
    if (!ok)
        file_close(&fd);
    return fd;
}

static void starter_ended(uv_process_t *process, int64_t status, int signal)
{
    (void)status, (void)signal;
    uv_close((uv_handle_t *)process, free_handle);
}

void keep_limit_waiting(int sock, int seconds)
{
    struct timeval limit = { .tv_sec = seconds };
    setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

static bool start_keeper(struct devices *all);

static void forget_again(struct keep *k)
{
    if (k->again)
        uv_close((uv_handle_t *)k->again, free_handle);
    k->again = NULL;
}

static void again_cb(uv_timer_t *timer)
{
    struct devices *all = timer->data;
    forget_again(&all->keep);
    if (all->keep.sock < 0)
        start_keeper(all);
}

// Another keeper, now or as soon as it may be.
static void start_again(struct devices *all)
{
    struct keep *k = &all->keep;
    uint64_t since = (clock_ns() - k->started_at) / NS_OF_MS;
    if (since >= AGAIN_MS) {
        start_keeper(all);
    } else if (!k->again) {
        k->again = mem_zalloc(1, sizeof *k->again);
        uv_timer_init(&all->turn->loop, k->again);
        k->again->data = all;
        uv_timer_start(k->again, again_cb, AGAIN_MS - since, 0);
    }
}

static void heard(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct devices *all = poll->data;
    struct keep *k = &all->keep;
    struct keeper_message m = { 0 };
    ssize_t n = recv(k->sock, &m, sizeof m, MSG_DONTWAIT);
    if (n == (ssize_t)sizeof m && m.word == KEEPER_HELLO)
        k->pid = (int)m.size;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    log_warn("the keeper of named tensors has ended");
    lose_keeper(k);
    if (k->seconds > 0 && (k->kept.n > 0 || k->pins_fd >= 0))
        start_again(all);
}

void keep_adopt(struct devices *all)
{
    struct keep *k = &all->keep;
    keep_limit_waiting(k->sock, SAY_LIMIT_S);
    k->poll = mem_zalloc(1, sizeof *k->poll);
    k->poll->data = all;
    if (uv_poll_init(&all->turn->loop, k->poll, k->sock) == 0) {
        uv_poll_start(k->poll, UV_READABLE, heard);
        return;
    }
    free(k->poll);
    k->poll = NULL;
}

// The keeper's parent, which ends at once.
static bool spawn(struct devices *all, int sock, int listener)
{
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.3f", all->keep.seconds);
    const char *const args[] = { "keeper", seconds, NULL };
    const int fds[] = { sock, listener };
    uv_process_t *parent = mem_zalloc(1, sizeof *parent);
    int status = turn_spawn(all->turn, parent, args, fds, 2, starter_ended);
    if (status < 0) {
        errno = -status;
        uv_close((uv_handle_t *)parent, free_handle);
    }
    return status == 0;
}

static bool start_keeper(struct devices *all)
{
    struct keep *k = &all->keep;
    int pair[2] = { -1, -1 }, listener = listen_at(k->path);
    k->started_at = clock_ns();
    bool ok = listener >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0 &&
              spawn(all, pair[1], listener);
    if (!ok)
        log_warn("named tensors would not outlive the daemon: no keeper at %s: %s", k->path,
                 strerror(errno));
    file_close(&pair[1]);
    file_close(&listener);
    if (!ok) {
        file_close(&pair[0]);
        return false;
    }
    k->sock = pair[0];
    keep_adopt(all);
    return say_all(k, all);
}

// --- what it holds

void keep_executor(struct device *d)
{
    struct kept *k = &d->all->keep.kept;
    int row = kept_row(k, d->name);
    if (row < 0)
        return;
    struct kept_device *there = kept_device(k, row);
    there->executor = 0;
    bool alive = d->link && d->link->alive;
    there->executor_started = alive ? process_started(d->link->process.pid) : 0;
    there->executor = alive ? d->link->process.pid : 0;
}

static bool add_device(struct device *d)
{
    struct kept *k = &d->all->keep.kept;
    if (kept_row(k, d->name) >= 0)
        return true;
    if (kept_add_device(k, d->name, d->info.uuid) < 0)
        return false;
    keep_executor(d);
    return true;
}

// The list, and a keeper that has it, or will.
static bool have_list(struct devices *all)
{
    struct keep *k = &all->keep;
    if (k->kept.fd < 0 && !kept_new(&k->kept))
        return false;
    if (k->sock < 0 && !k->again)
        start_again(all);
    return true;
}

void keep_pins(struct devices *all, const void *bytes, size_t size)
{
    struct keep *k = &all->keep;
    struct keeper_message m = { .word = size ? KEEPER_HOLD : KEEPER_DROP, .region = KEEPER_PINS };
    bool there = k->seconds > 0 && (size == 0 ? k->sock >= 0 : have_list(all));
    file_close(&k->pins_fd);
    if (there && size > 0)
        k->pins_fd = file_memfd("opd-pins", bytes, size);
    if (there && (size == 0 || k->pins_fd >= 0))
        say(k, &m, k->pins_fd);
}

static bool hold(struct space *space, uint32_t region)
{
    struct device *d = space->device;
    struct keep *k = &d->all->keep;
    if (!have_list(d->all) || !add_device(d))
        return false;
    if (region == KEPT_NOWHERE || d->regions.list[region].kept)
        return true;
    d->regions.list[region].kept = true; // a keeper that does not take it has a next one
    say_region(k, d, region);
    return true;
}

void keep_dropped(struct device *d, uint32_t region)
{
    struct keep *k = &d->all->keep;
    if (d->regions.list[region].kept)
        say(k,
            &(struct keeper_message){ .word = KEEPER_DROP,
                                      .device = (uint32_t)kept_row(&k->kept, d->name),
                                      .region = region },
            -1);
}

void keep_exported(struct device *d, uint32_t region)
{
    struct keep *k = &d->all->keep;
    struct device_region *r = &d->regions.list[region];
    if (!r->exported && r->kept)
        say(k,
            &(struct keeper_message){ .word = KEEPER_EXPORTED,
                                      .device = (uint32_t)kept_row(&k->kept, d->name),
                                      .region = region },
            -1);
    r->exported = true;
}

// --- life

void keep_init(struct devices *all, const char *socket, double seconds)
{
    all->keep = (struct keep){ .kept = { .fd = -1, .hold = hold },
                               .sock = -1,
                               .pins_fd = -1,
                               .seconds = seconds,
                               .path = mem_printf("%s.keep", socket) };
    size_t most = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    if (seconds > 0 && strlen(all->keep.path) > most) {
        log_warn("named tensors will not outlive the daemon: %s is longer than %zu bytes",
                 all->keep.path, most);
        all->keep.seconds = 0;
    }
}

void keep_begin(struct devices *all)
{
    for (int i = 0; i < all->n && all->keep.seconds > 0; i++)
        all->at[i]->space.kept = &all->keep.kept;
    if (all->keep.seconds > 0 && all->keep.kept.n > 0 && all->keep.sock < 0)
        start_again(all); // it was lost when the program before this one had ended
}

void keep_close(struct devices *all)
{
    forget_again(&all->keep);
    lose_keeper(&all->keep);
    file_close(&all->keep.pins_fd);
    kept_finish(&all->keep.kept);
    free(all->keep.path);
    all->keep.path = NULL;
}

void keep_over(struct devices *all)
{
    struct keep *k = &all->keep;
    for (int i = 0; i < all->n; i++)
        all->at[i]->space.kept = NULL;
    forget_again(k);
    if (k->sock < 0)
        return;
    say(k, &(struct keeper_message){ .word = KEEPER_OVER }, -1);
    unlink(k->path);
    lose_keeper(k);
}

bool keep_resume(struct devices *all, int sock, int list_fd)
{
    all->keep.sock = sock;
    all->keep.started_at = clock_ns();
    if (sock >= 0)
        keep_adopt(all);
    return kept_resume(&all->keep.kept, list_fd);
}
