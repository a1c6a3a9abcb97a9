#include "program.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker.h"
#include "clock.h"
#include "hash.h"
#include "log.h"
#include "pool.h"

static uint64_t program_key(const struct entry *entry, const char *prelude, const char *expr)
{
    uint64_t h = hash_bytes(&entry, sizeof entry, 0);
    h = hash_bytes(prelude, strlen(prelude), h);
    return hash_bytes(expr, strlen(expr), h);
}

struct program *program_get(struct device *d, struct entry *entry, const struct plan *plan, int kernel)
{
    const struct plan_kernel *k = &plan->kernels[kernel];
    uint64_t key = program_key(entry, plan->prelude, k->expr);
    struct program *first = map_get(&d->programs, key);
    for (struct program *p = first; p; p = p->next)
        if (p->entry == entry && strcmp(p->prelude, plan->prelude) == 0 && strcmp(p->expr, k->expr) == 0)
            return p;
    struct program *p = mem_zalloc(1, sizeof *p);
    *p = (struct program){
        .device = d,
        .entry = entry_ref(entry),
        .next = first,
        .id = d->n_program_ids++,
        .prelude = mem_strdup(plan->prelude),
        .expr = mem_strdup(k->expr),
        .n_params = k->n_params,
        .params = mem_zalloc((size_t)k->n_params, sizeof *p->params),
        .image_fd = -1,
    };
    memcpy(p->params, k->params, (size_t)k->n_params * sizeof *p->params);
    map_put(&d->programs, key, p);
    return p;
}

static void set_failed(struct program *p, const struct opd_err *err)
{
    p->state = PROGRAM_FAILED;
    p->failed_at = clock_ns();
    opd_err_clear(&p->err);
    opd_err_copy(&p->err, err);
    opd_err_prefix(&p->err, "%s", p->entry->op->name);
    log_warn("%s%s%s", p->err.msg, p->err.log ? "\n" : "", p->err.log ? p->err.log : "");
}

static void loaded_done(struct command *c, const struct opd_err *err)
{
    struct program *p = c->data;
    if (!err->code)
        p->state = PROGRAM_READY;
    else if (c->blamed || p->device->process_alive)
        set_failed(p, err); // else lost with its executor: restored with the next one
    broker_retry(p->device->broker);
}

struct command *program_reload_command(struct program *p)
{
    if (p->image_fd < 0 || p->state == PROGRAM_FAILED)
        return NULL;
    struct command *c = command_new(DEV_LOAD, p->id, (uint64_t)p->n_params);
    buf_append(&c->bytes, p->params, (size_t)p->n_params * sizeof *p->params);
    c->fd = fcntl(p->image_fd, F_DUPFD_CLOEXEC, 0);
    c->done = loaded_done;
    c->data = p;
    return c;
}

static void compiled(void *data, struct pool_result *result, const struct opd_err *err)
{
    struct program *p = data;
    if (err->code) {
        set_failed(p, err);
    } else {
        if (result->log[0])
            log_warn("%s: warnings:\n%s", p->entry->op->file, result->log);
        p->image_fd = result->fd;
        result->fd = -1;
        p->state = PROGRAM_LOADING;
        device_submit(p->device, program_reload_command(p));
    }
    broker_retry(p->device->broker);
}

static void start_compile(struct program *p)
{
    struct broker *b = p->device->broker;
    const char *strings[JOB_MAX_STRINGS] = {
        [JOB_TARGET] = p->device->info.target,
        [JOB_COMMON] = b->registry.common,
        [JOB_PRELUDE] = p->prelude,
        [JOB_FILE] = p->entry->op->file,
        [JOB_FOLDER] = p->entry->folder,
        [JOB_SOURCE] = p->entry->op->source,
        [JOB_EXPR] = p->expr,
        [JOB_CACHE] = b->options.cache,
    };
    p->state = PROGRAM_COMPILING;
    pool_submit(b->pool, strings, compiled, p);
}

bool program_ensure(struct program *p, uint64_t since, struct opd_err *err)
{
    if (p->state == PROGRAM_FAILED && p->err.code != OPD_E_compile_error && p->failed_at < since)
        p->state = PROGRAM_NEW;
    if (p->state == PROGRAM_NEW)
        start_compile(p);
    if (p->state == PROGRAM_FAILED)
        opd_err_copy(err, &p->err);
    else if (p->state == PROGRAM_LOADING && p->device->state == DEVICE_FAILED)
        opd_err_set(err, OPD_E_unavailable, "device %s does not work: %.900s", p->device->name, p->device->message);
    return p->state == PROGRAM_READY;
}

void program_free_all(struct device *d)
{
    size_t cursor = 0;
    struct program *p, *next;
    while ((p = map_next(&d->programs, &cursor)) != NULL) {
        for (; p; p = next) {
            next = p->next;
            if (p->image_fd >= 0)
                close(p->image_fd);
            opd_err_clear(&p->err);
            entry_unref(p->entry);
            free(p->prelude);
            free(p->expr);
            free(p->params);
            free(p);
        }
    }
    map_finish(&d->programs);
}
