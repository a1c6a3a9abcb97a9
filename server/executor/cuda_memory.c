#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "executor/cuda_memory.h"

static struct drv_location location_of(const struct cuda_backend *b)
{
    return (struct drv_location){ .type = DRV_LOCATION_DEVICE, .id = b->device };
}

struct drv_alloc_prop cuda_chunk_prop(const struct cuda_backend *b)
{
    return (struct drv_alloc_prop){
        .type = DRV_ALLOCATION_PINNED,
        .handle_types = DRV_HANDLE_POSIX_FD,
        .location = location_of(b),
    };
}

bool cuda_chunk_new(struct backend *be, uint64_t size, int *out_fd, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    struct drv_alloc_prop prop = cuda_chunk_prop(b);
    drv_handle handle = 0;
    int fd = -1;
    if (!CU_OK(cuMemCreate(&handle, size, &prop, 0)))
        return opd_err_prefix(err, "a chunk of %llu bytes", (unsigned long long)size);
    bool exported = CU_OK(cuMemExportToShareableHandle(&fd, handle, DRV_HANDLE_POSIX_FD, 0));
    cu->cuMemRelease(handle); // the fd keeps the memory; without one it is to go
    if (!exported)
        return false;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        opd_err_errno(err, OPD_E_internal, "memory's file descriptor");
        close(fd);
        return false;
    }
    *out_fd = fd;
    return true;
}

static bool map_handle(struct cuda_backend *b, drv_handle handle, uint64_t size, drv_addr addr,
                       struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    struct drv_access access = { .location = location_of(b), .flags = DRV_ACCESS_READ_WRITE };
    if (!CU_OK(cuMemMap(addr, size, 0, handle, 0)))
        return false;
    bool ok = CU_OK(cuMemSetAccess(addr, size, &access, 1));
    if (!ok)
        cu->cuMemUnmap(addr, size);
    return ok;
}

bool cuda_chunk_map(struct backend *be, int fd, uint64_t size, device_addr *out,
                    struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    drv_handle handle = 0;
    drv_addr addr = 0;
    if (!CU_OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, DRV_HANDLE_POSIX_FD)))
        return false;
    bool mapped = CU_OK(cuMemAddressReserve(&addr, size, 0, 0, 0)) &&
                  map_handle(b, handle, size, addr, err);
    *out = addr;
    cu->cuMemRelease(handle); // the mapping keeps the memory
    if (!mapped && addr)
        cu->cuMemAddressFree(addr, size);
    return mapped;
}

void cuda_chunk_unmap(struct backend *be, device_addr addr, uint64_t size)
{
    struct cuda_backend *b = cuda_of(be);
    b->cu->cuStreamSynchronize(b->stream); // unmapping does not wait for kernels
    b->cu->cuMemUnmap(addr, size);
    b->cu->cuMemAddressFree(addr, size);
}

bool cuda_host_register(struct backend *be, void *host, size_t size)
{
    const struct cuda_driver *cu = cuda_of(be)->cu;
    struct opd_err own = { 0 }, *err = &own;
    bool ok = CU_OK(cuMemHostRegister(host, size, DRV_HOST_PORTABLE | DRV_HOST_DEVICE_MAP));
    if (!ok && err->code != OPD_E_kernel_fault)
        log_warn("%zu KiB of host memory are not page-locked, copies from and to them take longer: "
                 "%s; is there a limit (ulimit -l)?",
                 size >> 10, err->msg);
    opd_err_clear(err);
    return ok;
}

void cuda_host_unregister(struct backend *be, void *host)
{
    struct cuda_backend *b = cuda_of(be);
    b->cu->cuStreamSynchronize(b->stream);
    b->cu->cuMemHostUnregister(host);
}

bool cuda_ipc_open(struct backend *be, const uint8_t handle[BACKEND_IPC_HANDLE], uint64_t size,
                   device_addr *out, struct opd_err *err)
{
    const struct cuda_driver *cu = cuda_of(be)->cu;
    struct drv_ipc_handle shared;
    drv_addr addr = 0, base = 0;
    size_t have = 0;
    memcpy(shared.bytes, handle, sizeof shared.bytes);
    bool ok = CU_OK(cuIpcOpenMemHandle(&addr, shared, DRV_IPC_LAZY_PEER_ACCESS)) &&
              CU_OK(cuMemGetAddressRange(&base, &have, addr));
    if (ok && base == addr && have >= size) {
        *out = addr;
        return true;
    }
    if (ok)
        opd_err_set(err, OPD_E_invalid_argument,
                    "the client's memory has %zu bytes, %llu were said; give the size of the whole "
                    "allocation",
                    have, (unsigned long long)size);
    if (addr)
        cu->cuIpcCloseMemHandle(addr);
    if (err->code == OPD_E_internal) // the handle is the client's
        err->code = OPD_E_invalid_argument;
    return opd_err_prefix(err, "opening a client's memory");
}

void cuda_ipc_close(struct backend *be, device_addr addr)
{
    struct cuda_backend *b = cuda_of(be);
    b->cu->cuStreamSynchronize(b->stream);
    b->cu->cuIpcCloseMemHandle(addr);
}
