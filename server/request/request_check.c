// Requests that compile without serving: check (what a file's kernels take, or why they do not
// compile) and op_code (what an operator's kernels compile to). The kernels are those of the
// operator's examples, forward and backward.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request/parts.h"
#include "op/plan.h"
#include "kernels/pool.h"
#include "request/request.h"
#include "kernels/source.h"

enum { MAX_TARGETS = 16 };

struct check {
    struct request *req;
    const char *kind; // "describe", "ptx", "sass"
    struct op *op;
    const char *common;
    char *text, *folder;
    int n_pending;
    bool started;                         // all jobs are submitted
    struct buf errors, warnings, kernels; // packed elements
    size_t n_errors, n_warnings, n_kernels;
    struct opd_err err; // op_code: the first
    struct kernel_job *jobs;
};

// A kernel that is compiled for one target and dtype.
struct kernel_job {
    struct kernel_job *next;
    struct check *check;
    char *expr, *prelude;
    char target[32];
    const char *dtype; // NULL: all types are fixed
    struct buf packed; // its result: they come in any order, and are told in theirs
};

static void pack_numbers(struct buf *out, const char *text)
{
    // "registers=40 spill_stores=0 ..."
    while (*text) {
        size_t key = strcspn(text, "="), all = strcspn(text, " ");
        if (key < all && key < 32) {
            char name[32];
            memcpy(name, text, key);
            name[key] = '\0';
            pack_key_int(out, name, strtoll(text + key + 1, NULL, 10));
        }
        text += all + strspn(text + all, " ");
    }
}

static void pack_result(struct check *check, struct kernel_job *job,
                        const struct pool_result *result)
{
    struct buf *out = &job->packed;
    size_t map = pack_map_begin(out);
    if (strcmp(check->kind, "describe") == 0)
        pack_numbers(out, result->text);
    else
        pack_key_str(out, "text", result->text);
    pack_key_str(out, "kernel", job->expr);
    pack_key_str(out, "dtype", job->dtype);
    pack_key_str(out, "target", job->target);
    pack_map_end(out, map);
    check->n_kernels++;
}

static void pack_list(struct buf *out, const char *key, size_t n, const struct buf *elements)
{
    if (key)
        pack_str(out, key);
    pack_array(out, n);
    buf_append(out, elements->bytes, elements->size);
}

static void finish_check(struct check *check)
{
    if (check->n_pending > 0 || !check->started)
        return;
    struct request *req = check->req;
    struct buf *out = &req->reply;
    req->broker->n_checks--;
    for (const struct kernel_job *job = check->jobs; job; job = job->next)
        buf_append(&check->kernels, job->packed.bytes, job->packed.size);
    if (strcmp(check->kind, "describe") == 0) {
        size_t map = pack_map_begin(out);
        pack_key_str(out, "op", check->op ? check->op->name : "");
        pack_key_bool(out, "ok", check->n_errors == 0);
        pack_list(out, "errors", check->n_errors, &check->errors);
        pack_list(out, "warnings", check->n_warnings, &check->warnings);
        pack_list(out, "kernels", check->n_kernels, &check->kernels);
        pack_map_end(out, map);
    } else {
        pack_list(out, NULL, check->n_kernels, &check->kernels);
    }
    request_finish(req, &check->err);
    buf_finish(&check->errors);
    buf_finish(&check->warnings);
    buf_finish(&check->kernels);
    opd_err_clear(&check->err);
    op_unref(check->op);
    free(check->text);
    free(check->folder);
    for (struct kernel_job *job = check->jobs, *next; job; job = next) {
        next = job->next;
        buf_finish(&job->packed);
        free(job->expr);
        free(job->prelude);
        free(job);
    }
    free(check);
}

static void pack_error(struct check *check, const struct opd_err *err)
{
    size_t map = pack_map_begin(&check->errors);
    pack_key_str(&check->errors, "message", err->msg);
    pack_key_str(&check->errors, "log", err->log ? err->log : "");
    pack_map_end(&check->errors, map);
    check->n_errors++;
    if (strcmp(check->kind, "describe") != 0 && !check->err.code)
        opd_err_copy(&check->err, err);
}

static void add_warning(struct check *check, const char *text)
{
    size_t map = pack_map_begin(&check->warnings);
    pack_key_str(&check->warnings, "log", text);
    pack_map_end(&check->warnings, map);
    check->n_warnings++;
}

static void job_done(void *data, struct pool_result *result, const struct opd_err *err)
{
    struct kernel_job *job = data;
    struct check *check = job->check;
    check->n_pending--;
    if (!result) {
        // the client has gone
    } else if (err->code) {
        pack_error(check, err);
    } else {
        pack_result(check, job, result);
        if (result->log[0])
            add_warning(check, result->log);
    }
    finish_check(check);
}

static bool is_known(const struct check *check, const char *target, const char *prelude,
                     const char *expr)
{
    for (const struct kernel_job *job = check->jobs; job; job = job->next)
        if (strcmp(job->target, target) == 0 && strcmp(job->prelude, prelude) == 0 &&
            strcmp(job->expr, expr) == 0)
            return true;
    return false;
}

static void add_plan(struct check *check, const struct plan_request *request, const char *target,
                     enum opd_dtype dtype)
{
    struct opd_err err = { 0 };
    struct plan *plan = plan_build(request, &err);
    if (!plan)
        pack_error(check, &err);
    for (int i = 0; plan && i < plan->n_kernels; i++) {
        if (is_known(check, target, plan->kernels[i].prelude, plan->kernels[i].expr))
            continue;
        struct kernel_job *job = mem_zalloc(1, sizeof *job);
        *job = (struct kernel_job){ .next = check->jobs,
                                    .check = check,
                                    .expr = mem_strdup(plan->kernels[i].expr),
                                    .prelude = mem_strdup(plan->kernels[i].prelude),
                                    .dtype = dtype ? dtype_name(dtype) : NULL };
        snprintf(job->target, sizeof job->target, "%s", target);
        check->jobs = job;
    }
    plan_free(plan);
    opd_err_clear(&err);
}

// The kernels of a target, not of a device: `blas` stays false, so that the kernels of matrix
// products are compiled too, which a device with a library for them never launches.
static void add_target(struct check *check, const char *target, enum opd_dtype dtype)
{
    const struct op *op = check->op;
    struct plan_request request;
    for (int k = 0; plan_example(op, k, dtype, &request); k++) {
        request.on_cpu = strcmp(target, "cpu") == 0;
        request.keep = op->has_backward;
        add_plan(check, &request, target, dtype);
        if (!op->has_backward)
            continue;
        request.direction = PLAN_BACKWARD;
        request.wanted = plan_gradients(&request);
        add_plan(check, &request, target, dtype);
    }
}

static void submit_job(struct check *check, struct kernel_job *job)
{
    const char *strings[JOB_MAX_STRINGS] = {
        [JOB_KIND] = check->kind,     [JOB_TARGET] = job->target,   [JOB_COMMON] = check->common,
        [JOB_PRELUDE] = job->prelude, [JOB_FILE] = check->op->file, [JOB_FOLDER] = check->folder,
        [JOB_SOURCE] = check->text,   [JOB_EXPR] = job->expr,
    };
    check->n_pending++;
    pool_submit(check->req->broker->pool, POOL_BACK, check->req->conn, strings, job_done, job);
}

// Why there is nothing to compile: no mistake, unless code was asked for.
static void explain_nothing(struct check *check)
{
    const struct op *op = check->op;
    struct plan_request example;
    const char *why = op->n_outputs > 0 && op->outputs[0].is_view
                          ? "its outputs are views, so there are no kernels to compile"
                      : plan_example(op, 0, OPD_DTYPE_NONE, &example)
                          ? "its examples launch no kernel, so nothing was compiled; add one that "
                            "does"
                          : "it has no example, so nothing was compiled; add one";
    char note[512];
    snprintf(note, sizeof note, "%s: %s", op->file, why);
    if (strcmp(check->kind, "describe") != 0) {
        opd_err_set(&check->err, OPD_E_invalid_argument, "%s", note);
        return;
    }
    add_warning(check, note);
}

// The jobs are listed newest first; their results are wanted in order.
static void submit_jobs(struct check *check)
{
    struct kernel_job *ordered = NULL;
    while (check->jobs) {
        struct kernel_job *job = check->jobs;
        check->jobs = job->next;
        job->next = ordered;
        ordered = job;
    }
    check->jobs = ordered;
    for (struct kernel_job *job = ordered; job; job = job->next)
        submit_job(check, job);
    if (!ordered && check->op && check->n_errors == 0)
        explain_nothing(check);
    check->started = true;
    finish_check(check);
}

// --- what is asked for

struct choice {
    int n_targets;
    char targets[MAX_TARGETS][32];
    int n_dtypes;
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
};

static bool add_choice_target(struct choice *choice, const value *v, struct opd_err *err)
{
    char *target = choice->targets[choice->n_targets];
    if (choice->n_targets == MAX_TARGETS || !value_is_text(v) ||
        !value_copy_str(v, target, sizeof choice->targets[0]) ||
        (strcmp(target, "cpu") != 0 &&
         (strncmp(target, "sm_", 3) != 0 || strspn(target + 3, "0123456789") < 2 ||
          strspn(target + 3, "0123456789af") != strlen(target + 3))))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "targets: expected at most %d of cpu, sm_75, sm_90, ...", MAX_TARGETS);
    choice->n_targets++;
    return true;
}

static bool add_choice_dtype(struct choice *choice, const struct op *op, const value *v,
                             struct opd_err *err)
{
    char name[32] = "";
    if (value_is_text(v))
        value_copy_str(v, name, sizeof name);
    enum opd_dtype dtype = dtype_parse(name), all[OPD_DTYPE_COUNT];
    bool has = false;
    for (int i = plan_example_dtypes(op, false, all); i-- > 0;)
        has = has || (dtype && all[i] == dtype);
    if (!has || choice->n_dtypes == OPD_DTYPE_COUNT)
        return opd_err_set(err, OPD_E_invalid_argument, "%s has no dtype '%s'", op->name, name);
    choice->dtypes[choice->n_dtypes++] = dtype;
    return true;
}

static bool read_choice(struct broker *b, const struct op *op, const value *targets,
                        const value *dtypes, struct choice *out, struct opd_err *err)
{
    *out = (struct choice){ 0 };
    for (size_t i = 0; i < value_count(targets); i++)
        if (!add_choice_target(out, value_at(targets, i), err))
            return false;
    for (size_t i = 0; i < value_count(dtypes); i++)
        if (!add_choice_dtype(out, op, value_at(dtypes, i), err))
            return false;
    for (int i = 0; out->n_targets == 0 && i < b->devices.n; i++)
        snprintf(out->targets[i], sizeof out->targets[0], "%s", b->devices.at[i]->info.target);
    if (out->n_targets == 0)
        out->n_targets = b->devices.n;
    if (out->n_dtypes == 0)
        out->n_dtypes = plan_example_dtypes(op, false, out->dtypes);
    return true;
}

// Takes the reference of op over.
static struct check *begin_check(struct request *req, const char *kind, struct op *op,
                                 const char *folder, const char *text)
{
    struct check *check = mem_zalloc(1, sizeof *check);
    *check = (struct check){ .req = request_defer(req),
                             .kind = kind,
                             .op = op,
                             .common = req->broker->reload.common,
                             .folder = mem_strdup(folder),
                             .text = mem_strdup(text) };
    req->broker->n_checks++;
    return check;
}

static void run_check(struct check *check, const struct choice *choice)
{
    for (int t = 0; t < choice->n_targets; t++)
        for (int d = 0; d < choice->n_dtypes; d++)
            add_target(check, choice->targets[t], choice->dtypes[d]);
    submit_jobs(check);
}

// --- check

static bool read_check(const value *params, struct source **out, struct opd_err *err)
{
    char name[256], folder[4096];
    if (!value_copy_str(value_at(params, 0), name, sizeof name) || !name[0] ||
        strpbrk(name, "/\"\\\n") || !value_copy_str(value_at(params, 1), folder, sizeof folder) ||
        (folder[0] && folder[0] != '/'))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "check: expected the name of a file without folders, and its folder's "
                           "absolute path or \"\"");
    size_t size;
    const char *text = value_bytes(value_at(params, 2), &size);
    if (size > SOURCE_MAX_SIZE || memchr(text, '\0', size))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "check: the source is longer than %d bytes, or no text",
                           SOURCE_MAX_SIZE);
    *out = source_of_text(folder, name, text, size, err);
    return *out != NULL;
}

enum request_status request_check(struct request *req, const value *params, struct opd_err *err)
{
    struct broker *b = req->broker;
    struct source *source = NULL;
    if (b->handover.upgrade)
        return REQUEST_WAIT;
    if (!read_check(params, &source, err))
        return REQUEST_ERROR;
    struct opd_err problem = { 0 };
    struct op *op = op_parse_whole(source->file, source->original, source->original_size,
                                   source->text, &problem);
    const value *options = value_at(params, 3);
    struct choice choice = { 0 };
    if (op && !read_choice(b, op, value_get(options, "targets"), value_get(options, "dtypes"),
                           &choice, err)) {
        op_unref(op);
        source_free(source);
        return REQUEST_ERROR;
    }
    struct check *check = begin_check(req, "describe", op, source->folder, source->text);
    source_free(source);
    if (!op)
        pack_error(check, &problem);
    opd_err_clear(&problem);
    if (op && op->warnings[0])
        add_warning(check, op->warnings);
    if (op)
        run_check(check, &choice);
    else
        submit_jobs(check);
    return REQUEST_SUBMITTED;
}

// --- op_code

static bool read_code_choice(struct broker *b, const struct op *op, const char *kind,
                             const value *options, struct choice *out, struct opd_err *err)
{
    const value *dtype = value_get(options, "dtype"), *target = value_get(options, "target");
    *out = (struct choice){ .n_targets = 1 };
    plan_example_dtypes(op, false, out->dtypes);
    out->n_dtypes = 1; // the first
    if (!value_is_nil(dtype)) {
        out->n_dtypes = 0;
        if (!add_choice_dtype(out, op, dtype, err))
            return false;
    }
    if (!value_is_nil(target)) {
        out->n_targets = 0;
        return add_choice_target(out, target, err);
    }
    bool sass = strcmp(kind, "sass") == 0;
    const char *first = sass ? b->devices.at[0]->info.target : "sm_90";
    for (int i = b->devices.n - 1; i >= 0; i--)
        if (!b->devices.at[i]->is_cpu)
            first = b->devices.at[i]->info.target;
    snprintf(out->targets[0], sizeof out->targets[0], "%s", first);
    return true;
}

enum request_status request_op_code(struct request *req, const value *params, struct opd_err *err)
{
    struct broker *b = req->broker;
    char kind[8] = "";
    value_copy_str(value_at(params, 1), kind, sizeof kind);
    if (b->handover.upgrade)
        return REQUEST_WAIT;
    const struct opd_operator *o = request_operator(req, value_at(params, 0), err);
    if (!o)
        return REQUEST_ERROR;
    struct version *v = o->current;
    bool sass = strcmp(kind, "sass") == 0;
    struct choice choice;
    if (!sass && strcmp(kind, "ptx") != 0)
        return REQUEST_FAIL(err, OPD_E_invalid_argument, "op_code: '%s', expected ptx or sass",
                            kind);
    if (!read_code_choice(b, v->op, kind, value_at(params, 2), &choice, err))
        return REQUEST_ERROR;
    run_check(begin_check(req, sass ? "sass" : "ptx", op_ref(v->op), v->folder, v->text), &choice);
    return REQUEST_SUBMITTED;
}
