#include "broker.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/conn.h"
#include "device/device.h"
#include "request/listen.h"
#include "request/request.h"
#include "request/parts.h"
#include "request/postmortem.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/spin.h"
#include "base/systemd.h"
#include "kernels/pool.h"
#include "kernels/program.h"
#include "memory/tensor.h"
#include "wire/trust.h"
#include "upgrade/recover.h"
#include "upgrade/state.h"
#include "upgrade/upgrade.h"
#include "base/version.h"
#include "kernels/warm.h"
#include "roof.h"

// --- turns of the loop

static void idle_cb(uv_idle_t *idle)
{
    (void)idle; // being there is enough
}

void roof_stay_awake(struct broker *b)
{
    uv_idle_start(&roof(b)->idle, idle_cb);
}

// Whether the loop goes on without sleeping. `came`: some device has done something.
static bool keep_spinning(struct broker *b, bool came)
{
    struct roof *r = roof(b);
    if (!b->spins)
        return false;
    uint64_t now = clock_ns();
    if (came || b->counters.requests != r->n_requests) {
        spin_end(&r->spin, now);
        spin_begin(&r->spin, now);
        r->n_requests = b->counters.requests;
    }
    return spin_on(&r->spin, now);
}

static void prepare_cb(uv_prepare_t *prepare)
{
    struct broker *b = prepare->data;
    for (int i = 0; b->spins && i < b->devices.n; i++)
        device_look(b->devices.at[i]);
    bool retry = b->turn.retry_wanted;
    b->turn.retry_wanted = false;
    if (retry && !b->stopping)
        reload_poll(&b->reload);
    if (b->clients.left)
        conn_free_left(b, CONN_FREED_A_TURN);
    if (b->postmortems)
        postmortem_poll(b);
    conn_turn_all(b, retry);
    if (b->pins_moved)
        recover_keep_pins(b);
    if (b->stopping)
        stop_go_on(b);
    else
        upgrade_poll(b);
    bool spins = keep_spinning(b, retry);
    if (b->turn.retry_wanted || spins)
        roof_stay_awake(b);
    else
        uv_idle_stop(&roof(b)->idle);
    turn_end(&b->turn);
}

// --- devices

static void device_died(struct device *d, const struct opd_err *why)
{
    struct broker *b = d->all->owner;
    events_add(&b->events, &(struct event){ .kind = "device", .err = why });
    lane_close_device(b, d);
}

static void device_rests(struct device *d)
{
    lane_rest(d->all->owner, d);
}

// --- start

static void name_compiler(char *name, struct pool_result *result, const struct opd_err *err)
{
    snprintf(name, sizeof((struct broker *)0)->nvrtc, "%s",
             err->code ? err->msg : result->compiler);
    if (err->code)
        log_warn("%s", err->msg);
    else
        log_info("compiler: %s", result->compiler);
}

static void name_host_compiler(void *data, struct pool_result *result, const struct opd_err *err)
{
    struct broker *b = data;
    name_compiler(b->host_compiler, result, err);
}

static void name_nvrtc(void *data, struct pool_result *result, const struct opd_err *err)
{
    struct broker *b = data;
    int major = 0, minor = 0;
    name_compiler(b->nvrtc, result, err);
    sscanf(b->nvrtc, "nvrtc %d.%d", &major, &minor);
    b->devices.long_args = major > 12 || (major == 12 && minor >= 1);
}

static void ask_compiler(struct broker *b, const char *target, pool_done done)
{
    const char *strings[JOB_MAX_STRINGS];
    for (int i = 0; i < JOB_MAX_STRINGS; i++)
        strings[i] = "";
    strings[JOB_KIND] = "identity";
    strings[JOB_TARGET] = target;
    strings[JOB_FILE] = target;
    pool_submit(b->pool, POOL_FRONT, b, strings, done, b);
}

static void say_ready(const struct broker *b)
{
    printf("ready: %s (devices", b->options.socket);
    for (int i = 0; i < b->devices.n; i++)
        printf("%s %s", i ? "," : "", b->devices.at[i]->name);
    printf(")\n");
    fflush(stdout);
    systemd_notify("READY=1");
}

static void serve_now(struct broker *b)
{
    bool cuda = false, cpu = false;
    for (int i = 0; i < b->devices.n; i++) {
        cpu = cpu || b->devices.at[i]->is_cpu;
        cuda = cuda || !b->devices.at[i]->is_cpu;
    }
    if (cpu)
        ask_compiler(b, "cpu", name_host_compiler);
    if (cuda)
        ask_compiler(b, "sm_90", name_nvrtc);
    // Its devices' processes, itself, a client, and one for all others.
    b->spins = b->options.spin && spin_cores() >= b->devices.n + 3;
    spin_init(&roof(b)->spin, b->spins);
    if (b->options.warm)
        warm_start(&b->registry, &b->devices, b->pool);
    reload_start(&b->reload);
    listen_start(b);
}

static void serve(struct broker *b)
{
    if (b->devices.n == 0) {
        log_error("no device to serve");
        roof(b)->exit_status = 1;
        stop_begin(b);
        return;
    }
    if (b->devices.keep.seconds <= 0) // and not before: what fails to start has lost nothing
        keep_over(&b->devices);
    serve_now(b);
    say_ready(b);
}

static void device_ready(struct device *d)
{
    struct broker *b = d->all->owner;
    if (--roof(b)->n_starting == 0 && !b->stopping)
        serve(b);
}

static void free_device(struct device *d)
{
    device_fail_rest(d); // programs that it should have loaded are told
    program_free_all(d);
    device_free(d);
}

static void device_failed(struct device *d)
{
    struct broker *b = d->all->owner;
    bool optional = b->options.auto_devices && !d->is_cpu;
    if (optional)
        log_info("not served: %s: %s", d->name, d->message);
    else
        log_error("device %s cannot be served: %s", d->name, d->message);
    recover_leave(b, d);
    devices_remove(&b->devices, d);
    roof(b)->n_starting--;
    if (!optional) {
        fprintf(stderr, "opd: device %s: %s\n", d->name, d->message);
        roof(b)->exit_status = 1;
    }
    device_stop(d, free_device);
    if (roof(b)->exit_status)
        stop_begin(b);
    else if (roof(b)->n_starting == 0 && !b->stopping)
        serve(b);
}

// --- life

static void signal_cb(uv_signal_t *handle, int signal)
{
    struct broker *b = handle->data;
    if (signal != SIGHUP)
        stop_begin(b);
    else if (b->listener.open) // a terminal that closes takes no tensor along
        reload_look(&b->reload);
}

// Larger allocations are mappings of their own, which grow without being copied: messages do.
enum { MAPPED_ALLOCATION = 1 << 20 };

// Smaller ones that are freed stay up to this: a message of many arrays has thousands, and giving
// back each few of them for itself would hold the loop for milliseconds.
enum { KEPT_FREE = 16 << 20 };

static void init_loop(struct broker *b)
{
    uv_loop_init(&b->turn.loop);
    uv_prepare_init(&b->turn.loop, &roof(b)->prepare);
    uv_idle_init(&b->turn.loop, &roof(b)->idle);
    uv_timer_init(&b->turn.loop, &roof(b)->stop_timer);
    replies_init(b);
    compiling_init(b);
    roof(b)->prepare.data = roof(b)->idle.data = roof(b)->stop_timer.data = b;
    uv_prepare_start(&roof(b)->prepare, prepare_cb);
    for (int number, i = 0; i < TURN_N_SIGNALS; i++) {
        uv_signal_init(&b->turn.loop, &roof(b)->signals[i]);
        roof(b)->signals[i].data = b;
        if (turn_signal(i, &number))
            uv_signal_start(&roof(b)->signals[i], signal_cb, number);
    }
}

static const struct device_hooks hooks = { .ready = device_ready,
                                           .failed = device_failed,
                                           .died = device_died,
                                           .restored = program_restore_all,
                                           .begun = graph_begun,
                                           .rests = device_rests,
                                           .no_memory = request_memory_failed,
                                           .wanted = request_memory_wanted };

static void init_devices(struct broker *b)
{
    devices_init(&b->devices, &b->turn, &hooks, b);
    b->devices.deadline = b->options.deadline;
    b->devices.memory_limit = b->options.memory_limit;
    b->devices.client_memory = b->options.client_memory;
    b->devices.own_blas = b->options.own_blas;
    b->devices.spare = b->options.spare;
}

static bool add_devices(struct broker *b, struct opd_err *err)
{
    keep_init(&b->devices, b->options.socket, b->options.keep);
    for (int i = 0; i < b->options.n_devices; i++)
        devices_add(&b->devices, b->options.devices[i]);
    bool ok = recover_names(b, err);
    keep_begin(&b->devices);
    return ok;
}

static void start_devices(struct broker *b)
{
    int n = roof(b)->n_starting = b->devices.n;
    struct device *all[DEV_MAX_DEVICES]; // a device that fails at once leaves the list
    memcpy(all, b->devices.at, sizeof all);
    for (int i = 0; i < n; i++)
        device_start(all[i]);
}

static void finish(struct broker *b)
{
    if (uv_loop_close(&b->turn.loop) < 0)
        log_error("handles were left on the loop");
    size_t cursor = 0;
    for (struct tensor *t, *next; (t = map_next(&b->names, &cursor)) != NULL;)
        for (; t; t = next) {
            next = t->next_named;
            tensor_unref(t);
        }
    map_finish(&b->names);
    while (b->graphs)
        graph_drop_name(b, b->graphs);
    for (int i = 0; i < b->devices.n; i++)
        free_device(b->devices.at[i]);
    lanes_free(b);
    pool_free(b->pool);
    request_drop_spare(b);
    registry_finish(&b->registry);
    reload_finish(&b->reload);
    events_finish(&b->events);
    options_finish(&b->options);
}

struct broker *broker_new(const struct options *options)
{
    struct broker *b = mem_zalloc(1, sizeof(struct roof));
    *b = (struct broker){ .options = *options,
                          .stop = stop_begin,
                          .dispatch = request_dispatch,
                          .listener = { .fd = -1, .lock_fd = -1 },
                          .counters = { .started_ns = clock_ns(), .started_time = clock_unix() },
                          .host_compiler = "not asked: the CPU device is not served",
                          .nvrtc = "not asked: no GPU is served" };
    b->events.next = 1;
    listen_raise_limit(&b->options);
    mallopt(M_MMAP_THRESHOLD, MAPPED_ALLOCATION);
    mallopt(M_TRIM_THRESHOLD, KEPT_FREE);
    init_loop(b);
    init_devices(b);
    b->registry.told = lane_disarm_all;
    b->registry.owner = b;
    const struct pool_options pool = { b->options.compilers, b->options.compile_deadline,
                                       b->options.cache, b->options.cache_limit };
    b->pool = pool_new(&b->turn, &pool);
    b->reload = (struct reload){ .turn = &b->turn,
                                 .devices = &b->devices,
                                 .registry = &b->registry,
                                 .events = &b->events,
                                 .pool = b->pool,
                                 .prove = { .turn = &b->turn,
                                            .events = &b->events,
                                            .registry = &b->registry,
                                            .wanted = b->options.prove },
                                 .checks_first = b->options.checks_first,
                                 .sources = { .folders = b->options.kernels,
                                              .n_folders = b->options.n_kernels } };
    return b;
}

static int run(struct broker *b)
{
    uv_run(&b->turn.loop, UV_RUN_DEFAULT);
    int status = roof(b)->exit_status;
    log_info("stopped");
    if (b->listener.lock_fd >= 0)
        close(b->listener.lock_fd);
    finish(b);
    free(b);
    return status;
}

void broker_discard(struct broker *b)
{
    b->devices.orphans.n = 0; // another's children: this one only looks
    for (struct conn *c = b->clients.first; c; c = c->next)
        events_follow(&b->events, &c->follower, false); // of the others' ends
    while (b->clients.first)
        conn_discard(b->clients.first);
    conn_free_left(b, INT_MAX);
    for (int i = 0; i < b->devices.n; i++)
        device_discard(b->devices.at[i]);
    stop_close_loop(b);
    uv_run(&b->turn.loop, UV_RUN_DEFAULT);
    finish(b);
    free(b);
}

int broker_main(const struct options *options, const char *program, char **args)
{
    struct opd_err err = { 0 };
    struct broker *b = broker_new(options);
    b->handover.program = program;
    b->handover.args = args;
    log_info("opd %s, pid %d, socket %s", OPD_VERSION, getpid(), b->options.socket);
    if (trust_init(b->options.group, &err) && listen_open(b, &err) && add_devices(b, &err) &&
        reload_first(&b->reload, &err)) {
        log_info("%d operator%s", b->registry.count, PLURAL_S(b->registry.count));
        if (b->options.cache[0] && !file_make_folders(b->options.cache))
            log_warn("cache %s: %s; compiled kernels are not kept", b->options.cache,
                     strerror(errno));
        start_devices(b);
    } else {
        fprintf(stderr, "opd: %s\n", err.msg);
        roof(b)->exit_status = err.code == OPD_E_unavailable ? 3 : 1;
        stop_begin(b);
    }
    opd_err_clear(&err);
    return run(b);
}

int broker_resume(const struct options *options, const char *program, char **args, int state_fd)
{
    struct opd_err err = { 0 };
    struct broker *b = broker_new(options);
    b->handover.program = program;
    b->handover.args = args;
    if (!upgrade_take_state(b, state_fd, false, &err)) {
        // The program said that it could: nothing is left to go back to.
        log_error("the state of the program before is lost: %s", err.msg);
        fprintf(stderr, "opd: %s\n", err.msg);
        return 1;
    }
    close(state_fd);
    upgrade_go_on(b);
    serve_now(b);
    return run(b);
}

int broker_check_state(const struct options *options, int state_fd)
{
    struct opd_err err = { 0 };
    struct broker *b = broker_new(options);
    bool ok = upgrade_take_state(b, state_fd, true, &err);
    if (ok)
        printf("ok %d %s\n", STATE_FORMAT, OPD_VERSION);
    else
        printf("%s\n", err.msg);
    broker_discard(b);
    opd_err_clear(&err);
    return ok ? 0 : 1;
}
