#include "executor/executor.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "executor/cpu_confine.h"
#include "executor/devwire.h"
#include "executor/flights.h"
#include "executor/lanes.h"
#include "base/fdpass.h"
#include "base/log.h"
#include "executor/prints.h"
#include "executor/steps.h"

// How long an idle executor spins before it sleeps, and how long one with work in flight polls
// without a pause.
enum { SPIN_IDLE_NS = 50000, SPIN_BUSY_NS = 200000, PAUSE_BUSY_NS = 20000 };

// Between two stamps, where that is asked for. Places that are given out again are not in flight
// any more; nor is what has printed, since there is room for one command's text, or what would be
// told of too late, after a kernel that may not end.
static bool run_steps(struct executor *ex, const struct dev_command *cmd, struct opd_err *err)
{
    bool timed = cmd->id & DEV_RUN_TIMED;
    bool waits = cmd->id & DEV_RUN_ALONE || !steps_have_room(&ex->steps) || prints_any() ||
                 steps_wait(&ex->steps, cmd) || (timed && ex->n_flights >= FLIGHTS_TIMED);
    if (waits && !flights_drain(ex, err))
        return false;
    if (!timed)
        return steps_run(&ex->steps, cmd, err);
    unsigned place = 2 * (unsigned)(ex->n_timed++ % FLIGHTS_TIMED);
    if (!ex->ops->stamp(ex->be, place, err) || !steps_run(&ex->steps, cmd, err) ||
        !ex->ops->stamp(ex->be, place + 1, err))
        return false;
    ex->stamp = place + 1;
    return true;
}

// Before something goes that graphs may name.
static bool rest(struct executor *ex, struct opd_err *err)
{
    bool ok = flights_drain(ex, err);
    if (ok)
        graphs_clear(&ex->steps.graphs);
    return ok;
}

// Commands whose descriptor comes through the socket.
static bool takes_fd(uint32_t type)
{
    return type == DEV_CHUNK_MAP || type == DEV_HOST_MAP || type == DEV_LOAD ||
           type == DEV_LANE_OPEN;
}

// The descriptor, where there is one, is closed by the caller; size: of the whole.
static bool run_lane_command(struct executor *ex, const struct dev_command *cmd, uint32_t size,
                             int fd, struct opd_err *err)
{
    if (cmd->type == DEV_LANE_OPEN)
        return lanes_open(&ex->lanes, cmd, size, fd, &ex->steps.regions, err);
    if (cmd->type == DEV_LANE_ARM)
        return lanes_arm(&ex->lanes, cmd, size, err);
    if (cmd->type == DEV_LANE_CLOSE)
        lanes_close(&ex->lanes, cmd->id);
    else
        lanes_disarm(&ex->lanes, cmd->id);
    return true;
}

static bool run_command(struct executor *ex, const struct dev_command *cmd, uint32_t size, int fd,
                        struct opd_err *err)
{
    struct regions *regions = &ex->steps.regions;
    struct programs *programs = &ex->steps.programs;
    switch (cmd->type) {
    case DEV_CHUNK_NEW:
        return regions_make_chunk(regions, cmd, err);
    case DEV_CHUNK_MAP:
        return regions_map_chunk(regions, cmd, fd, err);
    case DEV_HOST_MAP:
        return regions_map_host(regions, cmd, fd, err);
    case DEV_UNMAP:
        lanes_leave(&ex->lanes, cmd->id);
        return (!regions_is_mapped(regions, cmd->id) || rest(ex, err)) &&
               regions_unmap(regions, cmd->id, err);
    case DEV_LOAD:
        return programs_load(programs, cmd, fd, err);
    case DEV_UNLOAD:
        if (programs_get(programs, cmd->id) && rest(ex, err))
            programs_unload(programs, cmd->id);
        return !err->code;
    case DEV_IPC_OPEN:
        return regions_open_ipc(regions, cmd, err);
    case DEV_LANE_OPEN:
    case DEV_LANE_CLOSE:
    case DEV_LANE_ARM:
    case DEV_LANE_DISARM:
        return run_lane_command(ex, cmd, size, fd, err);
    case DEV_RUN:
        return run_steps(ex, cmd, err);
    case DEV_SERVE:
        executor_take_name(ex->device, false);
        return true;
    case DEV_STOP:
        ex->stopping = true;
        return flights_drain(ex, err);
    default:
        return opd_err_set(err, OPD_E_internal, "command of unknown type %u", cmd->type);
    }
}

// Before what is taken is run, and after.
static void begin_next(struct executor *ex)
{
    steps_begin(&ex->steps, ++ex->seq);
    ex->stamp = 0;
    atomic_store(&ex->progress->taken, ex->seq);
    if (atomic_load(&ex->progress->over)) // who has said so reads `taken` after that
        _exit(3);
}

static bool end_taken(struct executor *ex, uint32_t lane, struct opd_err *err,
                      struct opd_err *fatal)
{
    if (err->code)
        atomic_store(&ex->progress->failed, ex->seq);
    flights_add(ex, lane, err);
    return ex->ops->mark(ex->be, dev_mark(ex->seq, DEV_MARK_END), fatal);
}

// Takes one command, if there is one. False: the device has failed, or the broker is not itself.
static bool take_command(struct executor *ex, bool *out_any, struct opd_err *fatal)
{
    uint32_t size;
    bool bad;
    const struct dev_command *cmd = ring_peek(&ex->commands, &size, &bad);
    *out_any = cmd != NULL;
    if (bad || (cmd && size < sizeof *cmd))
        return opd_err_set(fatal, OPD_E_internal, "the command ring is corrupt");
    if (!cmd)
        return true;
    struct opd_err err;
    opd_err_init(&err);
    int fd = -1;
    // What came with this command would be taken for the next one's: only another process helps.
    if (takes_fd(cmd->type) && (fd = fdpass_recv_one(DEV_FD_SOCKET)) < 0)
        return opd_err_errno(fatal, OPD_E_unavailable, "receiving a descriptor from the broker");
    if (cmd->type != DEV_RUN || flights_hold_up(ex))
        flights_tell(ex);
    begin_next(ex);
    run_command(ex, cmd, size, fd, &err);
    if (fd >= 0)
        close(fd);
    ring_pop(&ex->commands);
    return end_taken(ex, 0, &err, fatal);
}

// The same of an entry of a lane.
static bool take_entry(struct executor *ex, bool *out_any, struct opd_err *fatal)
{
    struct dev_begun begun;
    struct word *word;
    const struct dev_command *cmd = NULL;
    if (ex->lanes.n_open > 0 && atomic_load(&ex->progress->over))
        _exit(3); // another may have these lanes, and have what this one would refuse
    if (ex->lanes.n_open > 0 && !ex->stopping)
        cmd = lanes_take(&ex->lanes, &begun, &word);
    if (!cmd)
        return true;
    struct opd_err err;
    opd_err_init(&err);
    *out_any = true;
    if (flights_hold_up(ex))
        flights_tell(ex);
    flights_tell_begun(ex, &begun);
    begin_next(ex);
    ex->steps.word = word;
    ex->steps.version = 0;
    run_steps(ex, cmd, &err);
    return end_taken(ex, begun.slot + 1, &err, fatal);
}

// Waits for a command: spins for a while, then sleeps. False: none can come any more, or nothing be
// told, since the broker has gone, or a kernel has closed what that goes by.
static bool wait_for_work(struct executor *ex, uint64_t *idle_since)
{
    uint64_t now = clock_ns();
    if (*idle_since == 0)
        *idle_since = now;
    if (ex->n_flights > 0) {
        if (now - *idle_since > SPIN_BUSY_NS)
            nanosleep(&(struct timespec){ .tv_nsec = PAUSE_BUSY_NS }, NULL);
        return true;
    }
    if (now - *idle_since < SPIN_IDLE_NS) {
        if (ex->ops != &backend_cuda) // all but a GPU is cores: the next command may need this one
            sched_yield();
        return true;
    }
    flights_tell(ex);
    if (!lanes_sleep(&ex->lanes))
        return true;
    if (!ring_sleep(&ex->commands)) {
        lanes_wake(&ex->lanes);
        return true;
    }
    struct pollfd fds[] = { { .fd = ex->commands.doorbell, .events = POLLIN },
                            { .fd = DEV_FD_SOCKET, .events = POLLRDHUP },
                            { .fd = ex->done.doorbell },
                            { .fd = ex->lanes.epoll, .events = POLLIN } };
    while (poll(fds, ex->lanes.n_open > 0 ? 4 : 3, -1) < 0 && errno == EINTR)
        continue;
    ring_wake(&ex->commands);
    if (fds[0].revents)
        ring_silence(&ex->commands);
    lanes_wake(&ex->lanes);
    if ((fds[0].revents | fds[1].revents | fds[2].revents | fds[3].revents) & POLLNVAL) {
        log_error("a kernel has closed descriptors of its executor");
        return false;
    }
    return !(fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) || fds[0].revents;
}

static bool serve(struct executor *ex, struct opd_err *fatal)
{
    uint64_t idle_since = 0;
    while (!ex->stopping || ex->n_flights > 0) {
        bool any;
        size_t flights = ex->n_flights;
        if (!take_command(ex, &any, fatal) || !take_entry(ex, &any, fatal) ||
            !flights_report(ex, fatal))
            return false;
        if (flights_must_tell(ex, !any))
            flights_tell(ex);
        if (any || ex->n_flights < flights)
            idle_since = 0;
        else if (!wait_for_work(ex, &idle_since))
            break;
    }
    flights_tell(ex);
    return true;
}

// A spare has time to look what it takes: nobody waits for it.
static void say_hello(struct executor *ex, bool spare, const struct opd_err *err)
{
    struct dev_hello hello = { .ok = ex->be != NULL };
    if (ex->be)
        ex->ops->info(ex->be, &hello.info);
    else
        memcpy(hello.message, err->msg, sizeof hello.message);
    uint64_t own = ex->be && spare && ex->ops->own_memory ? ex->ops->own_memory(ex->be) : 0;
    if (own > 0)
        hello.info.context_size = own;
    if (fdpass_send(DEV_FD_SOCKET, &hello, sizeof hello, NULL, 0) != (ssize_t)sizeof hello)
        log_error("the broker does not take the greeting");
}

static bool attach_rings(struct executor *ex)
{
    uint8_t *memory = mmap(NULL, dev_shared_size(), PROT_READ | PROT_WRITE, MAP_SHARED,
                           DEV_FD_RINGS, 0);
    if (memory == MAP_FAILED)
        return false;
    ring_attach(&ex->commands, memory + dev_ring_offset(0), DEV_RING_SIZE, DEV_FD_COMMAND_BELL);
    ring_attach(&ex->done, memory + dev_ring_offset(1), DEV_RING_SIZE, DEV_FD_DONE_BELL);
    ex->progress = (struct dev_progress *)(void *)(memory + dev_progress_offset());
    lanes_init(&ex->lanes, (struct dev_lanes *)(void *)(memory + dev_lanes_offset()));
    prints_attach((struct dev_prints *)(void *)(memory + dev_prints_offset()), ex->progress);
    return true;
}

static void finish(struct executor *ex)
{
    struct opd_err err = { 0 };
    bool rests = rest(ex, &err);
    opd_err_clear(&err);
    lanes_finish(&ex->lanes);
    steps_finish(&ex->steps, !rests);
    flights_finish(ex);
    if (ex->be)
        ex->ops->close(ex->be);
}

void executor_take_name(const char *device, bool spare)
{
    char name[16];
    snprintf(name, sizeof name, "opd: %.10s", spare ? "spare" : device);
    prctl(PR_SET_NAME, name); // of 15 characters, in ps and top
}

int executor_main(const char *device, enum executor_blas blas, bool spare)
{
    struct executor ex = { .device = device };
    struct opd_err err = { 0 };
    int index;
    ex.ops = backend_find(device, &index);
    if (!ex.ops) {
        log_error("no device is called '%s'", device);
        return 2;
    }
    if (!attach_rings(&ex)) {
        log_error("mapping the rings: %s", strerror(errno));
        return 2;
    }
    prctl(PR_SET_TIMERSLACK, 1); // a pause is 20 us, not 70
    if (ex.ops == &backend_cuda)
        prints_capture();
    else if (!cpu_confine(&err))
        log_warn("%s", err.msg);
    opd_err_clear(&err);
    bool ok = ex.ops->open(&ex.be, index, &err);
    steps_init(&ex.steps, ex.ops, ex.be);
    ex.steps.has_graphs = ok && ex.ops->has_graphs && ex.ops->has_graphs(ex.be);
    ex.steps.blas_later = blas == EXECUTOR_BLAS_LATER;
    if (ok && blas == EXECUTOR_BLAS_NOW)
        ex.ops->blas_load(ex.be);
    if (ok) {
        bool shares = ex.ops->share_marks(ex.be, &ex.progress->passed);
        ex.steps.shares_marks = shares;
        atomic_store(&ex.progress->exact, shares);
        atomic_store(&ex.progress->by_step, shares);
        atomic_store(&ex.progress->graphs, ex.steps.has_graphs);
    }
    say_hello(&ex, spare, &err);
    if (!ok)
        return 1;
    if (serve(&ex, &err)) {
        finish(&ex);
        return 0;
    }
    flights_fail(&ex, &err);
    _exit(3);
}
