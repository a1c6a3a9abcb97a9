#include "executor/cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

enum { OPTIONAL, REQUIRED };

const struct cuda_driver *cuda_driver_load(struct opd_err *err)
{
    static struct cuda_driver loaded;
    static bool is_loaded;
    if (is_loaded)
        return &loaded;

    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        opd_err_set(err, OPD_E_unavailable,
                    "no CUDA driver: %s; install NVIDIA's driver, or use the device \"cpu\"",
                    dlerror());
        return NULL;
    }
    const char *missing = NULL;
#define CU(name, symbol, need, parameters)                                                         \
    *(void **)&loaded.name = dlsym(library, #symbol);                                              \
    if (!loaded.name && need == REQUIRED)                                                          \
        missing = #symbol;
#include "executor/cuda_driver.def"
#undef CU
    if (missing) {
        opd_err_set(err, OPD_E_unavailable, "the CUDA driver has no %s: it is too old; update it",
                    missing);
        dlclose(library);
        return NULL;
    }
    is_loaded = true;
    return &loaded;
}

static enum opd_err_code code_of(int result)
{
    if (result == DRV_ERROR_OUT_OF_MEMORY)
        return OPD_E_out_of_memory;
    if (result == DRV_ERROR_LAUNCH_OUT_OF_RESOURCES)
        return OPD_E_invalid_argument;
    if (result == DRV_ERROR_ECC_UNCORRECTABLE ||
        (result >= DRV_ERROR_ILLEGAL_ADDRESS && result <= DRV_ERROR_LAUNCH_FAILED))
        return OPD_E_kernel_fault;
    if (result < DRV_ERROR_NO_DEVICE || result >= DRV_ERROR_INVALID_IMAGE)
        return OPD_E_internal;
    return OPD_E_unavailable;
}

bool cuda_driver_check(const struct cuda_driver *cu, int result, const char *call,
                       struct opd_err *err)
{
    const char *name = NULL, *text = NULL;
    if (result == DRV_SUCCESS)
        return true;
    cu->cuGetErrorName(result, &name);
    cu->cuGetErrorString(result, &text);
    return opd_err_set(err, code_of(result), "%.*s: %s (%d): %s", (int)strcspn(call, "("), call,
                       name ? name : "unknown error", result, text ? text : "no description");
}
