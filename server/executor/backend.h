#pragma once

// A device that maps chunks of memory and runs compiled images. The executor talks to a device only
// through this table, so every test of one backend is a test of the other (tests/conformance/).
//
// Shapes, dtypes, tensors and operators do not cross this line. All work of one backend runs in one
// stream: in the order in which it was given. Calls come from one thread.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

struct backend;         // a backend's own struct starts with `struct backend base`
struct backend_program; // one loaded image, with one kernel; owned by the caller, freed by
                        // backend_unload()

enum { BACKEND_IPC_HANDLE = 64 }; // bytes of a handle of another process's memory

typedef uint64_t device_addr; // 0 is "nowhere"

// One parameter of a kernel in the packed argument block: natural alignment, as in a C struct.
struct backend_param {
    uint32_t offset;
    uint32_t size;
};

// What a kernel image is loaded from. Borrowed for the call.
struct backend_image {
    const void *bytes; // a cubin, or a shared object of the host compiler
    size_t size;
    const char *symbol; // the kernel's (mangled) name in it
    const struct backend_param *params;
    int n_params; // checked against the image where that can be read
};

// Fully evaluated; borrowed for the call.
struct backend_launch {
    struct backend_program *program;
    uint32_t grid[3], block[3]; // all > 0
    uint32_t shared_size;       // dynamic shared memory, bytes
    const void *args;           // packed; aligned to 16 bytes
    size_t args_size;
};

struct backend_info {
    char name[128];             // "NVIDIA H200", "AMD EPYC ... (2 cores)"
    char uuid[40];              // "GPU-" and 32 hex digits in five groups; "" on the CPU
    char target[32];            // what the compilers compile for: "sm_90", "cpu"
    uint64_t memory_total;      // bytes
    uint64_t memory_free;       // bytes, at open
    uint64_t chunk_granularity; // chunk sizes are multiples of it
    int driver_version;         // CUDA's, 13000; 0 on the CPU
    int processors;             // multiprocessors, or cores
};

struct backend_ops {
    const char *name; // "cuda", "cpu"

    bool (*open)(struct backend **out, int index, struct opd_err *err);
    void (*close)(struct backend *be);
    void (*info)(struct backend *be, struct backend_info *out);

    // Device memory behind a file descriptor, which the caller owns and which outlives this
    // process. chunk_new only makes it; chunk_map makes it accessible to this device. Neither takes
    // the fd over.
    bool (*chunk_new)(struct backend *be, uint64_t size, int *out_fd, struct opd_err *err);
    bool (*chunk_map)(struct backend *be, int fd, uint64_t size, device_addr *out,
                      struct opd_err *err);
    void (*chunk_unmap)(struct backend *be, device_addr addr, uint64_t size);

    // optional. Tells the device of host memory that it will copy from and to (page-locks it).
    void (*host_register)(struct backend *be, void *host, size_t size);
    void (*host_unregister)(struct backend *be, void *host);

    // optional. Maps memory that another process of this device has made and shares by a handle;
    // `size` must be that of its whole allocation.
    bool (*ipc_open)(struct backend *be, const uint8_t handle[BACKEND_IPC_HANDLE], uint64_t size,
                     device_addr *out, struct opd_err *err);
    void (*ipc_close)(struct backend *be, device_addr addr);

    bool (*load)(struct backend *be, const struct backend_image *image,
                 struct backend_program **out, struct opd_err *err);
    void (*unload)(struct backend *be, struct backend_program *program);

    // In stream order, possibly asynchronous. dst and src are device or host addresses; the host's
    // stay valid until the stream has passed the copy.
    bool (*launch)(struct backend *be, const struct backend_launch *launch, struct opd_err *err);
    bool (*copy)(struct backend *be, device_addr dst, device_addr src, size_t size,
                 struct opd_err *err);
    bool (*fill)(struct backend *be, device_addr dst, uint8_t byte, size_t size,
                 struct opd_err *err);

    // Puts a mark into the stream; poll tells the highest mark that the stream has passed. Marks
    // are increasing. poll fails when the device has failed: the process must then end, and a new
    // one takes over.
    bool (*mark)(struct backend *be, uint64_t mark, struct opd_err *err);
    bool (*poll)(struct backend *be, uint64_t *out_mark, struct opd_err *err);
};

// Every backend begins so.
struct backend {
    const struct backend_ops *ops;
};

extern const struct backend_ops backend_cuda, backend_cpu;

// "cpu", "cuda:0" -> the table and the index; NULL for other words.
const struct backend_ops *backend_find(const char *device, int *out_index);
