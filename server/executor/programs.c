#include "executor/programs.h"

#include <stdlib.h>
#include <string.h>

#include "base/image.h"
#include "base/mem.h"

struct backend_program *programs_get(const struct programs *p, uint32_t id)
{
    return id < p->n ? p->items[id] : NULL;
}

bool programs_waits(const struct programs *p, uint32_t id)
{
    const struct backend_program *program = programs_get(p, id);
    return program && p->ops->waits && p->ops->waits(program);
}

void programs_unload(struct programs *p, uint32_t id)
{
    p->n_waiting -= programs_waits(p, id);
    p->ops->unload(p->be, p->items[id]);
    p->items[id] = NULL;
}

bool programs_load(struct programs *p, const struct dev_command *cmd, int fd, struct opd_err *err)
{
    struct image image;
    if (!image_open(&image, fd, err))
        return false;
    if (cmd->id >= p->n) {
        p->items = mem_realloc(p->items, cmd->id + 1, sizeof *p->items);
        memset(p->items + p->n, 0, (cmd->id + 1 - p->n) * sizeof *p->items);
        p->n = cmd->id + 1;
    }
    struct backend_image from = {
        .bytes = image.payload,
        .size = image.payload_size,
        .symbol = image.symbol,
        .params = (const struct backend_param *)(cmd + 1),
        .n_params = (int)cmd->size,
    };
    if (p->items[cmd->id])
        programs_unload(p, cmd->id); // the broker may send it twice around a restart
    bool ok = p->ops->load(p->be, &from, &p->items[cmd->id], err);
    p->n_waiting += programs_waits(p, cmd->id);
    image_close(&image);
    return ok;
}

void programs_finish(struct programs *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->items[i])
            programs_unload(p, i);
    free(p->items);
    p->items = NULL;
    p->n = 0;
}
