#include "compiler/nvrtc_headers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "compiler/nvrtc_load.h"
#include "wire/trust.h"

enum { LEFT_SECONDS = 30 * 24 * 3600 }; // unpacked ones that nobody has used for so long go

// nvrtcBundledHeadersInfo
struct bundle_info {
    int available;
    size_t packed_size, size;
    int major, minor;
    unsigned n_files;
};

static struct {
    struct nvrtc *rtc;
    int (*unpack)(const char *folder, unsigned flags, const char **log); // NULL: nothing is packed
    char identity[PATH_MAX + 128];
} headers;

static bool is_there(const char *folder, const char *name)
{
    char *path = mem_printf("%s/%s", folder, name);
    bool there = access(path, R_OK) == 0;
    free(path);
    return there;
}

static void use(const char *folder, const char *cccl)
{
    snprintf(headers.rtc->include[0], sizeof headers.rtc->include[0], "%s", folder);
    snprintf(headers.rtc->include[1], sizeof headers.rtc->include[1], "%s",
             is_there(cccl, "cub/cub.cuh") ? cccl : "");
}

// BASE/TAIL, with CCCL in cccl/ or as wheels of CUDA 12 have it.
static bool try(const char *base, const char *tail, bool whole)
{
    if (!base || !base[0])
        return false;
    char *folder = mem_printf("%s/%s", base, tail), *cccl = mem_printf("%s/cccl", folder);
    if (!is_there(cccl, "cub/cub.cuh")) {
        free(cccl);
        cccl = mem_printf("%s/../../cuda_cccl/include", folder);
    }
    bool there = is_there(folder, "cuda_fp16.h") &&
                 (!whole || (is_there(folder, "crt/mma.h") && is_there(cccl, "cub/cub.cuh")));
    if (there)
        use(folder, cccl);
    free(cccl);
    free(folder);
    return there;
}

static void mix_stamp(struct buf *out, const char *folder, const char *name)
{
    char *path = mem_printf("%s/%s", folder, name);
    struct stat st;
    if (stat(path, &st) == 0)
        buf_printf(out, " %lld/%lld", (long long)st.st_size, (long long)st.st_mtime);
    free(path);
}

static void identify(void)
{
    const struct nvrtc *rtc = headers.rtc;
    struct buf text = { 0 };
    buf_printf(&text, "%s", rtc->include[0]);
    mix_stamp(&text, rtc->include[0], "cuda_fp16.h");
    mix_stamp(&text, rtc->include[1], "cub/version.cuh");
    snprintf(headers.identity, sizeof headers.identity, "%s", buf_str(&text));
    buf_finish(&text);
}

static bool find_packed(void *library)
{
    int (*info)(struct bundle_info * info, const char **log) = NULL;
    struct bundle_info bundle = { 0 };
    *(void **)&info = dlsym(library, "nvrtcGetBundledHeadersInfo");
    *(void **)&headers.unpack = dlsym(library, "nvrtcInstallBundledHeaders");
    if (!info || info(&bundle, NULL) != 0 || !bundle.available)
        headers.unpack = NULL;
    snprintf(headers.identity, sizeof headers.identity, "its own, %d.%d, %zu bytes", bundle.major,
             bundle.minor, bundle.size);
    return headers.unpack != NULL;
}

void nvrtc_headers_find(struct nvrtc *rtc, void *library)
{
    headers.rtc = rtc;
    headers.identity[0] = '\0';
    char *copy = mem_strdup(rtc->path);
    const char *folder = rtc->path[0] ? dirname(copy) : "";
    bool whole = try(folder, "../include", true);
    if (whole || !find_packed(library)) {
        if (whole || try(folder, "../include", false) ||
            try(folder, "../../cuda_runtime/include", false) ||
            try(getenv("CUDA_HOME"), "include", false) ||
            try(getenv("CUDA_PATH"), "include", false) || try("/usr/local/cuda", "include", false))
            identify();
        else
            headers.identity[0] = '\0';
    }
    free(copy);
}

const char *nvrtc_headers_identity(void)
{
    return headers.identity;
}

static void remove_left(const char *path, void *unused)
{
    struct stat st;
    (void)unused;
    if (strcmp(path, headers.rtc->include[0]) != 0 && stat(path, &st) == 0 &&
        st.st_mtime + LEFT_SECONDS < time(NULL))
        file_remove_tree(path);
}

static bool unpack_into(const char *folder)
{
    const char *log = NULL;
    struct opd_err err = { 0 };
    bool ok = access(folder, W_OK) == 0 ? trust_folder(folder, &err) // NVRTC would make it
                                        : opd_err_errno(&err, OPD_E_unavailable, "%s", folder);
    char *own = mem_printf("%s/headers-%d.%d-%lld", folder, headers.rtc->major, headers.rtc->minor,
                           headers.rtc->size);
    if (ok && headers.unpack(own, 0, &log) != 0)
        ok = opd_err_set(&err, OPD_E_unavailable, "%s", log ? log : "NVRTC does not say why");
    if (ok) {
        char *cccl = mem_printf("%s/cccl", own);
        utimensat(AT_FDCWD, own, NULL, 0); // a use
        use(own, cccl);
        free(cccl);
    } else {
        log_warn("NVIDIA's headers cannot be unpacked into %s: %s", own, err.msg);
    }
    opd_err_clear(&err);
    free(own);
    return ok;
}

void nvrtc_headers_unpack(const char *cache)
{
    static bool unusable; // the cache
    if (!headers.unpack)
        return;
    if (cache && cache[0] && !unusable) {
        bool first = !headers.rtc->include[0][0];
        unusable = !unpack_into(cache);
        char *pattern = mem_printf("%s/headers-*", cache);
        if (first && !unusable)
            file_each(pattern, remove_left, NULL);
        free(pattern);
        if (!unusable)
            return;
    }
    char *temporary = file_temporary("");
    temporary[strlen(temporary) - 1] = '\0';
    unpack_into(temporary);
    free(temporary);
}
