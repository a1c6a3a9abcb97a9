#include "device/device_link.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "device/device.h"
#include "device/devices.h"

enum { START_LIMIT_MS = 60000 };

// --- what it says

// Each ring of the bell wakes the loop once, so that nobody has to read it. libuv knows nothing of
// that: it keeps a descriptor in its epoll as it has put it in, by the time it first tells of it.
static void ring_by_edge(struct device_link *link)
{
    struct epoll_event edge = { .events = EPOLLIN | EPOLLET, .data.fd = link->done_bell };
    int epoll = uv_backend_fd(&link->device->all->turn->loop);
    link->by_edge = epoll_ctl(epoll, EPOLL_CTL_MOD, link->done_bell, &edge) == 0;
}

static void done_cb(uv_poll_t *handle, int status, int events)
{
    (void)status, (void)events;
    struct device_link *link = handle->data;
    if (!link->by_edge) {
        ring_by_edge(link);
        ring_silence(&link->done);
    }
    do {
        ring_wake(&link->done);
        device_link_take_done(link);
    } while (link->alive && !link->broken && !ring_sleep(&link->done));
}

static void hello_cb(uv_poll_t *handle, int status, int events)
{
    (void)status, (void)events;
    struct device_link *link = handle->data;
    struct dev_hello hello;
    int fds[FDPASS_MAX], n_fds = 0;
    ssize_t n = fdpass_recv(link->sock, &hello, sizeof hello, fds, &n_fds);
    while (n_fds > 0)
        close(fds[--n_fds]);
    if (n < 0 && errno == EAGAIN)
        return;
    uv_poll_stop(handle);
    hello.message[sizeof hello.message - 1] = '\0';
    if (n != (ssize_t)sizeof hello)
        device_link_kill(link, OPD_E_unavailable, "it ended while starting");
    else if (!hello.ok)
        device_link_kill(link, OPD_E_unavailable, hello.message);
    else
        device_link_said_hello(link, &hello);
}

static void start_limit_cb(uv_timer_t *timer)
{
    device_link_kill(timer->data, OPD_E_unavailable, "it did not start in time");
}

// --- its end

static void close_fds(struct device_link *link)
{
    int *fds[] = { &link->sock, &link->rings_fd, &link->command_bell, &link->done_bell };
    for (int i = 0; i < 4; i++)
        file_close(fds[i]);
    if (link->rings_memory)
        munmap(link->rings_memory, dev_shared_size());
    link->rings_memory = NULL;
    link->progress = NULL;
    link->lanes = NULL;
    link->prints = NULL;
}

static void leave(struct device_link *link)
{
    if (link->left || !device_link_is_over(link))
        return;
    link->left = true;
    close_fds(link); // what the executor has left behind has been read
}

static void closed_cb(uv_handle_t *handle)
{
    struct device_link *link = handle->data;
    if (handle == (uv_handle_t *)&link->timer || link->gone)
        leave(link);
    if (--link->n_handles > 0)
        return;
    device_link_is_gone(link);
    free(link);
}

static void end(struct device_link *link)
{
    link->alive = false;
    uv_close((uv_handle_t *)&link->timer, closed_cb);
    if (!link->polled)
        return;
    uv_close((uv_handle_t *)&link->socket_poll, closed_cb);
    uv_close((uv_handle_t *)&link->done_poll, closed_cb);
}

static void describe_exit(struct device_link *link, int64_t status, int signal)
{
    struct device_exit *x = &link->exit;
    if (x->reason[0])
        return;
    x->code = link->ready ? OPD_E_kernel_fault : OPD_E_unavailable;
    x->killed = signal == SIGKILL; // by the user, or for want of memory; we would have said why
    if (signal == SIGSYS)          // cpu_confine.h
        snprintf(x->reason, sizeof x->reason,
                 "it called fork() or ran a program, and a kernel may start no process");
    else if (signal)
        snprintf(x->reason, sizeof x->reason, "the executor was ended by signal %d (%s)", signal,
                 strsignal(signal));
    else
        snprintf(x->reason, sizeof x->reason, "the executor ended with status %" PRId64, status);
}

static void exit_cb(uv_process_t *process, int64_t status, int signal)
{
    struct device_link *link = process->data;
    link->gone = true;
    if (link->alive)
        device_link_take_done(link); // what it said before it died
    if (link->alive) {
        describe_exit(link, status, signal);
        end(link);
    }
    uv_close((uv_handle_t *)&link->process, closed_cb);
}

static void give_up(struct device_link *link)
{
    if (link->progress)
        atomic_store(&link->progress->over, 1);
    uv_process_kill(&link->process, SIGKILL);
    end(link);
}

void device_link_kill(struct device_link *link, enum opd_err_code code, const char *reason)
{
    if (!link->alive)
        return;
    if (!link->exit.reason[0]) {
        snprintf(link->exit.reason, sizeof link->exit.reason, "%s", reason);
        link->exit.code = code;
    }
    if (!link->gone)
        give_up(link);
}

void device_link_leave(struct device_link *link)
{
    link->quiet = true;
    if (!link->gone)
        give_up(link);
}

// --- its start

static bool make_channel(struct device_link *link, int *child_sock)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    link->sock = pair[0];
    *child_sock = pair[1];
    fcntl(link->sock, F_SETFL, O_NONBLOCK);
    link->rings_fd = fdpass_memfd("opd-rings", dev_shared_size());
    link->command_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    link->done_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (link->rings_fd < 0 || link->command_bell < 0 || link->done_bell < 0)
        return false;
    uint8_t *memory = mmap(NULL, dev_shared_size(), PROT_READ | PROT_WRITE, MAP_SHARED,
                           link->rings_fd, 0);
    if (memory == MAP_FAILED)
        return false;
    link->rings_memory = memory;
    ring_init(&link->commands, memory + dev_ring_offset(0), DEV_RING_SIZE, link->command_bell);
    ring_init(&link->done, memory + dev_ring_offset(1), DEV_RING_SIZE, link->done_bell);
    link->progress = (struct dev_progress *)(void *)(memory + dev_progress_offset());
    link->lanes = (struct dev_lanes *)(void *)(memory + dev_lanes_offset());
    link->prints = (struct dev_prints *)(void *)(memory + dev_prints_offset());
    return true;
}

static int spawn(struct device_link *link, int child_sock, bool spare)
{
    struct device *d = link->device;
    const int fds[] = { child_sock, link->rings_fd, link->command_bell, link->done_bell };
    bool none = d->all->own_blas || (d->blas_known && !d->info.blas[0]);
    const char *const args[] = { "executor", d->name,
                                 none            ? "own"
                                 : d->blas_known ? "later"
                                                 : "vendor",
                                 spare ? "spare" : "serving", NULL };
    int result = turn_spawn(d->all->turn, &link->process, args, fds, 4, exit_cb);
    link->n_handles++; // libuv makes a handle of it in any case
    link->gone = result < 0;
    return result;
}

static void watch(struct device_link *link)
{
    uv_loop_t *loop = &link->device->all->turn->loop;
    uv_poll_init(loop, &link->socket_poll, link->sock);
    uv_poll_init(loop, &link->done_poll, link->done_bell);
    uv_poll_start(&link->socket_poll, UV_READABLE, hello_cb);
    uv_poll_start(&link->done_poll, UV_READABLE, done_cb);
    uv_timer_start(&link->timer, start_limit_cb, START_LIMIT_MS, 0);
    link->polled = true;
    link->n_handles += 2;
    ring_sleep(&link->done);
}

struct device_link *device_link_start(struct device *d, bool spare)
{
    struct device_link *link = mem_zalloc(1, sizeof *link);
    *link = (struct device_link){ .device = d,
                                  .alive = true,
                                  .gone = true,
                                  .n_handles = 1,
                                  .oldest = 1,
                                  .sock = -1,
                                  .rings_fd = -1,
                                  .command_bell = -1,
                                  .done_bell = -1,
                                  .started = clock_ns() };
    link->next = d->links;
    d->links = link;
    link->pending_end = &link->pending;
    link->flight_end = &link->flight;
    uv_timer_init(&d->all->turn->loop, &link->timer);
    link->process.data = link->socket_poll.data = link->done_poll.data = link->timer.data = link;
    int child_sock = -1;
    bool made = make_channel(link, &child_sock);
    int result = made ? spawn(link, child_sock, spare) : uv_translate_sys_error(errno);
    file_close(&child_sock);
    if (result >= 0) {
        watch(link);
        return link;
    }
    snprintf(link->exit.reason, sizeof link->exit.reason, "starting an executor: %s",
             uv_strerror(result));
    link->exit.code = OPD_E_unavailable;
    if (made)
        uv_close((uv_handle_t *)&link->process, closed_cb);
    end(link);
    return link;
}
