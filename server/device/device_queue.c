#include "device/device_queue.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fdpass.h"
#include "base/log.h"
#include "base/report.h"
#include "device/devices.h"
#include "op/plan.h"

enum { SPARE_MOST = 64, BYTES_KEPT = 4096 };

struct run_stats *run_stats_new(void)
{
    struct run_stats *s = mem_zalloc(1, sizeof *s);
    s->refs = 1;
    return s;
}

struct run_stats *run_stats_ref(struct run_stats *s)
{
    s->refs++;
    return s;
}

void run_stats_unref(struct run_stats *s)
{
    if (s && --s->refs == 0)
        free(s);
}

static struct command *begin_command(struct command *c, struct buf bytes,
                                     enum dev_command_type type, uint32_t id, uint64_t size)
{
    struct dev_command header = { .type = type, .id = id, .size = size };
    *c = (struct command){ .bytes = bytes, .fd = -1, .out_fd = -1 };
    c->bytes.size = 0;
    buf_append(&c->bytes, &header, sizeof header);
    return c;
}

struct command *command_new(enum dev_command_type type, uint32_t id, uint64_t size)
{
    return begin_command(mem_alloc(sizeof(struct command)), (struct buf){ 0 }, type, id, size);
}

struct command *device_new_run(struct device *d)
{
    struct command *c = d->queue.spare;
    if (!c)
        return command_new(DEV_RUN, 0, 0);
    d->queue.spare = c->next;
    d->queue.n_spare--;
    return begin_command(c, c->bytes, DEV_RUN, 0, 0);
}

void command_free(struct command *c)
{
    if (c->out_fd >= 0)
        close(c->out_fd);
    run_stats_unref(c->stats);
    buf_finish(&c->bytes);
    free(c);
}

static void keep_spare(struct device *d, struct command *c)
{
    if (d->queue.n_spare == SPARE_MOST || c->bytes.capacity > BYTES_KEPT || c->out_fd >= 0) {
        command_free(c);
        return;
    }
    run_stats_unref(c->stats);
    c->stats = NULL;
    c->next = d->queue.spare;
    d->queue.spare = c;
    d->queue.n_spare++;
}

// What goes, goes from the spare too before it is forgotten.
static bool pass_on(struct device *d, struct command *c)
{
    struct device_link *spare = device_ready_spare(d);
    if (!c->both || !spare)
        return false;
    c->both = c->lost = c->begun = c->blamed = false;
    c->aside = true;
    device_push(c, &spare->pending_end);
    device_pump(d);
    return true;
}

void device_finish_command(struct device *d, struct command *c, const struct opd_err *err)
{
    if (pass_on(d, c))
        return;
    d->queue.n -= !c->prepares;
    bool trial = c->trial;
    if (c->done)
        c->done(c, err);
    if (trial)
        device_trial_ended(d);
    keep_spare(d, c);
}

void device_free_spare(struct device *d)
{
    for (struct command *c; (c = d->queue.spare) != NULL;) {
        d->queue.spare = c->next;
        command_free(c);
    }
}

static struct command *pop(struct command **first, struct command ***end)
{
    struct command *c = *first;
    if (c && !(*first = c->next))
        *end = first;
    return c;
}

struct command *device_take_all(struct command **first, struct command ***end)
{
    struct command *all = *first;
    *first = NULL;
    *end = first;
    return all;
}

void device_push(struct command *c, struct command ***end)
{
    c->next = NULL;
    **end = c;
    *end = &c->next;
}

void device_fail_all(struct device *d, struct command *first, const struct opd_err *err)
{
    while (first) {
        struct command *c = first;
        first = c->next;
        c->lost = true;
        device_finish_command(d, c, err);
    }
}

// False: there is no room now. A completion comes first, or the executor's death.
static bool send_command(struct device_link *link, struct command *c)
{
    if (c->fd >= 0 && !c->fd_sent) {
        if (fdpass_send(link->sock, "f", 1, &c->fd, 1) != 1)
            return false;
        c->fd_sent = true; // the command itself may have to wait for room in the ring
    }
    void *record = ring_reserve(&link->commands, (uint32_t)c->bytes.size);
    if (!record)
        return false;
    memcpy(record, c->bytes.bytes, c->bytes.size);
    ring_commit(&link->commands);
    return true;
}

static bool send_first(struct device_link *link, struct command **first, struct command ***end)
{
    struct device *d = link->device;
    if (!send_command(link, *first))
        return false;
    bool oldest = !link->flight;
    device_push(pop(first, end), &link->flight_end);
    if (oldest && link == d->link) {
        d->queue.head_since = clock_ns();
        device_watch_deadline(d);
    }
    return true;
}

// An executor that is not gone may write what it has begun to, over what this one has written.
static bool waits_for_end(const struct device *d, const struct command *c)
{
    const struct dev_command *header = (const void *)c->bytes.bytes;
    return d->n_writing > 0 && header->type == DEV_RUN && device_left_meets(d, c);
}

static bool send_prepares(struct device_link *link)
{
    while (link->pending && send_first(link, &link->pending, &link->pending_end))
        continue;
    return !link->pending;
}

void device_pump(struct device *d)
{
    struct device_link *spare = device_ready_spare(d), *link = d->link;
    if (spare)
        send_prepares(spare);
    if (d->state != DEVICE_READY || !link || !link->alive || !send_prepares(link))
        return;
    while (d->queue.pending && !d->restart.wanted && !waits_for_end(d, d->queue.pending) &&
           send_first(link, &d->queue.pending, &d->queue.pending_end))
        continue;
}

void device_prepare(struct device_link *link, struct command *c)
{
    c->prepares = true;
    c->aside = link != link->device->link;
    device_push(c, &link->pending_end);
    device_pump(link->device);
}

void device_submit_first(struct device *d, struct command *c)
{
    d->queue.n++;
    c->next = d->queue.pending;
    d->queue.pending = c;
    if (d->queue.pending_end == &d->queue.pending)
        d->queue.pending_end = &c->next;
}

void device_submit(struct device *d, struct command *c)
{
    assert(c->bytes.size <= DEV_MAX_COMMAND);
    d->queue.n++;
    if (d->state == DEVICE_FAILED) {
        struct opd_err err = { 0 };
        device_set_unavailable(d, &err);
        c->lost = true;
        device_finish_command(d, c, &err);
        return;
    }
    device_push(c, &d->queue.pending_end);
    device_pump(d);
}

// The plan whose run has the report of that number in its command; NULL: none.
static const struct plan *find_reporter(const struct command *c, uint32_t number)
{
    uint32_t n = 0;
    for (size_t i = 0; i < c->n_parts; i++) {
        const struct plan *plan = c->parts[i].plan;
        if (plan && plan->report >= 0 && n++ == number)
            return plan;
    }
    return c->plan;
}

// What a kernel has reported, in the words of the operator's `check` line.
static void explain_report(const struct plan *plan, uint64_t report, struct opd_err *err)
{
    struct buf text = { 0 };
    report_explain(plan->checks, plan->checks_size, report, &text);
    opd_err_set(err, OPD_E_invalid_argument, "%s: %s", plan->op->name, buf_str(&text));
    buf_finish(&text);
}

// What is counted of each run of a command. Of several, how long each took is not known.
struct counted {
    uint64_t ns, bucket, failed;
    double per_byte; // nanoseconds in which the device would copy one; 0: unknown
};

static void count_part(const struct counted *run, struct run_stats *stats, const struct plan *plan)
{
    uint64_t bytes = plan->bytes;
    if (plan->direction == PLAN_FORWARD)
        stats->forward++;
    else
        stats->backward++;
    stats->failed += run->failed;
    stats->ns += run->ns;
    stats->times[run->bucket]++;
    stats->bytes += bytes;
    if (run->per_byte > 0)
        stats->copy_ns += (uint64_t)((double)bytes * run->per_byte);
}

// What was told up to now stays, though the end that an executor then tells of was before that, or
// it dies instead: a counter does not go back. No moment counts twice.
void device_count_busy(struct device *d, uint64_t until)
{
    struct device_queue *q = &d->queue;
    uint64_t since = q->head_since > q->busy_until ? q->head_since : q->busy_until;
    if (until <= since)
        return;
    q->busy_ns += until - since;
    q->busy_until = until;
}

// The oldest command has ended.
void device_count_run(struct device *d, const struct command *c, uint64_t at,
                      const struct opd_err *err)
{
    device_count_busy(d, at);
    uint64_t ran = at > d->queue.head_since ? at - d->queue.head_since : 0;
    d->queue.head_since += ran;
    if (d->link && d->link->flight)
        device_watch_deadline(d);
    if (!c->stats && c->n_parts == 0)
        return;
    struct counted run = { .ns = c->stats ? ran : ran / c->n_parts,
                           .failed = err->code != 0,
                           .per_byte = d->copy_ns_per_byte };
    run.bucket = times_bucket(run.ns);
    if (c->stats)
        count_part(&run, c->stats, c->plan);
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].stats)
            count_part(&run, c->parts[i].stats, c->parts[i].plan);
}

// A spare that lacks a kernel or memory would be none.
static void check_prepared(struct device_link *link, const struct command *c,
                           const struct opd_err *err)
{
    const struct dev_command *header = (const void *)c->bytes.bytes;
    if (c->aside && err->code && (header->type == DEV_LOAD || header->type == DEV_CHUNK_MAP))
        device_link_kill(link, OPD_E_unavailable, err->msg);
}

static void complete(struct device_link *link, const struct dev_done *done)
{
    struct device *d = link->device;
    if (!link->flight || link->oldest != done->seq) {
        log_error("device %s reports a command that was not the oldest", d->name);
        device_link_kill(link, OPD_E_internal, "the executor broke the order of commands");
        return;
    }
    struct command *c = pop(&link->flight, &link->flight_end);
    struct opd_err err;
    opd_err_init(&err);
    err.code = (enum opd_err_code)done->code;
    link->oldest++;
    const struct plan *reporter;
    c->ran = done->ran;
    c->printed = done->message + strlen(done->message) + 1;
    c->n_printed = done->printed;
    c->n_unprinted = done->dropped;
    c->told = done->told;
    if (done->code) {
        char what[512];
        c->step = done->steps ? done->steps - 1 : 0;
        device_describe(c, c->step, true, what, sizeof what);
        snprintf(err.msg, sizeof err.msg, "%s%.480s", what, done->message);
        c->blamed = done->code == OPD_E_kernel_fault;
        c->miss = done->miss;
        c->begun = done->steps > 1 || c->blamed;
    } else if (done->report && (reporter = find_reporter(c, done->reporter))) {
        explain_report(reporter, done->report, &err);
        c->begun = c->n_parts > 1; // the others have run
    }
    struct dev_command *header = (struct dev_command *)(void *)c->bytes.bytes;
    if (header->type == DEV_CHUNK_NEW && !err.code &&
        (c->out_fd = fdpass_recv_one(link->sock)) < 0)
        opd_err_set(&err, OPD_E_internal, "the descriptor of a chunk did not come");
    if (link == d->link)
        device_count_run(d, c, done->at, &err);
    if (!err.code && header->type != DEV_SERVE && !link->worked) {
        link->worked = true;
        device_want_spare(d);
    }
    check_prepared(link, c, &err);
    device_finish_command(d, c, &err);
}

// What a lane's client has begun takes its place among what was sent: the executor has told of it
// before it took what comes behind.
static void take_begun(struct device_link *link, const struct dev_begun *begun)
{
    struct device *d = link->device;
    struct command **at = &link->flight;
    uint64_t n = begun->seq - link->oldest; // before it
    for (; n > 0 && *at; n--)
        at = &(*at)->next;
    if (n > 0) {
        log_error("device %s has begun what cannot be the next", d->name);
        device_link_kill(link, OPD_E_internal, "the executor broke the order of commands");
        return;
    }
    struct command *c = d->all->hooks->begun(d, begun);
    bool first = at == &link->flight;
    c->next = *at;
    if (!*at)
        link->flight_end = &c->next;
    *at = c;
    d->queue.n++;
    if (first && link->alive) {
        d->queue.head_since = begun->at;
        device_watch_deadline(d);
    }
}

// False: it is none.
static bool take_record(struct device_link *link, const struct dev_done *done, uint32_t size,
                        bool *out_fatal)
{
    if (size == sizeof(struct dev_begun) && done->seq == DEV_BEGUN && link == link->device->link) {
        const struct dev_begun begun = *(const struct dev_begun *)(const void *)done;
        take_begun(link, &begun);
        return true;
    }
    if (size <= sizeof *done || done->printed >= size - sizeof *done ||
        ((const char *)done)[size - done->printed - 1] != '\0')
        return false;
    if (!done->fatal) {
        complete(link, done);
        return true;
    }
    snprintf(link->exit.reason, sizeof link->exit.reason, "%s", done->message);
    link->exit.code = done->code;
    *out_fatal = done->code == OPD_E_kernel_fault;
    return true;
}

void device_take_rest(struct device_link *link)
{
    bool fatal = false, bad = false, good = link->rings_memory && !link->broken;
    uint32_t size;
    const struct dev_done *done;
    while (good && (done = ring_peek(&link->done, &size, &bad)) != NULL &&
           (done->seq == DEV_BEGUN || !done->fatal)) {
        good = take_record(link, done, size, &fatal);
        ring_pop(&link->done);
    }
}

bool device_take_done(struct device_link *link)
{
    bool fatal = false;
    uint32_t size;
    bool bad = false;
    const struct dev_done *done;
    while (link->alive && !link->broken &&
           (done = ring_peek(&link->done, &size, &bad)) != NULL) {
        bad = !take_record(link, done, size, &fatal);
        if (bad)
            break;
        ring_pop(&link->done);
    }
    if (bad) {
        link->broken = true;
        device_link_kill(link, OPD_E_internal, "the executor's ring is corrupt");
    }
    return fatal;
}

uint64_t device_busy_ns(struct device *d)
{
    if (d->link && d->link->flight)
        device_count_busy(d, clock_ns());
    return d->queue.busy_ns;
}

double device_copy_speed(const struct device *d)
{
    return d->copy_ns_per_byte > 0 ? 1e9 / d->copy_ns_per_byte : 0;
}
