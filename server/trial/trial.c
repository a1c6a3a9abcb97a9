#include "trial/trial.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "compiler/compiler.h"
#include "base/file.h"
#include "base/mem.h"
#include "options.h"
#include "trial/trial_cases.h"
#include "trial/trial_compile.h"
#include "trial/trial_findings.h"
#include "trial/trial_gpu.h"
#include "trial/trial_print.h"
#include "trial/trial_replay.h"

extern char **environ;

enum {
    GRADIENTS = 3,     // the stage behind those of "run"
    OPEN_SECONDS = 60, // that a GPU's driver has, besides the deadline, until the first launch
};

static volatile sig_atomic_t interrupted; // what has begun ends, and is cleared away

static void interrupt(int signal)
{
    interrupted = signal;
}

static const struct kind {
    const char *name, *sanitize, *options;
} kinds[] = {
    { .name = "guards" },
    { .name = "addresses",
      .sanitize = "address,undefined",
      .options = "ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_"
                 "sigill=0:"
                 "handle_abort=0:use_sigaltstack=0:detect_stack_use_after_return=0:color=never" },
    { .name = "races",
      .sanitize = "thread",
      .options = "TSAN_OPTIONS=handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:"
                 "handle_abort=0:"
                 "use_sigaltstack=0:history_size=6:exitcode=0:report_thread_leaks=0:color=never" },
    { .name = "gradients" },
};

struct trial {
    struct trial_build build;
    struct trial_cases cases, on_gpu; // on_gpu: those of its kernels, where a device is to run them
    const char *device;               // that is asked for; "": the CPU, and a GPU if there is one
    struct source *source;
    struct trial_print print;
    char *common, *folder;
    const char *seed, *dtypes;
    double deadline;
    bool gradients;             // are to be proved
    struct trial_replay replay; // of a fault that is run again, or zeroed
    bool failed;
};

static bool write_source(const struct trial *t, struct opd_err *err)
{
    char *path = mem_printf("%s/source", t->folder), *whole = mem_printf("%s/whole", t->folder);
    bool ok = file_make(path, t->source->original, t->source->original_size, err) &&
              file_make(whole, t->source->text, strlen(t->source->text), err);
    free(path);
    free(whole);
    return ok;
}

// --- a stage's process

// The list alone is to be freed. `preload`: "LD_PRELOAD=...", or NULL.
static char **make_environment(const struct kind *kind, char *preload)
{
    size_t n = 0, out = 0;
    while (environ[n])
        n++;
    char **env = mem_zalloc(n + 4, sizeof *env);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0 &&
            !(preload && strstr(environ[i], "SAN_OPTIONS=")))
            env[out++] = environ[i];
    if (preload) {
        env[out++] = preload;
        env[out++] = (char *)kind->options;
        env[out++] = (char *)"UBSAN_OPTIONS=print_stacktrace=0:color=never";
    }
    return env;
}

static pid_t spawn_stage(const struct trial *t, const struct kind *kind, const char *preload)
{
    char *said = mem_printf("%s/said", t->folder), *log = mem_printf("%s/log", t->folder);
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", t->deadline);
    char *const argv[] = { (char *)"opd",
                           (char *)"trial-stage",
                           t->folder,
                           t->source->file,
                           (char *)t->seed,
                           (char *)t->dtypes,
                           (char *)kind->name,
                           seconds,
                           NULL };
    char *first = preload ? mem_printf("LD_PRELOAD=%s", preload) : NULL;
    char **env = make_environment(kind, first);
    int flags = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    pid_t pid;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, said, flags, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, log, flags, 0600);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    int rc = posix_spawn(&pid, "/proc/self/exe", &actions, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    free(env);
    free(first);
    free(said);
    free(log);
    errno = rc;
    return rc == 0 ? pid : -1;
}

// What the stage has said up to now.
static off_t size_of_said(const struct trial *t)
{
    struct stat st;
    char *path = mem_printf("%s/said", t->folder);
    off_t size = stat(path, &st) == 0 ? st.st_size : 0;
    free(path);
    return size;
}

// False: it had to be ended. What it has started ends with it. On a GPU each of its cases has the
// deadline to itself, for most of them go by while the driver compiles; before the first the driver
// opens the device, which takes seconds where many do.
static bool await_stage(const struct trial *t, const struct kind *kind, pid_t pid, int *out_status)
{
    const uint64_t deadline = (uint64_t)(t->deadline * 1e9);
    const bool on_gpu = trial_gpu_is(kind->name);
    uint64_t end = clock_ns() + deadline + (on_gpu ? OPEN_SECONDS * 1000000000ull : 0);
    for (off_t size, heard = 0;;) {
        pid_t got = waitpid(pid, out_status, WNOHANG);
        if (got == pid) {
            kill(-pid, SIGKILL);
            return true;
        }
        if (got < 0 && errno != EINTR)
            return false;
        if (on_gpu && (size = size_of_said(t)) > heard) {
            heard = size;
            end = clock_ns() + deadline;
        }
        if (clock_ns() > end || interrupted)
            break;
        usleep(2000);
    }
    kill(-pid, SIGKILL);
    while (waitpid(pid, out_status, 0) < 0 && errno == EINTR)
        continue;
    return false;
}

static char *read_text(const struct trial *t, const char *name)
{
    size_t size;
    char *path = mem_printf("%s/%s", t->folder, name), *text = source_read_file(path, &size, NULL);
    free(path);
    return text ? text : mem_strdup("");
}

// What the end of the process itself tells.
static void judge(const struct trial *t, const struct kind *kind, bool in_time, int status,
                  const char *log, struct trial_result *r)
{
    struct trial_findings *f = &r->findings;
    if (f->error[0]) {
        snprintf(r->message, sizeof r->message, "%s", f->error);
        r->state = TRIAL_FAILED;
    } else if (f->n > 0) {
        r->state = TRIAL_FOUND;
    } else if (!in_time && f->n_cases == 0) {
        snprintf(r->message, sizeof r->message,
                 "ended after %.3g s, before its first case; try again when the machine is less "
                 "busy, or --deadline gives it more",
                 r->seconds);
        r->state = TRIAL_FAILED;
    } else if (!in_time) {
        snprintf(r->message, sizeof r->message,
                 "ended after %g s with %d of %d case%s done%s; --deadline gives it more",
                 t->deadline, f->n_done, f->n_cases, PLURAL_S(f->n_cases),
                 f->n_done ? ", without a finding" : "");
        r->state = kind->sanitize ? TRIAL_UNFINISHED : TRIAL_FAILED;
    } else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) { // cpu_confine.h
        snprintf(r->message, sizeof r->message,
                 "a kernel called fork() or ran a program, and it may start no process");
        r->state = TRIAL_FAILED;
    } else if (!f->ended) {
        int n = snprintf(r->message, sizeof r->message, "the process ended with %s %d",
                         WIFSIGNALED(status) ? "signal" : "status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (log[0] && n > 0)
            snprintf(r->message + n, sizeof r->message - (size_t)n, ": %.400s", log);
        r->state = TRIAL_FAILED;
    }
}

static void run_stage(const struct trial *t, const struct kind *kind, const char *preload,
                      struct trial_result *r)
{
    int status = 0;
    uint64_t begun = clock_ns();
    pid_t pid = spawn_stage(t, kind, preload);
    if (pid < 0) {
        snprintf(r->message, sizeof r->message, "its process does not start: %s", strerror(errno));
        r->state = TRIAL_FAILED;
        return;
    }
    bool in_time = await_stage(t, kind, pid, &status);
    r->seconds = (double)(clock_ns() - begun) / 1e9;
    char *said = read_text(t, "said"), *log = read_text(t, "log"), *kept = mem_strdup(log);
    trial_findings_read(&r->findings, t->source->file, said, log);
    judge(t, kind, in_time, status, kept, r);
    free(said);
    free(log);
    free(kept);
}

static void end_stage(struct trial *t, const struct trial_result *r, struct opd_err *err)
{
    trial_print_stage(&t->print, r);
    t->failed = t->failed || r->state == TRIAL_FOUND || r->state == TRIAL_FAILED;
    opd_err_clear(err);
}

static void try_stage(struct trial *t, const struct kind *kind)
{
    struct trial_result r = { .name = kind->name };
    struct opd_err err = { 0 };
    char *preload = kind->sanitize ? trial_find_runtime(kind->sanitize, &err) : NULL;
    trial_print_begin(&t->print, kind->name);
    if (kind->sanitize && !preload) {
        r.state = TRIAL_SKIPPED;
    } else if (!trial_compile(&t->build, kind->sanitize, &err)) {
        r.state = TRIAL_FAILED;
        r.log = err.log;
    } else {
        run_stage(t, kind, preload, &r);
    }
    if (err.code)
        snprintf(r.message, sizeof r.message, "%.599s", err.msg);
    end_stage(t, &r, &err);
    free(preload);
}

// --- a GPU's stage

// Its name; NULL: none is to run it.
static const char *find_gpu(const struct trial *t)
{
    bool again = t->replay.file.size > 0;
    if (t->gradients || strcmp(t->device, "cpu") == 0)
        return NULL;
    if (t->device[0])
        return t->device;
    if (!again)
        return "cuda:0";
    return trial_gpu_is(t->replay.bundle.device) ? t->replay.bundle.device : NULL;
}

// Its kernels, compiled for it.
static bool compile_for(struct trial *t, const struct backend_info *info, struct opd_err *err)
{
    const struct trial_build build = { .cases = &t->on_gpu,
                                       .source = t->source,
                                       .common = t->common,
                                       .folder = t->folder,
                                       .target = info->target };
    struct op *op = t->cases.op;
    return (t->replay.file.size
                ? trial_replay_cases(&t->on_gpu, &t->replay, op, TRIAL_ON_GPU, err)
                : trial_cases_init(&t->on_gpu, op, t->dtypes, TRIAL_ON_GPU, err)) &&
           trial_compile(&build, NULL, err);
}

// What the CPU makes of the examples, for the comparison, where its own stages have not run. Where
// it cannot, there is none.
static void run_reference(struct trial *t)
{
    struct trial_result r = { 0 };
    struct opd_err err = { 0 };
    if (trial_compile(&t->build, NULL, &err))
        run_stage(t, &kinds[0], NULL, &r);
    opd_err_clear(&err);
}

// One that nobody has named may be absent, and its compiler too.
static void try_gpu(struct trial *t, const char *device)
{
    struct trial_result r = { .name = device };
    const struct kind kind = { .name = device };
    struct backend_info info;
    struct opd_err err = { 0 };
    bool there = trial_gpu_probe(device, &info, &err);
    if (!there && !t->device[0] && t->replay.file.size == 0) {
        opd_err_clear(&err);
        return;
    }
    trial_print_begin(&t->print, device);
    if (there && compile_for(t, &info, &err)) {
        if (t->device[0] && t->replay.file.size == 0)
            run_reference(t);
        run_stage(t, &kind, NULL, &r);
    } else {
        bool absent = !t->device[0] && err.code == OPD_E_unavailable;
        r.state = absent ? TRIAL_SKIPPED : TRIAL_FAILED;
        r.log = err.log;
        snprintf(r.message, sizeof r.message, "%.599s", err.msg);
    }
    end_stage(t, &r, &err);
}

// --- the whole

static bool read_source(struct trial *t, const char *file, struct opd_err *err)
{
    char *path = realpath(file, NULL), *slash = path ? strrchr(path, '/') : NULL;
    if (!path)
        return opd_err_errno(err, OPD_E_invalid_argument, "%s", file);
    *slash = '\0';
    t->source = source_new(slash == path ? "/" : path, slash + 1, 0);
    free(path);
    return source_read(t->source, err);
}

static bool read_common(struct trial *t, struct opd_err *err)
{
    struct options options;
    char *argv[] = { (char *)"opd", NULL };
    if (options_parse(&options, 1, argv, err))
        t->common = source_common(options.kernels[0], err);
    options_finish(&options);
    return t->common != NULL;
}

// The source of a fault, with what it included in place.
static bool read_fault(struct trial *t, const char *number, const char *cache, struct opd_err *err)
{
    char *path = trial_faults_path(cache, number, err);
    bool ok = path && trial_replay_read(&t->replay, path, err);
    const struct bundle *b = &t->replay.bundle;
    if (ok) {
        t->source = source_new("", b->file, 0);
        t->source->original = mem_strndup(b->source, b->source_size);
        t->source->original_size = b->source_size;
        t->source->text = b->whole_size ? mem_strndup(b->whole, b->whole_size)
                                        : mem_strdup(t->source->original);
        if (!t->print.json)
            printf("%s: %s\n", b->device, b->message);
    }
    free(path);
    return ok;
}

static bool put_fault(const struct trial *t, struct opd_err *err)
{
    char *path = mem_printf("%s/" TRIAL_FAULT, t->folder);
    bool ok = file_make(path, t->replay.file.bytes, t->replay.file.size, err);
    free(path);
    return ok;
}

// `cache`: of a fault that is run again, whose number `file` is; else NULL.
static bool prepare(struct trial *t, const char *file, const char *cache, struct opd_err *err)
{
    if (!(cache ? read_fault(t, file, cache, err) : read_source(t, file, err)) ||
        !read_common(t, err))
        return false;
    const struct source *s = t->source;
    struct op *op = op_parse_whole(s->file, s->original, s->original_size, s->text, err);
    if (!op || !(cache ? bundle_read_request(&t->replay.bundle, op, err) &&
                             trial_replay_cases(&t->cases, &t->replay, op, TRIAL_RUNS, err)
                       : trial_cases_init(&t->cases, op, t->dtypes,
                                          t->gradients ? TRIAL_PROOFS : TRIAL_RUNS, err)))
        return false;
    char *folder = file_temporary("opd-trial-XXXXXX");
    if (!mkdtemp(folder)) {
        opd_err_errno(err, OPD_E_internal, "no temporary folder %s", folder);
        free(folder);
        return false;
    }
    t->folder = folder;
    t->build = (struct trial_build){ .cases = &t->cases,
                                     .source = t->source,
                                     .common = t->common,
                                     .folder = t->folder,
                                     .backwards = t->gradients };
    return write_source(t, err) && (!cache || put_fault(t, err));
}

static void finish(struct trial *t)
{
    if (t->folder)
        file_remove_tree(t->folder);
    op_unref(t->cases.op);
    trial_cases_finish(&t->cases);
    trial_cases_finish(&t->on_gpu);
    trial_replay_finish(&t->replay);
    if (t->source)
        source_free(t->source);
    free(t->common);
    free(t->folder);
}

int trial_main(int argc, char **argv)
{
    static char seed[24];
    bool gradients = argc > 0 && strcmp(argv[0], "grad") == 0;
    bool again = argc > 0 && strcmp(argv[0], "replay") == 0;
    if (argc > 1 && strcmp(argv[0], "faults") == 0)
        return trial_faults_list(argv[1], argc > 2 && strcmp(argv[2], "json") == 0);
    if (argc < 2 || argc > 7 || (!gradients && !again && strcmp(argv[0], "run") != 0))
        return 2;
    argv++;
    argc--;
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)clock_ns() % 1000000);
    const char *device = argc > 5 ? argv[5] : "";
    struct trial t = { .seed = argc > 1 && argv[1][0] ? argv[1] : seed,
                       .deadline = argc > 2 && argv[2][0] ? atof(argv[2])
                                   : gradients            ? 60
                                                          : 10,
                       .gradients = gradients,
                       .device = device,
                       .dtypes = argc > 3 && !again ? argv[3] : "",
                       .print = { .json = argc > 4 && strcmp(argv[4], "json") == 0,
                                  .lines = argc > 4 && strcmp(argv[4], "lines") == 0 } };
    struct opd_err err = { 0 };
    if (device[0] && strcmp(device, "cpu") != 0 && !trial_gpu_is(device)) {
        fprintf(stderr, "opd: a device is cpu, or cuda:0\n");
        return 2;
    }
    if (t.seed[strspn(t.seed, "0123456789")] || !(t.deadline > 0)) {
        fprintf(stderr, "opd: a seed is an integer and a deadline seconds above 0\n");
        return 2;
    }
    if (t.print.lines) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (nice(COMPILER_NICE) < 0)
            log_debug("gradients are proved at the priority of the rest");
    }
    setenv("LC_ALL", "C", 1);       // diagnostics in the words that are looked for
    personality(ADDR_NO_RANDOMIZE); // the thread sanitizer wants memory where it expects it
    const struct sigaction action = { .sa_handler = interrupt };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN); // whoever reads may go first
    bool ok = prepare(&t, argv[0], !again ? NULL : argc > 3 ? argv[3] : "", &err);
    trial_print_head(&t.print, ok ? t.cases.op : NULL, t.source ? t.source->file : argv[0], t.seed,
                     ok ? t.cases.n : 0, &err);
    // What does not compile does not so three times.
    const struct kind *kind = gradients ? &kinds[GRADIENTS] : kinds;
    int n = trial_gpu_is(device) ? 0 : gradients ? 1 : GRADIENTS;
    for (; ok && n > 0 && !t.print.broken && !interrupted; n--)
        try_stage(&t, kind++);
    const char *gpu = ok && !t.print.broken && !interrupted ? find_gpu(&t) : NULL;
    if (gpu)
        try_gpu(&t, gpu);
    trial_print_end(&t.print, ok && !t.failed);
    finish(&t);
    opd_err_clear(&err);
    return interrupted ? 128 + interrupted : ok && !t.failed ? 0 : 1;
}
