#include "compiler/compiler.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "compiler/cache.h"
#include "compiler/compile.h"
#include "base/child.h"
#include "base/fdpass.h"
#include "compiler/host_pch.h"
#include "compiler/host_source.h"
#include "base/file.h"
#include "base/image.h"
#include "compiler/job.h"
#include "base/log.h"
#include "base/mem.h"
#include "compiler/pch.h"
#include "compiler/scratch.h"

enum { KEPT_MEMORY = 64 << 20 };

struct compiler {
    const char *name;
    const char *(*identity)(struct opd_err *err);
    bool (*compile)(const struct compile_input *in, struct compile_output *out,
                    struct opd_err *err);
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
    char *log, *text;
    const char *identity;
    bool cached;
    uint64_t cache_bytes;
    int fd; // the image, or -1
};

// -1: no such kind.
static int parse_kind(const char *name)
{
    static const char *const names[] = {
        [COMPILE_IMAGE] = "compile", [COMPILE_SYNTAX] = "syntax", [COMPILE_DESCRIBE] = "describe",
        [COMPILE_PTX] = "ptx",       [COMPILE_SASS] = "sass",
    };
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static void keep_image(const struct compile_output *out, const char *cache,
                       const struct cache_key *key, struct result *result)
{
    struct buf image = { 0 };
    image_write(&image, out->symbol, out->image, out->size);
    cache_put(cache, key, &image);
    result->fd = file_memfd("opd-image", image.bytes, image.size);
    if (result->fd < 0)
        opd_err_errno(&result->err, OPD_E_internal, "keeping an image of %zu bytes", image.size);
    buf_finish(&image);
}

static void append_note(struct opd_err *err, const char *text)
{
    char *log = mem_printf("%s%snote: %s\n", err->log ? err->log : "", err->log ? "\n" : "", text);
    free(err->log);
    err->log = log;
}

// What NVRTC says of a pasted PyTorch extension does not tell what to do about it.
static void add_notes(const struct compile_input *in, struct opd_err *err)
{
    struct opd_err host = { 0 };
    if (strcmp(in->target, "cpu") != 0 && host_source_find_host_code(in->file, in->source, &host))
        append_note(err, host.msg);
    opd_err_clear(&host);
}

static void compile(const struct compiler *compiler, const struct compile_input *in,
                    struct result *result)
{
    struct cache_key key;
    if (in->kind == COMPILE_IMAGE) {
        cache_make_key(&key, in, result->identity);
        result->fd = cache_get(in->cache, &key);
        result->cached = result->fd >= 0;
        if (result->cached)
            return;
    }
    struct compile_output out = { 0 };
    if (compiler->compile(in, &out, &result->err) && in->kind == COMPILE_IMAGE)
        keep_image(&out, in->cache, &key, result);
    if (result->err.code == OPD_E_compile_error)
        add_notes(in, &result->err);
    result->log = out.log;
    result->text = out.text;
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
    if (strcmp(job->strings[JOB_KIND], "identity") == 0)
        return;
    int kind = parse_kind(job->strings[JOB_KIND]);
    if (kind < 0) {
        opd_err_set(&result->err, OPD_E_internal, "a compiler does not know the job \"%s\"",
                    job->strings[JOB_KIND]);
        return;
    }
    struct compile_input in = {
        .kind = (enum compile_kind)kind,
        .target = job->strings[JOB_TARGET],
        .common = job->strings[JOB_COMMON],
        .prelude = job->strings[JOB_PRELUDE],
        .file = job->strings[JOB_FILE],
        .folder = job->strings[JOB_FOLDER][0] ? job->strings[JOB_FOLDER] : NULL,
        .source = job->strings[JOB_SOURCE],
        .expr = job->strings[JOB_EXPR],
        .cache = job->strings[JOB_CACHE],
    };
    compile(compiler, &in, result);
}

static bool send_result(uint32_t id, const struct result *result)
{
    const char *log = result->err.log ? result->err.log : result->log;
    const char *strings[RESULT_STRINGS] = {
        [RESULT_MESSAGE] = result->err.msg,
        [RESULT_LOG] = log ? log : "",
        [RESULT_COMPILER] = result->identity,
        [RESULT_TEXT] = result->text ? result->text : "",
    };
    struct buf frame = { 0 };
    struct job_header header = {
        .id = id,
        .code = result->err.code,
        .cached = result->cached,
        .cache_bytes = result->cache_bytes,
    };
    job_pack(&frame, &header, strings, RESULT_STRINGS);
    size_t sent = 0;
    while (sent < frame.size) {
        bool first = sent == 0 && result->fd >= 0;
        ssize_t n = fdpass_send(JOB_FD_SOCKET, frame.bytes + sent, frame.size - sent, &result->fd,
                                first);
        if (n <= 0)
            break;
        sent += (size_t)n;
    }
    bool ok = sent == frame.size;
    buf_finish(&frame);
    return ok;
}

// What came behind a job can only be its "cancel", which host_cxx.c does not see any more.
static bool is_cancelled(const struct buf *in, size_t job_size, struct result *result)
{
    if (in->size == job_size)
        return false;
    *result = (struct result){ .fd = -1, .identity = "" };
    opd_err_set(&result->err, OPD_E_unavailable, "nobody waits for it");
    return true;
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

static void limit_memory(void)
{
#if !defined __SANITIZE_ADDRESS__ &&                                                               \
    !defined __SANITIZE_THREAD__ // which take terabytes, and use little of them
    const struct rlimit memory = { (rlim_t)COMPILER_MEMORY_GIB << 30,
                                   (rlim_t)COMPILER_MEMORY_GIB << 30 };
    if (setrlimit(RLIMIT_DATA, &memory) < 0)
        log_debug("the memory of a compile stays as limited as it is: %s", strerror(errno));
#endif
}

// What a compile has freed the next one takes: given back, it costs each a tenth of its time.
static void keep_memory(void)
{
#ifdef M_TRIM_THRESHOLD
    mallopt(M_TRIM_THRESHOLD, KEPT_MEMORY);
    mallopt(M_MMAP_THRESHOLD, KEPT_MEMORY / 2);
#endif
}

static void prepare(void)
{
    limit_memory();
    keep_memory();
    setenv("LC_ALL", "C", 1); // diagnostics in the words that host_log.c knows
    child_watch(JOB_FD_SOCKET);
    const char *scratch = scratch_open();
    if (scratch)
        setenv("ZIG_LOCAL_CACHE_DIR", scratch, 1); // it keeps every object that it makes
    pch_use(scratch);
    host_pch_use(scratch);
}

int compiler_main(void)
{
    prepare();
    struct buf in = { 0 };
    struct job_frame frame;
    long size;
    bool ok = true;
    while (ok && read_frame(&in, &frame, &size)) {
        struct result result;
        if (strcmp(frame.strings[JOB_KIND], "cancel") == 0) { // of one that has been answered
            buf_consume(&in, (size_t)size);
            continue;
        }
        if (!is_cancelled(&in, (size_t)size, &result))
            run_job(&frame, &result);
        result.cache_bytes = cache_bytes();
        ok = send_result(frame.header.id, &result);
        uint64_t limit = strtoull(frame.strings[JOB_CACHE_LIMIT], NULL, 10);
        host_pch_make();
        pch_publish(frame.strings[JOB_CACHE], limit);
        cache_trim(frame.strings[JOB_CACHE], limit);
        opd_err_clear(&result.err);
        free(result.log);
        free(result.text);
        file_close(&result.fd);
        buf_consume(&in, (size_t)size);
    }
    buf_finish(&in);
    pch_use(NULL);
    host_pch_use(NULL);
    scratch_close();
    return 0;
}
