#include "device/orphans.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/turn.h"

enum { TICK_MS = 50, LIMIT_MS = 2000 };

static void reap_cb(uv_timer_t *timer)
{
    struct orphans *o = timer->data;
    bool late = clock_ns() - o->since > (uint64_t)LIMIT_MS * 1000000;
    for (int i = 0; i < o->n; i++) {
        struct orphan *child = &o->list[i];
        pid_t result = waitpid(child->pid, NULL, WNOHANG);
        if (result == 0 && (child->kill || late))
            kill(child->pid, SIGKILL); // ours still: nobody else can have its number
        if (result != 0)
            o->list[i--] = o->list[--o->n];
    }
    if (o->n == 0)
        uv_timer_stop(timer);
}

void orphans_init(struct orphans *o, struct turn *turn)
{
    uv_timer_init(&turn->loop, &o->timer);
    o->timer.data = o;
}

void orphans_close(struct orphans *o)
{
    // A program that only checks a state has read the numbers of processes that others still need.
    bool ours = uv_is_active((uv_handle_t *)&o->timer);
    for (int i = 0; ours && i < o->n; i++)
        kill(o->list[i].pid, SIGKILL);
    uv_close((uv_handle_t *)&o->timer, NULL);
}

void orphans_start(struct orphans *o)
{
    o->since = clock_ns();
    if (o->n > 0)
        uv_timer_start(&o->timer, reap_cb, 0, TICK_MS);
}
