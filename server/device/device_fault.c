// The commands that an executor had when it died, and what becomes of them.
//
// An executor runs them in order, and leaves behind what it has begun and what it has done
// (devwire.h). The first that was begun and not done is to blame, unless somebody killed the
// executor. What comes after it was not begun: nothing of it has happened, so the next executor
// runs it.

#include <stdio.h>
#include <stdlib.h>

#include "device/device_queue.h"
#include "base/clock.h"
#include "base/log.h"
#include "op/plan.h"

// The part of a command that a step is in.
static struct command_part part_at(const struct command *c, uint64_t step)
{
    if (c->n_parts == 0)
        return (struct command_part){ .plan = c->plan, .version = c->version, .label = c->label };
    const struct command_part *part = c->parts;
    while (part + 1 < c->parts + c->n_parts && part[1].first_step <= step)
        part++;
    return *part;
}

// The kernel that is launched by a step of a RUN, or by the next one of its part that launches one;
// NULL: none.
static const char *kernel_at(const struct command *c, uint64_t step)
{
    const struct dev_command *header = (const void *)c->bytes.bytes;
    const struct plan *plan = part_at(c, step).plan;
    const uint8_t *at = c->bytes.bytes + sizeof *header;
    for (uint64_t i = 0; i < header->size && part_at(c, i).first_step <= step; i++) {
        const struct dev_launch *launch = (const void *)at;
        if (i >= step && launch->step.type == DEV_STEP_LAUNCH &&
            launch->kernel < (uint32_t)plan->n_kernels)
            return plan->kernels[launch->kernel].expr;
        at += launch->step.size;
    }
    return NULL;
}

static void append_operands(struct buf *out, const struct plan *plan)
{
    enum plan_operand_kind kinds[] = { PLAN_INPUT, PLAN_GRAD_OUTPUT };
    bool first = true;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < plan->n_operands; i++) {
            const struct plan_operand *o = &plan->operands[i];
            if (o->kind != kinds[k] || plan_member(o->index) > 0)
                continue;
            char desc[128];
            tensor_desc_format(&o->desc, desc, sizeof desc);
            bool list = k == 0 ? plan->op->inputs[o->index].list
                               : plan->op->outputs[o->index].list; // the first stands for all
            buf_printf(out, "%s%s%s %s", first ? "" : ", ", o->name, list ? "[0]" : "", desc);
            first = false;
        }
    // An operator without inputs: what it makes says its dtype and shape.
    for (int i = 0; first && i < plan->n_operands; i++)
        if (plan->operands[i].kind == PLAN_OUTPUT) {
            char desc[128];
            tensor_desc_format(&plan->operands[i].desc, desc, sizeof desc);
            buf_printf(out, "%s %s", plan->operands[i].name, desc);
            first = false;
        }
}

void device_describe(const struct command *c, uint64_t step, bool exact, char *out, size_t size)
{
    const struct command_part part = part_at(c, step);
    const struct plan *plan = part.plan;
    if (!plan) {
        snprintf(out, size, "%s%s", part.label ? part.label : "", part.label ? ": " : "");
        return;
    }
    struct buf text = { 0 };
    if (!exact && c->n_parts > 1) {
        buf_printf(&text,
                   "one of %zu calls of a graph, %s version %d or one behind it (replayed "
                   "again, it runs call by call, which tells them apart)",
                   c->n_parts, plan->op->name, part.version);
        snprintf(out, size, "%.*s: ", (int)size - 3, buf_str(&text));
        buf_finish(&text);
        return;
    }
    const char *kernel = kernel_at(c, step);
    bool later = !exact && plan->n_kernels > 1;
    buf_printf(&text, "%s version %d %s", plan->op->name, part.version,
               plan->direction == PLAN_FORWARD ? "forward" : "backward");
    if (kernel)
        buf_printf(&text, ", kernel %s%s", kernel, later ? " or a later one" : "");
    buf_append_str(&text, " (");
    append_operands(&text, plan);
    buf_append_str(&text, ")");
    snprintf(out, size, "%.*s: ", (int)size - 3, buf_str(&text));
    buf_finish(&text);
}

void device_put_back(struct device *d, struct command *first)
{
    if (!first)
        return;
    int n = 0;
    struct command *last = first;
    for (struct command *c = first; c; c = c->next, n++) {
        c->fd_sent = false; // what was sent went to the dead one
        last = c;
    }
    last->next = d->queue.pending;
    if (!d->queue.pending)
        d->queue.pending_end = &last->next;
    d->queue.pending = first;
    log_info("device %s: %d commands are run by the next executor", d->name, n);
}

// The commands that an executor had begun and done, as far as it is known.
struct remains {
    uint64_t taken, passed, failed, good;
    bool exact, by_step, graphs;
};

static struct remains read_remains(const struct device_link *dead)
{
    const struct dev_progress *p = dead->progress;
    if (!p)
        return (struct remains){ 0 };
    return (struct remains){ .taken = atomic_load(&p->taken),
                             .passed = atomic_load(&p->passed),
                             .failed = atomic_load(&p->failed),
                             .good = atomic_load(&p->good),
                             .exact = atomic_load(&p->exact),
                             .by_step = atomic_load(&p->by_step),
                             .graphs = atomic_load(&p->graphs) };
}

// Takes from the flight what was, or may have been, begun, and what has missed its deadline; and
// what only that executor had to know.
static struct command *take_lost(struct device_link *dead, const struct remains *r,
                                 struct command **out_rest)
{
    const struct device *d = dead->device;
    struct command *flight = device_take_all(&dead->flight, &dead->flight_end);
    struct command *lost = NULL, **end = &lost, **rest_end = out_rest;
    bool blamed = false;
    *out_rest = NULL;
    for (uint64_t seq = dead->oldest; flight; seq++) {
        struct command *c = flight;
        flight = c->next;
        c->seq = seq;
        bool expired = c->seq == d->queue.expired_seq, begun = c->seq <= r->taken;
        if (!expired && !c->prepares && (!begun || (r->exact && blamed))) {
            device_push(c, &rest_end);
            continue;
        }
        c->lost = true;
        c->begun = begun;
        c->blamed = !blamed && (expired || (begun && r->passed < dev_mark(c->seq, DEV_MARK_END)));
        blamed = blamed || c->blamed;
        device_push(c, &end);
    }
    return lost;
}

static bool reports(const struct command *c)
{
    bool found = c->plan && c->plan->report >= 0;
    for (size_t i = 0; i < c->n_parts && !found; i++)
        found = c->parts[i].plan && c->parts[i].plan->report >= 0;
    return found;
}

// Can a command that was done, and not reported so, be taken as good? Its outcome is known but for
// an error, what a kernel has reported, unless the client was told that it is nothing, and
// descriptors and numbers that were on their way.
static bool is_good(const struct command *c, const struct remains *r)
{
    const struct dev_command *header = (const void *)c->bytes.bytes;
    return r->passed >= dev_mark(c->seq, DEV_MARK_END) && c->seq > r->failed &&
           header->type == DEV_RUN && (!reports(c) || c->seq == r->good);
}

// The one that was running is taken from the lost ones to be run again; NULL: it is not. What it
// reads has not changed: nothing behind it was begun.
static struct command *take_again(struct device *d, const struct remains *r, struct command **lost)
{
    struct command **at = lost;
    while (*at && !(*at)->blamed)
        at = &(*at)->next;
    struct command *c = *at;
    if (!c || !d->exit.killed || !r->exact || !c->repeatable || c->killed)
        return NULL;
    *at = c->next;
    c->next = NULL;
    c->begun = c->blamed = c->lost = false;
    c->killed = true;
    d->queue.n_reruns++;
    return c;
}

static bool is_replay(const struct command *c)
{
    const struct dev_command *header = (const void *)c->bytes.bytes;
    return header->type == DEV_RUN && header->id & DEV_RUN_REPLAY;
}

static void count_failed(const struct command *c)
{
    if (c->stats)
        c->stats->failed++;
    for (size_t i = 0; i < c->n_parts; i++)
        if (c->parts[i].stats)
            c->parts[i].stats->failed++;
}

// What the command that was running had printed.
static void take_prints(const struct device_link *dead, struct command *lost)
{
    const struct dev_prints *p = dead->prints;
    while (p && lost && lost->seq != atomic_load(&p->seq))
        lost = lost->next;
    if (!p || !lost)
        return;
    uint64_t size = atomic_load(&p->size);
    lost->printed = p->text;
    lost->n_printed = size < DEV_MAX_PRINTED ? size : DEV_MAX_PRINTED;
    lost->n_unprinted = atomic_load(&p->dropped);
}

// Could a checked build tell more?
static bool may_be_checked(const struct device *d, const struct command *blamed)
{
    const struct dev_command *header = (const void *)blamed->bytes.bytes;
    return !d->is_cpu && d->exit.code == OPD_E_kernel_fault && !d->exit.killed &&
           header->type == DEV_RUN && !(header->id & DEV_RUN_ALONE);
}

void device_note_left(struct device_link *link)
{
    struct remains r = read_remains(link);
    uint64_t seq = link->oldest;
    for (const struct command *c = link->flight; c && seq <= r.taken; c = c->next, seq++)
        if (r.passed < dev_mark(seq, DEV_MARK_END))
            device_left_add(link->device, c);
}

// What it has begun and may begin again: nothing that others have meanwhile changed is read by it,
// and what it writes is what they write, or belongs to nobody (device_release_held()).
bool device_may_leave(struct device_link *link)
{
    struct remains r = read_remains(link);
    device_take_rest(link);
    uint64_t seq = link->oldest;
    for (const struct command *c = link->flight; c && seq <= r.taken; c = c->next, seq++) {
        const struct dev_command *header = (const void *)c->bytes.bytes;
        if (header->type == DEV_RUN && !c->repeatable && r.passed < dev_mark(seq, DEV_MARK_END))
            return false;
    }
    return true;
}

void device_settle_flight(struct device *d, struct device_link *dead)
{
    struct remains r = read_remains(dead);
    struct command *rest, *lost = take_lost(dead, &r, &rest), *again = take_again(d, &r, &lost),
                          *blamed = lost;
    device_put_back(d, rest);
    device_put_back(d, again);
    take_prints(dead, lost);
    while (blamed && !blamed->blamed)
        blamed = blamed->next;
    char what[512] = "";
    if (blamed) {
        bool in_it = r.passed > dev_mark(blamed->seq, 0) &&
                     r.passed < dev_mark(blamed->seq, DEV_MARK_END);
        blamed->step = in_it ? r.passed & DEV_MARK_END : 0;
        blamed->by_step = r.by_step && !(r.graphs && is_replay(blamed));
        blamed->checkable = may_be_checked(d, blamed);
        device_describe(blamed, blamed->step, blamed->by_step, what, sizeof what);
    }
    struct opd_err none = { 0 }, err = { 0 }, others = { 0 };
    opd_err_set(&err, d->exit.code, "%s%.400s", what, d->exit.reason);
    opd_err_set(&others, OPD_E_kernel_fault, "device %s failed while another request ran: %.900s",
                d->name, err.msg);
    while (lost) {
        struct command *c = lost;
        lost = c->next;
        bool good = is_good(c, &r);
        if (good)
            device_count_run(d, c, clock_ns(), &none);
        else
            count_failed(c);
        device_finish_command(d, c, good ? &none : c->blamed ? &err : &others);
    }
}
