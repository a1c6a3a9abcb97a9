#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/backend.h"
#include "executor/cuda_blas.h"
#include "executor/cuda_checked.h"
#include "executor/cuda_context.h"
#include "executor/cuda_graphs.h"
#include "executor/cuda_memory.h"
#include "executor/cuda_report.h"
#include "executor/prints.h"
#include "base/mem.h"

enum { DEFAULT_SHARED_LIMIT = 48 << 10 };

struct backend_program {
    void *module, *function;
    uint32_t shared_limit;
    bool prints, keeps;
    struct cuda_checked *checked; // or NULL
};

static int device_attr(const struct cuda_backend *b, enum drv_device_attr attr)
{
    int value = 0;
    return b->cu->cuDeviceGetAttribute(&value, attr, b->device) == DRV_SUCCESS ? value : 0;
}

static void cuda_close(struct backend *be)
{
    struct cuda_backend *b = cuda_of(be);
    if (!b)
        return;
    const struct cuda_driver *cu = b->cu;
    if (b->blas)
        cu->cuStreamSynchronize(b->stream);
    cuda_blas_free(b->blas);
    if (b->stream)
        cu->cuStreamDestroy(b->stream);
    cuda_marks_finish(&b->marks);
    cuda_graphs_finish(b);
    if (b->has_context)
        cu->cuDevicePrimaryCtxRelease(b->device);
    free(b);
}

static bool find_device(struct cuda_backend *b, int index, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    int count = 0;
    if (!CU_OK(cuInit(0)) || !CU_OK(cuDeviceGetCount(&count)))
        return false;
    if (index < 0 || index >= count)
        return opd_err_set(err, OPD_E_unavailable,
                           "there is no device cuda:%d: the driver sees %d of them", index, count);
    if (!CU_OK(cuDeviceGet(&b->device, index)))
        return false;
    if (!device_attr(b, DRV_DEVICE_VIRTUAL_MEMORY) || !device_attr(b, DRV_DEVICE_FD_HANDLES))
        return opd_err_set(
            err, OPD_E_unavailable,
            "cuda:%d cannot share its memory by file descriptors, which opd is built on "
            "(virtual memory management, CUDA 11.2 or newer on Linux)",
            index);
    return true;
}

static bool make_stream(struct cuda_backend *b, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    b->has_context = CU_OK(cuDevicePrimaryCtxRetain(&b->context, b->device));
    if (!b->has_context || !CU_OK(cuCtxSetCurrent(b->context)))
        return false;
    cuda_context_lower(b);
    return CU_OK(cuStreamCreate(&b->stream, DRV_STREAM_NON_BLOCKING)) &&
           cuda_marks_init(&b->marks, cu, b->stream, device_attr(b, DRV_DEVICE_STREAM_WRITES_64),
                           err);
}

static void format_uuid(const uint8_t uuid[16], char out[44])
{
    char *p = stpcpy(out, "GPU-");
    for (int i = 0; i < 16; i++)
        p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static bool read_info(struct cuda_backend *b, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    struct backend_info *info = &b->info;
    struct drv_alloc_prop prop = cuda_chunk_prop(b);
    size_t granularity = 0, free_size = 0, total_size = 0;
    uint8_t uuid[16] = { 0 };
    if (!CU_OK(cuDeviceGetName(info->name, (int)sizeof(info->name), b->device)) ||
        !CU_OK(cuDriverGetVersion(&info->driver_version)) ||
        !CU_OK(cuMemGetInfo(&free_size, &total_size)) ||
        !CU_OK(cuMemGetAllocationGranularity(&granularity, &prop, DRV_GRANULARITY_RECOMMENDED)) ||
        !CU_OK(cuDeviceGetUuid(uuid, b->device)))
        return false;
    format_uuid(uuid, info->uuid);
    info->memory_free = free_size;
    info->memory_total = total_size;
    info->context_size = CUDA_CONTEXT_SIZE;
    info->chunk_granularity = granularity;
    info->processors = device_attr(b, DRV_DEVICE_PROCESSORS);
    snprintf(info->target, sizeof(info->target), "sm_%d%d",
             device_attr(b, DRV_DEVICE_CAPABILITY_MAJOR),
             device_attr(b, DRV_DEVICE_CAPABILITY_MINOR));
    return true;
}

static bool cuda_open(struct backend **out, int index, struct opd_err *err)
{
    // Eagerly, cuBLASLt would load each of its kernels for seconds, and fill the device with them.
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    const struct cuda_driver *cu = cuda_driver_load(err);
    if (!cu)
        return false;
    struct cuda_backend *b = mem_zalloc(1, sizeof(*b));
    b->base.ops = &backend_cuda;
    b->cu = cu;
    if (!find_device(b, index, err) || !make_stream(b, err) || !read_info(b, err)) {
        cuda_close(&b->base);
        return opd_err_prefix(err, "opening cuda:%d", index);
    }
    *out = &b->base;
    return true;
}

static void cuda_info(struct backend *be, struct backend_info *out)
{
    *out = cuda_of(be)->info;
}

static uint64_t cuda_own_memory(struct backend *be)
{
    return cuda_context_size(cuda_of(be)->info.uuid);
}

static void cuda_unload(struct backend *be, struct backend_program *program)
{
    if (!program)
        return;
    struct cuda_backend *b = cuda_of(be);
    if (program->module) {
        b->cu->cuStreamSynchronize(b->stream); // nor does unloading
        b->cu->cuModuleUnload(program->module);
    }
    cuda_checked_free(program->checked);
    free(program);
}

static bool has_word(const struct backend_image *image, const char *word)
{
    return memmem(image->bytes, image->size, word, strlen(word)) != NULL;
}

// The section that variables are in, of a cubin; what declares one, in PTX.
static bool has_variables(const struct backend_image *image)
{
    return has_word(image, ".nv.global") || has_word(image, ".global .align");
}

// The kernel as it was compiled against the parameters that will be passed: a difference would be
// read as garbage.
static bool check_params(const struct cuda_driver *cu, void *function,
                         const struct backend_image *image, struct opd_err *err)
{
    size_t offset = 0, size = 0;
    if (!cu->cuFuncGetParamInfo)
        return true;
    for (int i = 0; i < image->n_params; i++) {
        const struct backend_param *p = &image->params[i];
        int result = cu->cuFuncGetParamInfo(function, (size_t)i, &offset, &size);
        if (result == DRV_ERROR_INVALID_VALUE)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "kernel %s was compiled with %d parameters, bound with %d",
                               image->symbol, i, image->n_params);
        if (result != DRV_SUCCESS)
            return cuda_driver_check(cu, result, "cuFuncGetParamInfo", err);
        if (offset != p->offset || size != p->size)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "kernel %s: parameter %d was compiled with %zu bytes at offset %zu, "
                               "bound with %u at %u",
                               image->symbol, i, size, offset, p->size, p->offset);
    }
    if (cu->cuFuncGetParamInfo(function, (size_t)image->n_params, &offset, &size) == DRV_SUCCESS)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "kernel %s was compiled with more parameters than the %d bound",
                           image->symbol, image->n_params);
    return true;
}

// Loaded at its first launch only, a kernel would make that launch slow, and its failure late.
static bool load_now(const struct cuda_driver *cu, void *function, struct opd_err *err)
{
    int registers;
    return cu->cuFuncLoad ? CU_OK(cuFuncLoad(function))
                          : CU_OK(cuFuncGetAttribute(&registers, DRV_FUNC_REGISTERS, function));
}

static bool load_module(struct cuda_backend *b, const struct backend_image *image,
                        struct backend_program *program, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    cuda_context_raise(b, image);
    if (!cuda_checked_is(image))
        return CU_OK(cuModuleLoadData(&program->module, image->bytes));
    program->checked = cuda_checked_load(b, image, &program->module, err);
    return program->checked != NULL;
}

static bool cuda_load(struct backend *be, const struct backend_image *image,
                      struct backend_program **out, struct opd_err *err)
{
    const struct cuda_driver *cu = cuda_of(be)->cu;
    struct backend_program *program = mem_zalloc(1, sizeof(*program));
    program->shared_limit = DEFAULT_SHARED_LIMIT;
    program->prints = has_word(image, "vprintf");
    program->keeps = has_variables(image);
    bool ok = load_module(cuda_of(be), image, program, err) &&
              CU_OK(cuModuleGetFunction(&program->function, program->module, image->symbol)) &&
              load_now(cu, program->function, err) &&
              check_params(cu, program->function, image, err);
    if (ok)
        *out = program;
    else
        cuda_unload(be, program);
    return ok;
}

static bool cuda_waits(const struct backend_program *program)
{
    return program->prints || program->checked;
}

static bool cuda_keeps(const struct backend_program *program)
{
    return program->keeps;
}

// The driver writes what kernels have printed when it synchronises. Whether the launch has failed
// is asked later.
static void take_prints(struct cuda_backend *b)
{
    b->cu->cuStreamSynchronize(b->stream);
    prints_collect();
}

static bool cuda_launch(struct backend *be, const struct backend_launch *l, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    struct backend_program *program = l->program;
    size_t args_size = l->args_size;
    const unsigned threads = l->block[0] * l->block[1] * l->block[2];
    void *extra[] = {
        (void *)DRV_PARAM_BUFFER, (void *)(uintptr_t)l->args, (void *)DRV_PARAM_SIZE, &args_size,
        (void *)DRV_PARAM_END,
    };
    if (cuda_waits(program) && b->in_graph)
        return opd_err_set(err, OPD_E_unavailable,
                           "a kernel that prints, or is checked, is waited for");
    if (program->checked && !cuda_checked_begin(program->checked, b, l, err))
        return false;
    bool fits = l->shared_size <= program->shared_limit ||
                CU_OK(cuFuncSetAttribute(program->function, DRV_FUNC_MAX_DYNAMIC_SHARED,
                                         (int)l->shared_size));
    if (fits && l->shared_size > program->shared_limit)
        program->shared_limit = l->shared_size;
    if (fits && CU_OK(cuLaunchKernel(program->function, l->grid[0], l->grid[1], l->grid[2],
                                     l->block[0], l->block[1], l->block[2], l->shared_size,
                                     b->stream, NULL, args_size ? extra : NULL))) {
        if (program->prints)
            take_prints(b);
        return !program->checked || cuda_checked_end(program->checked, b, l, err);
    }
    if (strstr(err->msg, "LAUNCH_OUT_OF_RESOURCES"))
        opd_err_prefix(
            err,
            "a block of %u threads takes more registers than there are: make it smaller, "
            "or give the kernel __launch_bounds__(%u)",
            threads, threads);
    return false;
}

static void cuda_load_blas(struct backend *be)
{
    struct cuda_backend *b = cuda_of(be);
    b->blas = cuda_blas_new(b->cu, true);
    snprintf(b->info.blas, sizeof(b->info.blas), "%s", b->blas ? cuda_blas_name(b->blas) : "");
}

static bool cuda_matmul(struct backend *be, const struct backend_matmul *m, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    if (!b->blas)
        return opd_err_set(err, OPD_E_unavailable, "cuBLASLt was not found");
    return cuda_blas_matmul(b->blas, m, 0, 0, b->stream, err);
}

static bool cuda_matmul_workspace(struct backend *be, const struct backend_matmul *m,
                                  device_addr *out, uint64_t *out_size, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    drv_addr at = 0;
    size_t size = 0;
    if (b->blas && !cuda_blas_share(b->blas, m, &at, &size, err))
        return false;
    *out = at;
    *out_size = size;
    return true;
}

static bool cuda_copy(struct backend *be, device_addr dst, device_addr src, size_t size,
                      struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    return size == 0 || CU_OK(cuMemcpyAsync(dst, src, size, b->stream));
}

static bool cuda_fill(struct backend *be, device_addr dst, uint8_t byte, size_t size,
                      struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    if (size == 0)
        return true;
    return (dst | size) % 4 == 0
               ? CU_OK(cuMemsetD32Async(dst, byte * 0x01010101u, size / 4, b->stream))
               : CU_OK(cuMemsetD8Async(dst, byte, size, b->stream));
}

// --- marks

static bool cuda_mark(struct backend *be, uint64_t mark, struct opd_err *err)
{
    return cuda_marks_add(&cuda_of(be)->marks, mark, err);
}

static bool cuda_poll(struct backend *be, uint64_t *out_mark, struct opd_err *err)
{
    return cuda_marks_poll(&cuda_of(be)->marks, out_mark, err);
}

static bool cuda_stamp(struct backend *be, unsigned place, struct opd_err *err)
{
    return cuda_marks_stamp(&cuda_of(be)->marks, place, err);
}

static bool cuda_elapsed(struct backend *be, unsigned from, unsigned to, uint64_t *out_ns,
                         struct opd_err *err)
{
    return cuda_marks_elapsed(&cuda_of(be)->marks, from, to, out_ns, err);
}

static bool cuda_share_marks(struct backend *be, _Atomic uint64_t *passed)
{
    return cuda_marks_share(&cuda_of(be)->marks, passed);
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .own_memory = cuda_own_memory,
    .chunk_new = cuda_chunk_new,
    .chunk_map = cuda_chunk_map,
    .chunk_unmap = cuda_chunk_unmap,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .ipc_open = cuda_ipc_open,
    .ipc_close = cuda_ipc_close,
    .load = cuda_load,
    .unload = cuda_unload,
    .waits = cuda_waits,
    .keeps = cuda_keeps,
    .blas_load = cuda_load_blas,
    .matmul = cuda_matmul,
    .matmul_workspace = cuda_matmul_workspace,
    .launch = cuda_launch,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .report = cuda_report,
    .has_graphs = cuda_has_graphs,
    .graph_begin = cuda_graph_begin,
    .graph_step = cuda_graph_step,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .mark = cuda_mark,
    .poll = cuda_poll,
    .stamp = cuda_stamp,
    .elapsed = cuda_elapsed,
    .share_marks = cuda_share_marks,
};
