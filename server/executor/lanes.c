#include "executor/lanes.h"

#include <fcntl.h>
#include <sys/epoll.h>

void lanes_init(struct lanes *l, struct dev_lanes *shared)
{
    l->shared = shared;
    l->epoll = -1;
}

void lanes_close(struct lanes *l, uint32_t lane)
{
    if (lane >= DEV_MAX_LANES || !l->list[lane].at)
        return;
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->list[lane].bell, NULL); // its client has it, too
    close(l->list[lane].bell);
    l->list[lane] = (struct lanes_lane){ 0 };
    l->n_open--;
}

void lanes_leave(struct lanes *l, uint32_t region)
{
    for (uint32_t i = 0; i < DEV_MAX_LANES; i++)
        if (l->list[i].at && l->list[i].region == region)
            lanes_close(l, i);
}

void lanes_disarm(struct lanes *l, uint32_t slot)
{
    if (slot >= DEV_MAX_LANES * DEV_LANE_ARMS)
        return;
    buf_finish(&l->arms[slot].run);
    l->arms[slot].serial = 0;
}

void lanes_finish(struct lanes *l)
{
    for (uint32_t i = 0; i < DEV_MAX_LANES; i++)
        lanes_close(l, i);
    for (uint32_t i = 0; i < DEV_MAX_LANES * DEV_LANE_ARMS; i++)
        lanes_disarm(l, i);
    if (l->epoll >= 0)
        close(l->epoll);
    l->epoll = -1;
}

// Each ring of the bell wakes once, and nobody reads it: what its client does to the count, or to
// the flags that they share, is nothing to this process.
static int watch_bell(struct lanes *l, int fd)
{
    struct epoll_event edge = { .events = EPOLLIN | EPOLLET };
    if (l->epoll < 0)
        l->epoll = epoll_create1(EPOLL_CLOEXEC);
    int bell = l->epoll < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (bell >= 0 && epoll_ctl(l->epoll, EPOLL_CTL_ADD, bell, &edge) < 0) {
        close(bell);
        bell = -1;
    }
    return bell;
}

bool lanes_open(struct lanes *l, const struct dev_command *cmd, uint32_t size, int fd,
                const struct regions *regions, struct opd_err *err)
{
    const struct dev_ref *ref = (const struct dev_ref *)(cmd + 1);
    device_addr addr;
    if (cmd->id >= DEV_MAX_LANES || size < sizeof *cmd + sizeof *ref)
        return opd_err_set(err, OPD_E_internal, "lane %u of %u bytes", cmd->id, size);
    lanes_close(l, cmd->id);
    if (!regions_resolve(regions, *ref, sizeof(struct lane), &addr, err))
        return false;
    int bell = watch_bell(l, fd);
    if (bell < 0)
        return opd_err_errno(err, OPD_E_unavailable, "watching the bell of a lane");
    struct lane *at = (struct lane *)(uintptr_t)addr;
    l->list[cmd->id] = (struct lanes_lane){ .at = at,
                                            .bell = bell,
                                            .region = ref->region,
                                            .seen = atomic_load(&at->entry) };
    l->n_open++;
    return true;
}

bool lanes_arm(struct lanes *l, const struct dev_command *cmd, uint32_t size, struct opd_err *err)
{
    const struct dev_arm *arm = (const struct dev_arm *)(cmd + 1);
    size_t head = sizeof *cmd + sizeof *arm;
    if (cmd->id >= DEV_MAX_LANES * DEV_LANE_ARMS || size < head)
        return opd_err_set(err, OPD_E_internal, "slot %u of %u bytes", cmd->id, size);
    struct lanes_arm *to = &l->arms[cmd->id];
    const struct dev_command run = { .type = DEV_RUN, .id = arm->flags, .size = cmd->size };
    to->run.size = 0;
    buf_append(&to->run, &run, sizeof run);
    buf_append(&to->run, arm + 1, size - head);
    to->serial = arm->serial;
    return true;
}

static void refuse(struct lanes_lane *lane)
{
    bool sleeps;
    atomic_store(&lane->at->refused, lane->seen);
    word_tell(&lane->at->word, false, 0, &sleeps);
    if (sleeps)
        word_wake(&lane->at->word);
}

// What the lane may run of what its entry names; NULL: it may not.
static const struct lanes_arm *find_arm(const struct lanes *l, uint32_t lane,
                                        const struct dev_begun *e)
{
    if (e->slot / DEV_LANE_ARMS != lane || e->serial == 0)
        return NULL;
    const struct lanes_arm *arm = &l->arms[e->slot];
    return arm->serial == e->serial && atomic_load(&l->shared->armed[e->slot]) == e->serial ? arm
                                                                                          : NULL;
}

static const struct dev_command *take(struct lanes *l, uint32_t i, struct dev_begun *begun)
{
    struct lanes_lane *lane = &l->list[i];
    uint32_t number = atomic_load_explicit(&lane->at->entry, memory_order_acquire);
    if (number == lane->seen || lane->busy)
        return NULL;
    lane->seen = number;
    *begun = (struct dev_begun){ .tag = DEV_BEGUN,
                                 .serial = atomic_load(&lane->at->serial),
                                 .slot = atomic_load(&lane->at->slot),
                                 .request = atomic_load(&lane->at->request) };
    const struct lanes_arm *arm = find_arm(l, i, begun);
    lane->busy = arm != NULL;
    if (!arm)
        refuse(lane);
    return arm ? (const struct dev_command *)(const void *)arm->run.bytes : NULL;
}

const struct dev_command *lanes_take(struct lanes *l, struct dev_begun *begun, struct word **word)
{
    const struct dev_command *cmd = NULL;
    for (unsigned n = 0; l->n_open > 0 && n < DEV_MAX_LANES && !cmd; n++) {
        uint32_t i = l->turn++ % DEV_MAX_LANES;
        if (!l->list[i].at)
            continue;
        cmd = take(l, i, begun);
        *word = &l->list[i].at->word;
    }
    return cmd;
}

void lanes_ended(struct lanes *l, uint32_t slot)
{
    l->list[slot / DEV_LANE_ARMS].busy = false;
}

bool lanes_sleep(struct lanes *l)
{
    bool none = true;
    for (uint32_t i = 0; l->n_open > 0 && i < DEV_MAX_LANES; i++)
        if (l->list[i].at)
            atomic_store(&l->list[i].at->asleep, 1);
    for (uint32_t i = 0; l->n_open > 0 && i < DEV_MAX_LANES; i++)
        if (l->list[i].at && atomic_load(&l->list[i].at->entry) != l->list[i].seen)
            none = false;
    if (!none)
        lanes_wake(l);
    return none;
}

void lanes_wake(struct lanes *l)
{
    struct epoll_event rung[DEV_MAX_LANES];
    if (l->n_open > 0)
        epoll_wait(l->epoll, rung, DEV_MAX_LANES, 0);
    for (uint32_t i = 0; l->n_open > 0 && i < DEV_MAX_LANES; i++)
        if (l->list[i].at)
            atomic_store(&l->list[i].at->asleep, 0);
}
