#include "executor/cuda_report.h"

static const char text[] = ".version 6.3\n"
                           ".target sm_75\n"
                           ".address_size 64\n"
                           ".visible .entry opd_report(.param .u64 dst, .param .u64 src)\n"
                           "{\n"
                           ".reg .b64 %rd<4>;\n"
                           "ld.param.u64 %rd1, [dst];\n"
                           "ld.param.u64 %rd2, [src];\n"
                           "ld.global.u64 %rd3, [%rd2];\n"
                           "st.global.u64 [%rd1], %rd3;\n"
                           "ret;\n"
                           "}\n";

// Once; what it takes ends with the context.
static void *find_kernel(struct cuda_backend *b)
{
    const struct cuda_driver *cu = b->cu;
    void *module, *function;
    if (b->report_tried)
        return b->report;
    b->report_tried = true;
    if (cu->cuModuleLoadData(&module, text) == DRV_SUCCESS &&
        cu->cuModuleGetFunction(&function, module, "opd_report") == DRV_SUCCESS)
        b->report = function;
    return b->report;
}

bool cuda_report_copy(struct backend *be, uint64_t *host, device_addr src, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    void *kernel = find_kernel(b);
    drv_addr dst;
    void *params[] = { &dst, &src };
    if (!kernel || cu->cuMemHostGetDevicePointer(&dst, host, 0) != DRV_SUCCESS)
        return CU_OK(cuMemcpyAsync((drv_addr)(uintptr_t)host, src, sizeof *host, b->stream));
    return CU_OK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, b->stream, params, NULL));
}
