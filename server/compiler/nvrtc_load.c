#include "compiler/nvrtc_load.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/cuda_library.h"
#include "base/file.h"
#include "base/mem.h"
#include "compiler/nvrtc_headers.h"
#include "compiler/pch.h"

static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL };
static const char *const wheels[] = { "/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib", NULL };

static struct nvrtc loaded;
static bool is_loaded;

static void load_one(const char *path, void *unused)
{
    (void)unused;
    dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

// The library opens its companion by name alone: already in memory, it is found wherever it lies.
static void load_builtins(const char *folder)
{
    char *pattern = mem_printf("%s/libnvrtc-builtins.so*", folder);
    file_each(pattern, load_one, NULL);
    free(pattern);
}

static bool find_functions(struct nvrtc *rtc, void *library, struct opd_err *err)
{
#define NVRTC(name, parameters)                                                                    \
    *(void **)&rtc->name = dlsym(library, #name);                                                  \
    if (!rtc->name)                                                                                \
        return opd_err_set(err, OPD_E_unavailable,                                                 \
                           "%s has no %s: it is older than CUDA 11.2; install a newer one",        \
                           rtc->path, #name);
#include "compiler/nvrtc_table.def"
#undef NVRTC
    return true;
}

static void find_path(struct nvrtc *rtc, void *library)
{
    Dl_info where;
    void *symbol = dlsym(library, "nvrtcVersion");
    struct stat st;
    if (symbol && dladdr(symbol, &where) && where.dli_fname)
        snprintf(rtc->path, sizeof(rtc->path), "%s", where.dli_fname);
    if (rtc->path[0])
        rtc->base = where.dli_fbase;
    if (rtc->path[0] && stat(rtc->path, &st) == 0)
        rtc->size = (long long)st.st_size;
}

static bool ask_version(struct nvrtc *rtc, struct opd_err *err)
{
    int limit = (int)(sizeof(rtc->archs) / sizeof(rtc->archs[0]));
    if (rtc->nvrtcVersion(&rtc->major, &rtc->minor) != 0 ||
        rtc->nvrtcGetNumSupportedArchs(&rtc->n_archs) != 0 || rtc->n_archs > limit ||
        rtc->nvrtcGetSupportedArchs(rtc->archs) != 0)
        return opd_err_set(err, OPD_E_unavailable, "%s does not tell its version", rtc->path);
    return true;
}

// From 12.8 on. Once, before the first compile: it voids what was made before.
static void set_pch_heap(struct nvrtc *rtc, void *library)
{
    int (*set)(size_t size) = NULL;
    *(void **)&set = dlsym(library, "nvrtcSetPCHHeapSize");
    rtc->pch = set && set(PCH_HEAP) == 0;
}

const struct nvrtc *nvrtc_load(struct opd_err *err)
{
    if (is_loaded)
        return &loaded;
    const char *named = getenv("OPD_NVRTC");
    bool is_named = named && named[0];
    void *library = cuda_library_open(&(struct cuda_library){
        .names = names, .wheels = wheels, .named = named, .before = load_builtins });
    if (!library && is_named) {
        opd_err_set(err, OPD_E_unavailable,
                    "OPD_NVRTC is %s, where libnvrtc cannot be loaded; "
                    "expected the library or its folder",
                    named);
        return NULL;
    }
    if (!library) {
        opd_err_set(err, OPD_E_unavailable,
                    "NVRTC, which compiles for the GPU, is not installed: looked in $CUDA_HOME, "
                    "$CUDA_PATH, "
                    "/usr/local/cuda*, the dynamic linker's folders and Python's site-packages; "
                    "run \"pip install nvidia-cuda-nvrtc\", or set OPD_NVRTC to libnvrtc.so");
        return NULL;
    }
    loaded = (struct nvrtc){ 0 };
    find_path(&loaded, library);
    if (!find_functions(&loaded, library, err) || !ask_version(&loaded, err)) {
        dlclose(library);
        return NULL;
    }
    set_pch_heap(&loaded, library);
    nvrtc_headers_find(&loaded, library);
    is_loaded = true;
    return &loaded;
}

int nvrtc_choose_arch(const struct nvrtc *rtc, const char *target, bool *out_ptx,
                      struct opd_err *err)
{
    int wanted = 0, arch = 0;
    char end = 0;
    if (sscanf(target, "sm_%d%c", &wanted, &end) != 1) {
        opd_err_set(err, OPD_E_invalid_argument, "target is \"%s\", expected sm_<number>", target);
        return 0;
    }
    for (int i = 0; i < rtc->n_archs; i++)
        if (rtc->archs[i] <= wanted)
            arch = rtc->archs[i];
    *out_ptx = arch / 10 != wanted / 10; // the machine's code of another major version does not run
    if (arch == 0)
        opd_err_set(err, OPD_E_unavailable,
                    "NVRTC %d.%d (%s) does not compile for %s, only from sm_%d to sm_%d; install "
                    "another version",
                    rtc->major, rtc->minor, rtc->path, target, rtc->archs[0],
                    rtc->archs[rtc->n_archs - 1]);
    return arch;
}
