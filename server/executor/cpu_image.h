#ifndef OPD_CPU_IMAGE_H
#define OPD_CPU_IMAGE_H

// What a compiled image of the CPU device and the process that loads it know of each other.
//
// This text is compiled twice: as C into the backend, and as C++ in front of cpu_shim.h into every
// image; hence the guard and the plain types. Change OPD_CPU_ABI with any change.

enum { OPD_CPU_ABI = 4, OPD_CPU_MAX_BLOCK = 1024, OPD_CPU_MAX_SHARED = 256 * 1024 };

// How the lanes of a warp exchange values: each gives one and gets one.
enum opd_cpu_warp_op {
    OPD_CPU_SYNC,    // nothing
    OPD_CPU_SHUFFLE, // the value of lane `source`; its own, where that lane is not in the mask
    OPD_CPU_BALLOT,  // bit l: lane l gave a value other than 0
    OPD_CPU_MATCH,   // bit l: lane l gave the same value
};

struct opd_cpu_param {
    unsigned offset, size;
};

// One launch, the same for all its blocks.
struct opd_cpu_job {
    unsigned grid[3], block[3];
    const unsigned char *args; // aligned to 16 bytes
    unsigned plain; // thread by thread: slow, but the compiler knows each instruction's line; 2:
                    // from the last to the first, of images that are compiled for it
};

struct opd_cpu_worker; // one thread of the pool, which runs one block at a time

// What an image calls. `thread` is the linear index of the calling thread in its block. Any but
// fail() may run other threads of the block before it returns, on this worker.
struct opd_cpu_runtime {
    // Waits for the block. Result: how many gave a value other than 0, and << 16 how many took
    // part.
    unsigned (*barrier)(struct opd_cpu_worker *w, unsigned thread, int value);
    unsigned long long (*warp)(struct opd_cpu_worker *w, unsigned thread, unsigned mask,
                               enum opd_cpu_warp_op op, unsigned long long value, unsigned source);
    unsigned (*active)(struct opd_cpu_worker *w,
                       unsigned thread); // lanes of its warp that have not returned
    void (*join)(struct opd_cpu_worker
                     *w); // after the threads that run() walked: waits for the others of the block
    void (*fail)(struct opd_cpu_worker *w, const char *what, const unsigned block[3],
                 const unsigned thread[3]);
    int (*print)(const char *format, __builtin_va_list args); // printf()
    // Of images that are compiled with the thread sanitizer: a block begins; one of its threads
    // begins and returns; __threadfence().
    void (*race_block)(struct opd_cpu_worker *w);
    void (*race_enter)(struct opd_cpu_worker *w, unsigned thread);
    void (*race_exit)(struct opd_cpu_worker *w);
    void (*race_fence)(struct opd_cpu_worker *w);
};

// What an image exports, under the name in compile_output.symbol.
struct opd_cpu_kernel {
    unsigned abi, n_params;
    const struct opd_cpu_param *params;
    const char *name; // as the operator's file has it
    void (*init)(const struct opd_cpu_runtime *runtime);
    // Runs blocks begin .. end - 1, x fastest. `shared` is the worker's, the same for its whole
    // life.
    void (*run)(struct opd_cpu_worker *w, const struct opd_cpu_job *job, void *shared,
                unsigned long long begin, unsigned long long end);
    // Runs the threads from `first` on of the block that run() is in, until one waits.
    void (*start)(const struct opd_cpu_job *job, unsigned first);
};

#endif
