#include "executor/executor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "executor/cpu_confine.h"
#include "executor/devwire.h"
#include "base/fdpass.h"
#include "executor/graphs.h"
#include "base/log.h"
#include "base/mem.h"
#include "executor/programs.h"
#include "executor/regions.h"
#include "base/ring.h"

enum { N_REPORTS = 2 * DEV_MAX_REPORTS, N_TIMED = BACKEND_STAMPS / 2 }; // in flight
enum { MOST_REPORTED = 256 }; // flights that are kept behind their end

// How long an idle executor spins before it sleeps, and how long one with work in flight polls
// without a pause.
enum { SPIN_IDLE_NS = 50000, SPIN_BUSY_NS = 200000, PAUSE_BUSY_NS = 20000 };

// A command that was given to the device and not yet reported done.
struct flight {
    uint64_t seq;
    uint32_t n_reports;  // that the device puts into executor.reports
    uint32_t steps;      // how many had begun
    unsigned stamp;      // the second of its two; 0: it is not timed
    struct opd_err *err; // owned; NULL: nothing is known to be wrong
};

struct executor {
    const struct backend_ops *ops;
    struct backend *be;
    struct ring commands, done;
    struct dev_progress *progress;
    bool shares_marks; // the device writes progress->passed
    bool blas_later;   // not looked for yet
    bool has_graphs;
    struct regions regions;
    struct programs programs;
    struct graphs graphs;
    struct buf flights; // struct flight: those before the first have been reported
    size_t first_flight, n_flights;
    uint64_t *reports;        // host memory, N_REPORTS of them, given out in turn
    size_t n_reports;         // given out, ever
    size_t n_reported;        // of these, ever: told of, so that their places are free
    struct buf args, tensors; // of the launch
    uint64_t seq;             // of the command that is being run
    uint32_t steps, n_own;    // of it: how many have begun; its reports
    unsigned stamp;           // of it
    size_t n_timed;           // commands, ever
    bool stopping;
};

static uint64_t time_flight(struct executor *ex, const struct flight *flight)
{
    struct opd_err err;
    uint64_t ns = 0;
    opd_err_init(&err);
    if (flight->stamp && !ex->ops->elapsed(ex->be, flight->stamp - 1, flight->stamp, &ns, &err))
        log_warn("timing a run: %s", err.msg);
    opd_err_clear(&err);
    return ns;
}

// The first that is not 0.
static uint64_t find_report(const struct executor *ex, const struct flight *flight,
                            uint32_t *out_number)
{
    uint64_t report = 0;
    *out_number = 0;
    for (uint32_t i = 0; i < flight->n_reports && !report; i++) {
        report = ex->reports[(ex->n_reported + i) % N_REPORTS];
        *out_number = i;
    }
    return report;
}

static void post_done(struct executor *ex, const struct flight *flight, bool fatal)
{
    const char *why = flight->err ? flight->err->msg : "";
    size_t length = strlen(why);
    uint32_t size = (uint32_t)(sizeof(struct dev_done) + length + 1);
    struct dev_done *done;
    // The broker always empties its ring; where it is gone, so are we (the socket ends).
    while (!(done = ring_reserve(&ex->done, size)))
        usleep(100);
    done->seq = flight->seq;
    done->report = find_report(ex, flight, &done->reporter);
    done->ran = time_flight(ex, flight);
    done->code = flight->err ? flight->err->code : OPD_E_none;
    done->fatal = fatal;
    done->steps = flight->steps;
    memcpy(done->message, why, length + 1);
    ring_commit(&ex->done);
}

static struct flight *first_flight(const struct executor *ex)
{
    return (struct flight *)(void *)ex->flights.bytes + ex->first_flight;
}

static void pop_flight(struct executor *ex)
{
    struct opd_err *err = first_flight(ex)->err;
    if (err)
        opd_err_clear(err);
    free(err);
    ex->n_reported += first_flight(ex)->n_reports;
    ex->first_flight++;
    ex->n_flights--;
    if (ex->n_flights > 0 && ex->first_flight < MOST_REPORTED)
        return;
    buf_consume(&ex->flights, ex->first_flight * sizeof(struct flight));
    ex->first_flight = 0;
}

// Reports what the stream has passed. False: the device has failed.
static bool report_done(struct executor *ex, struct opd_err *err)
{
    uint64_t mark = 0;
    bool works = ex->ops->poll(ex->be, &mark, err);
    if (!ex->shares_marks)
        atomic_store_explicit(&ex->progress->passed, mark, memory_order_release);
    if (!works)
        atomic_store(&ex->progress->exact, 1); // it will not move any more
    while (ex->n_flights > 0 && dev_mark(first_flight(ex)->seq, DEV_MARK_END) <= mark) {
        post_done(ex, first_flight(ex), false);
        pop_flight(ex);
    }
    return works;
}

// Waits until the device has nothing left to do.
static bool drain(struct executor *ex, struct opd_err *err)
{
    while (ex->n_flights > 0)
        if (!report_done(ex, err))
            return false;
    return true;
}

static bool fill_slot(struct executor *ex, const struct dev_slot *s, struct opd_err *err)
{
    device_addr base;
    if (!regions_resolve(&ex->regions, (struct dev_ref){ .region = s->region }, s->high, &base,
                         err))
        return false;
    if (s->low > s->offset || s->offset > s->high || s->size > s->high - s->offset ||
        s->pad > s->offset - s->low)
        return opd_err_set(err, OPD_E_internal, "region %u has a tensor outside of its storage",
                           s->region);
    struct backend_tensor t = { .arg_offset = s->arg_offset,
                                .dtype = s->dtype,
                                .pad = s->pad,
                                .addr = base + s->offset,
                                .size = s->size,
                                .low = base + s->low,
                                .high = base + s->high };
    memcpy(ex->args.bytes + s->arg_offset, &t.addr, sizeof t.addr);
    buf_append(&ex->tensors, &t, sizeof t);
    return true;
}

static bool run_launch(struct executor *ex, const struct dev_launch *l, struct opd_err *err)
{
    const struct dev_slot *slots = (const struct dev_slot *)(l + 1);
    struct backend_program *program = programs_get(&ex->programs, l->program);
    if (!program)
        return opd_err_set(err, OPD_E_unavailable,
                           "it could not be loaded again when the device was restarted; try again");
    ex->args.size = ex->tensors.size = 0;
    buf_append(&ex->args, slots + l->n_slots, l->args_size);
    for (uint32_t i = 0; i < l->n_slots; i++)
        if (!fill_slot(ex, &slots[i], err))
            return false;
    struct backend_launch launch = {
        .program = program,
        .shared_size = l->shared_size,
        .args = ex->args.bytes,
        .args_size = l->args_size,
        .tensors = (const struct backend_tensor *)(const void *)ex->tensors.bytes,
        .n_tensors = (int)l->n_slots,
    };
    memcpy(launch.grid, l->grid, sizeof launch.grid);
    memcpy(launch.block, l->block, sizeof launch.block);
    return ex->ops->launch(ex->be, &launch, err);
}

static bool run_fill(struct executor *ex, const struct dev_fill *f, struct opd_err *err)
{
    device_addr dst;
    return regions_resolve(&ex->regions, f->dst, f->size, &dst, err) &&
           ex->ops->fill(ex->be, dst, (uint8_t)f->byte, f->size, err);
}

static bool run_copy(struct executor *ex, const struct dev_copy *c, struct opd_err *err)
{
    device_addr dst, src;
    return regions_resolve(&ex->regions, c->dst, c->size, &dst, err) &&
           regions_resolve(&ex->regions, c->src, c->size, &src, err) &&
           ex->ops->copy(ex->be, dst, src, c->size, err);
}

static bool resolve_matrix(struct executor *ex, const struct dev_matrix *x,
                           struct backend_matrix *out, struct opd_err *err)
{
    *out = (struct backend_matrix){ .stride = x->stride, .transposed = x->transposed };
    return regions_resolve(&ex->regions, x->ref, x->size, &out->addr, err);
}

static bool run_matmul(struct executor *ex, const struct dev_matmul *x, struct opd_err *err)
{
    struct backend_matmul m = {
        .dtype = (enum opd_dtype)x->dtype,
        .result = (enum opd_dtype)x->result,
        .accumulate = x->accumulate,
        .tf32 = x->tf32,
        .m = x->m,
        .n = x->n,
        .k = x->k,
    };
    if (ex->blas_later)
        ex->ops->blas_load(ex->be);
    ex->blas_later = false;
    return resolve_matrix(ex, &x->d, &m.d, err) && resolve_matrix(ex, &x->a, &m.a, err) &&
           resolve_matrix(ex, &x->b, &m.b, err) && ex->ops->matmul(ex->be, &m, err);
}

// Puts what kernels have reported into memory of the host, in stream order.
static bool run_report(struct executor *ex, const struct dev_report *r, struct opd_err *err)
{
    size_t size = N_REPORTS * sizeof *ex->reports;
    device_addr src;
    if (!ex->reports) {
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            return opd_err_errno(err, OPD_E_out_of_memory, "memory for reports of kernels");
        if (ex->ops->host_register)
            ex->ops->host_register(ex->be, p, size);
        ex->reports = p;
    }
    // One that is given out again is not in flight any more.
    if (ex->n_reports - ex->n_reported >= N_REPORTS && !drain(ex, err))
        return false;
    if (ex->n_own == DEV_MAX_REPORTS)
        return opd_err_set(err, OPD_E_internal, "more reports than a command can have");
    uint64_t *report = &ex->reports[ex->n_reports++ % N_REPORTS];
    ex->n_own++;
    *report = 0;
    return regions_resolve(&ex->regions, r->src, sizeof *report, &src, err) &&
           ex->ops->copy(ex->be, (device_addr)(uintptr_t)report, src, sizeof *report, err);
}

// Before a step of a command: what came before it can be told from it, should the device fail.
static bool mark_step(struct executor *ex, bool alone, struct opd_err *err)
{
    uint64_t mark = dev_mark(ex->seq, ex->steps), passed = 0;
    if ((!ex->shares_marks && !alone) || !ex->ops->mark(ex->be, mark, err))
        return !err->code;
    while (alone && passed < mark)
        if (!ex->ops->poll(ex->be, &passed, err))
            return false;
    return true;
}

static bool run_step(struct executor *ex, const void *step, struct opd_err *err)
{
    uint32_t type = ((const struct dev_step *)step)->type;
    switch (type) {
    case DEV_STEP_LAUNCH:
        return run_launch(ex, step, err);
    case DEV_STEP_FILL:
        return run_fill(ex, step, err);
    case DEV_STEP_COPY:
        return run_copy(ex, step, err);
    case DEV_STEP_MATMUL:
        return run_matmul(ex, step, err);
    case DEV_STEP_REPORT:
        return run_report(ex, step, err);
    default:
        return opd_err_set(err, OPD_E_internal, "step of unknown type %u", type);
    }
}

static bool run_steps(struct executor *ex, const struct dev_command *cmd, struct opd_err *err)
{
    bool alone = cmd->id & DEV_RUN_ALONE, launched = false;
    if (alone && !drain(ex, err))
        return false;
    const uint8_t *at = (const uint8_t *)(cmd + 1);
    for (uint64_t i = 0; i < cmd->size; i++) {
        const struct dev_step *step = (const struct dev_step *)(const void *)at;
        if (launched && step->type == DEV_STEP_LAUNCH && !mark_step(ex, alone, err))
            return false;
        launched = launched || step->type == DEV_STEP_LAUNCH;
        ex->steps++;
        if (!run_step(ex, step, err))
            return false;
        at += step->size;
    }
    return true;
}

static bool give_steps(struct executor *ex, const uint8_t *at, uint64_t n, struct opd_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const struct dev_step *step = (const struct dev_step *)(const void *)at;
        if (!run_step(ex, step, err))
            return false;
        at += step->size;
    }
    return true;
}

// A graph of the first steps of a command; NULL: they cannot be one.
static struct backend_graph *make_graph(struct executor *ex, const uint8_t *at, uint64_t n)
{
    struct backend_graph *graph = NULL;
    struct opd_err err = { 0 }, end = { 0 };
    bool begun = ex->ops->graph_begin(ex->be, &err), good = begun && give_steps(ex, at, n, &err);
    if (begun)
        good = ex->ops->graph_end(ex->be, &graph, &end) && good;
    if (!good) {
        log_info("calls that are replayed go one by one: %s", err.code ? err.msg : end.msg);
        if (graph)
            ex->ops->graph_free(ex->be, graph);
    }
    opd_err_clear(&err);
    opd_err_clear(&end);
    return good ? graph : NULL;
}

// The steps of a command before its reports, which go to memory that is another each time.
static uint64_t count_steps(const struct dev_command *cmd, size_t *out_size)
{
    const uint8_t *start = (const uint8_t *)(cmd + 1), *at = start;
    uint64_t n = 0;
    for (const struct dev_step *step; n < cmd->size; n++, at += step->size) {
        step = (const struct dev_step *)(const void *)at;
        if (step->type == DEV_STEP_REPORT)
            break;
    }
    *out_size = (size_t)(at - start);
    return n;
}

// As one launch, from the second time on.
static bool run_replay(struct executor *ex, const struct dev_command *cmd, struct opd_err *err)
{
    const uint8_t *at = (const uint8_t *)(cmd + 1);
    size_t size;
    uint64_t n = count_steps(cmd, &size);
    struct graphs_entry *entry = graphs_find(&ex->graphs, at, size);
    if (entry && !entry->tried)
        entry->graph = make_graph(ex, at, n);
    if (entry)
        entry->tried = true;
    if (!entry || !entry->graph)
        return run_steps(ex, cmd, err);
    ex->steps = 1;
    if (!ex->ops->graph_launch(ex->be, entry->graph, err))
        return false;
    ex->steps = (uint32_t)n;
    return give_steps(ex, at + size, cmd->size - n, err);
}

static bool run_all(struct executor *ex, const struct dev_command *cmd, struct opd_err *err)
{
    bool replay = ex->has_graphs && cmd->id & DEV_RUN_REPLAY && !(cmd->id & DEV_RUN_ALONE);
    return replay ? run_replay(ex, cmd, err) : run_steps(ex, cmd, err);
}

// Between two stamps, where that is asked for.
static bool run_timed(struct executor *ex, const struct dev_command *cmd, struct opd_err *err)
{
    if (!(cmd->id & DEV_RUN_TIMED))
        return run_all(ex, cmd, err);
    // Places that are given out again are not in flight any more.
    if (ex->n_flights >= N_TIMED && !drain(ex, err))
        return false;
    unsigned place = 2 * (unsigned)(ex->n_timed++ % N_TIMED);
    if (!ex->ops->stamp(ex->be, place, err) || !run_all(ex, cmd, err) ||
        !ex->ops->stamp(ex->be, place + 1, err))
        return false;
    ex->stamp = place + 1;
    return true;
}

// Before something goes that graphs may name.
static bool rest(struct executor *ex, struct opd_err *err)
{
    bool ok = drain(ex, err);
    if (ok)
        graphs_clear(&ex->graphs);
    return ok;
}

// Commands whose descriptor comes through the socket.
static bool takes_fd(uint32_t type)
{
    return type == DEV_CHUNK_MAP || type == DEV_HOST_MAP || type == DEV_LOAD;
}

// The descriptor, where there is one, is closed by the caller.
static bool run_command(struct executor *ex, const struct dev_command *cmd, int fd,
                        struct opd_err *err)
{
    switch (cmd->type) {
    case DEV_CHUNK_NEW:
        return regions_make_chunk(&ex->regions, cmd, err);
    case DEV_CHUNK_MAP:
        return regions_map_chunk(&ex->regions, cmd, fd, err);
    case DEV_HOST_MAP:
        return regions_map_host(&ex->regions, cmd, fd, err);
    case DEV_UNMAP:
        return (!regions_is_mapped(&ex->regions, cmd->id) || rest(ex, err)) &&
               regions_unmap(&ex->regions, cmd->id, err);
    case DEV_LOAD:
        return programs_load(&ex->programs, cmd, fd, err);
    case DEV_UNLOAD:
        if (programs_get(&ex->programs, cmd->id) && rest(ex, err))
            programs_unload(&ex->programs, cmd->id);
        return !err->code;
    case DEV_IPC_OPEN:
        return regions_open_ipc(&ex->regions, cmd, err);
    case DEV_RUN:
        return run_timed(ex, cmd, err);
    case DEV_STOP:
        ex->stopping = true;
        return drain(ex, err);
    default:
        return opd_err_set(err, OPD_E_internal, "command of unknown type %u", cmd->type);
    }
}

static void add_flight(struct executor *ex, const struct opd_err *err)
{
    struct flight flight = {
        .seq = ex->seq, .steps = ex->steps, .n_reports = ex->n_own, .stamp = ex->stamp
    };
    if (err->code) {
        flight.err = mem_alloc(sizeof *flight.err);
        *flight.err = *err;
    }
    buf_append(&ex->flights, &flight, sizeof flight);
    ex->n_flights++;
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
    ex->seq = cmd->seq;
    ex->steps = ex->stamp = ex->n_own = 0;
    atomic_store(&ex->progress->taken, ex->seq);
    run_command(ex, cmd, fd, &err);
    if (fd >= 0)
        close(fd);
    if (err.code)
        atomic_store(&ex->progress->failed, ex->seq);
    ring_pop(&ex->commands);
    add_flight(ex, &err);
    return ex->ops->mark(ex->be, dev_mark(ex->seq, DEV_MARK_END), fatal);
}

// Waits for a command: spins for a while, then sleeps. False: the broker has gone.
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
    if (now - *idle_since < SPIN_IDLE_NS || !ring_sleep(&ex->commands))
        return true;
    struct pollfd fds[2] = { { .fd = ex->commands.doorbell, .events = POLLIN },
                             { .fd = DEV_FD_SOCKET, .events = POLLRDHUP } };
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        continue;
    ring_wake(&ex->commands);
    ring_silence(&ex->commands);
    return !(fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR)) || fds[0].revents;
}

static bool serve(struct executor *ex, struct opd_err *fatal)
{
    uint64_t idle_since = 0;
    while (!ex->stopping || ex->n_flights > 0) {
        bool any;
        size_t flights = ex->n_flights;
        if (!take_command(ex, &any, fatal) || !report_done(ex, fatal))
            return false;
        if (any || ex->n_flights < flights)
            idle_since = 0;
        else if (!wait_for_work(ex, &idle_since))
            break;
    }
    return true;
}

static void say_hello(struct executor *ex, const struct opd_err *err)
{
    struct dev_hello hello = { .ok = ex->be != NULL };
    if (ex->be)
        ex->ops->info(ex->be, &hello.info);
    else
        memcpy(hello.message, err->msg, sizeof hello.message);
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
    return true;
}

static void finish(struct executor *ex)
{
    struct opd_err err = { 0 };
    bool rests = rest(ex, &err);
    programs_finish(&ex->programs);
    if (rests) // else the device has failed, and what it maps ends with the process
        regions_finish(&ex->regions);
    opd_err_clear(&err);
    if (ex->reports && ex->ops->host_unregister)
        ex->ops->host_unregister(ex->be, ex->reports);
    if (ex->reports)
        munmap(ex->reports, N_REPORTS * sizeof *ex->reports);
    buf_finish(&ex->flights);
    buf_finish(&ex->args);
    buf_finish(&ex->tensors);
    if (ex->be)
        ex->ops->close(ex->be);
}

int executor_main(const char *device, enum executor_blas blas)
{
    struct executor ex = { 0 };
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
    if (ex.ops == &backend_cpu && !cpu_confine(&err))
        log_warn("%s", err.msg);
    opd_err_clear(&err);
    bool ok = ex.ops->open(&ex.be, index, &err);
    ex.regions = (struct regions){ .ops = ex.ops, .be = ex.be };
    ex.programs = (struct programs){ .ops = ex.ops, .be = ex.be };
    ex.graphs = (struct graphs){ .ops = ex.ops, .be = ex.be };
    ex.has_graphs = ok && ex.ops->has_graphs && ex.ops->has_graphs(ex.be);
    ex.blas_later = blas == EXECUTOR_BLAS_LATER;
    if (ok && blas == EXECUTOR_BLAS_NOW)
        ex.ops->blas_load(ex.be);
    if (ok) {
        ex.shares_marks = ex.ops->share_marks(ex.be, &ex.progress->passed);
        atomic_store(&ex.progress->exact, ex.shares_marks);
        atomic_store(&ex.progress->by_step, ex.shares_marks);
        atomic_store(&ex.progress->graphs, ex.has_graphs);
    }
    say_hello(&ex, &err);
    if (!ok)
        return 1;
    if (serve(&ex, &err)) {
        finish(&ex);
        return 0;
    }
    // The device is beyond use: report what it did before, name the failure for the oldest command
    // that is left, and leave the rest to the broker.
    log_error("%s", err.msg);
    struct opd_err again = { 0 };
    report_done(&ex, &again);
    opd_err_clear(&again);
    struct flight first = { .seq = ex.n_flights ? first_flight(&ex)->seq : 0, .err = &err };
    post_done(&ex, &first, true);
    _exit(3);
}
