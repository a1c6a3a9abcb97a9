// Compiles every kernel that the examples of every operator launch, for every GPU that NVRTC knows.
// Needs no GPU.
//
//   compile_all [--arch sm_75,sm_90] [--jobs N] [--checked PTXAS] [FILE.cu ...]
//
// By default one architecture of each major version, and kernels_src/*.cu. With --checked it is
// their checked builds, which that program assembles.

#include <glob.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"
#include "compiler/compile.h"
#include "compiler/nvrtc_load.h"
#include "kernels/source.h"
#include "op/plan.h"

enum { MAX_ARCHS = 32, MAX_JOBS = 64 };

struct kernel {
    char *prelude, *expr;
};

// The distinct kernels of one operator.
struct kernels {
    struct kernel *items;
    int n;
};

struct tally {
    int passed, failed;
};

static char archs[MAX_ARCHS][16];
static int n_archs, n_jobs = 2;
static const char *ptxas; // NULL: not the checked builds

static void add_kernel(struct kernels *set, const char *prelude, const char *expr)
{
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->items[i].prelude, prelude) == 0 && strcmp(set->items[i].expr, expr) == 0)
            return;
    set->items = mem_realloc(set->items, (size_t)set->n + 1, sizeof(*set->items));
    set->items[set->n++] = (struct kernel){ mem_strdup(prelude), mem_strdup(expr) };
}

static void free_kernels(struct kernels *set)
{
    for (int i = 0; i < set->n; i++) {
        free(set->items[i].prelude);
        free(set->items[i].expr);
    }
    free(set->items);
}

static bool add_plan(struct kernels *set, const struct plan_request *request)
{
    struct opd_err err = { 0 };
    struct plan *plan = plan_build(request, &err);
    if (!plan) {
        fprintf(stderr, "FAILED plan of %s: %s\n", request->op->file, err.msg);
        opd_err_clear(&err);
        return false;
    }
    for (int i = 0; i < plan->n_kernels; i++) {
        char *checked = ptxas ? plan_checked_prelude(plan, i) : NULL;
        add_kernel(set, checked ? checked : plan->kernels[i].prelude, plan->kernels[i].expr);
        free(checked);
    }
    plan_free(plan);
    return true;
}

// Forward with and without a context; backward of all inputs, and of each alone.
static bool add_example(struct kernels *set, struct plan_request *request)
{
    const struct op *op = request->op;
    bool ok = true;
    request->on_cpu = false;
    request->direction = PLAN_FORWARD;
    for (int keep = 0; keep < 2; keep++) {
        request->keep = keep;
        ok &= add_plan(set, request);
    }
    uint32_t all = plan_gradients(request);
    if (!op->has_backward)
        return ok;
    request->direction = PLAN_BACKWARD;
    for (int i = -1; i < op->n_inputs; i++) {
        request->wanted = i < 0 ? all : all & 1u << i;
        if (request->wanted)
            ok &= add_plan(set, request);
    }
    return ok;
}

// False where a plan failed, or where the operator has no example.
static bool collect(struct kernels *set, const struct op *op)
{
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
    int n_dtypes = plan_example_dtypes(op, true, dtypes), k = 0;
    struct plan_request request;
    bool ok = true;
    for (;; k++) {
        int n = 0;
        for (int d = 0; d < n_dtypes; d++) {
            memset(&request, 0, sizeof(request));
            if (!plan_example(op, k, dtypes[d], &request))
                break;
            n++;
            ok &= add_example(set, &request);
        }
        if (n == 0)
            break;
    }
    if (k == 0)
        fprintf(stderr, "FAILED %s: it has no example\n", op->file);
    return ok && k > 0;
}

// The path goes by a descriptor: the file has no name.
static bool assemble(const struct compile_input *in, const struct compile_output *out)
{
    int fd = file_memfd("checked.ptx", out->image, out->size - 1);
    char *command = mem_printf("%s -O1 -arch=%s -o /dev/null /proc/%d/fd/%d", ptxas, in->target,
                               getpid(), fd);
    bool ok = fd >= 0 && strstr((const char *)out->image, CHECKED_SLOTS) && system(command) == 0;
    free(command);
    close(fd);
    return ok;
}

static bool compile_kernel(const struct compile_input *in)
{
    struct compile_output out;
    struct opd_err err = { 0 };
    bool ok = nvrtc_compile(in, &out, &err);
    if (ok && ptxas && !assemble(in, &out))
        ok = !opd_err_set(&err, OPD_E_internal, "the checked build is not assembled");
    if (ok && out.log)
        fprintf(stderr, "warnings of %s, %s:\n%s", in->expr, in->target, out.log);
    if (!ok)
        fprintf(stderr, "FAILED %s, %s, with %s%s\n%s", in->expr, in->target, in->prelude, err.msg,
                err.log ? err.log : "");
    free(out.image);
    free(out.symbol);
    free(out.log);
    opd_err_clear(&err);
    return ok;
}

// One process's share: every n_jobs-th of all pairs of kernel and architecture.
static struct tally compile_share(const struct kernels *set, struct compile_input in, int job)
{
    struct tally tally = { 0 };
    for (int i = job; i < set->n * n_archs; i += n_jobs) {
        in.prelude = set->items[i / n_archs].prelude;
        in.expr = set->items[i / n_archs].expr;
        in.target = archs[i % n_archs];
        if (compile_kernel(&in))
            tally.passed++;
        else
            tally.failed++;
    }
    return tally;
}

// Runs the shares in processes. One that dies counts as a failure.
static struct tally compile_kernels(const struct kernels *set, const struct compile_input *in)
{
    struct tally total = { 0 };
    int results[2];
    pid_t children[MAX_JOBS];
    if (pipe(results) != 0) {
        perror("pipe");
        exit(2);
    }
    fflush(NULL);
    for (int job = 0; job < n_jobs; job++) {
        children[job] = fork();
        if (children[job] == 0) {
            struct tally tally = compile_share(set, *in, job);
            _exit(write(results[1], &tally, sizeof(tally)) == (ssize_t)sizeof(tally) ? 0 : 1);
        }
    }
    close(results[1]);
    struct tally share;
    while (read(results[0], &share, sizeof(share)) == (ssize_t)sizeof(share)) {
        total.passed += share.passed;
        total.failed += share.failed;
    }
    close(results[0]);
    for (int job = 0; job < n_jobs; job++) {
        int status = 1;
        if (children[job] < 0 || waitpid(children[job], &status, 0) < 0 || status != 0) {
            fprintf(stderr, "FAILED %s: a compiling process died\n", in->file);
            total.failed++;
        }
    }
    return total;
}

static struct tally test_source(const struct source *source, const char *common)
{
    struct tally failed = { .failed = 1 }, tally;
    struct opd_err err = { 0 };
    struct op *op = op_parse_whole(source->file, source->original, source->original_size,
                                   source->text, &err);
    if (!op) {
        printf("%s: FAILED: %s\n", source->file, err.msg);
        opd_err_clear(&err);
        return failed;
    }
    struct kernels set = { 0 };
    bool ok = collect(&set, op);
    tally = compile_kernels(&set, &(struct compile_input){
                                      .common = common,
                                      .file = source->file,
                                      .folder = source->folder,
                                      .source = source->text,
                                  });
    tally.failed += !ok;
    printf("%s: %d kernels, %d architectures: %d passed, %d failed\n", op->name, set.n, n_archs,
           tally.passed, tally.failed);
    free_kernels(&set);
    op_unref(op);
    return tally;
}

// As the daemon reads it, with the headers that lie beside it.
static struct tally test_file(const char *path)
{
    struct tally tally = { .failed = 1 };
    struct opd_err err = { 0 };
    char *folder_copy = mem_strdup(path), *file_copy = mem_strdup(path);
    struct source *source = source_new(dirname(folder_copy), basename(file_copy), 0);
    char *common_path = mem_printf("%s/opd.cuh", source->folder);
    char *common = source_common(access(common_path, R_OK) == 0 ? source->folder : "kernels_src",
                                 &err);
    if (!source_read(source, &err))
        printf("%s: FAILED: %s\n", path, err.msg);
    else if (common)
        tally = test_source(source, common);
    opd_err_clear(&err);
    source_free(source);
    free(common);
    free(common_path);
    free(folder_copy);
    free(file_copy);
    return tally;
}

static void add_arch(const char *name)
{
    if (n_archs < MAX_ARCHS)
        snprintf(archs[n_archs++], sizeof(archs[0]), "%s", name);
}

// The first of each major version.
static bool choose_archs(void)
{
    struct opd_err err = { 0 };
    const struct nvrtc *rtc = nvrtc_load(&err);
    if (!rtc) {
        fprintf(stderr, "%s\n", err.msg);
        opd_err_clear(&err);
        return false;
    }
    for (int i = 0, major = 0; i < rtc->n_archs; i++) {
        if (rtc->archs[i] < 75 || rtc->archs[i] / 10 == major)
            continue;
        major = rtc->archs[i] / 10;
        char name[16];
        snprintf(name, sizeof(name), "sm_%d", rtc->archs[i]);
        add_arch(name);
    }
    return true;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: compile_all [--arch sm_75,sm_90] [--jobs N] [--checked PTXAS] [FILE.cu ...]\n");
    return 2;
}

int main(int argc, char **argv)
{
    int first = 1;
    for (; first + 1 < argc && strncmp(argv[first], "--", 2) == 0; first += 2) {
        char *value = argv[first + 1];
        if (strcmp(argv[first], "--jobs") == 0)
            n_jobs = atoi(value);
        else if (strcmp(argv[first], "--checked") == 0)
            ptxas = value;
        else if (strcmp(argv[first], "--arch") == 0)
            for (char *name = strtok(value, ","); name; name = strtok(NULL, ","))
                add_arch(name);
        else
            return usage();
    }
    if (n_jobs < 1 || n_jobs > MAX_JOBS || (first < argc && argv[first][0] == '-'))
        return usage();
    if (n_archs == 0 && !choose_archs())
        return 2;

    glob_t found = { 0 };
    if (first == argc && glob("kernels_src/*.cu", 0, NULL, &found) != 0) {
        fprintf(stderr, "no kernels_src/*.cu here\n");
        return 2;
    }
    struct tally total = { 0 };
    char **files = first < argc ? argv + first : found.gl_pathv;
    int n_files = first < argc ? argc - first : (int)found.gl_pathc;
    for (int i = 0; i < n_files; i++) {
        struct tally tally = test_file(files[i]);
        total.passed += tally.passed;
        total.failed += tally.failed;
    }
    globfree(&found);
    printf("%d passed, %d failed\n", total.passed, total.failed);
    return total.failed > 0;
}
