#include "request/graph.h"

#include <stdlib.h>
#include <string.h>

#include "request/lane.h"
#include "request/parts.h"

struct graph *graph_new(struct broker *b)
{
    struct graph *g = mem_zalloc(1, sizeof *g);
    *g = (struct graph){ .refs = 1, .serial = ++b->counters.graphs, .capturing = true };
    return g;
}

struct graph *graph_ref(struct graph *g)
{
    g->refs++;
    return g;
}

void graph_drop_request(struct graph_node *node)
{
    if (node->request)
        free((void *)(uintptr_t)node->request->lists);
    free(node->request);
    node->request = NULL;
}

static void finish_node(struct graph_node *node)
{
    for (int i = 0; i < node->n_places; i++)
        storage_unref(node->places[i].storage);
    free(node->places);
    graph_drop_request(node);
    bound_plan_unref(node->bound);
    if (node->version)
        version_drop(node->version);
}

void graph_unref(struct graph *g)
{
    if (!g || --g->refs > 0)
        return;
    lane_leave_graph(g);
    for (size_t i = 0; i < g->n_nodes; i++)
        finish_node(&g->nodes[i]);
    graph_launch_unref(g->launch);
    free(g->nodes);
    free(g->name);
    free(g->failed);
    free(g->left);
    free(g);
}

static void finish_pieces(struct graph_pieces *p)
{
    free(p->list);
    map_finish(&p->of);
}

void graph_launch_unref(struct graph_launch *launch)
{
    if (!launch || --launch->refs > 0)
        return;
    for (size_t i = 0; i < launch->n_parts; i++) {
        bound_plan_unref(launch->bound[i]);
        run_stats_unref(launch->parts[i].stats);
    }
    buf_finish(&launch->steps);
    free(launch->parts);
    free(launch->bound);
    finish_pieces(&launch->reads);
    finish_pieces(&launch->writes);
    free(launch);
}

// --- names

struct graph *graph_find(const struct broker *b, const char *name)
{
    struct graph *g = b->graphs;
    while (g && strcmp(g->name, name) != 0)
        g = g->next_named;
    return g;
}

void graph_set_name(struct broker *b, struct graph *g, const char *name)
{
    g->name = mem_strdup(name);
    g->next_named = b->graphs;
    b->graphs = graph_ref(g);
}

void graph_drop_name(struct broker *b, struct graph *g)
{
    if (!g->name)
        return;
    struct graph **at = &b->graphs;
    while (*at != g)
        at = &(*at)->next_named;
    *at = g->next_named;
    free(g->name);
    g->name = NULL;
    graph_unref(g);
}

// --- recording

struct graph_node *graph_add_node(struct graph *g)
{
    if ((g->n_nodes & (g->n_nodes - 1)) == 0) // full at 0, 1, 2, 4, ...
        g->nodes = mem_realloc(g->nodes, g->n_nodes ? 2 * g->n_nodes : 1, sizeof *g->nodes);
    struct graph_node *node = &g->nodes[g->n_nodes++];
    *node = (struct graph_node){ 0 };
    return node;
}

void graph_add_place(struct graph_node *node, const struct graph_place *place)
{
    size_t n = (size_t)node->n_places;
    if ((n & (n - 1)) == 0)
        node->places = mem_realloc(node->places, n ? 2 * n : 1, sizeof *node->places);
    node->places[node->n_places++] = *place;
    storage_ref(place->storage);
}

static void fail(struct graph *g, const char *why)
{
    if (!g->failed)
        g->failed = mem_strdup(why);
}

void graph_capture_failed(struct graph *g, const struct opd_err *err)
{
    if (g)
        fail(g, err->msg);
}

// Whether there may be another node. Once something has failed nothing more is recorded.
static bool may_add(struct graph *g, struct device *d)
{
    if (!g->device)
        g->device = d;
    if (g->n_nodes == GRAPH_MAX_NODES)
        fail(g, "it has more calls than a graph may have, which is 4096; capture it in parts");
    if (g->device == d || g->failed)
        return !g->failed;
    char *why = mem_printf("it runs on %s, then on %s; capture a graph for each device",
                           g->device->name, d->name);
    fail(g, why);
    free(why);
    return false;
}

static bool is_view(const struct run *run, const struct place *p)
{
    const struct plan *plan = run->bound->plan;
    for (int i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].kind == p->kind && plan->operands[i].index == p->index)
            return plan->operands[i].view_of >= 0;
    return false;
}

static bool is_written(const struct run *run, const struct place *p)
{
    if (p->how == PLACE_GIVEN)
        return run->request->direction == PLAN_FORWARD && p->kind == PLAN_INPUT &&
               run->version->op->inputs[plan_index(p->index)].in_place;
    return p->kind != PLAN_SCRATCH && !is_view(run, p);
}

// The node whose forward made what is in a place, and goes where edits of its operator go; NULL:
// none.
static const struct graph_node *find_maker(const struct graph *g, const struct opd_operator *of,
                                           const struct storage *s)
{
    for (size_t i = g->n_nodes; i-- > 0;)
        for (int k = 0; k < g->nodes[i].n_places; k++) {
            const struct graph_node *node = &g->nodes[i];
            if (node->places[k].storage == s && node->places[k].written)
                return node->version && node->version->of == of && node->follows ? node : NULL;
        }
    return NULL;
}

// A backward reads what a forward has kept, which another version may lay out in another way: it
// follows edits where that forward is a node that does.
static bool follows_edits(const struct graph *g, const struct run *run)
{
    if (run->request->direction == PLAN_FORWARD)
        return !run->fixed;
    bool any = false;
    for (const struct place *p = run->places; p < run->places + run->n_places; p++) {
        if (p->how != PLACE_GIVEN || (p->kind != PLAN_SAVED && p->kind != PLAN_OUTPUT))
            continue;
        any = true;
        if (!find_maker(g, run->version->of, p->storage))
            return false;
    }
    return any || !run->fixed;
}

void graph_record_run(struct graph *g, const struct run *run)
{
    const struct command *c = run->command;
    if (!may_add(g, run->device))
        return;
    bool follows = follows_edits(g, run);
    struct graph_node *node = graph_add_node(g);
    node->version = version_keep(run->version);
    node->follows = follows;
    node->alone = run->alone || run->lasting->request->checked;
    node->deadline = c->deadline > 0 ? c->deadline : run->device->all->deadline;
    node->bound = bound_plan_ref(run->lasting);
    node->changes = run->version->of->changes;
    for (const struct place *p = run->places; p < run->places + run->n_places; p++)
        if (p->storage)
            graph_add_place(node, &(struct graph_place){ .kind = p->kind,
                                                         .index = p->index,
                                                         .written = is_written(run, p),
                                                         .storage = p->storage,
                                                         .offset = p->offset,
                                                         .size = p->size });
}

static void add_tensor(struct graph_node *node, const struct tensor *t, bool written)
{
    graph_add_place(node, &(struct graph_place){ .written = written,
                                                 .storage = t->storage,
                                                 .offset = t->offset,
                                                 .size = t->size });
}

void graph_record_fill(struct graph *g, const struct tensor *t)
{
    if (may_add(g, t->storage->space->device))
        add_tensor(graph_add_node(g), t, true);
}

void graph_record_copy(struct graph *g, const struct tensor *to, const struct tensor *from)
{
    if (!may_add(g, to->storage->space->device))
        return;
    struct graph_node *node = graph_add_node(g);
    add_tensor(node, to, true);
    add_tensor(node, from, false);
}

bool graph_may_write(const struct graph *g, const struct tensor *t, struct opd_err *err)
{
    bool made = false, written = false;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *node = &g->nodes[i];
        for (int k = 0; k < node->n_places; k++) {
            bool its = node->places[k].storage == t->storage && node->places[k].written;
            bool fill = !node->version && node->n_places == 1;
            made = made || (its && fill);
            written = written || (its && !fill);
        }
    }
    return (made && !written) ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "tensor_write: a graph is being captured, and a replay would not write this "
                       "again; write it before, or between replays");
}

void graph_keep_constant(struct graph *g, const struct tensor *t)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        if (!g->nodes[i].version && g->nodes[i].n_places == 1 &&
            g->nodes[i].places[0].storage == t->storage)
            g->nodes[i].constant = true;
}
