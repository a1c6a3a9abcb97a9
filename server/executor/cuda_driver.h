#pragma once

// The CUDA driver, loaded at run time, and the few types and numbers of its ABI that opd needs: opd
// is built without any file of CUDA. Contexts, modules, functions, streams and events are opaque
// pointers.

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef unsigned long long drv_addr;   // CUdeviceptr
typedef unsigned long long drv_handle; // CUmemGenericAllocationHandle

enum drv_result { // CUresult; the rest comes with a name from the driver
    DRV_SUCCESS = 0,
    DRV_ERROR_INVALID_VALUE = 1,
    DRV_ERROR_OUT_OF_MEMORY = 2,
    DRV_ERROR_NO_DEVICE = 100,
    DRV_ERROR_INVALID_IMAGE = 200,
    DRV_ERROR_NO_BINARY_FOR_GPU = 209,
    DRV_ERROR_ECC_UNCORRECTABLE = 214,
    DRV_ERROR_NOT_READY = 600,
    DRV_ERROR_ILLEGAL_ADDRESS =
        700, // from here to LAUNCH_FAILED a kernel is to blame, but for the next
    DRV_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    DRV_ERROR_LAUNCH_FAILED = 719,
};

enum drv_device_attr { // CUdevice_attribute
    DRV_DEVICE_PROCESSORS = 16,
    DRV_DEVICE_CAPABILITY_MAJOR = 75,
    DRV_DEVICE_CAPABILITY_MINOR = 76,
    DRV_DEVICE_VIRTUAL_MEMORY = 102,
    DRV_DEVICE_FD_HANDLES = 103,
    DRV_DEVICE_STREAM_WRITES_64 = 122,
};

enum { DRV_LIMIT_STACK_SIZE = 0 }; // CUlimit
enum drv_func_attr { DRV_FUNC_REGISTERS = 4, DRV_FUNC_MAX_DYNAMIC_SHARED = 8 }; // CUfunction_...
enum drv_granularity { DRV_GRANULARITY_RECOMMENDED = 1 }; // CUmemAllocationGranularity_flags
enum drv_handle_type { DRV_HANDLE_POSIX_FD = 1 };         // CUmemAllocationHandleType
enum drv_allocation_type { DRV_ALLOCATION_PINNED = 1 };   // CUmemAllocationType
enum drv_location_type { DRV_LOCATION_DEVICE = 1 };       // CUmemLocationType
enum drv_access_flags { DRV_ACCESS_READ_WRITE = 3 };      // CUmemAccess_flags
enum {
    DRV_IPC_LAZY_PEER_ACCESS = 1,
    DRV_STREAM_NON_BLOCKING = 1,
    DRV_STREAM_CAPTURE_RELAXED = 2,
    DRV_EVENT_DEFAULT = 0,
    DRV_EVENT_DISABLE_TIMING = 2,
    DRV_HOST_PORTABLE = 1,
    DRV_HOST_DEVICE_MAP = 2,
    DRV_CAPTURE_NONE = 0, // CUstreamCaptureStatus
    DRV_SET_CAPTURE_DEPENDENCIES = 1,
    DRV_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
    DRV_GRAPH_USER_OBJECT_MOVE = 1,
    DRV_PARAM_END = 0, // the words of cuLaunchKernel's `extra`
    DRV_PARAM_BUFFER = 1,
    DRV_PARAM_SIZE = 2,
};

struct drv_location { // CUmemLocation
    enum drv_location_type type;
    int id;
};

struct drv_alloc_prop { // CUmemAllocationProp
    enum drv_allocation_type type;
    enum drv_handle_type handle_types;
    struct drv_location location;
    void *windows_only;
    struct {
        unsigned char compression;
        unsigned char rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct drv_ipc_handle { // CUipcMemHandle
    char bytes[64];
};

struct drv_access { // CUmemAccessDesc
    struct drv_location location;
    enum drv_access_flags flags;
};

struct cuda_driver {
#define CU(name, symbol, need, parameters) int(*name) parameters;
#include "executor/cuda_driver.def"
#undef CU
};

// Loaded once, kept for the life of the process. Errors: unavailable, saying what is missing.
const struct cuda_driver *cuda_driver_load(struct opd_err *err);

// Whether a call has succeeded; else fills an empty error from its result: "cuMemCreate:
// CUDA_ERROR_OUT_OF_MEMORY: out of memory". `call` may have arguments after the function's name;
// they are left out. The code is kernel_fault where a kernel or the device has failed, so that
// nothing more will run in this process.
bool cuda_driver_check(const struct cuda_driver *cu, int result, const char *call,
                       struct opd_err *err);

// Runs a call of the driver `cu`, and tells in `err` why it fails: both are in scope.
#define CU_OK(call) cuda_driver_check(cu, cu->call, #call, err)
