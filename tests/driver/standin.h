#pragma once

// A stand-in for NVIDIA's driver, for tests alone: libcuda.so.1 with the functions that opd asks
// for (server/executor/cuda_driver.def), memory that is the host's, and kernels that are
// interpreted from their PTX (ptx.h, run.h), one thread of a grid after the other. So opd's CUDA
// backend runs where there is no GPU: what it asks of the driver, in which order, and what becomes
// of its answers. It shows nothing of races, caches, occupancy or time.
//
// One device, one context for each process. After a fault every call returns its code until the
// process ends, as a GPU's context has it.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "executor/cuda_driver.h"

// Each function of the table is declared as opd calls it, and visible; nothing else is.
#define CU(name, symbol, need, parameters)                                                         \
    __attribute__((visibility("default"))) int symbol parameters;
#include "executor/cuda_driver.def"
#undef CU

enum { // CUresult, beyond what opd names
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ASSERT = 710,
    CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_CAPTURE_UNSUPPORTED = 900,
};

// --- the context (device.c)

int context_error(void);          // what has broken it, or 0
void context_break(int error);    // the first one counts
enum { USUAL_STACK = 1024 };
size_t stack_limit(void); // of a thread whose kernel calls itself: others have what they need
#define RETURN_IF_BROKEN()                                                                         \
    do {                                                                                           \
        int broken_ = context_error();                                                             \
        if (broken_)                                                                               \
            return broken_;                                                                        \
    } while (0)

// --- memory that kernels may touch (memory.c)

struct range {
    uint64_t start, end;
};

// What stays true of a range that was found, for as long as memory_generation() does.
unsigned memory_generation(void);
bool memory_find(uint64_t addr, struct range *out);
void memory_add(uint64_t addr, size_t size);
void memory_remove(uint64_t addr);
bool memory_is_reserved(uint64_t addr); // device addresses, whether there is anything or not
bool memory_window(uint64_t *out, size_t size); // addresses that nothing else will have

// --- modules (module.c)

struct ptx_function;

struct launch {
    const struct ptx_function *function;
    unsigned grid[3], block[3];
    uint32_t dynamic; // bytes of shared memory
    uint8_t *args;
    size_t args_size;
};

int launch_run(const struct launch *l); // to its end; a CUresult (run.c)
int stream_launch(const struct launch *l, void *stream); // in its turn (stream.c)

// What kernels print is kept until the host waits for them.
void prints_add(const char *text, size_t size);
void prints_flush(void);
