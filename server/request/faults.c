#include "request/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "kernels/program.h"
#include "op/bundle.h"
#include "request/parts.h"

// One whose tensors are on their way from the device.
struct keeping {
    struct bundle bundle;
    struct bundle_tensor tensors[OP_MAX_INPUTS + 2 * OP_MAX_OUTPUTS + OP_MAX_TEMPS];
    struct bound_plan *bound; // a reference
    char *whole;
    char *folder;
    int most; // faults that are kept
    struct device *device;
    bool reading, incomplete; // the tensors; its message
    bool good;                // they have been read
    struct suballoc_block *staged; // where a GPU copies the tensors' bytes; NULL: nowhere
    struct buf read;               // those of the CPU
};

// --- files

static int number_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? atoi(slash + 1) : 0;
}

static void find_last(const char *path, void *data)
{
    int *last = data;
    if (number_of(path) > *last)
        *last = number_of(path);
}

static void drop_old(const char *path, void *data)
{
    const int *newest_dropped = data;
    if (number_of(path) <= *newest_dropped)
        unlink(path);
}

// A file is there whole or not at all. Another daemon may use the folder, too.
static bool put_file(const struct keeping *k, const struct buf *file, int *out_number,
                     struct opd_err *err)
{
    char *pattern = mem_printf("%s/*.fault", k->folder);
    char *temporary = mem_printf("%s/new-%d", k->folder, (int)getpid()), *path = NULL;
    int last = 0;
    bool ok = true;
    mkdir(k->folder, 0700);
    file_each(pattern, find_last, &last);
    unlink(temporary); // of a daemon that was killed
    ok = file_make(temporary, file->bytes, file->size, err);
    while (ok) {
        free(path);
        path = mem_printf("%s/%06d.fault", k->folder, ++last);
        if (link(temporary, path) == 0)
            break;
        ok = errno == EEXIST || opd_err_errno(err, OPD_E_internal, "%s", path);
    }
    unlink(temporary);
    *out_number = last;
    last -= k->most;
    file_each(pattern, drop_old, &last);
    free(path);
    free(temporary);
    free(pattern);
    return ok;
}

static void finish(struct keeping *k)
{
    if (k->reading || k->incomplete)
        return;
    struct buf file = { 0 };
    struct opd_err err = { 0 };
    int number;
    const uint8_t *at = k->staged ? k->device->staging.memory + staging_offset(k->staged)
                                  : k->read.bytes;
    for (int i = 0; i < k->bundle.n_tensors && k->good; i++) {
        k->bundle.tensors[i].bytes = at;
        at += k->bundle.tensors[i].size;
    }
    if (!k->good)
        k->bundle.n_tensors = 0;
    bundle_write(&k->bundle, &file);
    if (put_file(k, &file, &number, &err))
        log_info("a fault of %s is kept: opctl replay %d", k->bundle.op, number);
    else
        log_warn("a fault of %s is not kept: %s", k->bundle.op, err.msg);
    opd_err_clear(&err);
    buf_finish(&file);
    if (k->staged)
        device_give_staging(k->device, k->staged);
    bound_plan_unref(k->bound);
    buf_finish(&k->read);
    free(k->whole);
    free(k->folder);
    free(k);
}

// --- tensors

static void read_done(struct command *c, const struct opd_err *err)
{
    struct keeping *k = c->data;
    k->reading = false;
    k->good = !err->code;
    finish(k);
}

static bool is_read(const struct plan *plan, const struct plan_operand *o)
{
    bool backward = plan->direction == PLAN_BACKWARD;
    return o->kind == PLAN_INPUT || o->kind == PLAN_GRAD_OUTPUT ||
           (backward && (o->kind == PLAN_SAVED || o->kind == PLAN_OUTPUT));
}

// The CPU's memory is there to be read.
static bool read_now(struct keeping *k, const struct device_region *r, uint64_t offset, uint64_t n)
{
    buf_reserve(&k->read, n);
    bool ok = pread(r->fd, k->read.bytes + k->read.size, n, (off_t)offset) == (ssize_t)n;
    k->read.size += ok ? n : 0;
    return ok;
}

// An operand that a launch has got, unless it is there already or too large: read, or a copy of it
// added to the command. Memory of another process on the device may be gone by now.
static void take(struct keeping *k, const struct dev_slot *slot, uint32_t operand, uint64_t *room,
                 struct command *copies)
{
    const struct plan *plan = k->bound->plan;
    const struct plan_operand *o = &plan->operands[operand];
    uint64_t size = tensor_desc_size(&o->desc);
    struct bundle *b = &k->bundle;
    const struct device_region *region = &k->device->regions.list[slot->region];
    if (!is_read(plan, o) || size == 0 || size > *room || size > slot->size ||
        (size_t)b->n_tensors == sizeof k->tensors / sizeof *k->tensors || region->ipc)
        return;
    for (int i = 0; i < b->n_tensors; i++)
        if (k->tensors[i].kind == o->kind && k->tensors[i].index == o->index)
            return;
    struct dev_copy copy = { .step = { DEV_STEP_COPY, sizeof copy },
                             .src = { .region = slot->region, .offset = slot->offset },
                             .size = size };
    if (k->device->is_cpu && !read_now(k, region, slot->offset, size))
        return;
    *room -= size;
    buf_append(&copies->bytes, &copy, sizeof copy);
    ((struct dev_command *)(void *)copies->bytes.bytes)->size++;
    k->tensors[b->n_tensors++] = (struct bundle_tensor){ o->kind, o->index, size, NULL };
}

// What the launches of a command have got: they are the plan's, in its order.
static void take_all(struct keeping *k, const struct command *c, uint64_t room,
                     struct command *copies)
{
    const struct plan *plan = k->bound->plan;
    const uint8_t *at = c->bytes.bytes + sizeof(struct dev_command),
                  *end = c->bytes.bytes + c->bytes.size;
    for (const struct plan_step *step = plan->steps; step < plan->steps + plan->n_steps; step++) {
        if (step->kind != PLAN_STEP_LAUNCH)
            continue;
        const struct dev_launch *launch = (const void *)at;
        for (; at < end && launch->step.type != DEV_STEP_LAUNCH; launch = (const void *)at)
            at += launch->step.size;
        if (at == end)
            return;
        const struct dev_slot *slots = (const void *)(launch + 1);
        for (uint32_t i = 0; i < launch->n_slots; i++)
            for (int n = 0; n < step->n_slots; n++)
                if (step->slots[n].arg_offset == slots[i].arg_offset)
                    take(k, &slots[i], step->slots[n].operand, &room, copies);
        at += launch->step.size;
    }
}

// Into staging memory, before all that waits: nothing has changed since, but what the run itself
// wrote. Memory that the next executor does not have by then is no place for that.
static bool submit(struct keeping *k, struct command *copies)
{
    struct device *d = k->device;
    uint64_t size = 0;
    for (int i = 0; i < k->bundle.n_tensors; i++)
        size += k->tensors[i].size;
    bool there = d->staging.memory && d->regions.list[d->staging.region].ready;
    if (size == 0 || !there || d->state == DEVICE_FAILED || d->stopping)
        return false;
    k->staged = staging_take(&d->staging, 0, size);
    if (!k->staged) { // it is all in use
        staging_leave(&d->staging, 0);
        return false;
    }
    uint64_t at = staging_offset(k->staged);
    struct dev_copy *copy = (void *)(copies->bytes.bytes + sizeof(struct dev_command));
    for (int i = 0; i < k->bundle.n_tensors; i++, copy++) {
        copy->dst = (struct dev_ref){ .region = d->staging.region, .offset = at };
        at += copy->size;
    }
    copies->repeatable = true;
    copies->label = "the inputs of a fault";
    copies->done = read_done;
    copies->data = k;
    device_submit_first(d, copies);
    return true;
}

// --- the whole

static struct keeping *describe(const struct request *req, const struct command *c,
                                const struct opd_err *err)
{
    const struct options *options = &req->broker->options;
    struct keeping *k = mem_zalloc(1, sizeof *k);
    struct bundle *b = &k->bundle;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    k->bound = bound_plan_ref(req->bound);
    k->device = req->device;
    k->folder = mem_printf("%s/faults", options->cache);
    k->most = options->faults;
    const struct op *op = k->bound->plan->op;
    const struct version *v = k->bound->plan->n_kernels ? k->bound->programs[0]->version : NULL;
    k->whole = mem_strdup(v ? v->text : "");
    *b = (struct bundle){ .time = (double)now.tv_sec + (double)now.tv_nsec * 1e-9,
                          .version = c->version,
                          .source = op->source,
                          .source_size = op->source_size,
                          .whole = k->whole,
                          .whole_size = strlen(k->whole),
                          .tensors = k->tensors,
                          .request = k->bound->request };
    snprintf(b->device, sizeof b->device, "%s", k->device->name);
    snprintf(b->op, sizeof b->op, "%s", op->name);
    snprintf(b->file, sizeof b->file, "%s", op->file);
    snprintf(b->message, sizeof b->message, "%s", err->msg);
    return k;
}

struct keeping *faults_keep(const struct request *req, const struct command *c,
                            const struct opd_err *err, bool more)
{
    const struct options *options = &req->broker->options;
    if (!c->blamed || !err->code || !req->bound || c->n_parts > 0 || options->faults == 0 ||
        !options->cache[0])
        return NULL;
    struct keeping *k = describe(req, c, err);
    struct command *copies = device_new_run(k->device);
    k->incomplete = more;
    take_all(k, c, options->fault_size, copies);
    k->reading = !k->device->is_cpu && submit(k, copies);
    k->good = k->device->is_cpu;
    if (!k->reading)
        command_free(copies);
    finish(k);
    return more ? k : NULL;
}

void faults_complete(struct keeping *k, const struct opd_err *err)
{
    if (!k)
        return;
    snprintf(k->bundle.message, sizeof k->bundle.message, "%s", err->msg);
    k->incomplete = false;
    finish(k);
}
