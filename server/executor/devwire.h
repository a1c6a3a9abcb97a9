#pragma once

// What the broker and an executor say to each other: commands through one ring, completions through
// another, file descriptors through a socket beside them, in the order of the commands that need
// them.
//
// Memory is spoken of as (region, offset): a region is a chunk of the device or a piece of host
// memory that both map. The numbers are the broker's. The executor runs commands in order and
// completes them in order.

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "executor/backend.h"

enum {
    DEV_RING_SIZE = 4 << 20,
    DEV_MAX_COMMAND = DEV_RING_SIZE / 2 - 64,
    DEV_MAX_REGIONS = 1 << 16,
    DEV_MAX_DEVICES = 16,
    DEV_MAX_REPORTS = 256,
    DEV_MAX_LANES = 16,      // of a device
    DEV_LANE_ARMS = 16,      // graphs that a lane can have at a time
    DEV_MAX_ARMED = 1 << 16, // bytes of the steps of one
    DEV_IPC_HANDLE = BACKEND_IPC_HANDLE,
    DEV_MAX_PRINTED = 64 << 10, // bytes that a command's kernels may print; the rest is counted
    DEV_MAX_MESSAGE = sizeof((struct opd_err *)0)->msg,
};

// The descriptors that an executor starts with.
enum { DEV_FD_SOCKET = 3, DEV_FD_RINGS = 4, DEV_FD_COMMAND_BELL = 5, DEV_FD_DONE_BELL = 6 };

struct dev_ref {
    uint32_t region;
    uint32_t reserved;
    uint64_t offset;
};

enum dev_command_type {
    DEV_CHUNK_NEW =
        1, // makes and maps a chunk; its descriptor comes through the socket before the completion
    DEV_CHUNK_MAP, // maps a chunk whose descriptor comes through the socket (after a restart)
    DEV_HOST_MAP,  // maps host memory whose descriptor comes through the socket
    DEV_UNMAP,     // either kind, once the stream has passed what came before
    DEV_LOAD,      // loads an image whose descriptor comes through the socket
    DEV_UNLOAD,
    DEV_RUN, // struct dev_step …
    DEV_STOP,
    DEV_IPC_OPEN, // maps memory of a client; its handle, DEV_IPC_HANDLE bytes, follows
    DEV_SERVE,    // a spare is none any more
    // Lanes (base/lane.h): a client's, whose memory is at the struct dev_ref that follows, and
    // whose bell comes through the socket; what it may run, a struct dev_arm and steps as of RUN.
    DEV_LANE_OPEN,
    DEV_LANE_CLOSE,
    DEV_LANE_ARM,
    DEV_LANE_DISARM,
};

struct dev_command {
    uint32_t type;
    uint32_t id;   // region, program, lane or slot; RUN: dev_run_flags
    uint64_t size; // of the region; RUN, ARM: the number of steps
};

// Commands, and entries of lanes, are numbered by the executor, in the order in which it takes
// them: from 1.

// DEV_RUN_ALONE: after what came before has ended, each launch waited for before the next: slow,
// and no doubt about which one failed. DEV_RUN_TIMED: its dev_done tells how long it took.
// DEV_RUN_REPLAY: it comes again and again; reports are its last steps.
enum dev_run_flags { DEV_RUN_ALONE = 1, DEV_RUN_TIMED = 2, DEV_RUN_REPLAY = 4 };

// After DEV_LOAD: the kernel's parameters as struct backend_param …; `size` is their number.

enum dev_step_type {
    DEV_STEP_LAUNCH = 1,
    DEV_STEP_FILL,
    DEV_STEP_COPY,
    DEV_STEP_MATMUL,
    DEV_STEP_REPORT,
    DEV_STEP_WORD,
};

struct dev_step {
    uint32_t type;
    uint32_t size; // of this step with all that follows it, a multiple of 8
};

struct dev_launch {
    struct dev_step step;
    uint32_t program;
    uint32_t grid[3], block[3];
    uint32_t shared_size;
    uint32_t args_size; // exact: the driver takes no byte more; padded to 8 in the record
    uint32_t n_slots;
    uint32_t kernel; // which of the plan's: for the broker, when it has failed
    uint32_t reserved;
    // struct dev_slot slots[n_slots]; uint8_t args[args_size];
};

// A tensor whose address goes into the arguments.
struct dev_slot {
    uint32_t arg_offset;
    uint32_t region;
    uint64_t offset, size; // of the tensor, in the region
    uint64_t low, high;    // in the region: what belongs to its storage alone
    uint16_t dtype;        // enum opd_dtype
    uint16_t written;      // 0: it is read at most
    uint32_t pad;          // bytes before the tensor that are in nobody's use
};

struct dev_fill {
    struct dev_step step;
    struct dev_ref dst;
    uint64_t size;
    uint32_t byte;
    uint32_t reserved;
};

struct dev_copy {
    struct dev_step step;
    struct dev_ref dst, src;
    uint64_t size;
};

struct dev_matrix {
    struct dev_ref ref;
    uint64_t size; // bytes from there to the end of its last element
    int64_t stride;
    uint64_t transposed;
};

// As struct backend_matmul.
struct dev_matmul {
    struct dev_step step;
    uint32_t dtype, result;
    uint32_t accumulate, tf32;
    int64_t m, n, k;
    struct dev_matrix d, a, b;
};

// 8 bytes of the device that go into the command's struct dev_done, the first that are not 0 of
// DEV_MAX_REPORTS at most in a command.
struct dev_report {
    struct dev_step step;
    struct dev_ref src;
};

// The word by which the client may be told that the command is done, where there is nothing else to
// say of it: see base/word.h. The last step.
struct dev_word {
    struct dev_step step;
    struct dev_ref at;
    uint32_t version; // that has run
    uint32_t reserved;
};

struct dev_done {
    uint64_t seq;
    uint64_t at;       // clock_ns()
    uint64_t report;   // of a DEV_STEP_REPORT; 0 without one
    uint64_t ran;      // of DEV_RUN_TIMED: nanoseconds on the device; 0 if it failed
    uint32_t code;     // enum opd_err_code
    uint32_t fatal;    // the device has failed: this process ends after it
    uint32_t steps;    // RUN that failed: how many steps had begun
    uint32_t reporter; // which of the command's DEV_STEP_REPORT it is, from 0
    uint64_t dropped;  // bytes that kernels have printed beyond those
    uint32_t printed;  // bytes that they have printed, after the message
    uint32_t told;     // the client has been, by its word
    struct backend_miss miss; // of a checked build
    char message[];    // of the error, terminated
};

_Static_assert(sizeof(struct dev_done) == offsetof(struct dev_done, message), "it ends there");

// What the executor may run for a lane: in the slots of that, DEV_LANE_ARMS of them.
struct dev_arm {
    uint64_t serial; // no other ever has it
    uint32_t flags;  // dev_run_flags
    uint32_t reserved;
};

// Among the completions: an entry of a lane is begun, before it is.
struct dev_begun {
    uint64_t tag; // DEV_BEGUN, in place of dev_done's seq
    uint64_t seq, at;
    uint64_t serial;
    uint32_t slot;
    uint32_t request; // its client's number
};

#define DEV_BEGUN UINT64_MAX

// What the broker changes under the executor's hands.
struct dev_lanes {
    // By slot, the serial of what may be run; 0: nothing. From then on nothing of it is begun.
    _Atomic uint64_t armed[DEV_MAX_LANES * DEV_LANE_ARMS];
    _Atomic uint32_t watched; // the broker looks now and then, without being woken
};

// Marks in the stream: after a command, and before each launch of a command but its first.
enum { DEV_MARK_BITS = 20, DEV_MARK_END = (1 << DEV_MARK_BITS) - 1 };
static inline uint64_t dev_mark(uint64_t seq, uint64_t steps)
{
    return seq << DEV_MARK_BITS | steps;
}

// What an executor has begun and what it has done, in memory that it shares with the broker, who
// reads it when the executor is dead: what was not begun can be run again by the next one. What the
// device writes has a line of its own: it takes that from the processor each time.
struct dev_progress {
    _Alignas(64) _Atomic uint64_t passed; // the last mark that the stream has passed
    _Alignas(64) _Atomic uint64_t taken;  // seq of the last command that was begun
    _Atomic uint64_t failed; // seq of the last command that could not be given to the stream whole
    // `passed` is always true, not only as of the executor's last look: the device itself writes
    // it, or has nothing left to do.
    _Atomic uint32_t exact;
    _Atomic uint32_t by_step; // there are marks between the launches of a command,
    _Atomic uint32_t graphs;  // but for DEV_RUN_REPLAY, which is one launch
    _Atomic uint32_t over;    // the broker has given it up: it begins nothing more
    _Atomic uint64_t good;    // seq of the last command whose client has its word for it, or is to
};

enum { DEV_PROGRESS_SIZE = 4096 }; // a page: devices want whole ones

// What the kernels of a command have printed that is not reported done. The text is there before
// its size is.
struct dev_prints {
    _Atomic uint64_t seq;
    _Atomic uint64_t size, dropped;
    char text[DEV_MAX_PRINTED];
};

// In the shared memory: the ring of commands, that of completions, dev_progress, dev_lanes,
// dev_prints.
size_t dev_ring_offset(int ring);
size_t dev_progress_offset(void);
size_t dev_lanes_offset(void);
size_t dev_prints_offset(void);
size_t dev_shared_size(void);

// The first thing that the executor sends through the socket.
struct dev_hello {
    uint32_t ok;
    struct backend_info info;
    char message[DEV_MAX_MESSAGE]; // why not
};
