// A device's memory as the broker keeps it: regions, chunks and what is where in them, staging.

#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/devices.h"
#include "base/fdpass.h"
#include "memory/holder.h"
#include "base/log.h"

// The memory that a device is asked for at a time, unless more is wanted at once.
enum { CHUNK_CPU = 64 << 20, CHUNK_CUDA = 256 << 20 };

// Making a chunk takes most of a millisecond: what a loop frees and wants again is not given back
// in between.
enum { EMPTY_KEPT_MS = 1000, TRIM_TICK_MS = 250 };

static uint32_t add_region(struct device *d, int fd, uint64_t size, bool host)
{
    uint32_t id = 0;
    while (id < d->regions.n && d->regions.list[id].used)
        id++;
    if (id == d->regions.n)
        d->regions.list = mem_realloc(d->regions.list, ++d->regions.n, sizeof *d->regions.list);
    d->regions.list[id] = (struct device_region){
        .used = true, .host = host, .fd = fd, .size = size, .serial = ++d->all->n_regions
    };
    return id;
}

static void remove_region(struct device *d, uint32_t id)
{
    keep_dropped(d, id);
    if (d->regions.list[id].fd >= 0)
        close(d->regions.list[id].fd);
    d->regions.list[id] = (struct device_region){ .fd = -1 };
}

static void unmapped_done(struct command *c, const struct opd_err *err)
{
    struct device *d = c->data;
    (void)err; // a dead executor maps nothing any more
    remove_region(d, ((struct dev_command *)(void *)c->bytes.bytes)->id);
}

static struct command *unmap_command(uint32_t region)
{
    struct command *c = command_new(DEV_UNMAP, region, 0);
    c->both = true;
    return c;
}

static void unmap(struct space *space, uint32_t region)
{
    struct command *c = unmap_command(region);
    c->done = unmapped_done;
    c->data = space->device;
    device_submit(space->device, c);
}

// Opens a client's.
static struct command *ipc_command(struct device *d, uint32_t region)
{
    struct command *c = command_new(DEV_IPC_OPEN, region, d->regions.list[region].size);
    buf_append(&c->bytes, d->regions.list[region].handle, DEV_IPC_HANDLE);
    return c;
}

// Where a client's memory cannot be mapped again, requests that use it are told so.
void device_map_region(struct device_link *link, uint32_t id)
{
    struct device *d = link->device;
    const struct device_region *r = &d->regions.list[id];
    struct command *c = r->ipc ? ipc_command(d, id)
                               : command_new(r->host ? DEV_HOST_MAP : DEV_CHUNK_MAP, id, r->size);
    c->fd = r->ipc ? -1 : r->fd;
    device_prepare(link, c);
}

// The spare maps it too.
static void follow_mapping(struct device *d, uint32_t id)
{
    struct device_link *spare = device_ready_spare(d);
    if (spare)
        device_map_region(spare, id);
}

// A command that maps memory, and who is told.
struct mapping {
    struct device *device;
    struct device_mapping told;
};

static void mapped_done(struct command *c, const struct opd_err *err)
{
    struct mapping *m = c->data;
    struct device *d = m->device;
    uint32_t id = ((struct dev_command *)(void *)c->bytes.bytes)->id;
    // Lost with its executor: the next one maps it, unless it was this that ended it.
    bool lost = c->lost && !(c->blamed && d->regions.list[id].ipc);
    bool ready = d->regions.list[id].ready = !err->code || lost;
    if (!ready && !m->told.done)
        log_warn("device %s does not map shared memory: %s", d->name, err->msg);
    if (ready)
        follow_mapping(d, id);
    if (m->told.done)
        m->told.done(m->told.data,
                     ready && d->state != DEVICE_FAILED ? &(struct opd_err){ 0 } : err);
    free(m);
}

static void submit_mapping(struct device *d, struct command *c,
                           const struct device_mapping *mapping)
{
    struct mapping *m = mem_zalloc(1, sizeof *m);
    *m = (struct mapping){ .device = d };
    if (mapping)
        m->told = *mapping;
    c->done = mapped_done;
    c->data = m;
    c->repeatable = true;
    device_submit(d, c);
}

// Clients may take half of a process's addresses; the other half is the device's own.
static const uint64_t MAX_SHARED = (uint64_t)1 << 46;

static bool may_share(const struct device *d, uint64_t size, struct opd_err *err)
{
    uint64_t sum = 0;
    char asked[32], has[32], may[32];
    for (uint32_t i = 0; i < d->regions.n; i++)
        if ((d->regions.list[i].host || d->regions.list[i].ipc) && !device_is_staging(d, i))
            sum += d->regions.list[i].size;
    return size <= MAX_SHARED - sum ||
           opd_err_set(err, OPD_E_out_of_memory,
                       "%s of shared memory asked for on %s, where clients share %s and may share "
                       "%s in all; free what is not needed (shm, import)",
                       holder_size(size, asked), d->name, holder_size(sum, has),
                       holder_size(MAX_SHARED, may));
}

bool device_map_ipc(struct device *d, const uint8_t handle[DEV_IPC_HANDLE], uint64_t size,
                    uint32_t *out_region, const struct device_mapping *mapping, struct opd_err *err)
{
    if (!may_share(d, size, err))
        return false;
    uint32_t id = *out_region = add_region(d, -1, size, false);
    d->regions.list[id].ipc = true;
    memcpy(d->regions.list[id].handle, handle, DEV_IPC_HANDLE);
    submit_mapping(d, ipc_command(d, id), mapping);
    return true;
}

// The descriptor is taken over.
static uint32_t map_host(struct device *d, int fd, uint64_t size,
                         const struct device_mapping *mapping)
{
    uint32_t id = add_region(d, fd, size, true);
    struct command *c = command_new(DEV_HOST_MAP, id, size);
    c->fd = fd;
    submit_mapping(d, c, mapping);
    return id;
}

bool device_map_host(struct device *d, int fd, uint64_t size, uint32_t *out_region,
                     const struct device_mapping *mapping, struct opd_err *err)
{
    if (!may_share(d, size, err))
        return false;
    int kept = fdpass_claim(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (kept < 0)
        return opd_err_errno(err, OPD_E_out_of_memory,
                             "shared memory for %s takes a file descriptor; close some, or raise "
                             "the daemon's limit (ulimit -n)",
                             d->name);
    *out_region = map_host(d, kept, size, mapping);
    return true;
}

static uint64_t chunk_size(const struct device *d, uint64_t size)
{
    uint64_t unit = d->info.chunk_granularity > SUBALLOC_ALIGN ? d->info.chunk_granularity
                                                               : SUBALLOC_ALIGN;
    return (size + unit - 1) / unit * unit;
}

static void trim_later(struct devices *all);
static void grow(struct device *d, uint64_t size, bool exact);

static void add_chunk(struct device *d, uint32_t region, uint64_t size)
{
    suballoc_add_chunk(&d->space.map, region, size)->emptied_at = clock_ns();
    trim_later(d->all); // it stays empty where those that it was for have gone
}

static void dropped_done(struct command *c, const struct opd_err *err)
{
    struct device *d = c->data;
    unmapped_done(c, err);
    d->growth.n_dropping--;
    if (d->growth.deferred && d->growth.n_dropping == 0 && !d->stopping)
        grow(d, d->growth.size, d->growth.exact);
}

// Gives an empty chunk back to the device.
static void drop_chunk(struct device *d, struct suballoc_chunk *chunk)
{
    struct command *c = unmap_command(chunk->region);
    suballoc_remove_chunk(&d->space.map, chunk);
    d->growth.n_dropping++;
    c->done = dropped_done;
    c->data = d;
    device_submit(d, c);
}

// Drops a chunk that has been empty since before a time. False: there is none.
static bool drop_empty_chunk(struct device *d, uint64_t before)
{
    struct suballoc_chunk *chunk = d->space.map.chunks;
    while (chunk && (chunk->used > 0 || chunk->emptied_at >= before))
        chunk = chunk->next;
    if (chunk)
        drop_chunk(d, chunk);
    return chunk != NULL;
}

// The memory of a chunk that was dropped is free when its descriptor is closed.
static void grow_when_dropped(struct device *d)
{
    d->growth.asked = d->growth.deferred = true;
    if (d->growth.n_dropping == 0)
        grow(d, d->growth.size, d->growth.exact);
}

static void grown_done(struct command *c, const struct opd_err *err)
{
    struct device *d = c->data;
    struct dev_command *header = (struct dev_command *)(void *)c->bytes.bytes;
    struct device_region *r = &d->regions.list[header->id];
    d->growth.asked = false;
    if (!err->code) {
        r->fd = c->out_fd;
        c->out_fd = -1;
        r->ready = true;
        add_chunk(d, header->id, header->size);
        follow_mapping(d, header->id);
        return;
    }
    uint64_t exact = chunk_size(d, d->growth.size);
    bool lost = c->lost && !c->blamed; // the next executor may well make it
    bool retry = header->size > exact && !c->lost;
    bool freed = d->growth.beside_drops;
    remove_region(d, header->id);
    // What the request that waits has let go of since it wanted more, it wants again.
    while (!c->lost && drop_empty_chunk(d, d->growth.since))
        freed = true;
    if (freed && !c->lost)
        grow_when_dropped(d);
    else if (retry)
        grow(d, exact, true);
    else if (lost)
        turn_retry(d->all->turn);
    else
        d->all->hooks->no_memory(d, err);
}

static void grow(struct device *d, uint64_t size, bool exact)
{
    uint64_t usual = d->is_cpu ? CHUNK_CPU : CHUNK_CUDA;
    uint64_t want = chunk_size(d, exact || size > usual ? size : usual);
    uint32_t id = add_region(d, -1, want, false);
    struct command *c = command_new(DEV_CHUNK_NEW, id, want);
    c->done = grown_done;
    c->data = d;
    c->repeatable = true;
    d->growth.asked = true;
    d->growth.deferred = false;
    d->growth.beside_drops = d->growth.n_dropping > 0;
    d->growth.size = size;
    d->growth.exact = exact;
    device_submit(d, c);
}

// --- chunks that are empty

// The one that has been empty for the shortest time; NULL: none is.
static struct suballoc_chunk *newest_empty(const struct device *d)
{
    struct suballoc_chunk *newest = NULL;
    for (struct suballoc_chunk *chunk = d->space.map.chunks; chunk; chunk = chunk->next)
        if (chunk->used == 0 && (!newest || chunk->emptied_at > newest->emptied_at))
            newest = chunk;
    return newest;
}

// Gives back those that have been empty for long, but one. True: others may be, later.
static bool trim(struct device *d, uint64_t now)
{
    if (d->all->hooks->wanted(d))
        return true;
    const struct suballoc_chunk *kept = newest_empty(d);
    bool more = false;
    for (struct suballoc_chunk *chunk = d->space.map.chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        if (chunk->used > 0 || chunk == kept)
            continue;
        if (now - chunk->emptied_at < EMPTY_KEPT_MS * 1000000ull)
            more = true;
        else
            drop_chunk(d, chunk);
    }
    return more;
}

static void trim_cb(uv_timer_t *timer)
{
    struct devices *all = timer->data;
    bool more = false;
    for (int i = 0; i < all->n; i++)
        more = trim(all->at[i], clock_ns()) || more;
    if (!more)
        uv_timer_stop(timer);
}

void device_memory_init(struct devices *all)
{
    uv_timer_init(&all->turn->loop, &all->trim_timer);
    all->trim_timer.data = all;
}

static void trim_later(struct devices *all)
{
    if (!uv_is_active((uv_handle_t *)&all->trim_timer) &&
        !uv_is_closing((uv_handle_t *)&all->trim_timer))
        uv_timer_start(&all->trim_timer, trim_cb, TRIM_TICK_MS, TRIM_TICK_MS);
}

void device_drop_empty(struct device *d)
{
    while (drop_empty_chunk(d, UINT64_MAX))
        continue;
}

void device_restore_region(struct device *d, uint32_t id, const struct device_region *r)
{
    if (id >= d->regions.n)
        d->regions.list = mem_realloc(d->regions.list, id + 1, sizeof *d->regions.list);
    while (d->regions.n <= id)
        d->regions.list[d->regions.n++] = (struct device_region){ .fd = -1 };
    d->regions.list[id] = *r;
    if (!r->serial)
        d->regions.list[id].serial = ++d->all->n_regions;
    if (r->host || r->ipc)
        return;
    add_chunk(d, id, r->size);
    if (r->closed)
        suballoc_close(&d->space.map, d->space.map.chunks);
}

// --- pieces of chunks

uint64_t device_memory_limit(const struct device *d)
{
    return d->all->memory_limit ? d->all->memory_limit : d->info.memory_total;
}

static uint64_t room_for_chunks(const struct device *d, uint64_t limit)
{
    return limit > d->space.map.reserved ? limit - d->space.map.reserved : 0;
}

// A chunk has a descriptor. The loop's is one that is there, also between two executors.
static bool may_have_fd(const struct device *d, struct opd_err *err)
{
    int fd = fdpass_claim(fcntl(uv_backend_fd(&d->all->turn->loop), F_DUPFD_CLOEXEC, 0));
    if (fd < 0)
        return opd_err_errno(err, OPD_E_out_of_memory,
                             "%s: more memory takes a file descriptor; free tensors or shared "
                             "memory, or raise the daemon's limit (ulimit -n)",
                             d->name);
    close(fd);
    return true;
}

static enum alloc_result alloc(struct space *space, uint64_t size, struct suballoc_block **out,
                               struct opd_err *err)
{
    struct device *d = space->device;
    if (d->is_cpu) // a page belongs to one tensor: storage_place()
        size = chunk_size(d, size);
    if ((*out = suballoc_alloc(&d->space.map, size)) != NULL)
        return ALLOC_OK;
    if (d->state == DEVICE_FAILED) {
        device_set_unavailable(d, err);
        return ALLOC_FAILED;
    }
    uint64_t limit = device_memory_limit(d);
    uint64_t room = room_for_chunks(d, limit);
    while (chunk_size(d, size) > room && drop_empty_chunk(d, UINT64_MAX))
        room = room_for_chunks(d, limit);
    if (chunk_size(d, size) > room && d->held)
        return ALLOC_WAIT;
    if (chunk_size(d, size) > room) {
        struct buf held = { 0 };
        char asked[32], may[32];
        holder_report(space, &held);
        opd_err_set(err, OPD_E_out_of_memory,
                    "%s %s %s, %s asked for and no free piece is large enough; held: %.600s; "
                    "free tensors, or raise --memory-limit",
                    d->name, limit == d->info.memory_total ? "has" : "may hold",
                    holder_size(limit, may), holder_size(size, asked), buf_str(&held));
        buf_finish(&held);
        return ALLOC_FAILED;
    }
    if (!d->growth.asked && !may_have_fd(d, err))
        return ALLOC_FAILED;
    if (!d->growth.asked) {
        d->growth.since = clock_ns();
        grow(d, size, room < chunk_size(d, d->is_cpu ? CHUNK_CPU : CHUNK_CUDA));
    }
    return ALLOC_WAIT;
}

static void release(struct space *space, struct suballoc_block *block)
{
    struct device *d = space->device;
    struct suballoc_chunk *chunk = block->chunk;
    if (d->n_writing > 0) {
        block->owner = NULL;
        block->bin_next = d->held;
        d->held = block;
        return;
    }
    suballoc_free(&d->space.map, block);
    if (chunk->used > 0)
        return;
    chunk->emptied_at = clock_ns();
    trim_later(d->all);
}

void device_release_held(struct device *d)
{
    for (struct suballoc_block *block; (block = d->held) != NULL;) {
        d->held = block->bin_next;
        release(&d->space, block);
    }
    for (struct suballoc_block *block; (block = d->held_staging) != NULL;) {
        d->held_staging = block->bin_next;
        staging_give(&d->staging, block);
    }
}

const struct space_ops device_space_ops = { .alloc = alloc, .release = release, .unmap = unmap };

// --- staging

struct staging *device_staging(struct device *d)
{
    if (d->staging.memory)
        return &d->staging;
    int fd = fdpass_memfd("opd-staging", STAGING_SIZE);
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, STAGING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        log_error("no staging memory: %s", strerror(errno));
        abort();
    }
    staging_open(&d->staging, d->all->turn, p, map_host(d, fd, STAGING_SIZE, NULL));
    return &d->staging;
}

void device_give_staging(struct device *d, struct suballoc_block *block)
{
    if (d->n_writing > 0 && device_left_has_staged(d, staging_offset(block), block->size)) {
        block->bin_next = d->held_staging;
        d->held_staging = block;
        return;
    }
    staging_give(&d->staging, block);
}
