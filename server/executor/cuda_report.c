#include "executor/cuda_report.h"

static const char text[] = ".version 6.3\n"
                           ".target sm_75\n"
                           ".address_size 64\n"
                           ".global .align 8 .u64 given;\n"
                           ".visible .entry opd_report(.param .u64 places, .param .u64 last,\n"
                           "                           .param .u64 src)\n"
                           "{\n"
                           ".reg .b64 %rd<8>;\n"
                           "ld.param.u64 %rd1, [places];\n"
                           "ld.param.u64 %rd2, [last];\n"
                           "ld.param.u64 %rd3, [src];\n"
                           "ld.global.u64 %rd4, [given];\n"
                           "ld.global.u64 %rd5, [%rd3];\n"
                           "and.b64 %rd6, %rd4, %rd2;\n"
                           "shl.b64 %rd6, %rd6, 3;\n"
                           "add.u64 %rd6, %rd1, %rd6;\n"
                           "st.global.u64 [%rd6], %rd5;\n"
                           "add.u64 %rd4, %rd4, 1;\n"
                           "st.global.u64 [given], %rd4;\n"
                           "ret;\n"
                           "}\n";

// Once; what it takes ends with the context.
static bool load_kernel(struct cuda_backend *b, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    void *module;
    return b->report || (CU_OK(cuModuleLoadData(&module, text)) &&
                         CU_OK(cuModuleGetFunction(&b->report, module, "opd_report")));
}

bool cuda_report(struct backend *be, uint64_t *places, uint32_t n, device_addr src,
                 struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    uint64_t last = n - 1;
    drv_addr at;
    void *params[] = { &at, &last, &src };
    return load_kernel(b, err) && CU_OK(cuMemHostGetDevicePointer(&at, places, 0)) &&
           CU_OK(cuLaunchKernel(b->report, 1, 1, 1, 1, 1, 1, 0, b->stream, params, NULL));
}
