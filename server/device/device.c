#include "device/device.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/device_queue.h"
#include "device/devices.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "base/log.h"
#include "op/plan.h"

enum { START_LIMIT_MS = 60000 };

struct device *device_new(struct devices *all, const char *name, int index)
{
    struct device *d = mem_zalloc(1, sizeof *d);
    *d = (struct device){
        .all = all,
        .is_cpu = strcmp(name, "cpu") == 0,
        .link = { .sock = -1, .rings_fd = -1, .command_bell = -1, .done_bell = -1 },
        .queue = { .next_seq = 1 }
    };
    snprintf(d->name, sizeof d->name, "%s", name);
    d->space = (struct space){ .ops = &device_space_ops,
                               .device = d,
                               .name = d->name,
                               .index = index,
                               .paged = d->is_cpu,
                               .client_limit = all->client_memory,
                               .holders = &all->holders };
    d->queue.pending_end = &d->queue.pending;
    d->queue.flight_end = &d->queue.flight;
    uv_timer_init(&all->turn->loop, &d->timer);
    d->timer.data = d;
    return d;
}

const char *device_state_name(enum device_state state)
{
    static const char *const names[] = { "starting", "ready", "restarting", "failed" };
    return names[state];
}

void device_set_unavailable(const struct device *d, struct opd_err *err)
{
    opd_err_set(err, OPD_E_unavailable, "device %s does not work: %.900s", d->name, d->message);
}

void device_fill_plan_request(const struct device *d, struct plan_request *request)
{
    request->on_cpu = d->is_cpu;
    request->blas = d->info.blas[0] != '\0';
}

static void end_process(struct device *d);

// The executor's context is beyond use and runs nothing any more, but to give it back takes the
// driver a while: the successor need not wait for that. On the CPU it takes no time.
static void leave_dead(struct device *d)
{
    if (!d->link.alive || d->is_cpu || !orphans_add(&d->all->orphans, d->link.process.pid, true))
        return;
    uv_process_kill(&d->link.process, SIGKILL);
    end_process(d);
}

static void take_done(struct device *d)
{
    if (device_take_done(d))
        leave_dead(d);
    device_pump(d);
    device_try_restart(d);
    turn_retry(d->all->turn);
}

// Each ring of the bell wakes the loop once, so that nobody has to read it. libuv knows nothing of
// that: it keeps a descriptor in its epoll as it has put it in, by the time it first tells of it.
static void ring_by_edge(struct device *d)
{
    struct epoll_event edge = { .events = EPOLLIN | EPOLLET, .data.fd = d->link.done_bell };
    int epoll = uv_backend_fd(&d->all->turn->loop);
    d->link.by_edge = epoll_ctl(epoll, EPOLL_CTL_MOD, d->link.done_bell, &edge) == 0;
}

static void done_cb(uv_poll_t *handle, int status, int events)
{
    (void)status, (void)events;
    struct device *d = handle->data;
    if (!d->link.by_edge) {
        ring_by_edge(d);
        ring_silence(&d->link.done);
    }
    do {
        ring_wake(&d->link.done);
        take_done(d);
    } while (d->link.open && !d->link.broken && !ring_sleep(&d->link.done));
}

void device_look(struct device *d)
{
    uint32_t size;
    bool bad;
    if (d->link.open && !d->link.broken && ring_peek(&d->link.done, &size, &bad))
        take_done(d);
}

static void start_deadline_cb(uv_timer_t *timer)
{
    device_kill(timer->data, OPD_E_unavailable, "it did not start in time");
}

static void restart_cb(uv_timer_t *timer)
{
    device_start_executor(timer->data);
}

static double deadline_of(const struct device *d, const struct command *c)
{
    return c->deadline > 0 ? c->deadline : d->all->deadline;
}

static void deadline_cb(uv_timer_t *timer)
{
    struct device *d = timer->data;
    const struct command *c = d->queue.flight;
    if (!c || d->state != DEVICE_READY)
        return; // the next command is watched when it runs
    if (clock_ns() < d->queue.due) {
        device_watch_deadline(d);
        return;
    }
    char reason[128];
    snprintf(reason, sizeof reason, "ran longer than its deadline of %g s and was ended",
             deadline_of(d, c));
    d->queue.expired_seq = c->seq;
    device_kill(d, OPD_E_deadline_exceeded, reason);
}

// The timer is seldom set: it looks a second ahead at most, and what has ended leaves it as it is,
// unless the next one is due before. After the last one it ends by itself.
void device_watch_deadline(struct device *d)
{
    const uint64_t ms = 1000000, second = 1000 * ms;
    double limit = deadline_of(d, d->queue.flight);
    d->queue.due = d->queue.head_since + (uint64_t)(limit < 1e9 ? limit * 1e9 : 1e18);
    if (uv_is_active((uv_handle_t *)&d->timer) && d->queue.due >= d->queue.timer_due)
        return;
    uint64_t now = clock_ns(), left = d->queue.due > now ? d->queue.due - now : 0;
    left = left < second ? left : second;
    d->queue.timer_due = now + left;
    uv_update_time(&d->all->turn->loop);
    uv_timer_start(&d->timer, deadline_cb, left / ms + 1, 0);
}

void device_kill(struct device *d, enum opd_err_code code, const char *reason)
{
    if (!d->link.alive)
        return;
    if (!d->exit.reason[0]) {
        snprintf(d->exit.reason, sizeof d->exit.reason, "%s", reason);
        d->exit.code = code;
    }
    uv_process_kill(&d->link.process, SIGKILL);
}

// Puts before all that waits what a fresh executor must know: its memory, then its kernels.
static void restore(struct device *d)
{
    if (d->queue.pending)
        d->queue.pending->fd_sent = false; // to the dead one
    d->all->hooks->restored(d);
    for (uint32_t i = 0; i < d->regions.n; i++) {
        struct device_region *r = &d->regions.list[i];
        if (!r->used || !r->ready)
            continue;
        if (r->ipc) {
            // Where it cannot be opened again, requests that use it are told so.
            device_submit_first(d, device_ipc_command(d, i));
            continue;
        }
        struct command *c = command_new(r->host ? DEV_HOST_MAP : DEV_CHUNK_MAP, i, r->size);
        c->fd = r->fd;
        device_submit_first(d, c);
    }
}

static void hello_cb(uv_poll_t *handle, int status, int events)
{
    (void)status, (void)events;
    struct device *d = handle->data;
    struct dev_hello hello;
    int fds[FDPASS_MAX], n_fds = 0;
    ssize_t n = fdpass_recv(d->link.sock, &hello, sizeof hello, fds, &n_fds);
    while (n_fds > 0)
        close(fds[--n_fds]);
    if (n < 0 && errno == EAGAIN)
        return;
    uv_poll_stop(handle);
    if (n != (ssize_t)sizeof hello || !hello.ok) {
        hello.message[sizeof hello.message - 1] = '\0';
        device_kill(d, OPD_E_unavailable,
                    n == (ssize_t)sizeof hello ? hello.message : "it ended while starting");
        return;
    }
    if (d->info.uuid[0] && strcmp(d->info.uuid, hello.info.uuid) != 0) {
        device_kill(d, OPD_E_unavailable, "it is another GPU than the one that has its tensors");
        return;
    }
    if (d->blas_known) // the executor has not looked again
        memcpy(hello.info.blas, d->info.blas, sizeof hello.info.blas);
    d->info = hello.info;
    d->info.blas[sizeof d->info.blas - 1] = '\0';
    d->blas_known = true;
    d->queue.did_something = false;
    bool first = d->state == DEVICE_STARTING;
    restore(d); // what a daemon before has left, if it is the first
    d->state = DEVICE_READY;
    uv_timer_stop(&d->timer); // start_deadline_cb()
    log_info("device %s is ready: %s, %s", d->name, d->info.name, d->info.target);
    if (first)
        d->all->hooks->ready(d);
    device_end_restart(d, &(struct opd_err){ 0 });
    device_pump(d);
    turn_retry(d->all->turn);
}

static void close_fds(struct device *d)
{
    int *fds[] = { &d->link.sock, &d->link.rings_fd, &d->link.command_bell, &d->link.done_bell };
    for (int i = 0; i < 4; i++)
        file_close(fds[i]);
    if (d->link.rings_memory)
        munmap(d->link.rings_memory, dev_shared_size());
    d->link.rings_memory = NULL;
    d->link.progress = NULL;
    d->link.prints = NULL;
}

static void describe_exit(struct device *d, int64_t status, int signal)
{
    if (d->exit.reason[0])
        return;
    d->exit.code = d->state == DEVICE_READY ? OPD_E_kernel_fault : OPD_E_unavailable;
    d->exit.killed = signal ==
                     SIGKILL; // by the user, or for want of memory; we would have said why
    if (signal == SIGSYS)     // cpu_confine.h
        snprintf(d->exit.reason, sizeof d->exit.reason,
                 "it called fork() or ran a program, and a kernel may start no process");
    else if (signal)
        snprintf(d->exit.reason, sizeof d->exit.reason, "the executor was ended by signal %d (%s)",
                 signal, strsignal(signal));
    else
        snprintf(d->exit.reason, sizeof d->exit.reason, "the executor ended with status %" PRId64,
                 status);
}

static void schedule_restart(struct device *d)
{
    bool ran = d->state == DEVICE_READY;
    snprintf(d->message, sizeof d->message, "%s", d->exit.reason);
    // One that dies before it has done anything may do so for ever: each waits longer.
    bool good = ran && (d->queue.did_something || d->restart.wanted);
    d->restart.n_failures = good ? 0 : d->restart.n_failures + 1;
    d->restart.count += ran;
    bool hopeless = !good && (d->state == DEVICE_STARTING || d->restart.n_failures >= 3);
    bool never_started = d->state == DEVICE_STARTING;
    d->state = hopeless ? DEVICE_FAILED : DEVICE_RESTARTING;
    if (never_started) {
        d->all->hooks->failed(d); // who knows whether it must be there tells of it
        return;
    }
    log_warn("device %s: %s", d->name, d->message);
    struct opd_err why = { .code = d->exit.code };
    snprintf(why.msg, sizeof why.msg, "%s: %.900s", d->name, d->message);
    if (!d->stopping)
        d->all->hooks->died(d, &why);
    device_settle_flight(d);
    if (hopeless) {
        struct opd_err err = { 0 };
        device_set_unavailable(d, &err);
        device_fail_all(d, device_take_all(&d->queue.pending, &d->queue.pending_end), &err);
        device_end_restart(d, &err);
    }
    uint64_t delay = d->restart.n_failures
                         ? 100u << (d->restart.n_failures < 6 ? d->restart.n_failures : 6)
                         : 0;
    uv_timer_start(&d->timer, restart_cb, delay, 0);
    turn_retry(d->all->turn);
}

static void timer_closed_cb(uv_handle_t *handle)
{
    struct device *d = handle->data;
    d->stopped(d);
}

static void handle_closed_cb(uv_handle_t *handle)
{
    struct device *d = handle->data;
    if (--d->link.n_closing > 0)
        return;
    bool stopping = d->stopping; // the next line may stop it
    if (!stopping)
        schedule_restart(d); // what the executor has left behind is read first
    close_fds(d);
    if (stopping)
        uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
}

// The handles of a process that is gone or left alone.
static void end_process(struct device *d)
{
    d->link.alive = false;
    uv_timer_stop(&d->timer);
    d->link.open = false;
    d->link.n_closing = 3;
    uv_close((uv_handle_t *)&d->link.socket_poll, handle_closed_cb);
    uv_close((uv_handle_t *)&d->link.done_poll, handle_closed_cb);
    uv_close((uv_handle_t *)&d->link.process, handle_closed_cb);
}

static void exit_cb(uv_process_t *process, int64_t status, int signal)
{
    struct device *d = process->data;
    d->link.alive = false;
    take_done(d); // what it said before it died
    describe_exit(d, status, signal);
    end_process(d);
}

static bool make_channel(struct device *d, int *child_sock)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return false;
    d->link.sock = pair[0];
    *child_sock = pair[1];
    fcntl(d->link.sock, F_SETFL, O_NONBLOCK);
    d->link.rings_fd = fdpass_memfd("opd-rings", dev_shared_size());
    d->link.command_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    d->link.done_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (d->link.rings_fd < 0 || d->link.command_bell < 0 || d->link.done_bell < 0)
        return false;
    uint8_t *memory = mmap(NULL, dev_shared_size(), PROT_READ | PROT_WRITE, MAP_SHARED,
                           d->link.rings_fd, 0);
    if (memory == MAP_FAILED)
        return false;
    d->link.rings_memory = memory;
    ring_init(&d->link.commands, memory + dev_ring_offset(0), DEV_RING_SIZE, d->link.command_bell);
    ring_init(&d->link.done, memory + dev_ring_offset(1), DEV_RING_SIZE, d->link.done_bell);
    d->link.progress = (struct dev_progress *)(void *)(memory + dev_progress_offset());
    d->link.prints = (struct dev_prints *)(void *)(memory + dev_prints_offset());
    return true;
}

static int spawn_executor(struct device *d, int child_sock)
{
    const int fds[] = { child_sock, d->link.rings_fd, d->link.command_bell, d->link.done_bell };
    d->link.process.data = d->link.socket_poll.data = d->link.done_poll.data = d;
    bool none = d->all->own_blas || (d->blas_known && !d->info.blas[0]);
    const char *const args[] = { "executor", d->name,
                                 none            ? "own"
                                 : d->blas_known ? "later"
                                                 : "vendor",
                                 NULL };
    return turn_spawn(d->all->turn, &d->link.process, args, fds, 4, exit_cb);
}

void device_start_executor(struct device *d)
{
    int child_sock = -1;
    if (d->state == DEVICE_FAILED)
        d->state = DEVICE_RESTARTING;
    d->exit.reason[0] = '\0';
    d->exit.killed = false;
    d->queue.expired_seq = 0;
    d->link.broken = false;
    bool ok = make_channel(d, &child_sock);
    int result = ok ? spawn_executor(d, child_sock) : uv_translate_sys_error(errno);
    file_close(&child_sock);
    if (result < 0) {
        snprintf(d->exit.reason, sizeof d->exit.reason, "starting an executor: %s",
                 uv_strerror(result));
        d->exit.code = OPD_E_unavailable;
        close_fds(d);
        if (ok) { // libuv made a handle of it all the same
            d->link.n_closing = 1;
            uv_close((uv_handle_t *)&d->link.process, handle_closed_cb);
        } else {
            schedule_restart(d);
        }
        return;
    }
    uv_timer_start(&d->timer, start_deadline_cb, START_LIMIT_MS, 0);
    d->link.alive = d->link.open = true;
    keep_executor(d);
    d->link.by_edge = false;
    uv_poll_init(&d->all->turn->loop, &d->link.socket_poll, d->link.sock);
    uv_poll_init(&d->all->turn->loop, &d->link.done_poll, d->link.done_bell);
    uv_poll_start(&d->link.socket_poll, UV_READABLE, hello_cb);
    uv_poll_start(&d->link.done_poll, UV_READABLE, done_cb);
    ring_sleep(&d->link.done);
}

void device_start(struct device *d)
{
    d->state = DEVICE_STARTING;
    device_start_executor(d);
}

void device_resume(struct device *d)
{
    d->state = DEVICE_RESTARTING;
    device_start_executor(d);
}

void device_stop(struct device *d, void (*stopped)(struct device *d))
{
    d->stopped = stopped;
    d->stopping = true;
    struct opd_err err = { .code = OPD_E_unavailable, .msg = "the daemon is stopping" };
    device_end_restart(d, &err);
    if (d->link.alive && d->state == DEVICE_READY)
        device_submit(d, command_new(DEV_STOP, 0, 0));
    else if (d->link.alive)
        uv_process_kill(&d->link.process, SIGKILL);
    else if (d->link.n_closing == 0)
        uv_close((uv_handle_t *)&d->timer, timer_closed_cb);
}

void device_fail_rest(struct device *d)
{
    struct opd_err err = { 0 };
    opd_err_set(&err, OPD_E_unavailable, "the daemon is stopping");
    struct command *flight = device_take_all(&d->queue.flight, &d->queue.flight_end);
    struct command *pending = device_take_all(&d->queue.pending, &d->queue.pending_end);
    device_fail_all(d, flight, &err);
    device_fail_all(d, pending, &err);
}

void device_free(struct device *d)
{
    if (!d)
        return;
    device_fail_rest(d);
    for (uint32_t i = 0; i < d->regions.n; i++)
        if (d->regions.list[i].used && d->regions.list[i].fd >= 0)
            close(d->regions.list[i].fd);
    free(d->regions.list);
    device_free_spare(d);
    suballoc_finish(&d->space.map);
    staging_finish(&d->staging);
    free(d);
}
