#include "device/devices.h"

#include <string.h>

#include "device/device.h"

void devices_init(struct devices *all, struct turn *turn, const struct device_hooks *hooks,
                  void *owner)
{
    *all = (struct devices){ .turn = turn,
                             .hooks = hooks,
                             .owner = owner,
                             .keep = { .sock = -1, .pins_fd = -1, .kept = { .fd = -1 } } };
    orphans_init(&all->orphans, turn);
    device_memory_init(all);
}

void devices_close(struct devices *all)
{
    orphans_close(&all->orphans);
    uv_close((uv_handle_t *)&all->trim_timer, NULL);
}

struct device *devices_find(const struct devices *all, const char *name)
{
    for (int i = 0; i < all->n; i++)
        if (strcmp(all->at[i]->name, name) == 0)
            return all->at[i];
    return NULL;
}

struct device *devices_add(struct devices *all, const char *name)
{
    struct device *d = all->at[all->n] = device_new(all, name, all->n);
    all->n++;
    return d;
}

void devices_remove(struct devices *all, struct device *d)
{
    int i = 0;
    while (all->at[i] != d)
        i++;
    memmove(&all->at[i], &all->at[i + 1], (size_t)(--all->n - i) * sizeof all->at[0]);
    for (; i < all->n; i++)
        all->at[i]->space.index = i;
}
