#pragma once

// Kernels of CUDA devices in this process, by the driver alone: in torch's primary context of each
// device, on torch's current stream, without waiting.
//
// What may still run is known by stream: a plan that is given up is freed when an event behind all
// that was launched on each stream has passed. A launch that a stream captures belongs to a CUDA
// graph, which holds the plan for as long as it, or what was instantiated from it, lives.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/exported.h"

struct cuda_use;
struct image;
struct loaded;

bool cuda_load(struct image *image, const void *payload, struct opd_err *err);
void cuda_unload(struct image *image);

// What a plan keeps. Error: out_of_memory.
bool cuda_use_new(struct loaded *p, struct opd_err *err);
bool cuda_use_is_over(struct cuda_use *use); // of a plan that is retired; NULL: it is
void cuda_use_free(struct cuda_use *use);    // NULL is fine

// A run of a plan: its device's context is current and its stream known, from begin to end. Errors:
// kernel_fault, where the device has failed; what a driver's call says.
struct cuda_run {
    struct loaded *plan;
    void *stream;
    bool pushed, capturing;
};
bool cuda_begin(struct cuda_run *run, struct loaded *p, struct opd_err *err);
bool cuda_zero(struct cuda_run *run, uint64_t address, uint64_t size, struct opd_err *err);
bool cuda_launch(struct cuda_run *run, struct image *image, const struct exported_step *step,
                 const void *args, struct opd_err *err);
void cuda_end(struct cuda_run *run);

// Products by cuBLASLt, whose handle is made when a device is first asked for; false: there is
// none. *size: bytes of memory that the product works in, where its matrices lie as they do in *m.
// `workspace`: `size` bytes of this run's; of other addresses it makes do with them.
struct backend_matmul;
bool cuda_has_blas(int device_index);
bool cuda_matmul_workspace(int device_index, const struct backend_matmul *m, uint64_t *size);
bool cuda_matmul(struct cuda_run *run, const struct backend_matmul *m, uint64_t workspace,
                 uint64_t size, struct opd_err *err);

// The next place for a call of this plan to report to: 0 until its kernels do, then as they leave
// it until that is told.
uint64_t cuda_next_report(struct cuda_use *use);
// What kernels of earlier calls have reported, the first that is found: false, with
// invalid_argument. `wait`: for all that was launched in this process by plans that can report.
bool cuda_find_reports(bool wait, struct opd_err *err);

// In a forked child nothing of CUDA can be used, as torch says.
void cuda_forked(void);
