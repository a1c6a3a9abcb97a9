#include "executor/graphs.h"

#include <string.h>

static void clear_entry(struct graphs *g, struct graphs_entry *e)
{
    if (e->graph)
        g->ops->graph_free(g->be, e->graph);
    buf_finish(&e->steps);
    *e = (struct graphs_entry){ 0 };
}

static struct graphs_entry *take_entry(struct graphs *g)
{
    if (g->n < GRAPHS_MOST)
        return &g->list[g->n++];
    struct graphs_entry *oldest = g->list;
    for (struct graphs_entry *e = g->list; e < g->list + g->n; e++)
        if (e->used < oldest->used)
            oldest = e;
    clear_entry(g, oldest);
    return oldest;
}

struct graphs_entry *graphs_find(struct graphs *g, const void *steps, size_t size)
{
    g->n_used++;
    for (struct graphs_entry *e = g->list; e < g->list + g->n; e++)
        if (e->steps.size == size && memcmp(e->steps.bytes, steps, size) == 0) {
            e->used = g->n_used;
            return e;
        }
    struct graphs_entry *e = take_entry(g);
    buf_append(&e->steps, steps, size);
    e->used = g->n_used;
    return NULL;
}

void graphs_clear(struct graphs *g)
{
    for (struct graphs_entry *e = g->list; e < g->list + g->n; e++)
        clear_entry(g, e);
    g->n = 0;
}
