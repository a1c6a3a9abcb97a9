#include "device/orphans.h"

#include <signal.h>
#include <sys/wait.h>

#include "broker.h"
#include "base/clock.h"

enum { TICK_MS = 50, LIMIT_MS = 2000 };

static void reap_cb(uv_timer_t *timer)
{
    struct broker *b = timer->data;
    bool late = clock_ns() - b->orphans_since > (uint64_t)LIMIT_MS * 1000000;
    for (int i = 0; i < b->n_orphans; i++) {
        struct broker_orphan *o = &b->orphans[i];
        pid_t result = waitpid(o->pid, NULL, WNOHANG);
        if (result == 0 && (o->kill || late))
            kill(o->pid, SIGKILL); // ours still: nobody else can have its number
        if (result != 0)
            b->orphans[i--] = b->orphans[--b->n_orphans];
    }
    if (b->n_orphans == 0)
        uv_timer_stop(timer);
}

void orphans_init(struct broker *b)
{
    uv_timer_init(&b->turn.loop, &b->orphan_timer);
    b->orphan_timer.data = b;
}

void orphans_close(struct broker *b)
{
    // A program that only checks a state has read the numbers of processes that others still need.
    bool ours = uv_is_active((uv_handle_t *)&b->orphan_timer);
    for (int i = 0; ours && i < b->n_orphans; i++)
        kill(b->orphans[i].pid, SIGKILL);
    uv_close((uv_handle_t *)&b->orphan_timer, NULL);
}

void orphans_start(struct broker *b)
{
    b->orphans_since = clock_ns();
    if (b->n_orphans > 0)
        uv_timer_start(&b->orphan_timer, reap_cb, 0, TICK_MS);
}

bool orphans_add(struct broker *b, int pid, bool kill)
{
    if (b->n_orphans == BROKER_MAX_ORPHANS)
        return false;
    b->orphans[b->n_orphans++] = (struct broker_orphan){ pid, kill };
    orphans_start(b);
    return true;
}
