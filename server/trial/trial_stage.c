// One stage of a trial: runs every case, in a process that may have a sanitizer in it. What it says
// on its standard output, in lines of words with tabs between, is for trial.c: what runs, where its
// tensors are, what went wrong.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "executor/cpu_confine.h"
#include "executor/cpu_race.h"
#include "kernels/source.h"
#include "trial/trial.h"
#include "trial/trial_gpu.h"
#include "trial/trial_gradients.h"
#include "trial/trial_replay.h"
#include "trial/trial_results.h"
#include "trial/trial_run.h"

#define TRIAL_MADE "made"
enum { MAX_MADE = 1 << 30 };

static void take_result(void *arg, const struct plan *plan, int operand,
                        const struct trial_tensor *m)
{
    trial_results_take(arg, plan, operand, m->bytes, m->size);
}

static struct trial_replay replay; // with a file where a fault is run again

static void run_once(struct trial_run *s, const struct trial_case *c, struct trial_results *results)
{
    if (replay.file.size > 0) {
        trial_replay_run(s, &replay, results ? take_result : NULL, results);
        return;
    }
    trial_run_fill_inputs(s, c, -2, 2);
    trial_run_plan(s, c, c->forward, results ? take_result : NULL, results);
    if (c->backward)
        trial_run_plan(s, c, c->backward, results ? take_result : NULL, results);
    trial_run_clear(s);
}

// Where no sanitizer watches, each case runs twice, in memory that held one thing before, and in
// memory that held another.
static void run_case(struct trial_run *s, const struct trial_case *c,
                     struct trial_results *results)
{
    uint64_t random = s->random;
    bool twice = s->guarded || s->gpu;
    results->of++;
    for (int round = 0; round < (twice ? 2 : 1); round++) {
        s->random = random;
        s->again = round > 0;
        trial_results_begin(results, s->again);
        run_once(s, c, twice ? results : NULL);
    }
}

// What the CPU has made of the examples, from the stage that runs there first.
static void read_made(const struct trial_run *s, struct trial_results *results)
{
    char *path = mem_printf("%s/" TRIAL_MADE, s->folder);
    int fd = s->gpu && replay.file.size == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    results->rough = s->gpu;
    results->by_cpu = s->guarded;
    if (fd >= 0 && !file_get(fd, MAX_MADE, &results->made))
        results->made.size = 0;
    if (fd >= 0)
        close(fd);
    free(path);
}

static void write_made(const struct trial_run *s, const struct trial_results *results)
{
    struct opd_err err = { 0 };
    char *path = mem_printf("%s/" TRIAL_MADE, s->folder);
    if (!file_make(path, results->made.bytes, results->made.size, &err))
        trial_run_give_up(&err);
    free(path);
}

static void find_poison(struct trial_run *s)
{
    *(void **)&s->poison = dlsym(RTLD_DEFAULT, "__asan_poison_memory_region");
    *(void **)&s->unpoison = dlsym(RTLD_DEFAULT, "__asan_unpoison_memory_region");
}

static bool make_cases(struct trial_run *s, struct op *op, const char *folder, const char *dtypes,
                       enum trial_aim aim, struct opd_err *err)
{
    char *path = mem_printf("%s/" TRIAL_FAULT, folder);
    bool again = access(path, F_OK) == 0;
    bool ok = again ? trial_replay_read(&replay, path, err) &&
                          bundle_read_request(&replay.bundle, op, err) &&
                          trial_replay_cases(&s->cases, &replay, op, aim, err)
                    : trial_cases_init(&s->cases, op, dtypes, aim, err);
    free(path);
    return ok;
}

static bool prepare(struct trial_run *s, char **argv, struct opd_err *err)
{
    size_t size;
    char *path = mem_printf("%s/source", argv[0]), *text = source_read_file(path, &size, err);
    char *whole_path = mem_printf("%s/whole", argv[0]);
    size_t whole_size;
    char *whole = text ? source_read_file(whole_path, &whole_size, err) : NULL;
    struct op *op = whole ? op_parse_whole(argv[1], text, size, whole, err) : NULL;
    free(path);
    free(whole_path);
    free(text);
    free(whole);
    bool gradients = strcmp(argv[4], "gradients") == 0, on_gpu = trial_gpu_is(argv[4]);
    enum trial_aim aim = gradients ? TRIAL_PROOFS : on_gpu ? TRIAL_ON_GPU : TRIAL_RUNS;
    if (!op || !make_cases(s, op, argv[0], argv[3], aim, err))
        return false;
    s->folder = argv[0];
    s->random = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    if (on_gpu)
        return (s->gpu = trial_gpu_open(argv[4], err)) != NULL;
    s->guarded = gradients || strcmp(argv[4], "guards") == 0;
    s->quiet = gradients;
    // One, where blocks are to come in the same order each time.
    s->n_workers = s->guarded ? 1 : TRIAL_WORKERS;
    s->images = mem_zalloc((size_t)s->cases.n_images, sizeof *s->images);
    if (s->n_workers == 1) // a sanitizer may start what looks up its lines
        cpu_confine(NULL);
    cpu_fault_watch();
    for (int i = 0; i < TRIAL_WORKERS; i++) {
        if (!cpu_worker_init(&s->workers[i], err))
            return false;
        s->workers[i].running = cpu_fault_set_running;
        if (strcmp(argv[4], "races") == 0 && !(s->workers[i].race = cpu_race_new()))
            return opd_err_set(err, OPD_E_unavailable,
                               "the thread sanitizer is not in the process");
    }
    for (int i = 0; i < TRIAL_WORKERS; i++)
        printf("stacks\t%llx\t%llu\n", (unsigned long long)(uintptr_t)s->workers[i].stacks.base,
               (unsigned long long)s->workers[i].stacks.n * s->workers[i].stacks.stride);
    if (strcmp(argv[4], "addresses") == 0)
        find_poison(s);
    return true;
}

int trial_stage_main(int argc, char **argv)
{
    static struct trial_run stage;
    static struct trial_results results;
    struct opd_err err = { 0 };
    if (argc != 6)
        return 2;
    if (!prepare(&stage, argv, &err))
        trial_run_give_up(&err);
    bool gradients = strcmp(argv[4], "gradients") == 0;
    double seconds = atof(argv[5]) / 12 / stage.cases.n;
    read_made(&stage, &results);
    printf("cases\t%d\n", stage.cases.n);
    for (int i = 0; i < stage.cases.n; i++) {
        if (gradients)
            trial_gradients_prove(&stage, &stage.cases.cases[i], seconds);
        else
            run_case(&stage, &stage.cases.cases[i], &results);
        printf("done\t%d\n", stage.n_launches);
    }
    if (stage.guarded && !gradients)
        write_made(&stage, &results);
    printf("end\n");
    fflush(stdout);
    _exit(0); // nothing of the sanitizers is wanted at exit
}
