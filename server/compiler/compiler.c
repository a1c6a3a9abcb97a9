#include "compiler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache.h"
#include "compile.h"
#include "fdpass.h"
#include "host_cxx.h"
#include "image.h"
#include "job.h"
#include "log.h"
#include "mem.h"

struct compiler {
    const char *name;
    const char *(*identity)(struct opd_err *err);
    bool (*compile)(const struct compile_input *in, struct compile_output *out, struct opd_err *err);
};

static const struct compiler compilers[] = {
    { "host", host_identity, host_compile },
    { "nvrtc", nvrtc_identity, nvrtc_compile },
};

static const struct compiler *compiler_for(const char *target)
{
    return strcmp(target, "cpu") == 0 ? &compilers[0] : &compilers[1];
}

struct result {
    struct opd_err err;
    char *log;
    const char *identity;
    bool cached;
    int fd; // the image, or -1
};

static int memfd_of(const struct buf *bytes)
{
    int fd = memfd_create("opd-image", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, bytes->bytes, bytes->size) != (ssize_t)bytes->size) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void compile_job(const struct compiler *compiler, const struct compile_input *in, const char *cache,
                        const struct cache_key *key, struct result *result)
{
    struct compile_output out = { 0 };
    if (compiler->compile(in, &out, &result->err)) {
        struct buf image = { 0 };
        image_write(&image, out.symbol, out.image, out.size);
        cache_put(cache, key, &image);
        result->fd = memfd_of(&image);
        if (result->fd < 0)
            opd_err_errno(&result->err, OPD_E_internal, "keeping an image of %zu bytes", image.size);
        buf_finish(&image);
    }
    result->log = out.log;
    free(out.image);
    free(out.symbol);
}

static void run_job(const struct job_frame *job, struct result *result)
{
    *result = (struct result){ .fd = -1, .identity = "" };
    const struct compiler *compiler = compiler_for(job->strings[JOB_TARGET]);
    const char *identity = compiler->identity(&result->err);
    if (!identity)
        return;
    result->identity = identity;
    if (!job->strings[JOB_EXPR][0])
        return; // only the compiler's name is asked for
    struct compile_input in = {
        .target = job->strings[JOB_TARGET],
        .common = job->strings[JOB_COMMON],
        .prelude = job->strings[JOB_PRELUDE],
        .file = job->strings[JOB_FILE],
        .folder = job->strings[JOB_FOLDER][0] ? job->strings[JOB_FOLDER] : NULL,
        .source = job->strings[JOB_SOURCE],
        .expr = job->strings[JOB_EXPR],
    };
    struct cache_key key;
    cache_make_key(&key, &in, identity);
    result->fd = cache_get(job->strings[JOB_CACHE], &key);
    result->cached = result->fd >= 0;
    if (!result->cached)
        compile_job(compiler, &in, job->strings[JOB_CACHE], &key, result);
}

static bool send_result(uint32_t id, const struct result *result)
{
    const char *log = result->err.log ? result->err.log : result->log;
    const char *strings[RESULT_STRINGS] = {
        [RESULT_MESSAGE] = result->err.msg,
        [RESULT_LOG] = log ? log : "",
        [RESULT_COMPILER] = result->identity,
    };
    struct buf frame = { 0 };
    struct job_header header = { .id = id, .code = result->err.code, .cached = result->cached };
    job_pack(&frame, &header, strings, RESULT_STRINGS);
    size_t sent = 0;
    while (sent < frame.size) {
        bool first = sent == 0 && result->fd >= 0;
        ssize_t n = fdpass_send(JOB_FD_SOCKET, frame.bytes + sent, frame.size - sent, &result->fd, first);
        if (n <= 0)
            break;
        sent += (size_t)n;
    }
    bool ok = sent == frame.size;
    buf_finish(&frame);
    return ok;
}

// Reads until one whole frame is there. False: the broker has gone.
static bool read_frame(struct buf *in, struct job_frame *frame, long *out_size)
{
    for (;;) {
        *out_size = job_unpack(in->bytes, in->size, JOB_MAX_STRINGS, frame);
        if (*out_size != 0)
            return *out_size > 0;
        buf_reserve(in, 65536);
        ssize_t n = read(JOB_FD_SOCKET, in->bytes + in->size, in->capacity - in->size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        in->size += (size_t)n;
    }
}

int compiler_main(void)
{
    host_cxx_watch(JOB_FD_SOCKET);
    struct buf in = { 0 };
    struct job_frame frame;
    long size;
    bool ok = true;
    while (ok && read_frame(&in, &frame, &size)) {
        struct result result;
        run_job(&frame, &result);
        ok = send_result(frame.header.id, &result);
        opd_err_clear(&result.err);
        free(result.log);
        if (result.fd >= 0)
            close(result.fd);
        buf_consume(&in, (size_t)size);
    }
    buf_finish(&in);
    return 0;
}
