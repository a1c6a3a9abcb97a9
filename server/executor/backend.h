#pragma once

// A device that maps chunks of memory and runs compiled images. The executor talks to a device only
// through this table, so every test of one backend is a test of the other (tests/conformance/).
//
// Shapes, tensors and operators do not cross this line, dtypes only for matrices. All work of one
// backend runs in one stream: in the order in which it was given. Calls come from one thread.

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/err.h"

struct backend; // a backend's own struct starts with `struct backend base`
struct backend_graph;
struct backend_program; // one loaded image, with one kernel; owned by the caller, freed by
                        // backend_unload()

enum { BACKEND_IPC_HANDLE = 64 }; // bytes of a handle of another process's memory
enum { BACKEND_STAMPS = 1024 };   // places for times in the stream

typedef uint64_t device_addr; // 0 is "nowhere"

// One parameter of a kernel in the packed argument block: natural alignment, as in a C struct.
struct backend_param {
    uint32_t offset;
    uint32_t size;
    uint32_t is_tensor; // its first 8 bytes are a tensor's address, or 0
    char name[52];      // for messages; "": not known
};

// What an address among the arguments of a launch points to.
struct backend_tensor {
    uint32_t arg_offset;
    uint32_t dtype;        // enum opd_dtype
    uint32_t pad;          // bytes before it that are in nobody's use
    device_addr addr;      // as it stands in the arguments
    uint64_t size;         // bytes
    device_addr low, high; // memory around it that belongs to nobody else
};

// What a kernel image is loaded from. Borrowed for the call.
struct backend_image {
    const void *bytes; // a cubin, a checked build (base/checked.h), or a shared object of the
                       // host's compiler
    size_t size;
    const char *symbol; // the kernel's (mangled) name in it
    const struct backend_param *params;
    int n_params; // checked against the image where that can be read
};

// What a checked build's first access that missed was to do, and where: a tensor's, so many bytes
// from its begin.
enum backend_miss_what { BACKEND_NO_MISS, BACKEND_MISS, BACKEND_MISS_READ, BACKEND_MISS_WRITE };
struct backend_miss {
    uint32_t what;       // MISS: of no tensor, or of which is not known
    uint32_t arg_offset; // of the tensor's address among the arguments
    int64_t offset;
};

// Fully evaluated; borrowed for the call.
struct backend_launch {
    struct backend_program *program;
    uint32_t grid[3], block[3]; // all > 0
    uint32_t shared_size;       // dynamic shared memory, bytes
    const void *args;           // packed; aligned to 16 bytes
    size_t args_size;
    const struct backend_tensor *tensors; // of some arguments or all: for guards and messages
    int n_tensors;
    struct backend_miss *miss; // filled where a checked build has missed; NULL: nobody asks
};

// In memory: rows one after the other, `stride` elements apart.
struct backend_matrix {
    device_addr addr;
    int64_t stride;  // at least the length of a row
    bool transposed; // before it is used; never the result
};

// d [m, n] = a [m, k] @ b [k, n], or += where `accumulate`.
struct backend_matmul {
    enum opd_dtype dtype, result; // of a and b: a floating one; of d: the same, or float32
    bool accumulate;
    bool tf32;       // float32 may be rounded to TF32
    int64_t m, n, k; // 1 to INT32_MAX, as the strides
    struct backend_matrix d, a, b;
    device_addr workspace; // as matmul_workspace() has said; 0: whatever the backend takes
};

struct backend_info {
    char name[128];             // "NVIDIA H200", "AMD EPYC ... (2 cores)"
    char uuid[44];              // "GPU-" and 32 hex digits in five groups; "" on the CPU
    char target[32];            // what the compilers compile for: "sm_90", "cpu"
    uint64_t memory_total;      // bytes
    uint64_t memory_free;       // bytes, at open
    uint64_t context_size;      // bytes that another process like this one takes of it, about
    uint64_t chunk_granularity; // chunk sizes are multiples of it
    int driver_version;         // CUDA's, 13000; 0 on the CPU
    int processors;             // multiprocessors, or cores
    char blas[64];              // "cuBLASLt 13.0.2"; "": there is none, or it was not asked for
};

struct backend_ops {
    const char *name; // "cuda", "cpu"

    bool (*open)(struct backend **out, int index, struct opd_err *err);
    void (*close)(struct backend *be);
    void (*info)(struct backend *be, struct backend_info *out);
    // optional. Bytes that this process takes of the device, as that tells; 0: it does not. It may
    // take a while.
    uint64_t (*own_memory)(struct backend *be);

    // Device memory behind a file descriptor, which the caller owns and which outlives this
    // process. chunk_new only makes it; chunk_map makes it accessible to this device. Neither takes
    // the fd over.
    bool (*chunk_new)(struct backend *be, uint64_t size, int *out_fd, struct opd_err *err);
    bool (*chunk_map)(struct backend *be, int fd, uint64_t size, device_addr *out,
                      struct opd_err *err);
    void (*chunk_unmap)(struct backend *be, device_addr addr, uint64_t size);

    // optional. Tells the device of host memory that it will copy from and to (page-locks it).
    // False, which is logged: copies take longer, no more.
    bool (*host_register)(struct backend *be, void *host, size_t size);
    void (*host_unregister)(struct backend *be, void *host);

    // optional. Maps memory that another process of this device has made and shares by a handle;
    // `size` must be that of its whole allocation.
    bool (*ipc_open)(struct backend *be, const uint8_t handle[BACKEND_IPC_HANDLE], uint64_t size,
                     device_addr *out, struct opd_err *err);
    void (*ipc_close)(struct backend *be, device_addr addr);

    bool (*load)(struct backend *be, const struct backend_image *image,
                 struct backend_program **out, struct opd_err *err);
    void (*unload)(struct backend *be, struct backend_program *program);
    // optional. Its kernel prints or is checked, and launch() waits for it; never while a graph is
    // made.
    bool (*waits)(const struct backend_program *program);
    // optional. Its kernel has memory of its own that lasts from launch to launch (a __device__
    // variable).
    bool (*keeps)(const struct backend_program *program);

    // Looks for a library that multiplies matrices; info() tells whether there is one.
    void (*blas_load)(struct backend *be);
    // Where blas_load() has found one: in stream order, as a launch. On the CPU, which is as fast
    // by a kernel, matrices of 16 bits are refused.
    bool (*matmul)(struct backend *be, const struct backend_matmul *m, struct opd_err *err);
    // optional. Where it works, for m->workspace, and how many bytes of it: what runs beside it may
    // not have them. 0: it needs none. In turn, so that products share one seldom.
    bool (*matmul_workspace)(struct backend *be, const struct backend_matmul *m, device_addr *out,
                             uint64_t *out_size, struct opd_err *err);

    // In stream order, possibly asynchronous. dst and src are device or host addresses; the host's
    // stay valid until the stream has passed the copy.
    bool (*launch)(struct backend *be, const struct backend_launch *launch, struct opd_err *err);
    bool (*copy)(struct backend *be, device_addr dst, device_addr src, size_t size,
                 struct opd_err *err);
    bool (*fill)(struct backend *be, device_addr dst, uint8_t byte, size_t size,
                 struct opd_err *err);
    // optional where there are no graphs. 8 bytes into the next of `n` places, a power of two, of
    // memory that host_register() was true of: in turn from the first, also by each launch of a
    // graph that it is in.
    bool (*report)(struct backend *be, uint64_t *places, uint32_t n, device_addr src,
                   struct opd_err *err);

    // optional, all or none; `has_graphs` tells whether they work here. What is given to the stream
    // between graph_begin() and graph_end() is not run, but becomes a graph, which graph_launch()
    // gives to the stream as one piece, as often as wanted: launches, copies on the device, fills
    // and products; no marks and stamps. Whatever came in between has failed, graph_end() ends it.
    bool (*has_graphs)(struct backend *be);
    bool (*graph_begin)(struct backend *be, struct opd_err *err);
    // optional. What comes until the next such call, or the end, is a step; it waits for these
    // steps, numbered from 0, which came before, and may run beside all others. Without any such
    // call all is in the order in which it came.
    bool (*graph_step)(struct backend *be, const uint32_t *after, size_t n, struct opd_err *err);
    bool (*graph_end)(struct backend *be, struct backend_graph **out, struct opd_err *err);
    bool (*graph_launch)(struct backend *be, struct backend_graph *graph, struct opd_err *err);
    void (*graph_free)(struct backend *be, struct backend_graph *graph); // one that has run

    // Puts a mark into the stream; poll tells the highest mark that the stream has passed. Marks
    // are increasing. poll fails when the device has failed: the process must then end, and a new
    // one takes over. It tells the mark all the same, and that will not change any more.
    bool (*mark)(struct backend *be, uint64_t mark, struct opd_err *err);
    bool (*poll)(struct backend *be, uint64_t *out_mark, struct opd_err *err);

    // Notes the time at which the stream gets there, in one of BACKEND_STAMPS places.
    bool (*stamp)(struct backend *be, unsigned place, struct opd_err *err);
    // What lies between two of them that the stream has passed.
    bool (*elapsed)(struct backend *be, unsigned from, unsigned to, uint64_t *out_ns,
                    struct opd_err *err);

    // Before the first mark: what the stream has passed is written to *passed too, which is on a
    // page of its own, in memory that outlives this process. True: the device does so itself, at
    // the moment. False: poll does.
    bool (*share_marks)(struct backend *be, _Atomic uint64_t *passed);
};

// Every backend begins so.
struct backend {
    const struct backend_ops *ops;
};

extern const struct backend_ops backend_cuda, backend_cpu;

// "cpu", "cuda:0" -> the table and the index; NULL for other words.
const struct backend_ops *backend_find(const char *device, int *out_index);
