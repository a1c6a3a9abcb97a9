#include "trial/trial_compile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler/compile.h"
#include "compiler/host_cxx.h"
#include "base/child.h"
#include "base/file.h"
#include "base/mem.h"

enum { ASK_LIMIT_MS = 10000, ASK_LIMIT = 4096 };

// In a process of its own: leaves N.so, or N.err with a line and the log.
static int compile_image(const struct trial_build *b, const char *sanitize, int image)
{
    struct compile_input in = { .kind = COMPILE_IMAGE,
                                .target = "cpu",
                                .common = b->common,
                                .file = b->source->file,
                                .folder = b->source->folder,
                                .source = b->source->text,
                                .sanitize = sanitize,
                                .trial = true,
                                .backwards = b->backwards };
    const struct trial_cases *c = b->cases;
    const char **more = mem_zalloc((size_t)c->n_kernels, sizeof *more);
    for (int i = 0; i < c->n_kernels; i++) {
        const struct trial_kernel *k = &c->kernels[i];
        if (k->image != image)
            continue;
        in.prelude = k->prelude;
        if (k->place == 0)
            in.expr = k->expr;
        else
            more[in.n_more++] = k->expr;
    }
    in.more = more;
    struct compile_output out;
    struct opd_err err = { 0 };
    bool ok = host_compile(&in, &out, &err);
    char *path = mem_printf("%s/%d.%s", b->folder, image, ok ? "so" : "err");
    char *text = mem_printf("%s\n%s", err.msg, err.log ? err.log : "");
    unlink(path); // of the stage before
    return file_make(path, ok ? (const void *)out.image : text, ok ? out.size : strlen(text),
                     NULL) &&
                   ok
               ? 0
               : 1;
}

// The same of a GPU's kernel.
static int compile_kernel(const struct trial_build *b, int number)
{
    const struct trial_kernel *k = &b->cases->kernels[number];
    struct compile_input in = { .kind = COMPILE_IMAGE,
                                .target = b->target,
                                .common = b->common,
                                .file = b->source->file,
                                .folder = b->source->folder,
                                .source = b->source->text,
                                .prelude = k->prelude,
                                .expr = k->expr };
    struct compile_output out;
    struct opd_err err = { 0 };
    bool ok = nvrtc_compile(&in, &out, &err);
    char *path = mem_printf("%s/%d.%s", b->folder, number, ok ? "ptx" : "err");
    char *text = ok ? mem_printf("%s\n%s", out.symbol, (const char *)out.image)
                    : mem_printf("%s\n%s", err.msg, err.log ? err.log : "");
    return file_make(path, text, strlen(text), NULL) && ok ? 0 : 1;
}

static bool read_failure(const struct trial_build *b, int image, struct opd_err *err)
{
    size_t size;
    char *path = mem_printf("%s/%d.err", b->folder, image);
    char *text = source_read_file(path, &size, NULL);
    char *log = text ? strchr(text, '\n') : NULL;
    free(path);
    if (!log)
        return opd_err_set(err, OPD_E_internal, "the compiler's process failed");
    *log = '\0';
    opd_err_set(err, OPD_E_compile_error, "%s", text);
    if (log[1])
        err->log = mem_strdup(log + 1);
    free(text);
    return false;
}

// Waits for one. False: it failed.
static bool reap(pid_t *pids, int n, int *out_image)
{
    int status;
    pid_t pid;
    while ((pid = wait(&status)) < 0 && errno == EINTR)
        continue;
    for (*out_image = 0; *out_image < n && pids[*out_image] != pid;)
        ++*out_image;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool trial_compile(const struct trial_build *b, const char *sanitize, struct opd_err *err)
{
    int n = b->target ? b->cases->n_kernels : b->cases->n_images, n_running = 0, failed = -1, image;
    long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    pid_t *pids = mem_zalloc((size_t)n, sizeof *pids);
    fflush(stdout);
    if (!(b->target ? nvrtc_identity(err) != NULL : host_cxx_find(err) != NULL)) { // once, for all
        free(pids);
        return false;
    }
    for (int i = 0; i < n || n_running > 0;) {
        if (i < n && n_running < n_cores && failed < 0) {
            pids[i] = fork();
            if (pids[i] == 0)
                _exit(b->target ? compile_kernel(b, i) : compile_image(b, sanitize, i));
            n_running += pids[i] > 0;
            failed = pids[i] < 0 ? i : failed;
            i++;
            continue;
        }
        if (n_running == 0)
            break;
        n_running--;
        if (!reap(pids, n, &image))
            failed = failed < 0 ? image : failed;
    }
    free(pids);
    return failed < 0 || read_failure(b, failed, err);
}

// --- the sanitizers' libraries

static char *find_library(const struct host_cxx *cxx, const char *name)
{
    struct buf output = { 0 };
    int status;
    char *option = mem_printf("-print-file-name=%s", name), *path = NULL;
    const char *argv[] = { cxx->words[0], cxx->words[1] ?: option, cxx->words[1] ? option : NULL,
                           NULL };
    if (child_run((char *const *)argv, NULL, ASK_LIMIT_MS, ASK_LIMIT, &output, &status, NULL)) {
        char *answer = mem_strndup(buf_str(&output), strcspn(buf_str(&output), "\n"));
        path = answer[0] == '/' ? realpath(answer, NULL) : NULL; // else it is the name again
        free(answer);
    }
    buf_finish(&output);
    free(option);
    return path;
}

char *trial_find_runtime(const char *sanitize, struct opd_err *err)
{
    const struct host_cxx *cxx = host_cxx_find(err);
    bool thread = strcmp(sanitize, "thread") == 0;
    if (!cxx)
        return NULL;
    const char *name = thread ? "libtsan.so" : "libasan.so",
               *second = thread ? NULL : "libubsan.so";
    if (cxx->clang) { // one library for both
        name = thread ? "libclang_rt.tsan-x86_64.so" : "libclang_rt.asan-x86_64.so";
        second = NULL;
    }
    char *first = find_library(cxx, name), *more = second ? find_library(cxx, second) : NULL;
    char *both = first && (more || !second)
                     ? mem_printf("%s%s%s", first, more ? ":" : "", more ? more : "")
                     : NULL;
    if (!both)
        opd_err_set(err, OPD_E_unavailable, "%s of %s is not installed: %s", first ? second : name,
                    cxx->version,
                    cxx->clang ? "install its compiler-rt, or set OPD_CXX=g++"
                    : thread   ? "install libtsan (Debian: libtsan2)"
                               : "install libasan and libubsan (Debian: libasan8, libubsan1)");
    free(first);
    free(more);
    return both;
}
