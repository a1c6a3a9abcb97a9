#include "kernels/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/turn.h"
#include "kernels/pool.h"
#include "device/devices.h"

static uint64_t program_key(const struct version *version, const char *prelude, const char *expr)
{
    uint64_t h = hash_bytes(&version, sizeof version, 0);
    h = hash_bytes(prelude, strlen(prelude), h);
    return hash_bytes(expr, strlen(expr), h);
}

// Numbers are used again, so that an executor's table does not grow with every edit.
static uint32_t take_id(struct device *d)
{
    return d->loaded.n_free_ids > 0 ? d->loaded.free_ids[--d->loaded.n_free_ids]
                                    : d->loaded.n_ids++;
}

static void give_id(struct device *d, uint32_t id)
{
    if (d->loaded.n_free_ids % 64 == 0)
        d->loaded.free_ids = mem_realloc(d->loaded.free_ids, d->loaded.n_free_ids + 64,
                                         sizeof *d->loaded.free_ids);
    d->loaded.free_ids[d->loaded.n_free_ids++] = id;
}

struct program *program_get(struct device *d, struct version *version, const struct plan *plan,
                            int kernel)
{
    const struct plan_kernel *k = &plan->kernels[kernel];
    uint64_t key = program_key(version, k->prelude, k->expr);
    struct program *first = map_get(&d->loaded.programs, key);
    for (struct program *p = first; p; p = p->next_of_hash)
        if (p->version == version && strcmp(p->prelude, k->prelude) == 0 &&
            strcmp(p->expr, k->expr) == 0)
            return p;
    struct program *p = mem_zalloc(1, sizeof *p);
    *p = (struct program){
        .device = d,
        .version = version,
        .next_of_hash = first,
        .next_of_version = version->programs,
        .key = key,
        .id = take_id(d),
        .file = mem_strdup(version->op->file),
        .prelude = mem_strdup(k->prelude),
        .expr = mem_strdup(k->expr),
        .checked = strncmp(k->prelude, PLAN_CHECKED, sizeof PLAN_CHECKED - 1) == 0,
        .n_params = k->n_params,
        .params = mem_zalloc((size_t)k->n_params, sizeof *p->params),
        .image_fd = -1,
    };
    memcpy(p->params, k->params, (size_t)k->n_params * sizeof *p->params);
    map_put(&d->loaded.programs, key, p);
    version->programs = p;
    return p;
}

// --- the end of a program

static void unlink_of_hash(struct program *p)
{
    struct map *programs = &p->device->loaded.programs;
    struct program *first = map_get(programs, p->key);
    if (first == p && p->next_of_hash) {
        map_put(programs, p->key, p->next_of_hash);
    } else if (first == p) {
        map_remove(programs, p->key);
    } else {
        while (first->next_of_hash != p)
            first = first->next_of_hash;
        first->next_of_hash = p->next_of_hash;
    }
    p->next_of_hash = NULL;
}

static void free_program(struct program *p)
{
    pool_drop(p->job);
    file_close(&p->image_fd);
    opd_err_clear(&p->err);
    free(p->file);
    free(p->prelude);
    free(p->expr);
    free(p->params);
    free(p->log);
    free(p);
}

static void unloaded_done(struct command *c, const struct opd_err *err)
{
    (void)err; // gone with its executor, or from it
    struct program *p = c->data, **at = &p->device->loaded.leaving;
    while (*at != p)
        at = &(*at)->next_leaving;
    *at = p->next_leaving;
    if (p->n_loads > 0) { // by an executor that is ending: loaded_done() sees to it
        p->leaving = false;
        p->state = PROGRAM_NEW;
        return;
    }
    give_id(p->device, p->id);
    free_program(p);
}

static void unload(struct program *p)
{
    struct command *c = command_new(DEV_UNLOAD, p->id, 0);
    c->both = true;
    c->done = unloaded_done;
    c->data = p;
    p->leaving = true;
    p->next_leaving = p->device->loaded.leaving;
    p->device->loaded.leaving = p;
    device_submit(p->device, c);
}

static void drop(struct program *p)
{
    unlink_of_hash(p);
    p->version = NULL;
    if (p->n_loads > 0)
        return; // loaded_done() sees to it
    if (p->state == PROGRAM_READY) {
        unload(p);
    } else {
        turn_retry(p->device->all->turn); // who waits for its compile binds anew
        give_id(p->device, p->id);
        free_program(p);
    }
}

void program_drop_all(struct version *v)
{
    struct program *next;
    for (struct program *p = v->programs; p; p = next) {
        next = p->next_of_version;
        drop(p);
    }
    v->programs = NULL;
}

void program_free_all(struct device *d)
{
    size_t cursor = 0;
    struct program *p, *next;
    while ((p = map_next(&d->loaded.programs, &cursor)) != NULL)
        for (; p; p = next) {
            next = p->next_of_hash;
            struct program **at = &p->version->programs;
            while (*at != p)
                at = &(*at)->next_of_version;
            *at = p->next_of_version;
            free_program(p);
        }
    map_finish(&d->loaded.programs);
    free(d->loaded.free_ids);
}

// --- its life

// A program that has worked, and in whose loading an executor dies so many times in a row, is at
// fault; before that, whoever killed the executors is. One that never worked is at once, unless the
// executor was killed from outside: then the second time.
enum { MAX_DEATHS = 3 };

static void set_failed(struct program *p, const struct opd_err *err)
{
    p->state = PROGRAM_FAILED;
    p->failed_at = clock_ns();
    opd_err_clear(&p->err);
    opd_err_copy(&p->err, err);
    if (p->version && p->version->state != VERSION_COMPILING) // else the edit's failure is told
        log_warn("%s%s%s", p->err.msg, p->err.log ? "\n" : "", p->err.log ? p->err.log : "");
}

static void loaded_done(struct command *c, const struct opd_err *err);

// The command that loads it. NULL where there is nothing to load.
static struct command *load_command(struct program *p)
{
    if (p->image_fd < 0 || p->state == PROGRAM_FAILED)
        return NULL;
    p->n_loads++;
    struct command *c = command_new(DEV_LOAD, p->id, (uint64_t)p->n_params);
    for (int i = 0; i < p->n_params; i++) {
        const struct plan_param *param = &p->params[i];
        struct backend_param out = { param->offset, param->size, param->is_tensor, "" };
        static_assert(sizeof out.name == sizeof param->name, "the same names");
        memcpy(out.name, param->name, sizeof out.name);
        buf_append(&c->bytes, &out, sizeof out);
    }
    c->fd = p->image_fd;
    c->done = loaded_done;
    c->data = p;
    return c;
}

// The spare loads what the one that serves has loaded for the first time; from then on each loads
// it when it starts.
static void follow(struct program *p)
{
    struct device_link *spare = device_ready_spare(p->device);
    struct command *c = spare ? load_command(p) : NULL;
    if (c)
        device_prepare(spare, c);
}

// Where the executor that was to load it has died of something else.
static void load_by_next(struct program *p)
{
    bool none = p->device->state == DEVICE_FAILED || p->device->stopping;
    struct command *c = none ? NULL : load_command(p);
    if (c)
        device_submit(p->device, c);
}

static void loaded_done(struct command *c, const struct opd_err *err)
{
    struct program *p = c->data;
    struct device *d = p->device;
    p->n_loads--;
    if (c->blamed || !c->lost)
        p->n_deaths = c->blamed ? p->n_deaths + 1 : 0;
    int most = p->state == PROGRAM_READY ? MAX_DEATHS : d->exit.killed ? 2 : 1;
    bool guilty = c->blamed && err->code != OPD_E_unavailable && p->n_deaths >= most;
    if (p->leaving) {
        // loaded once more, for what goes before its end
    } else if (!p->version && err->code && p->state != PROGRAM_READY) {
        if (p->n_loads == 0) {
            give_id(d, p->id);
            free_program(p);
        }
    } else if (!p->version) {
        unload(p);
    } else if (err->code && guilty) {
        set_failed(p, err);
    } else if (err->code && !c->lost && !c->aside) {
        set_failed(p, err); // a spare that could not load it has gone
    } else if (err->code && p->state == PROGRAM_LOADING) {
        load_by_next(p);
    } else if (!c->aside) {
        bool first = p->state != PROGRAM_READY;
        p->state = PROGRAM_READY;
        if (first)
            follow(p);
    }
    turn_retry(d->all->turn);
}

// A spare gets what has been loaded. Of what is not, the executor that serves is told first, by
// what waits for it where that is under way. What is under way of what has been loaded is for
// another process: a spare that is not promoted, or one that ends.
static void restore(struct program *p, struct device_link *link)
{
    bool waits = link == p->device->link && p->n_loads == 0;
    struct command *c = waits || p->state == PROGRAM_READY ? load_command(p) : NULL;
    if (c)
        device_prepare(link, c);
}

void program_restore_all(struct device *d, struct device_link *link)
{
    size_t cursor = 0;
    for (struct program *p; (p = map_next(&d->loaded.programs, &cursor)) != NULL;)
        for (; p; p = p->next_of_hash)
            restore(p, link);
    for (struct program *p = d->loaded.leaving; p; p = p->next_leaving)
        restore(p, link);
}

static void take_image(struct program *p, struct pool_result *result)
{
    struct opd_err err = { 0 };
    p->image_fd = fdpass_claim(result->fd);
    result->fd = -1;
    if (p->image_fd >= 0) {
        p->state = PROGRAM_LOADING;
        device_submit(p->device, load_command(p));
        return;
    }
    opd_err_set(&err, OPD_E_out_of_memory,
                "%s: its image takes a file descriptor, and none is left; raise the daemon's limit "
                "(ulimit -n)",
                p->file);
    set_failed(p, &err);
}

static void count_compile(struct program *p)
{
    struct compile_stats *stats = p->version->of ? &p->version->of->runs->compiles
                                                 : &p->version->compiles;
    stats->n++;
    stats->ns += clock_ns() - p->since;
}

static void compiled(void *data, struct pool_result *result, const struct opd_err *err)
{
    struct program *p = data;
    struct device *d = p->device;
    p->job = NULL;
    if (!result) {
        p->state = PROGRAM_NEW;
    } else if (err->code) {
        set_failed(p, err);
    } else {
        if (result->log[0]) {
            log_warn("%s: warnings:\n%s", p->file, result->log);
            p->log = mem_strdup(result->log);
        }
        p->compiled = !result->cached;
        if (p->compiled)
            count_compile(p);
        take_image(p, result);
    }
    turn_retry(d->all->turn);
}

static void start_compile(struct program *p, struct pool *pool, const void *owner)
{
    const char *strings[JOB_MAX_STRINGS] = {
        [JOB_KIND] = "compile",
        [JOB_TARGET] = p->device->info.target,
        [JOB_COMMON] = p->version->common,
        [JOB_PRELUDE] = p->prelude,
        [JOB_FILE] = p->file,
        [JOB_FOLDER] = p->version->folder,
        [JOB_SOURCE] = p->version->text,
        [JOB_EXPR] = p->expr,
    };
    p->state = PROGRAM_COMPILING;
    p->since = clock_ns();
    p->job = pool_submit(pool, owner ? POOL_FRONT : POOL_BACK, owner, strings, compiled, p);
}

// Tries a program again: what has failed once need not fail again.
static void try_again(struct program *p)
{
    p->state = p->image_fd < 0 ? PROGRAM_NEW : PROGRAM_LOADING;
    struct command *c = load_command(p);
    if (c)
        device_submit(p->device, c);
}

bool program_ensure(struct program *p, struct pool *pool, const void *owner, uint64_t since,
                    struct opd_err *err)
{
    if (p->state == PROGRAM_FAILED && p->err.code != OPD_E_compile_error && p->failed_at < since)
        try_again(p);
    if (p->state == PROGRAM_NEW)
        start_compile(p, pool, owner);
    else if (p->state == PROGRAM_COMPILING)
        pool_want(p->job, owner);
    if (p->state == PROGRAM_FAILED)
        opd_err_copy(err, &p->err);
    else if (p->state == PROGRAM_LOADING && p->device->state == DEVICE_FAILED)
        opd_err_set(err, OPD_E_unavailable, "device %s does not work: %.900s", p->device->name,
                    p->device->message);
    return p->state == PROGRAM_READY;
}
