#include "standin.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Newer than every compiler knows: these then give PTX, not a machine's code.
enum { CAPABILITY = 99, DRIVER_VERSION = 13000, PROCESSORS = 4 };

static _Atomic int broken;
static _Atomic size_t stack = USUAL_STACK;
static int the_context; // its address is the context
static _Thread_local void *current;
static _Thread_local void *below; // a stack of two is what opd needs

int context_error(void)
{
    return atomic_load(&broken);
}

void context_break(int error)
{
    int none = 0;
    atomic_compare_exchange_strong(&broken, &none, error);
}

int cuInit(unsigned flags)
{
    return flags ? DRV_ERROR_INVALID_VALUE : DRV_SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return DRV_SUCCESS;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    { DRV_SUCCESS, "CUDA_SUCCESS", "no error" },
    { DRV_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { DRV_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { DRV_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
    { CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { DRV_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
      "no kernel image is available for execution on the device" },
    { CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
    { CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { DRV_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready" },
    { DRV_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
      "an illegal memory access was encountered" },
    { CUDA_ERROR_ASSERT, "CUDA_ERROR_ASSERT", "device-side assert triggered" },
    { CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address" },
    { DRV_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { CUDA_ERROR_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
      "operation not permitted when stream is capturing" },
};

static int find_error(int code)
{
    for (int i = 0; i < (int)(sizeof errors / sizeof *errors); i++)
        if (errors[i].code == code)
            return i;
    return -1;
}

int cuGetErrorName(int result, const char **name)
{
    int i = find_error(result);
    *name = i < 0 ? NULL : errors[i].name;
    return i < 0 ? DRV_ERROR_INVALID_VALUE : DRV_SUCCESS;
}

int cuGetErrorString(int result, const char **text)
{
    int i = find_error(result);
    *text = i < 0 ? NULL : errors[i].text;
    return i < 0 ? DRV_ERROR_INVALID_VALUE : DRV_SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = 1;
    return DRV_SUCCESS;
}

int cuDeviceGet(int *device, int index)
{
    *device = index;
    return index == 0 ? DRV_SUCCESS : 101;
}

int cuDeviceGetUuid(uint8_t uuid[16], int device)
{
    memcpy(uuid, "opd's stand-in..", 16);
    return device == 0 ? DRV_SUCCESS : 101;
}

int cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "stand-in for a GPU");
    return device == 0 ? DRV_SUCCESS : 101;
}

int cuDeviceGetAttribute(int *value, enum drv_device_attr attr, int device)
{
    switch (attr) {
    case DRV_DEVICE_PROCESSORS: *value = PROCESSORS; break;
    case DRV_DEVICE_CAPABILITY_MAJOR: *value = CAPABILITY; break;
    case DRV_DEVICE_CAPABILITY_MINOR: *value = 0; break;
    case DRV_DEVICE_VIRTUAL_MEMORY:
    case DRV_DEVICE_FD_HANDLES:
    case DRV_DEVICE_STREAM_WRITES_64: *value = 1; break;
    default: *value = 0; return DRV_ERROR_INVALID_VALUE;
    }
    return device == 0 ? DRV_SUCCESS : 101;
}

// A GPU's takes half a second: here as long as there is a file of that name, and so many
// milliseconds.
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    RETURN_IF_BROKEN();
    const char *path = getenv("OPD_STANDIN_WAITS"), *ms = getenv("OPD_STANDIN_OPENS_IN");
    if (ms)
        usleep((useconds_t)atoi(ms) * 1000);
    while (path && access(path, F_OK) == 0)
        usleep(10000);
    *context = &the_context;
    return device == 0 ? DRV_SUCCESS : 101;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return device == 0 ? context_error() : 101;
}

size_t stack_limit(void)
{
    return atomic_load(&stack);
}

int cuCtxGetLimit(size_t *value, int limit)
{
    *value = atomic_load(&stack);
    return limit == DRV_LIMIT_STACK_SIZE ? DRV_SUCCESS : DRV_ERROR_INVALID_VALUE;
}

int cuCtxSetLimit(int limit, size_t value)
{
    if (limit != DRV_LIMIT_STACK_SIZE)
        return DRV_ERROR_INVALID_VALUE;
    atomic_store(&stack, value);
    return context_error();
}

int cuCtxSetCurrent(void *context)
{
    current = context;
    return context_error();
}

int cuCtxGetCurrent(void **context)
{
    *context = current;
    return DRV_SUCCESS;
}

int cuCtxPushCurrent_v2(void *context)
{
    below = current;
    current = context;
    return DRV_SUCCESS;
}

int cuCtxPopCurrent_v2(void **context)
{
    *context = current;
    current = below;
    below = NULL;
    return DRV_SUCCESS;
}
