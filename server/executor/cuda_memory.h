#pragma once

// Memory of a GPU as its backend gives it (executor/backend.h): chunks that go to other processes
// by file descriptors, host memory that the GPU reads, and what a client has shared by CUDA's IPC.

#include "base/mem.h"
#include "executor/backend.h"
#include "executor/cuda_driver.h"
#include "executor/cuda_marks.h"

struct cuda_backend {
    struct backend base;
    const struct cuda_driver *cu;
    struct backend_info info;
    int device;
    bool has_context;
    bool in_graph, has_step; // a graph is being made, and a step of it has begun
    struct buf graph_nodes; // void *, of its steps but the last; for those that come after
    struct buf graph_ends;  // size_t, of each step: where its nodes end there
    void *context, *stream;
    struct cuda_blas *blas; // or NULL
    void *report; // the kernel of cuda_report.c; NULL: not loaded yet
    struct cuda_marks marks;
    size_t stack; // bytes for each thread that were lowered, or 0
};

static inline struct cuda_backend *cuda_of(struct backend *be)
{
    return (struct cuda_backend *)be;
}

struct drv_alloc_prop cuda_chunk_prop(const struct cuda_backend *b);
bool cuda_chunk_new(struct backend *be, uint64_t size, int *out_fd, struct opd_err *err);
bool cuda_chunk_map(struct backend *be, int fd, uint64_t size, device_addr *out,
                    struct opd_err *err);
void cuda_chunk_unmap(struct backend *be, device_addr addr, uint64_t size);
bool cuda_host_register(struct backend *be, void *host, size_t size);
void cuda_host_unregister(struct backend *be, void *host);
bool cuda_ipc_open(struct backend *be, const uint8_t handle[BACKEND_IPC_HANDLE], uint64_t size,
                   device_addr *out, struct opd_err *err);
void cuda_ipc_close(struct backend *be, device_addr addr);
