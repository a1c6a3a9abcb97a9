#include "torch/functions.h"

#include <dlfcn.h>

enum { REQUIRED, OPTIONAL, CUDA };

struct torch_functions torch;

static enum opd_dtype ours[128]; // by torch's number

static void number_dtypes(void)
{
#define DTYPE(name, number, size, type, acc)                                                       \
    torch.dtypes[OPD_DTYPE_##name] = torch.aoti_torch_dtype_##name();                              \
    if ((size_t)torch.dtypes[OPD_DTYPE_##name] < sizeof ours / sizeof *ours)                       \
        ours[torch.dtypes[OPD_DTYPE_##name]] = OPD_DTYPE_##name;
#include "base/dtype.def"
#undef DTYPE
}

enum opd_dtype torch_dtype(int32_t number)
{
    return (size_t)number < sizeof ours / sizeof *ours ? ours[number] : OPD_DTYPE_NONE;
}

static void *libtorch;

static const uint64_t *find_dispatch(void)
{
    return dlsym(libtorch, "_ZN3c104impl26raw_local_dispatch_key_setE"); // the thread's own
}

static void find_unstable(void *cpu)
{
    void *python = dlopen("libtorch_python.so", RTLD_NOW | RTLD_NOLOAD);
    libtorch = cpu;
    torch.find_dispatch = find_dispatch() ? find_dispatch : NULL;
    *(void **)&torch.count_modes = dlsym(cpu, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    *(void **)&torch.is_grad_enabled = dlsym(cpu, "_ZN3c108GradMode10is_enabledEv");
    if (python)
        *(void **)&torch.wrap = dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
}

bool torch_find(struct opd_err *err)
{
    void *cpu = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    void *cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (!cpu)
        return opd_err_set(err, OPD_E_unavailable, "this process has no libtorch_cpu.so");
    const char *missing = NULL;
    torch.has_cuda = cuda != NULL;
#define T(name, need, result, parameters)                                                          \
    *(void **)&torch.name = dlsym(need == CUDA && cuda ? cuda : cpu, #name);                       \
    if (!torch.name && need == REQUIRED)                                                           \
        missing = #name;                                                                           \
    if (!torch.name && need == CUDA)                                                               \
        torch.has_cuda = false;
#include "torch/functions.def"
#undef T
    *(void **)&torch.free_value = dlsym(cpu, "_ZdlPv");
    find_unstable(cpu);
    if (missing || !torch.free_value)
        return opd_err_set(err, OPD_E_unavailable,
                           "this torch has no %s among its stable functions; 2.10 and newer have",
                           missing ? missing : "operator delete");
    torch.cpu = torch.aoti_torch_device_type_cpu();
    torch.cuda = torch.aoti_torch_device_type_cuda();
    number_dtypes();
    return true;
}
