#include "device/device_left.h"

#include "device/device.h"
#include "executor/devuse.h"

struct left_range {
    uint32_t region;
    bool written;
    uint64_t begin, end;
};

struct collected {
    const struct device *d;
    struct buf *ranges;
};

// False: the memory may have a second mapping, so it may be anywhere. A piece of staging is one
// request's, until that gives it back.
static bool add_range(void *data, const struct dev_use *use)
{
    const struct collected *c = data;
    const struct device *d = c->d;
    const struct left_range range = { *use->region, use->written, *use->offset,
                                      *use->offset + use->size };
    buf_append(c->ranges, &range, sizeof range);
    return device_is_staging(d, range.region) ||
           (range.region < d->regions.n && !d->regions.list[range.region].host &&
            !d->regions.list[range.region].ipc);
}

static bool add_command(const struct device *d, const struct command *c, struct buf *out)
{
    const struct dev_command *header = (const void *)c->bytes.bytes;
    struct collected collected = { d, out };
    return dev_each_use_of(c->bytes.bytes + sizeof *header, c->bytes.size - sizeof *header,
                           header->size, add_range, &collected);
}

void device_left_add(struct device *d, const struct command *begun)
{
    const struct dev_command *header = (const void *)begun->bytes.bytes;
    if (header->type == DEV_RUN && !add_command(d, begun, &d->left.ranges))
        d->left.all = true;
}

void device_left_clear(struct device *d)
{
    buf_finish(&d->left.ranges);
    d->left = (struct device_left){ 0 };
}

static bool is_left(const struct device_left *left, const struct left_range *changed)
{
    const struct left_range *at = (const void *)left->ranges.bytes;
    for (size_t i = 0; i < left->ranges.size / sizeof *at; i++)
        if (at[i].region == changed->region && at[i].begin < changed->end &&
            changed->begin < at[i].end)
            return true;
    return false;
}

bool device_left_meets(const struct device *d, const struct command *c)
{
    struct buf ranges = { 0 };
    bool meets = d->left.all || !add_command(d, c, &ranges);
    const struct left_range *at = (const void *)ranges.bytes;
    for (size_t i = 0; i < ranges.size / sizeof *at && !meets; i++)
        meets = at[i].written && !device_is_staging(d, at[i].region) && is_left(&d->left, &at[i]);
    buf_finish(&ranges);
    return meets;
}

bool device_left_has_staged(const struct device *d, uint64_t offset, uint64_t size)
{
    const struct left_range piece = { d->staging.region, true, offset, offset + size };
    return d->left.all || is_left(&d->left, &piece);
}
