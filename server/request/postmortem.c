#include "request/postmortem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/pool.h"
#include "kernels/program.h"
#include "request/faults.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"
#include "request/postmortem_steps.h"
#include "request/request.h"

// It holds plans, versions and memory until the request is answered; what of its commands is on the
// way then finds all of them, for what goes back to the device goes back behind these.
struct postmortem {
    struct postmortem *next;
    struct broker *broker;
    struct device *device;
    struct request *req;    // NULL: answered
    postmortem_answer_fn *answer;
    struct keeping *kept;   // or NULL
    struct opd_err err;     // what is known without
    struct steps_again steps;
    struct storage **copies; // of its pieces, a reference each
    struct bound_plan **plans; // checked, a reference each; of one that is kept:
    struct version **versions;
    size_t n_copies, n_plans;
    uint64_t n_made;  // storages, when it failed
    bool copied, ran; // the copies are there; its run is on the way
    bool in_place;    // what it reads has changed by then, perhaps
    bool tries;       // that has not ended
    int n_holds;      // commands that are on the way, and the timer
    uv_timer_t timer;
};

static void let_go(struct postmortem *p)
{
    if (--p->n_holds > 0 || p->req)
        return;
    opd_err_clear(&p->err);
    free(p);
}

static void timer_closed_cb(uv_handle_t *handle)
{
    let_go(handle->data);
}

static void unlink_it(struct postmortem *p)
{
    struct postmortem **at = &p->broker->postmortems;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
}

static void drop_all(struct postmortem *p)
{
    pool_leave(p->broker->pool, POOL_FRONT, p);
    for (size_t i = 0; i < p->n_plans; i++) {
        bound_plan_unref(p->plans[i]);
        version_drop(p->versions[i]);
    }
    for (size_t i = 0; i < p->n_copies; i++)
        storage_unref(p->copies[i]);
    steps_again_finish(&p->steps);
    free(p->plans);
    free(p->versions);
    free(p->copies);
}

// --- the answer

enum { MAX_FOUND = 600 };

static void hint(struct opd_err *err)
{
    size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n,
             "; the same call with debug=True names tensor, element and line");
}

// `found`: what the run has told, "" where it was nothing; NULL: there was none.
static void answer(struct postmortem *p, const char *found)
{
    struct request *req = p->req;
    struct opd_err *err = &p->err;
    size_t n = strlen(err->msg);
    if (!req)
        return;
    if (!found)
        hint(err);
    else
        snprintf(err->msg + n, sizeof err->msg - n, "; run again with checks%s: %.*s",
                 p->in_place ? ", on what it had left of what it changes in place" : "", MAX_FOUND,
                 found[0] ? found : "no bad access was found");
    p->req = NULL;
    unlink_it(p);
    drop_all(p);
    faults_complete(p->kept, err);
    p->answer(req, err);
    uv_close((uv_handle_t *)&p->timer, timer_closed_cb);
}

// Its threads may wait for one that has ended; and what runs may write to its copies until its
// process is gone: they are not free before.
static void late_cb(uv_timer_t *timer)
{
    struct postmortem *p = timer->data;
    if (p->tries)
        device_end_trials(p->device);
    else
        answer(p, NULL);
}

// --- another tensor

static struct storage *storage_at(const struct device *d, uint32_t region, int64_t offset)
{
    const struct suballoc_chunk *chunk = d->space.map.chunks;
    while (chunk && chunk->region != region)
        chunk = chunk->next;
    for (const struct suballoc_block *b = chunk ? chunk->first : NULL; b && offset >= 0;
         b = b->after) {
        struct storage *s = b->used ? b->owner : NULL;
        if (s && (uint64_t)offset >= b->offset && (uint64_t)offset - b->offset < s->size)
            return s;
    }
    return NULL;
}

// What was there when the kernel ran, and holds what it has written.
static void make_suspect(struct postmortem *p, const struct command *c, const char *found)
{
    uint64_t step = c->step;
    const struct dev_launch *l = steps_again_launch(&p->steps, &step);
    const struct dev_slot *slots = (const void *)(l + 1);
    uint32_t region, i = 0;
    int64_t offset;
    while (l && i < l->n_slots && slots[i].arg_offset != c->miss.arg_offset)
        i++;
    if (!l || i == l->n_slots ||
        !steps_again_origin(&p->steps, &slots[i], c->miss.offset, &region, &offset))
        return;
    struct storage *s = storage_at(p->device, region, offset);
    // A misaligned write is done all the same, at the aligned address below.
    bool own = c->miss.offset >= 0 && (uint64_t)c->miss.offset < slots[i].size;
    if (!s || s->serial > p->n_made)
        return;
    struct fate *f = fate_new();
    f->state = FATE_FAILED;
    f->why = mem_printf("a kernel wrote %s: %.300s; %.200s",
                        own ? "to it askew" : "outside of its own tensor", p->err.msg, found);
    writes_add(s, 0, s->size, f);
    s->version++;
    fate_unref(f);
    lane_disarm_device(p->broker, p->device); // whoever reads it is to hear of that
}

// --- the run

static void run_done(struct command *c, const struct opd_err *err)
{
    struct postmortem *p = c->data;
    const char *found = err->code ? err->msg : "";
    p->tries = false;
    if (p->req && err->code && c->miss.what == BACKEND_NO_MISS) {
        answer(p, NULL);
    } else if (p->req) {
        if (c->miss.what == BACKEND_MISS_WRITE)
            make_suspect(p, c, found);
        answer(p, found);
    }
    let_go(p);
}

// In a process of its own, which it may end: nobody else waits for another because of it.
static void run(struct postmortem *p)
{
    struct command *c = device_new_run(p->device);
    struct dev_command *head = (struct dev_command *)(void *)c->bytes.bytes;
    head->id = DEV_RUN_ALONE;
    head->size = p->steps.n;
    buf_append(&c->bytes, p->steps.bytes.bytes, p->steps.bytes.size);
    c->done = run_done;
    c->data = p;
    p->n_holds++;
    p->ran = p->tries = true;
    device_try(p->device, c);
}

// False: it cannot be.
static bool go_on(struct postmortem *p)
{
    struct opd_err err = { 0 };
    bool ready = true;
    for (size_t i = 0; i < p->n_plans; i++)
        for (int k = 0; k < p->plans[i]->plan->n_kernels && !err.code; k++)
            ready = program_ensure(p->plans[i]->programs[k], p->broker->pool, p, 0, &err) && ready;
    bool ok = !err.code && !p->broker->stopping;
    if (err.code)
        log_info("a fault is not run again: %s", err.msg);
    if (ok && ready && p->copied && !p->ran)
        run(p);
    opd_err_clear(&err);
    return ok;
}

void postmortem_poll(struct broker *b)
{
    for (struct postmortem *p = b->postmortems, *next; p; p = next) {
        next = p->next;
        if (p->tries && b->stopping)
            device_end_trials(p->device);
        else if (!p->tries && !go_on(p))
            answer(p, NULL);
    }
}

// --- what it takes

static void copies_done(struct command *c, const struct opd_err *err)
{
    struct postmortem *p = c->data;
    p->copied = !err->code;
    if (p->req && err->code)
        answer(p, NULL);
    turn_retry(&p->broker->turn);
    let_go(p);
}

// A place for a copy in memory that the device has: more is not asked for.
static struct storage *make_copy(struct postmortem *p, uint64_t size)
{
    struct space *space = &p->device->space;
    struct suballoc_block *room = suballoc_alloc(&space->map, size);
    struct storage *s = NULL;
    struct opd_err err = { 0 };
    if (!room)
        return NULL;
    suballoc_free(&space->map, room);
    if (storage_new(space, size, p->req->conn->holder, &s, &err) != ALLOC_OK)
        s = NULL;
    opd_err_clear(&err);
    return s;
}

// Before all that waits: nothing has changed since, but what the run itself wrote.
static bool copy_pieces(struct postmortem *p)
{
    struct command *c = device_new_run(p->device);
    struct dev_command *head;
    p->copies = mem_zalloc(p->steps.n_pieces + 1, sizeof *p->copies);
    bool ok = true;
    for (size_t i = 0; i < p->steps.n_pieces && ok; i++) {
        struct steps_piece *piece = &p->steps.pieces[i];
        uint64_t past = piece->offset % POSTMORTEM_ALIGN;
        struct storage *s = make_copy(p, past + piece->size);
        struct dev_copy copy = { .step = { DEV_STEP_COPY, sizeof copy },
                                 .src = { .region = piece->region, .offset = piece->offset },
                                 .size = piece->size };
        ok = s != NULL;
        if (!ok)
            break;
        p->copies[p->n_copies++] = s;
        storage_address(s, past, &copy.dst);
        piece->copy_region = copy.dst.region;
        piece->copy_offset = copy.dst.offset;
        buf_append(&c->bytes, &copy, sizeof copy);
    }
    head = (struct dev_command *)(void *)c->bytes.bytes;
    head->size = p->n_copies;
    if (!ok || c->bytes.size > DEV_MAX_COMMAND) {
        command_free(c);
        return false;
    }
    c->repeatable = true;
    c->label = "the operands of a fault";
    steps_again_move(&p->steps);
    c->done = copies_done;
    c->data = p;
    p->n_holds++;
    device_submit_first(p->device, c);
    return true;
}

static bool changes_in_place(const struct plan *plan)
{
    bool found = false;
    for (int i = 0; i < plan->op->n_inputs && plan->direction == PLAN_FORWARD; i++)
        found = found || plan->op->inputs[i].in_place;
    return found;
}

// The same plan of checked builds. NULL: there is none.
static struct bound_plan *find_checked(struct postmortem *p, const struct bound_plan *bound)
{
    struct version *v = bound && bound->plan->n_kernels ? bound->programs[0]->version : NULL;
    struct opd_err err = { 0 };
    if (!v || bound->request->checked)
        return NULL;
    struct plan_request request = *bound->request;
    request.checked = true;
    struct bound_plan *checked = version_plan(v, p->device, &request, &err);
    opd_err_clear(&err);
    if (!checked || checked->plan->n_kernels != bound->plan->n_kernels)
        return NULL;
    p->versions[p->n_plans] = version_keep(v);
    p->plans[p->n_plans++] = bound_plan_ref(checked);
    p->in_place = p->in_place || changes_in_place(bound->plan);
    return checked;
}

// The part of a replay that a step is in; of a run by itself that.
static struct bound_plan *bound_at(const struct request *req, const struct command *c,
                                   uint64_t step, size_t *part)
{
    while (*part + 1 < c->n_parts && c->parts[*part + 1].first_step <= step)
        ++*part;
    return req->launch && *part < req->launch->n_parts ? req->launch->bound[*part] : req->bound;
}

// Puts checked builds in place of its kernels.
static bool use_checked(struct postmortem *p, const struct command *c)
{
    const struct bound_plan *last = NULL;
    struct bound_plan *checked = NULL;
    size_t part = 0, most = c->n_parts + 1;
    p->plans = mem_zalloc(most, sizeof(struct bound_plan *));
    p->versions = mem_zalloc(most, sizeof *p->versions);
    uint64_t step = 0;
    for (struct dev_launch *l; (l = steps_again_launch(&p->steps, &step)) != NULL; step++) {
        const struct bound_plan *bound = bound_at(p->req, c, p->steps.first + step, &part);
        if (bound != last && p->n_plans < most)
            checked = find_checked(p, bound);
        last = bound;
        if (!checked || l->kernel >= (uint32_t)checked->plan->n_kernels)
            return false;
        l->program = checked->programs[l->kernel]->id;
    }
    return true;
}

static bool prepare(struct postmortem *p, const struct command *c)
{
    bool bound = p->req->bound || p->req->launch;
    return bound && !p->broker->stopping && p->device->state != DEVICE_FAILED &&
           steps_again_take(&p->steps, c->bytes.bytes, c->step, c->by_step) &&
           use_checked(p, c) && copy_pieces(p);
}

struct postmortem *postmortem_begin(struct request *req, const struct command *c,
                                    postmortem_answer_fn *answer_it, struct opd_err *err)
{
    struct postmortem *p = mem_zalloc(1, sizeof *p);
    struct broker *b = req->broker;
    *p = (struct postmortem){ .broker = b,
                              .device = req->device,
                              .req = req,
                              .answer = answer_it,
                              .n_made = req->device->space.n_made };
    if (!prepare(p, c)) {
        if (req->bound || req->launch)
            hint(err);
        faults_keep(req, c, err, false);
        drop_all(p);
        free(p);
        return NULL;
    }
    opd_err_copy(&p->err, err);
    p->kept = faults_keep(req, c, err, true);
    p->next = b->postmortems;
    b->postmortems = p;
    p->n_holds++;
    uv_timer_init(&b->turn.loop, &p->timer);
    p->timer.data = p;
    uv_update_time(&b->turn.loop);
    uv_timer_start(&p->timer, late_cb, POSTMORTEM_MS, 0);
    turn_retry(&b->turn);
    return p;
}
