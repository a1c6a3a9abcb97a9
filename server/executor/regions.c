#include "executor/regions.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fdpass.h"
#include "base/mem.h"

struct region {
    device_addr addr; // 0: not mapped
    uint64_t size;
    bool host, ipc;
    bool lost; // a client's memory that could not be mapped
};

static struct region *find_region(const struct regions *r, uint32_t id, struct opd_err *err)
{
    if (regions_is_mapped(r, id))
        return &r->items[id];
    if (id < r->n && r->items[id].lost)
        opd_err_set(err, OPD_E_unavailable,
                    "memory that a client shared cannot be opened any more; import it again");
    else
        opd_err_set(err, OPD_E_internal, "region %u is not mapped", id);
    return NULL;
}

static struct region *new_region(struct regions *r, uint32_t id, struct opd_err *err)
{
    if (id >= DEV_MAX_REGIONS) {
        opd_err_set(err, OPD_E_internal, "region %u is out of range", id);
        return NULL;
    }
    if (id >= r->n) {
        r->items = mem_realloc(r->items, id + 1, sizeof *r->items);
        memset(r->items + r->n, 0, (id + 1 - r->n) * sizeof *r->items);
        r->n = id + 1;
    }
    if (r->items[id].addr) {
        opd_err_set(err, OPD_E_internal, "region %u is mapped already", id);
        return NULL;
    }
    return &r->items[id];
}

bool regions_make_chunk(struct regions *r, const struct dev_command *cmd, struct opd_err *err)
{
    struct region *region = new_region(r, cmd->id, err);
    int fd = -1;
    if (!region || !r->ops->chunk_new(r->be, cmd->size, &fd, err))
        return false;
    device_addr addr;
    bool ok = r->ops->chunk_map(r->be, fd, cmd->size, &addr, err);
    if (ok) {
        *region = (struct region){ .addr = addr, .size = cmd->size };
        if (fdpass_send(DEV_FD_SOCKET, "c", 1, &fd, 1) != 1) {
            r->ops->chunk_unmap(r->be, addr, cmd->size);
            *region = (struct region){ 0 };
            ok = opd_err_errno(err, OPD_E_internal, "passing a chunk to the broker");
        }
    }
    close(fd);
    return ok;
}

bool regions_map_chunk(struct regions *r, const struct dev_command *cmd, int fd,
                       struct opd_err *err)
{
    struct region *region = new_region(r, cmd->id, err);
    device_addr addr;
    if (!region || !r->ops->chunk_map(r->be, fd, cmd->size, &addr, err))
        return false;
    *region = (struct region){ .addr = addr, .size = cmd->size };
    return true;
}

bool regions_map_host(struct regions *r, const struct dev_command *cmd, int fd, struct opd_err *err)
{
    struct region *region = new_region(r, cmd->id, err);
    if (!region)
        return false;
    void *p = mmap(NULL, cmd->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        *region = (struct region){ .lost = true };
        return opd_err_errno(err, OPD_E_invalid_argument, "mapping %llu bytes of shared memory",
                             (unsigned long long)cmd->size);
    }
    if (r->ops->host_register)
        r->ops->host_register(r->be, p, cmd->size);
    *region = (struct region){ .addr = (device_addr)(uintptr_t)p, .size = cmd->size, .host = true };
    return true;
}

bool regions_open_ipc(struct regions *r, const struct dev_command *cmd, struct opd_err *err)
{
    struct region *region = new_region(r, cmd->id, err);
    device_addr addr = 0;
    if (!region)
        return false;
    if (!r->ops->ipc_open)
        return opd_err_set(err, OPD_E_internal, "%s has no memory of that kind", r->ops->name);
    bool ok = r->ops->ipc_open(r->be, (const uint8_t *)(cmd + 1), cmd->size, &addr, err);
    *region = (struct region){ .addr = addr, .size = cmd->size, .ipc = true, .lost = !ok };
    return ok;
}

bool regions_is_mapped(const struct regions *r, uint32_t id)
{
    return id < r->n && r->items[id].addr;
}

bool regions_is_own(const struct regions *r, uint32_t id)
{
    return regions_is_mapped(r, id) && !r->items[id].host && !r->items[id].ipc;
}

bool regions_unmap(struct regions *r, uint32_t id, struct opd_err *err)
{
    if (id < r->n && r->items[id].lost) {
        r->items[id] = (struct region){ 0 };
        return true;
    }
    struct region *region = find_region(r, id, err);
    if (!region)
        return false;
    if (region->ipc) {
        r->ops->ipc_close(r->be, region->addr);
    } else if (region->host) {
        void *p = (void *)(uintptr_t)region->addr;
        if (r->ops->host_unregister)
            r->ops->host_unregister(r->be, p);
        munmap(p, region->size);
    } else {
        r->ops->chunk_unmap(r->be, region->addr, region->size);
    }
    *region = (struct region){ 0 };
    return true;
}

void regions_finish(struct regions *r)
{
    struct opd_err err = { 0 };
    for (uint32_t i = 0; i < r->n; i++)
        if (regions_is_mapped(r, i))
            regions_unmap(r, i, &err);
    free(r->items);
    r->items = NULL;
    r->n = 0;
}

bool regions_resolve(const struct regions *r, struct dev_ref ref, uint64_t size, device_addr *out,
                     struct opd_err *err)
{
    struct region *region = find_region(r, ref.region, err);
    if (!region)
        return false;
    if (ref.offset > region->size || size > region->size - ref.offset)
        return opd_err_set(err, OPD_E_internal, "region %u ends before offset %llu + %llu",
                           ref.region, (unsigned long long)ref.offset, (unsigned long long)size);
    *out = region->addr + ref.offset;
    return true;
}
