#pragma once

// What is mapped into the executor, by the number that the broker knows it by: chunks of device
// memory, host memory that the daemon or a client shares, a client's device memory. The broker's
// references, (region, offset) pairs, become addresses here; none reaches beyond its region.
//
// Mappings are the executor's and end with it; the memory is the broker's or the client's.
// Descriptors are borrowed. Where a function fails nothing is mapped; a client's memory that cannot
// be opened is remembered as lost, so that each use of it says so.

#include <stdbool.h>
#include <stdint.h>

#include "executor/backend.h"
#include "executor/devwire.h"

struct region;

// Empty with nothing but `ops` and `be` set.
struct regions {
    const struct backend_ops *ops;
    struct backend *be;
    struct region *items;
    uint32_t n;
};

// A command each, whose `id` is the region's number; it must not be in use.
bool regions_make_chunk(struct regions *r, const struct dev_command *cmd, // its descriptor is sent
                        struct opd_err *err);
bool regions_map_chunk(struct regions *r, const struct dev_command *cmd, int fd,
                       struct opd_err *err);
bool regions_map_host(struct regions *r, const struct dev_command *cmd, int fd,
                      struct opd_err *err);
bool regions_open_ipc(struct regions *r, const struct dev_command *cmd, struct opd_err *err);

// The device has to be done with it: the caller waits for that, if it is mapped at all.
bool regions_is_mapped(const struct regions *r, uint32_t id);
bool regions_unmap(struct regions *r, uint32_t id, struct opd_err *err);
void regions_finish(struct regions *r); // all of them

// Memory of which this is the only mapping: no other address is the same byte.
bool regions_is_own(const struct regions *r, uint32_t id);

// The address behind a reference to `size` bytes.
bool regions_resolve(const struct regions *r, struct dev_ref ref, uint64_t size, device_addr *out,
                     struct opd_err *err);
