#include "executor/devwire.h"

#include "base/ring.h"

size_t dev_ring_offset(int ring)
{
    return (size_t)ring * ((ring_memory_size(DEV_RING_SIZE) + 63) & ~(size_t)63);
}

size_t dev_progress_offset(void)
{
    return (dev_ring_offset(2) + DEV_PROGRESS_SIZE - 1) / DEV_PROGRESS_SIZE * DEV_PROGRESS_SIZE;
}

size_t dev_lanes_offset(void)
{
    return dev_progress_offset() + DEV_PROGRESS_SIZE;
}

size_t dev_prints_offset(void)
{
    return dev_lanes_offset() + ((sizeof(struct dev_lanes) + 63) & ~(size_t)63);
}

size_t dev_shared_size(void)
{
    return dev_prints_offset() + sizeof(struct dev_prints);
}
