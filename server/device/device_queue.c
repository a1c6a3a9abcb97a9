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

void device_finish_command(struct device *d, struct command *c, const struct opd_err *err)
{
    d->queue.n--;
    if (c->done)
        c->done(c, err);
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
        device_finish_command(d, c, err);
    }
}

void device_pump(struct device *d)
{
    while (d->state == DEVICE_READY && d->link.alive && d->queue.pending && !d->restart.wanted) {
        struct command *c = d->queue.pending;
        if (c->fd >= 0 && !c->fd_sent) {
            if (fdpass_send(d->link.sock, "f", 1, &c->fd, 1) != 1)
                return;        // full: a completion comes first, or the executor's death
            c->fd_sent = true; // the command itself may have to wait for room in the ring
        }
        void *record = ring_reserve(&d->link.commands, (uint32_t)c->bytes.size);
        if (!record)
            return;
        c->seq = d->queue.next_seq++;
        ((struct dev_command *)(void *)c->bytes.bytes)->seq = c->seq;
        memcpy(record, c->bytes.bytes, c->bytes.size);
        ring_commit(&d->link.commands);
        pop(&d->queue.pending, &d->queue.pending_end);
        bool first = !d->queue.flight;
        device_push(c, &d->queue.flight_end);
        if (first) {
            d->queue.head_since = clock_ns();
            device_watch_deadline(d);
        }
    }
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

// The oldest command has ended.
void device_count_run(struct device *d, const struct command *c, const struct opd_err *err)
{
    uint64_t now = clock_ns(), ran = now - d->queue.head_since;
    d->queue.head_since = now;
    if (d->queue.flight)
        device_watch_deadline(d);
    d->queue.busy_ns += ran;
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

static void complete(struct device *d, const struct dev_done *done)
{
    if (!d->queue.flight || d->queue.flight->seq != done->seq) {
        log_error("device %s reports a command that was not the oldest", d->name);
        device_kill(d, OPD_E_internal, "the executor broke the order of commands");
        return;
    }
    struct command *c = pop(&d->queue.flight, &d->queue.flight_end);
    struct opd_err err = { .code = done->code };
    const struct plan *reporter;
    c->ran = done->ran;
    c->printed = done->message + strlen(done->message) + 1;
    c->n_printed = done->printed;
    c->n_unprinted = done->dropped;
    c->told = done->told;
    if (done->code) {
        char what[512];
        device_describe(c, done->steps ? done->steps - 1 : 0, true, what, sizeof what);
        snprintf(err.msg, sizeof err.msg, "%s%.480s", what, done->message);
        c->blamed = done->code == OPD_E_kernel_fault;
        c->begun = done->steps > 1 || c->blamed;
    } else if (done->report && (reporter = find_reporter(c, done->reporter))) {
        explain_report(reporter, done->report, &err);
        c->begun = c->n_parts > 0; // the others have run
    }
    struct dev_command *header = (struct dev_command *)(void *)c->bytes.bytes;
    if (header->type == DEV_CHUNK_NEW && !err.code &&
        (c->out_fd = fdpass_recv_one(d->link.sock)) < 0)
        opd_err_set(&err, OPD_E_internal, "the descriptor of a chunk did not come");
    device_count_run(d, c, &err);
    d->queue.did_something = d->queue.did_something || !err.code;
    device_finish_command(d, c, &err);
}

bool device_take_done(struct device *d)
{
    bool fatal = false;
    uint32_t size;
    bool bad = false;
    const struct dev_done *done;
    while (d->link.open && !d->link.broken &&
           (done = ring_peek(&d->link.done, &size, &bad)) != NULL) {
        if (size <= sizeof *done || done->printed >= size - sizeof *done ||
            ((const char *)done)[size - done->printed - 1] != '\0') {
            bad = true;
            break;
        }
        if (done->fatal) {
            snprintf(d->exit.reason, sizeof d->exit.reason, "%s", done->message);
            d->exit.code = done->code;
            fatal = done->code == OPD_E_kernel_fault;
        } else {
            complete(d, done);
        }
        ring_pop(&d->link.done);
    }
    if (bad) {
        d->link.broken = true;
        device_kill(d, OPD_E_internal, "the executor's ring is corrupt");
    }
    return fatal;
}

uint64_t device_busy_ns(const struct device *d)
{
    return d->queue.busy_ns + (d->queue.flight ? clock_ns() - d->queue.head_since : 0);
}

double device_copy_speed(const struct device *d)
{
    return d->copy_ns_per_byte > 0 ? 1e9 / d->copy_ns_per_byte : 0;
}
