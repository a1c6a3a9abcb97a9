#include "request/compiling.h"

#include "base/clock.h"
#include "kernels/program.h"
#include "request/parts.h"
#include "request/request.h"

static const uint64_t PATIENCE_NS = 500000000;

static void wake_cb(uv_timer_t *timer)
{
    struct broker *b = timer->data;
    turn_retry(&b->turn); // who waits is tried again, and comes to compiling_wait()
}

void compiling_init(struct broker *b)
{
    uv_timer_init(&b->turn.loop, &b->compiling.timer);
    b->compiling.timer.data = b;
}

void compiling_close(struct broker *b)
{
    uv_close((uv_handle_t *)&b->compiling.timer, NULL);
}

// Of the first tensor that it reads; of what it makes, where it reads none.
static const char *find_dtype(const struct plan *plan)
{
    const struct plan_operand *found = plan->operands;
    for (int i = plan->n_operands - 1; i >= 0; i--)
        if (plan->operands[i].kind == PLAN_INPUT || plan->operands[i].kind == PLAN_GRAD_OUTPUT)
            found = &plan->operands[i];
    return plan->n_operands ? dtype_name(found->desc.dtype) : "";
}

static void tell_waiting(struct conn *c, const struct bound_plan *bound, int n)
{
    struct buf param = { 0 };
    size_t map = pack_map_begin(&param);
    pack_key_str(&param, "op", bound->plan->op->name);
    pack_key_str(&param, "dtype", find_dtype(bound->plan));
    pack_key_int(&param, "kernels", n);
    pack_map_end(&param, map);
    conn_notify(c, "compiling", &param);
    buf_finish(&param);
}

void compiling_wait(struct request *req, const struct bound_plan *bound)
{
    struct conn *c = req->conn;
    uv_timer_t *timer = &req->broker->compiling.timer;
    int n = 0;
    for (int i = 0; i < bound->plan->n_kernels; i++)
        n += bound->programs[i]->state == PROGRAM_COMPILING;
    if (n > 0)
        c->compiling = req->since;
    if (n == 0 || !c->hears.compiling || c->told_compiling == req->since)
        return;
    uint64_t waited = clock_ns() - req->since;
    if (waited >= PATIENCE_NS) {
        c->told_compiling = req->since;
        tell_waiting(c, bound, n);
    } else if (!uv_is_active((uv_handle_t *)timer)) {
        uv_update_time(&req->broker->turn.loop);
        uv_timer_start(timer, wake_cb, (PATIENCE_NS - waited) / 1000000 + 1, 0);
    }
}

void compiling_end(struct request *req, const struct bound_plan *bound)
{
    int n = 0, n_told = 0;
    for (int i = 0; i < bound->plan->n_kernels; i++) {
        struct program *p = bound->programs[i];
        n += p->compiled;
        n_told += p->compiled && p->told;
        p->told = true;
    }
    if (n == 0)
        return; // they were in the cache
    struct event event = { .kind = "compiled",
                           .op = bound->plan->op->name,
                           .version = bound->programs[0]->version->number,
                           .file = bound->plan->op->file,
                           .dtype = find_dtype(bound->plan),
                           .kernels = n,
                           .ms = (double)(clock_ns() - req->since) / 1e6 };
    uint64_t seq = 0;
    if (n_told < n) // else another request has waited for the same
        seq = events_add(&req->broker->events, &event);
    if (!req->conn->hears.compiled)
        return;
    struct buf param = { 0 };
    events_pack(&param, seq, &event);
    conn_notify(req->conn, "compiled", &param);
    buf_finish(&param);
}
