#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile.h"
#include "mem.h"
#include "nvrtc_load.h"
#include "rtc_log.h"

// Part of the identity: anything here that changes an image changes this line.
static const char *const fixed_options[] = {
    "--std=c++17",
    "--device-as-default-execution-space", // helpers of a pasted file that nobody annotated
    "-lineinfo",
    "--modify-stack-limit=false",
};
enum { N_FIXED = sizeof(fixed_options) / sizeof(fixed_options[0]), MAX_OPTIONS = N_FIXED + 4 };

// Headers that a file pasted from a PyTorch extension includes, and that a kernel does not need.
static const char *const stub_names[] = {
    "torch/extension.h",
    "torch/torch.h",
    "torch/types.h",
    "torch/script.h",
    "torch/all.h",
    "torch/library.h",
    "ATen/ATen.h",
    "ATen/AccumulateType.h",
    "ATen/Dispatch.h",
    "ATen/OpMathType.h",
    "ATen/cuda/CUDAContext.h",
    "ATen/cuda/Atomic.cuh",
    "ATen/cuda/CUDAApplyUtils.cuh",
    "ATen/cuda/detail/KernelUtils.h",
    "ATen/native/cuda/KernelUtils.cuh",
    "ATen/core/TensorAccessor.h",
    "THC/THC.h",
    "THC/THCAtomics.cuh",
    "c10/core/ScalarType.h",
    "c10/cuda/CUDAException.h",
    "c10/cuda/CUDAGuard.h",
    "c10/cuda/CUDAStream.h",
    "c10/cuda/CUDAMathCompat.h",
    "c10/macros/Macros.h",
    "c10/util/BFloat16.h",
    "c10/util/Exception.h",
    "c10/util/Half.h",
    "pybind11/pybind11.h",
    "cuda.h",
    "cuda_runtime.h",
    "cuda_runtime_api.h",
    "device_launch_parameters.h",
    "math.h",
    "cmath",
    "math_constants.h",
    "stdint.h",
    "cstdint",
    "stddef.h",
    "cstddef",
    "stdio.h",
    "cstdio",
    "iostream",
    "stdlib.h",
    "cstdlib",
    "limits.h",
    "climits",
    "float.h",
    "cfloat",
    "assert.h",
    "cassert",
    "string.h",
    "cstring",
    "vector",
    "string",
    "algorithm",
    "memory",
    "tuple",
    "utility",
    "opd.cuh",
};
enum { N_STUBS = sizeof(stub_names) / sizeof(stub_names[0]) };

// The newest architecture that the library knows and whose code the target runs: same major, minor
// not above. 0: none.
static int choose_arch(const struct nvrtc *rtc, const char *target, struct opd_err *err)
{
    int wanted = 0, arch = 0;
    char end = 0;
    if (sscanf(target, "sm_%d%c", &wanted, &end) != 1) {
        opd_err_set(err, OPD_E_invalid_argument, "target is \"%s\", expected sm_<number>", target);
        return 0;
    }
    for (int i = 0; i < rtc->n_archs; i++)
        if (rtc->archs[i] / 10 == wanted / 10 && rtc->archs[i] <= wanted)
            arch = rtc->archs[i];
    if (arch == 0)
        opd_err_set(err, OPD_E_unavailable,
                    "NVRTC %d.%d (%s) does not compile for %s, only from sm_%d to sm_%d; install "
                    "another version",
                    rtc->major, rtc->minor, rtc->path, target, rtc->archs[0],
                    rtc->archs[rtc->n_archs - 1]);
    return arch;
}

static bool create_program(const struct nvrtc *rtc, const struct compile_input *in, void **program,
                           struct opd_err *err)
{
    const char *texts[N_STUBS];
    for (int i = 0; i < N_STUBS; i++)
        texts[i] = "";
    texts[N_STUBS - 1] = in->common;

    char *source = mem_printf("#include \"opd.cuh\"\n#line 1 \"prelude\"\n%s\n#line 1 \"%s\"\n%s\n",
                              in->prelude, in->file, in->source);
    int rc = rtc->nvrtcCreateProgram(program, source, in->file, N_STUBS, texts, stub_names);
    free(source);
    if (rc == 0 && rtc->nvrtcAddNameExpression(*program, in->expr) == 0)
        return true;
    return opd_err_set(err, OPD_E_internal, "%s: NVRTC did not take the program (code %d)",
                       in->file, rc);
}

static int run_compiler(const struct nvrtc *rtc, const struct compile_input *in, int arch,
                        void *program)
{
    const char *options[MAX_OPTIONS];
    char *own[4];
    int n = 0, n_own = 0;
    own[n_own++] = mem_printf("--gpu-architecture=sm_%d", arch);
    if (in->folder)
        own[n_own++] = mem_printf("-I%s", in->folder);
    for (int i = 0; i < 2; i++)
        if (rtc->include[i][0])
            own[n_own++] = mem_printf("-I%s", rtc->include[i]);

    for (int i = 0; i < N_FIXED; i++)
        options[n++] = fixed_options[i];
    for (int i = 0; i < n_own; i++)
        options[n++] = own[i];
    int rc = rtc->nvrtcCompileProgram(program, n, options);
    for (int i = 0; i < n_own; i++)
        free(own[i]);
    return rc;
}

// The library's log in the form file:line:column. NULL if it is empty.
static char *read_log(const struct nvrtc *rtc, void *program)
{
    size_t size = 0;
    if (rtc->nvrtcGetProgramLogSize(program, &size) != 0 || size <= 1)
        return NULL;
    char *raw = mem_zalloc(size + 1, 1);
    char *log = rtc->nvrtcGetProgramLog(program, raw) == 0 ? rtc_log_rewrite(raw) : NULL;
    free(raw);
    return log;
}

static bool report_failure(const struct compile_input *in, int rc, char *log, struct opd_err *err)
{
    enum { COMPILATION = 6, BUILTINS = 7 }; // nvrtcResult
    if (rc == COMPILATION && log) {
        char *first = rtc_log_first_error(log, in->file, in->expr);
        opd_err_set(err, OPD_E_compile_error, "%s", first);
        free(first);
    } else if (rc == BUILTINS) {
        opd_err_set(err, OPD_E_unavailable,
                    "NVRTC does not find libnvrtc-builtins beside libnvrtc: its installation is "
                    "incomplete");
    } else {
        opd_err_set(err, OPD_E_compile_error, "%s: NVRTC failed on kernel '%s' (code %d)", in->file,
                    in->expr, rc);
    }
    err->log = log;
    return false;
}

static bool read_image(const struct nvrtc *rtc, const struct compile_input *in, void *program,
                       struct compile_output *out, struct opd_err *err)
{
    const char *symbol = NULL;
    if (rtc->nvrtcGetLoweredName(program, in->expr, &symbol) != 0 || !symbol)
        return opd_err_set(err, OPD_E_compile_error, "%s: '%s' names no kernel", in->file,
                           in->expr);
    size_t size = 0;
    if (rtc->nvrtcGetCUBINSize(program, &size) != 0 || size == 0)
        return opd_err_set(err, OPD_E_internal, "%s: NVRTC made no image of '%s'", in->file,
                           in->expr);
    uint8_t *image = mem_alloc(size);
    if (rtc->nvrtcGetCUBIN(program, (char *)image) != 0) {
        free(image);
        return opd_err_set(err, OPD_E_internal, "%s: NVRTC did not give the image of '%s'",
                           in->file, in->expr);
    }
    out->image = image;
    out->size = size;
    out->symbol = mem_strdup(symbol);
    return true;
}

bool nvrtc_compile(const struct compile_input *in, struct compile_output *out, struct opd_err *err)
{
    *out = (struct compile_output){ 0 };
    const struct nvrtc *rtc = nvrtc_load(err);
    if (!rtc)
        return false;
    int arch = choose_arch(rtc, in->target, err);
    if (arch == 0)
        return false;

    void *program = NULL;
    bool ok = create_program(rtc, in, &program, err);
    if (ok) {
        int rc = run_compiler(rtc, in, arch, program);
        char *log = read_log(rtc, program);
        ok = rc == 0 ? read_image(rtc, in, program, out, err) : report_failure(in, rc, log, err);
        if (ok)
            out->log = log;
        else if (err->log != log)
            free(log);
    }
    if (program)
        rtc->nvrtcDestroyProgram(&program);
    return ok;
}

const char *nvrtc_identity(struct opd_err *err)
{
    static char line[512];
    const struct nvrtc *rtc = nvrtc_load(err);
    if (!rtc)
        return NULL;
    int n = snprintf(line, sizeof(line), "nvrtc %d.%d (%lld bytes%s) cubin", rtc->major, rtc->minor,
                     rtc->size, rtc->include[0][0] ? ", with the toolkit's headers" : "");
    for (int i = 0; i < N_FIXED; i++)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %s", fixed_options[i]);
    return line;
}
