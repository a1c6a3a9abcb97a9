// Compiles every kernel that the examples of every operator launch, each bool attribute the other
// way too, for every GPU that NVRTC knows; and their blocks have the registers that they take.
// Needs no GPU.
//
//   compile_all [--arch sm_75,sm_90] [--jobs N] [--checked PTXAS] [--over MS] [FILE.cu ...]
//
// By default one architecture of each major version, and kernels_src/*.cu. With --checked it is
// their checked builds, which that program assembles. With --over each kernel is compiled by
// itself, as after an edit, and those are told that take a processor more milliseconds.

#include <glob.h>
#include <libgen.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/mem.h"
#include "compiler/compile.h"
#include "compiler/nvrtc_load.h"
#include "compiler/pch.h"
#include "compiler/scratch.h"
#include "kernels/source.h"
#include "op/plan.h"

enum { MAX_ARCHS = 32, MAX_JOBS = 64, REGISTERS = 1 << 16, MANY_THREADS = 256 };

// Distinct kernels that are compiled at once, for the text before them is the same. One whose
// blocks have more than MANY_THREADS, which can have all registers, is alone, and asked what it
// takes.
struct group {
    char *prelude, **exprs;
    int n;
    uint32_t threads; // of a block; MANY_THREADS: or fewer
};

// Of one operator.
struct groups {
    struct group *items;
    int n, n_kernels;
};

struct tally {
    int passed, failed;
};

static char archs[MAX_ARCHS][16];
static int n_archs, n_jobs = 2;
static const char *ptxas; // NULL: not the checked builds
static int over_ms;       // 0: kernels are compiled together

// Of a checked build there is one kernel in an image, and where one is timed.
static void add_kernel(struct groups *set, const char *prelude, const char *expr, uint32_t threads)
{
    struct group *g = set->items;
    for (; g < set->items + set->n; g++) {
        bool same = strcmp(g->prelude, prelude) == 0 && g->threads == threads;
        for (int i = 0; same && i < g->n; i++)
            if (strcmp(g->exprs[i], expr) == 0)
                return;
        if (same && !ptxas && !over_ms && threads == MANY_THREADS)
            break;
    }
    if (!g || g == set->items + set->n) {
        set->items = mem_realloc(set->items, (size_t)set->n + 1, sizeof(*set->items));
        g = &set->items[set->n++];
        *g = (struct group){ .prelude = mem_strdup(prelude), .threads = threads };
    }
    g->exprs = mem_realloc(g->exprs, (size_t)g->n + 1, sizeof(*g->exprs));
    g->exprs[g->n++] = mem_strdup(expr);
    set->n_kernels++;
}

static void free_groups(struct groups *set)
{
    for (int i = 0; i < set->n; i++) {
        for (int k = 0; k < set->items[i].n; k++)
            free(set->items[i].exprs[k]);
        free(set->items[i].exprs);
        free(set->items[i].prelude);
    }
    free(set->items);
}

// Of the blocks that a kernel is launched with.
static uint32_t most_threads(const struct plan *plan, int kernel)
{
    uint32_t most = MANY_THREADS;
    for (int i = 0; i < plan->n_steps; i++) {
        const struct plan_step *s = &plan->steps[i];
        uint32_t threads = s->block[0] * s->block[1] * s->block[2];
        if (s->kind == PLAN_STEP_LAUNCH && s->kernel == (uint32_t)kernel && threads > most)
            most = threads;
    }
    return most;
}

static bool add_plan(struct groups *set, const struct plan_request *request)
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
        add_kernel(set, checked ? checked : plan->kernels[i].prelude, plan->kernels[i].expr,
                   most_threads(plan, i));
        free(checked);
    }
    plan_free(plan);
    return true;
}

// Forward with and without a context; backward of all inputs, and of each alone.
static bool add_example(struct groups *set, struct plan_request *request)
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

// The same with each bool attribute the other way, where the operator takes it so.
static bool add_other_ways(struct groups *set, const struct plan_request *request)
{
    const struct op *op = request->op;
    bool ok = true;
    for (int a = 0; a < op->n_attrs; a++) {
        struct plan_request other = *request;
        struct opd_err err = { 0 };
        struct plan *plan = NULL;
        other.attrs[a].i[0] = !other.attrs[a].i[0];
        if (op->attrs[a].type == OP_ATTR_BOOL && (plan = plan_build(&other, &err)) != NULL)
            ok &= add_example(set, &other);
        plan_free(plan);
        opd_err_clear(&err);
    }
    return ok;
}

// False where a plan failed, or where the operator has no example.
static bool collect(struct groups *set, const struct op *op)
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
            ok &= add_other_ways(set, &request) && add_example(set, &request);
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

// Launches of a kernel that has variables do not run beside each other in a graph: an operator that
// comes with opd has none.
static bool has_variables(const struct compile_output *out)
{
    static const char section[] = ".nv.global";
    return !ptxas && memmem(out->image, out->size, section, strlen(section));
}

static bool check_registers(const struct compile_output *out, uint32_t threads, struct opd_err *err)
{
    uint32_t registers = 0;
    if (!out->text)
        return true;
    sscanf(out->text, "registers=%u", &registers);
    uint32_t given = (registers + 7) / 8 * 8; // by eights
    return (registers > 0 && given * threads <= REGISTERS) ||
           opd_err_set(err, OPD_E_internal,
                       "a thread takes %u registers, a block of %u has %d each: make it smaller, "
                       "or give the kernel __launch_bounds__(%u)",
                       registers, threads, REGISTERS / (int)threads, threads);
}

static void free_output(struct compile_output *out)
{
    free(out->image);
    free(out->symbol);
    free(out->log);
    free(out->text);
}

static void tell_time(const struct compile_input *in, const struct timespec *began)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    long ms = (now.tv_sec - began->tv_sec) * 1000 + (now.tv_nsec - began->tv_nsec) / 1000000;
    if (ms > over_ms)
        fprintf(stderr, "%4ld ms %s %s\n", ms, in->expr, in->target);
}

static bool compile_group(const struct compile_input *in, uint32_t threads)
{
    struct compile_output out;
    struct opd_err err = { 0 };
    struct timespec began;
    bool ok = nvrtc_compile(in, &out, &err);
    if (ok && over_ms) { // the first has parsed what they begin with
        free_output(&out);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
        ok = nvrtc_compile(in, &out, &err);
        tell_time(in, &began);
    }
    if (ok && ptxas && !assemble(in, &out))
        ok = !opd_err_set(&err, OPD_E_internal, "the checked build is not assembled");
    if (ok && has_variables(&out))
        ok = !opd_err_set(&err, OPD_E_internal, "it has variables on the device");
    ok = ok && check_registers(&out, threads, &err);
    if (ok && out.log)
        fprintf(stderr, "warnings of %s, %s:\n%s", in->expr, in->target, out.log);
    if (!ok)
        fprintf(stderr, "FAILED %s, %s, with %s%s\n%s", in->expr, in->target, in->prelude, err.msg,
                err.log ? err.log : "");
    free_output(&out);
    opd_err_clear(&err);
    return ok;
}

// What is to be compiled of one file.
struct unit {
    struct source *source;
    char *common, *name; // name: NULL where the file cannot be read
    struct groups set;
    struct tally tally;
};

// What a compiling process tells of each group: how many kernels.
struct verdict {
    int unit, passed, failed;
};

// The files' groups, each for every architecture, one after the other; false behind the last.
static bool find_group(const struct unit *units, int n_units, int at, int *out_unit,
                       uint32_t *out_threads, struct compile_input *in)
{
    int unit = 0;
    while (unit < n_units && at >= units[unit].set.n * n_archs)
        at -= units[unit++].set.n * n_archs;
    if (unit == n_units)
        return false;
    const struct unit *u = &units[unit];
    const struct group *group = &u->set.items[at / n_archs];
    bool asked = group->threads > MANY_THREADS && !ptxas;
    *in = (struct compile_input){ .kind = asked ? COMPILE_DESCRIBE : COMPILE_IMAGE,
                                  .common = u->common,
                                  .file = u->source->file,
                                  .folder = u->source->folder,
                                  .source = u->source->text,
                                  .prelude = group->prelude,
                                  .expr = group->exprs[0],
                                  .more = (const char *const *)group->exprs + 1,
                                  .n_more = group->n - 1,
                                  .target = archs[at % n_archs] };
    *out_unit = unit;
    *out_threads = group->threads;
    return true;
}

// Takes groups until none is left. What all of them begin with it parses once.
static int compile_some(const struct unit *units, int n_units, atomic_int *next, int results)
{
    bool told = true;
    uint32_t threads;
    struct verdict verdict;
    struct compile_input in;
    pch_use(scratch_open());
    while (told &&
           find_group(units, n_units, atomic_fetch_add(next, 1), &verdict.unit, &threads, &in)) {
        verdict.passed = compile_group(&in, threads) ? 1 + in.n_more : 0;
        verdict.failed = 1 + in.n_more - verdict.passed;
        told = write(results, &verdict, sizeof(verdict)) == (ssize_t)sizeof(verdict);
    }
    pch_use(NULL);
    scratch_close();
    return told ? 0 : 1;
}

static int start_jobs(const struct unit *units, int n_units, pid_t *children)
{
    int results[2];
    atomic_int *next = mmap(NULL, sizeof(*next), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                            -1, 0);
    if (next == MAP_FAILED || pipe(results) != 0) {
        perror("compile_all");
        exit(2);
    }
    fflush(NULL);
    for (int job = 0; job < n_jobs; job++) {
        children[job] = fork();
        if (children[job] == 0) {
            close(results[0]);
            _exit(compile_some(units, n_units, next, results[1]));
        }
    }
    close(results[1]);
    return results[0];
}

// In processes, for a compiler works with one thread. One that dies counts as a failure.
static int compile_units(struct unit *units, int n_units)
{
    pid_t children[MAX_JOBS];
    int results = start_jobs(units, n_units, children), died = 0;
    struct verdict verdict;
    while (read(results, &verdict, sizeof(verdict)) == (ssize_t)sizeof(verdict)) {
        struct tally *tally = &units[verdict.unit].tally;
        tally->passed += verdict.passed;
        tally->failed += verdict.failed;
    }
    close(results);
    for (int job = 0; job < n_jobs; job++) {
        int status = 1;
        if (children[job] < 0 || waitpid(children[job], &status, 0) < 0 || status != 0) {
            fprintf(stderr, "FAILED: a compiling process died\n");
            died++;
        }
    }
    return died;
}

static bool parse(struct unit *unit, struct opd_err *err)
{
    const struct source *source = unit->source;
    struct op *op = op_parse_whole(source->file, source->original, source->original_size,
                                   source->text, err);
    if (!op)
        return false;
    unit->name = mem_strdup(op->name);
    unit->tally.failed = !collect(&unit->set, op);
    op_unref(op);
    return true;
}

// As the daemon reads it, with the headers that lie beside it.
static void read_unit(const char *path, struct unit *unit)
{
    struct opd_err err = { 0 };
    char *folder_copy = mem_strdup(path), *file_copy = mem_strdup(path);
    struct source *source = source_new(dirname(folder_copy), basename(file_copy), 0);
    char *common_path = mem_printf("%s/opd.cuh", source->folder);
    unit->source = source;
    unit->common = source_common(access(common_path, R_OK) == 0 ? source->folder : "kernels_src",
                                 &err);
    if (!unit->common || !source_read(source, &err) || !parse(unit, &err)) {
        unit->tally.failed = 1;
        printf("%s: FAILED: %s\n", source->file, err.msg);
    }
    opd_err_clear(&err);
    free(common_path);
    free(folder_copy);
    free(file_copy);
}

// Returns whether nothing has failed.
static bool show_units(const struct unit *units, int n_units, int died)
{
    struct tally total = { .failed = died };
    for (int i = 0; i < n_units; i++) {
        const struct unit *u = &units[i];
        total.passed += u->tally.passed;
        total.failed += u->tally.failed;
        if (u->name)
            printf("%s: %d kernels, %d architectures: %d passed, %d failed\n", u->name,
                   u->set.n_kernels, n_archs, u->tally.passed, u->tally.failed);
    }
    printf("%d passed, %d failed\n", total.passed, total.failed);
    return total.failed == 0;
}

static void finish_units(struct unit *units, int n_units)
{
    for (int i = 0; i < n_units; i++) {
        free_groups(&units[i].set);
        source_free(units[i].source);
        free(units[i].common);
        free(units[i].name);
    }
    free(units);
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
            "usage: compile_all [--arch sm_75,sm_90] [--jobs N] [--checked PTXAS] [--over MS] "
            "[FILE.cu ...]\n");
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
        else if (strcmp(argv[first], "--over") == 0)
            over_ms = atoi(value);
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
    char **files = first < argc ? argv + first : found.gl_pathv;
    int n_files = first < argc ? argc - first : (int)found.gl_pathc;
    struct unit *units = mem_zalloc((size_t)n_files, sizeof(*units));
    for (int i = 0; i < n_files; i++)
        read_unit(files[i], &units[i]);
    globfree(&found);
    bool ok = show_units(units, n_files, compile_units(units, n_files));
    finish_units(units, n_files);
    return !ok;
}
