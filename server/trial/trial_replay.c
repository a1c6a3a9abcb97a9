#include "trial/trial_replay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "options.h"
#include "trial/trial_print.h"
#include "wire/trust.h"

// --- the file

// One that others can have written is not run.
static bool check_trust(const char *path, int fd, struct opd_err *err)
{
    struct stat st;
    char *folder = mem_strdup(path);
    *strrchr(folder, '/') = '\0';
    bool ok = fstat(fd, &st) == 0 && trust_check(path, &st, err) && trust_folder(folder, err);
    free(folder);
    return ok;
}

bool trial_replay_read(struct trial_replay *r, const char *path, struct opd_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *r = (struct trial_replay){ 0 };
    if (fd < 0)
        return opd_err_errno(err, OPD_E_not_found, "%s", path);
    bool ok = check_trust(path, fd, err) &&
              (file_get(fd, BUNDLE_MAX_SIZE, &r->file) ||
               opd_err_errno(err, OPD_E_not_found, "%s", path)) &&
              (bundle_read(&r->bundle, r->file.bytes, r->file.size, err) ||
               opd_err_prefix(err, "%s", path));
    file_close(&fd);
    return ok;
}

void trial_replay_finish(struct trial_replay *r)
{
    bundle_finish(&r->bundle);
    buf_finish(&r->file);
}

// --- the run

bool trial_replay_cases(struct trial_cases *t, struct trial_replay *r, struct op *op,
                        enum trial_aim aim, struct opd_err *err)
{
    struct plan_request request = *r->bundle.request;
    bool backward = request.direction == PLAN_BACKWARD;
    *t = (struct trial_cases){ .op = op };
    if (plan_lists_length(request.lists) > EXAMPLE_MAX_MEMBERS)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: its lists have %d tensors; up to %d can be run again", op->name,
                           plan_lists_length(request.lists), EXAMPLE_MAX_MEMBERS);
    struct trial_case c = { .dtype = request.inputs[0].dtype };
    request.on_cpu = aim != TRIAL_ON_GPU;
    request.checked = !request.on_cpu;
    request.blas = false; // its kernels are
    request.direction = PLAN_FORWARD;
    request.keep = request.keep || backward;
    c.forward = plan_build(&request, err);
    request.direction = PLAN_BACKWARD;
    if (c.forward && backward)
        c.backward = plan_build(&request, err);
    trial_cases_add(t, &c);
    return c.forward && (c.backward || !backward);
}

static struct trial_tensor *tensor_of(struct trial_run *s, const struct bundle_tensor *t)
{
    int at = plan_index(t->index);
    bool fits = plan_member(t->index) < EXAMPLE_MAX_MEMBERS;
    int input = trial_place(t->index, OP_MAX_INPUTS),
        output = trial_place(t->index, OP_MAX_OUTPUTS);
    return t->kind == PLAN_INPUT && fits && at < OP_MAX_INPUTS         ? &s->inputs[input]
           : t->kind == PLAN_OUTPUT && fits && at < OP_MAX_OUTPUTS      ? &s->outputs[output]
           : t->kind == PLAN_SAVED && t->index < OP_MAX_TEMPS           ? &s->saved[t->index]
           : t->kind == PLAN_GRAD_OUTPUT && fits && at < OP_MAX_OUTPUTS ? &s->grads[output]
                                                                        : NULL;
}

static void make(struct trial_run *s, enum plan_operand_kind kind, int index,
                 const struct tensor_desc *desc)
{
    struct trial_tensor *m = tensor_of(s, &(struct bundle_tensor){ .kind = kind, .index = index });
    if (!m)
        return;
    trial_run_make(s, m, desc);
    trial_run_fill(s, m, -2, 2);
}

static void make_inputs(struct trial_run *s, const struct plan_request *r)
{
    for (int i = 0; i < r->op->n_inputs; i++) {
        int n = r->lists ? r->lists->n[i] : -1;
        if (n < 0 && r->inputs[i].dtype != OPD_DTYPE_NONE)
            make(s, PLAN_INPUT, i, &r->inputs[i]);
        for (int k = 0; k < n; k++)
            make(s, PLAN_INPUT, i + PLAN_MEMBER * k, r->lists->of[i][k]);
    }
}

// What backward reads, as forward would have left it.
static void make_results(struct trial_run *s, const struct plan *backward)
{
    for (int i = 0; i < backward->n_operands; i++) {
        const struct plan_operand *o = &backward->operands[i];
        if (o->kind == PLAN_OUTPUT || o->kind == PLAN_SAVED || o->kind == PLAN_GRAD_OUTPUT)
            make(s, o->kind, o->index, &o->desc);
    }
}

void trial_replay_run(struct trial_run *s, const struct trial_replay *r, trial_take_fn *take,
                      void *arg)
{
    const struct trial_case *c = &s->cases.cases[0];
    make_inputs(s, r->bundle.request);
    if (c->backward)
        make_results(s, c->backward);
    for (int i = 0; i < r->bundle.n_tensors; i++) {
        const struct bundle_tensor *t = &r->bundle.tensors[i];
        struct trial_tensor *m = tensor_of(s, t);
        if (m && m->bytes && m->size == t->size)
            memcpy(m->bytes, t->bytes, t->size);
    }
    trial_run_plan(s, c, c->backward ? c->backward : c->forward, take, arg);
    trial_run_clear(s);
}

// --- the folder

// The cache's folder: `cache`, or where the options say.
static char *find_folder(const char *cache, struct opd_err *err)
{
    struct options options;
    char *argv[] = { (char *)"opd", NULL }, *folder = NULL;
    if (cache[0])
        return mem_printf("%s/faults", cache);
    if (options_parse(&options, 1, argv, err))
        folder = mem_printf("%s/faults", options.cache);
    options_finish(&options);
    return folder;
}

char *trial_faults_path(const char *cache, const char *number, struct opd_err *err)
{
    char *folder = find_folder(cache, err);
    char *path = folder ? mem_printf("%s/%06lld.fault", folder, atoll(number)) : NULL;
    if (path && access(path, R_OK) != 0) {
        opd_err_set(err, OPD_E_not_found, "no fault %s is kept in %s: 'opctl faults' lists them",
                    number, folder);
        free(path);
        path = NULL;
    }
    free(folder);
    return path;
}

struct listing {
    bool json;
    int n;
};

static void show(const char *path, void *data)
{
    struct listing *l = data;
    struct trial_replay r = { 0 };
    struct opd_err err = { 0 };
    const struct bundle *b = &r.bundle;
    int number = atoi(strrchr(path, '/') + 1);
    if (trial_replay_read(&r, path, &err)) {
        char when[32];
        time_t seconds = (time_t)b->time;
        struct tm tm;
        strftime(when, sizeof when, "%F %T", localtime_r(&seconds, &tm));
        if (l->json)
            trial_print_fault(b, number, l->n);
        else
            printf("%s%6d  %s  %s: %s\n", l->n ? "" : "     N  WHEN                 WHAT\n", number,
                   when, b->device, b->message);
        l->n++;
    }
    opd_err_clear(&err);
    trial_replay_finish(&r);
}

int trial_faults_list(const char *cache, bool json)
{
    struct opd_err err = { 0 };
    struct listing l = { json, 0 };
    char *folder = find_folder(cache, &err);
    if (folder && access(folder, R_OK | X_OK) != 0 && errno != ENOENT)
        opd_err_errno(&err, OPD_E_unavailable, "%s: only the user of its daemon lists them",
                      folder);
    if (err.code) {
        free(folder);
        fprintf(stderr, "opctl: %s\n", err.msg);
        return 1;
    }
    char *pattern = mem_printf("%s/*.fault", folder);
    fputs(json ? "[" : "", stdout);
    file_each(pattern, show, &l);
    if (json)
        fputs("]\n", stdout);
    else if (l.n == 0)
        printf("No faults are kept in %s.\n", folder);
    free(pattern);
    free(folder);
    return 0;
}
