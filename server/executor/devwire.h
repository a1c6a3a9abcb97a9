#pragma once

// What the broker and an executor say to each other: commands through one ring, completions through
// another, file descriptors through a socket beside them, in the order of the commands that need
// them.
//
// Memory is spoken of as (region, offset): a region is a chunk of the device or a piece of host
// memory that both map. The numbers are the broker's. The executor runs commands in order and
// completes them in order.

#include <stdint.h>

#include "backend.h"

enum {
    DEV_RING_SIZE = 1 << 20,
    DEV_MAX_COMMAND = DEV_RING_SIZE / 2 - 64,
    DEV_MAX_REGIONS = 1 << 16,
    DEV_IPC_HANDLE = BACKEND_IPC_HANDLE,
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
};

struct dev_command {
    uint32_t type;
    uint32_t id; // region or program
    uint64_t seq;
    uint64_t size; // of the region; RUN: the number of steps
};

// After DEV_LOAD: the kernel's parameters as struct backend_param …; `size` is their number.

enum dev_step_type { DEV_STEP_LAUNCH = 1, DEV_STEP_FILL, DEV_STEP_COPY, DEV_STEP_REPORT };

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
    // struct dev_slot slots[n_slots]; uint8_t args[args_size];
};

struct dev_slot {
    uint32_t arg_offset;
    uint32_t region;
    uint64_t offset;
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

// 8 bytes of the device that go into the command's struct dev_done; one at most in a command.
struct dev_report {
    struct dev_step step;
    struct dev_ref src;
};

struct dev_done {
    uint64_t seq;
    uint64_t report; // of DEV_STEP_REPORT; 0 without one
    uint32_t code;   // enum opd_err_code
    uint32_t fatal;  // the device has failed: this process ends after it
    char message[];  // of the error, terminated
};

// The first thing that the executor sends through the socket.
struct dev_hello {
    uint32_t ok;
    struct backend_info info;
    char message[DEV_MAX_MESSAGE]; // why not
};
