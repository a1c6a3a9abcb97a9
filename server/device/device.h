#pragma once

// A device as the broker sees it: the executor process that serves it, the queue of commands to it,
// the descriptors of its memory and the map of what is where in it. The broker never waits for a
// device: a command is queued, and its callback comes when the executor has reported it done, or
// has died.
//
// When an executor dies, the command that it was running fails, and the next one goes on with the
// commands that had not been begun: it maps the same memory and loads the same kernels. With a
// spare it has done so before, and what is mapped, loaded and given back meanwhile goes to both; it
// is promoted at once. Where an executor was killed from outside, a command that is repeatable is
// no more to blame than others: that one is run again too, once.
//
// One that was ended in the middle of its work, at a deadline, may write until its process is gone.
// Till then no memory is given out a second time, and what changes something that it may read or
// write waits.

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "executor/devwire.h"
#include "base/err.h"
#include "wire/map.h"
#include "base/mem.h"
#include "base/times.h"
#include "device/device_left.h"
#include "device/device_link.h"
#include "memory/space.h"
#include "memory/staging.h"

struct device;
struct devices;
struct plan;
struct plan_request;

enum device_state {
    DEVICE_STARTING, // no executor has said hello yet
    DEVICE_READY,
    DEVICE_RESTARTING, // after a failure; commands wait
    DEVICE_FAILED,     // it failed to start; tried again now and then; commands are refused
};

// Kernels that compilers have made, not taken from the cache; ns: until each was there.
struct compile_stats {
    uint64_t n, ns;
};

// Counts of an operator's runs; counted itself, since commands may outlast the operator.
struct run_stats {
    int refs;
    uint64_t forward, backward, failed, ns; // ns: on devices
    uint64_t bytes;                         // of their plans
    uint64_t copy_ns; // in which devices would copy as many, where that is known of them
    uint64_t times[TIMES_BUCKETS];
    struct compile_stats compiles;
};
struct run_stats *run_stats_new(void);
struct run_stats *run_stats_ref(struct run_stats *s);
void run_stats_unref(struct run_stats *s); // NULL is fine

// An operator's run in a command that has several, one behind the other.
struct command_part {
    uint64_t first_step;
    const struct plan *plan; // NULL: a fill or copy, whose `label` says what it is
    int version;
    struct run_stats *stats; // a reference, or NULL
    const char *label;
};

// One command on its way. Made by command_new(), given to device_submit(), freed by the device
// after `done`.
struct command {
    struct command *next;
    uint64_t seq;      // of one that was lost: see devwire.h
    int fd;            // travels with it; of somebody who outlives it; -1: none
    double deadline;   // seconds that it may run; 0: the daemon's default
    const char *label; // what it is, for the message of a fault: "tensor_write"; NULL: nothing
    const struct plan *plan; // of an operator's run, which says what it is; valid until `done`
    int version;             // of that operator
    struct run_stats *stats; // where it is counted, a reference; or NULL
    const struct command_part *parts; // in place of these three; NULL: it has no more than one
    size_t n_parts;
    uint64_t ran; // nanoseconds on the device, where that is measured
    // For `done`, what its kernels have printed; and how many bytes more.
    const char *printed;
    size_t n_printed;
    uint64_t n_unprinted;
    struct buf bytes; // struct dev_command and what follows
    // err->code is 0 when it was done. Called on the loop, exactly once.
    void (*done)(struct command *c, const struct opd_err *err);
    void *data;
    bool fd_sent;
    bool repeatable; // twice is as good as once: it changes nothing that was there before
    bool killed;     // an executor that ran it was killed from outside
    bool begun;      // what it writes may have been written, though it failed
    bool blamed;     // it was running when its executor died
    bool told;       // its client has been, by a word: see base/word.h
    bool lost;       // it failed because its executor died
    bool both;       // done by the one that serves, it goes to the spare, and has ended after that
    bool prepares;   // it is for an executor that does not serve yet
    bool aside;      // it went to a spare
    bool trial;      // it runs in the spare, whatever that does to its process
    bool checkable;  // a checked build of what was running could tell more
    bool by_step;    // it was `step` or, where that launches nothing, the first behind that does;
                     // else that one or a later one
    uint64_t step;   // of one that has failed
    struct backend_miss miss; // of a checked build
    int out_fd;      // CHUNK_NEW: the chunk's descriptor, the device's
};

struct device_region {
    bool used, host, ready;
    bool ipc;      // a client's memory, opened by its handle
    bool kept;     // the keeper has its descriptor
    bool exported; // a client has or had it
    bool closed;   // others may write to it still: nothing more of it is given out
    int fd;        // owned
    uint64_t size;
    uint64_t serial; // no other region of the daemon ever has it
    uint8_t handle[DEV_IPC_HANDLE];
};

// Commands on their way. Those that were sent are their executor's.
struct device_queue {
    struct command *pending, **pending_end; // not sent
    uint64_t head_since;                    // when the oldest became the oldest
    uint64_t due, timer_due;                // clock_ns() at which that is over; the timer's
    uint64_t expired_seq;  // of the command whose deadline ended the executor; 0: it was not that
    struct command *spare; // ended ones, for others
    int n_spare;
    int n;
    int n_reruns;        // commands that were run again since their executor was killed
    uint64_t busy_ns;    // that something was in flight
    uint64_t busy_until; // clock_ns() of the last moment that is counted there
};

struct device_restart {
    bool wanted;                   // by a client: nothing more is sent to this executor
    struct device_waiter *waiters; // for the next one to be ready
    int count;
    int n_failures; // one after the other, to start
};

// The memory that the device maps, by the number that the executor has for it.
struct device_regions {
    struct device_region *list;
    uint32_t n;
};

// A chunk that is asked for.
struct device_growth {
    bool asked;
    bool deferred;     // until nothing is being given back
    bool beside_drops; // something was, when it was asked for
    bool exact;        // no larger than needed
    uint64_t size;     // what it is for
    uint64_t since;    // clock_ns() when that was first asked for
    int n_dropping;    // chunks that are given back, whose memory is not free yet
};

// The executor that is started before it is needed.
struct device_spare {
    struct device_link *link; // or NULL
    uv_timer_t timer;         // until the next one starts
    int n_failures;           // one after the other, to live
    struct command *trials, **trials_end; // that wait for it to be ready
    int n_trials; // of these, and of those that it runs: until they end it does not take over
};

// The kernels that the executor has, or is to have; program.h's.
struct device_loaded {
    struct map programs; // by hash of the key
    struct program *leaving;
    uint32_t n_ids, n_free_ids, *free_ids;
};

struct device {
    struct devices *all;
    char name[16]; // "cuda:0"
    bool is_cpu;
    enum device_state state;
    struct backend_info info;
    bool blas_known;               // info.blas is what an executor has found
    char message[DEV_MAX_MESSAGE]; // why it failed
    uv_timer_t timer;              // restarts and deadlines
    double copy_ns_per_byte;       // of bytes that a copy reads and writes; 0: nobody has asked
    bool stopping;
    void (*stopped)(struct device *d);

    struct device_link *link;    // of the executor that serves or will; NULL: between two
    struct device_link *links;   // of all that are not gone
    int n_writing;               // of those, that were left and may write still
    struct device_left left;     // what
    struct suballoc_block *held; // memory that was given up meanwhile, by `bin_next`
    struct suballoc_block *held_staging; // the same of staging, where it is in `left`
    struct device_spare spare;
    struct device_queue queue;
    struct device_exit exit; // of the last executor
    struct device_restart restart;
    struct device_regions regions;
    struct device_growth growth;
    struct space space; // its memory
    struct staging staging;
    struct device_loaded loaded;
};

struct device *device_new(struct devices *all, const char *name, int index); // devices_add()
void device_start(struct device *d);
void device_resume(struct device *d); // one that comes from before an upgrade, with its memory
void device_look(struct device *d);   // at what it has done, without being woken for it
void device_stop(struct device *d,
                 void (*stopped)(struct device *d)); // after what is queued; `stopped` may free it
void device_kill(struct device *d, enum opd_err_code code,
                 const char *reason);    // as if it had died by itself
void device_fail_rest(struct device *d); // one that has stopped: what it had still to do
void device_free(struct device *d);
void device_discard(struct device *d); // one that was never started: what it has on the loop
bool device_is_idle(const struct device *d); // all commands have ended, and no executor is ending

// Ends the executor, once what was sent to it has ended, and starts another. Tensors stay. done()
// comes when that one is ready, or with an error when it does not start.
void device_restart(struct device *d, void (*done)(void *data, const struct opd_err *err),
                    void *data);

void device_set_unavailable(const struct device *d, struct opd_err *err); // why it is not there
// Sets what a plan depends on of the device that it is for: on_cpu, blas.
void device_fill_plan_request(const struct device *d, struct plan_request *request);

struct command *command_new(enum dev_command_type type, uint32_t id, uint64_t size);
struct command *device_new_run(struct device *d); // DEV_RUN, without steps yet
void command_free(struct command *c);             // one that is not submitted
void device_submit(struct device *d, struct command *c);
void device_submit_first(struct device *d, struct command *c); // before all that waits
// What one executor must know, before all that is submitted.
void device_prepare(struct device_link *link, struct command *c);
// In the spare, or where there is none in one that is started for it, beside what the other does;
// what is mapped and loaded by now is there. Where its process ends it fails, and nothing else.
void device_try(struct device *d, struct command *c);
void device_end_trials(struct device *d); // those that have not ended: they fail a moment later
struct device_link *device_ready_spare(const struct device *d); // NULL: there is none
const char *device_spare_state(const struct device *d);         // "none", "starting", "ready"
uint64_t device_spare_memory(const struct device *d);           // bytes that it takes

// The memory of d->space is stream-ordered: what was freed may be given out again at once, because
// the device runs what uses it in the order of the commands.
uint64_t device_memory_limit(const struct device *d); // bytes that its chunks may take
void device_memory_init(struct devices *all);         // the timer that gives unused memory back
void device_drop_empty(struct device *d); // chunks that hold nothing are given back
// A region under the number that it had, of a device that has no executor yet. A chunk is empty.
// Without a serial it gets one.
void device_restore_region(struct device *d, uint32_t id, const struct device_region *r);

// d->staging, made where there is none yet. What is taken there goes back by device_give_staging().
struct staging *device_staging(struct device *d);
void device_give_staging(struct device *d, struct suballoc_block *block);

static inline bool device_is_staging(const struct device *d, uint32_t region)
{
    return d->staging.memory && d->staging.region == region;
}

// Host memory behind a descriptor (not taken over) for the device to copy from and to.
// `done`, where there is one, is told how that went; a failure without it is only logged.
struct device_mapping {
    void (*done)(void *data, const struct opd_err *err);
    void *data;
};
bool device_map_host(struct device *d, int fd, uint64_t size, uint32_t *out_region,
                     const struct device_mapping *mapping, struct opd_err *err);
// A client's device memory behind a handle, the same.
bool device_map_ipc(struct device *d, const uint8_t handle[DEV_IPC_HANDLE], uint64_t size,
                    uint32_t *out_region, const struct device_mapping *mapping,
                    struct opd_err *err);

const char *device_state_name(enum device_state state);
double device_copy_speed(const struct device *d); // bytes in a second; 0: nobody has asked
uint64_t device_busy_ns(struct device *d); // that something was in flight, until now; never less

// Functions of device*.c alone.
extern const struct space_ops device_space_ops;
void device_next_executor(struct device *d); // the spare, or one that starts now
void device_want_spare(struct device *d);   // one is started soon, where there is to be one
void device_end_spare(struct device *d);
void device_spare_said_hello(struct device *d); // what it takes is known now
void device_trial_ended(struct device *d);
void device_lost_spare(struct device *d, const struct device_link *link);
void device_map_region(struct device_link *link, uint32_t id); // again, as others have done
void device_release_held(struct device *d);
void device_watch_deadline(struct device *d); // of the command that is the oldest from now on
void device_try_restart(struct device *d);
void device_end_restart(struct device *d, const struct opd_err *err); // answers those who wait
// Words for what a command was at after that many steps had begun: operator, version, kernel,
// arguments.
void device_describe(const struct command *c, uint64_t step, bool exact, char *out, size_t size);
// The commands in flight after an executor's death: what it was running fails, or is run again;
// that and what it had not begun goes before what waits.
void device_settle_flight(struct device *d, struct device_link *dead);
// Can all that it has begun go on to its end, and others do work meanwhile?
bool device_may_leave(struct device_link *link);
void device_note_left(struct device_link *link); // what it may do still
