// The part of the state that is graphs: what their nodes run, and where.

#include "upgrade/archive.h"

#include <stdlib.h>
#include <string.h>

#include "op/arena.h"
#include "request/graph.h"
#include "request/parts.h"

bool state_graph(struct archive *a, void *thing)
{
    struct graph *g = thing;
    if (!g) {
        g = graph_new(a->broker);
        archive_made(a, RECORD_graph, g);
    }
    a->graph = g;
    char *name = g->name;
    bool has_device = g->device != NULL;
    archive_count(a, "serial", &g->serial);
    archive_str(a, "name", &name);
    archive_bool(a, "capturing", &g->capturing);
    archive_str(a, "failed", &g->failed);
    archive_bool(a, "runs", &has_device);
    if (has_device)
        state_device_ref(a, "device", &g->device);
    if (!thing && name) {
        bool free_name = archive_good(a) && name[0] && !graph_find(a->broker, name);
        if (free_name)
            graph_set_name(a->broker, g, name);
        free(name);
        return free_name || archive_fail(a, "its name is in use");
    }
    return true;
}

// Of each list a 0, then its tensors; nothing of one that is absent.
void state_lists(struct archive *a, struct plan_request *pr)
{
    struct arena arena = { 0 };
    struct plan_lists lists;
    size_t n_inputs = (size_t)pr->op->n_inputs;
    memset(lists.n, -1, sizeof lists.n);
    if (pr->lists)
        lists = *pr->lists;
    archive_open(a, "lists", n_inputs, n_inputs, n_inputs);
    for (size_t i = 0; i < n_inputs; i++) {
        int mark = 0;
        size_t n = archive_open(a, NULL, (size_t)(lists.n[i] + 1), 0, PLAN_MAX_MEMBERS + 1);
        const struct tensor_desc **of = arena_alloc(&arena, n + 1, sizeof *of);
        if (n > 0)
            archive_int(a, NULL, &mark, 0, 0);
        for (size_t k = 0; k + 1 < n; k++) {
            struct tensor_desc *d = arena_alloc(&arena, 1, sizeof *d);
            if (!a->reading)
                *d = *lists.of[i][k];
            state_desc(a, NULL, d);
            of[k] = d;
        }
        archive_close(a);
        lists.n[i] = (int)n - 1;
        lists.of[i] = of;
    }
    archive_close(a);
    if (a->reading)
        pr->lists = plan_lists_copy(&lists);
    arena_finish(&arena);
}

static void archive_request(struct archive *a, struct plan_request *pr)
{
    size_t n = (size_t)pr->op->n_inputs;
    archive_int(a, "direction", &pr->direction, PLAN_FORWARD, PLAN_BACKWARD);
    archive_bool(a, "keep", &pr->keep);
    archive_int(a, "wanted", &pr->wanted, 0, UINT32_MAX);
    archive_int(a, "grad_absent", &pr->grad_absent, 0, UINT32_MAX);
    state_attrs(a, pr);
    archive_open(a, "inputs", n, n, n);
    for (size_t i = 0; i < n; i++)
        state_desc(a, NULL, &pr->inputs[i]);
    archive_close(a);
    if (pr->op->lists)
        state_lists(a, pr);
}

static void archive_run(struct archive *a, struct graph_node *node)
{
    if (a->reading) {
        node->request = mem_zalloc(1, sizeof *node->request);
        node->request->op = node->version->op;
        device_fill_plan_request(a->graph->device, node->request);
    }
    archive_bool(a, "follows", &node->follows);
    archive_bool(a, "alone", &node->alone);
    if (a->reading)
        node->request->checked = node->alone && !node->request->on_cpu;
    archive_float(a, "deadline", &node->deadline);
    archive_request(a, node->request ? node->request : node->bound->request);
}

static bool lies_in(const struct graph_place *p, const struct graph *g)
{
    return p->storage && p->storage->space->device == g->device && p->offset <= p->storage->size &&
           p->size <= p->storage->size - p->offset;
}

static void archive_place(struct archive *a, struct graph_node *node, struct graph_place *p)
{
    archive_open(a, NULL, 6, 6, 6);
    archive_int(a, NULL, &p->kind, PLAN_INPUT, PLAN_GRAD_INPUT);
    archive_int(a, NULL, &p->index, 0, PLAN_MEMBER * PLAN_MAX_MEMBERS);
    archive_bool(a, NULL, &p->written);
    p->storage = state_storage_ref(a, NULL, p->storage);
    archive_count(a, NULL, &p->offset);
    archive_count(a, NULL, &p->size);
    archive_close(a);
    if (!a->reading)
        return;
    if (archive_good(a) && lies_in(p, a->graph))
        graph_add_place(node, p);
    else
        archive_fail(a, "a place of it does not lie in its memory");
}

bool state_graph_node(struct archive *a, void *thing)
{
    struct graph_node *node = thing ? thing : graph_add_node(a->graph);
    struct version *v = archive_ref(a, "entry", RECORD_version, node->version);
    if (!thing && !a->graph->device)
        return archive_fail(a, "its graph has no device");
    if (!thing && v) {
        node->version = version_keep(v);
        state_keep_operator(a, v);
    }
    archive_bool(a, "constant", &node->constant);
    if (v)
        archive_run(a, node);
    size_t n = (size_t)node->n_places;
    n = archive_open(a, "places", n, v ? 0 : 1, v ? RUN_MAX_PLACES : 2);
    for (size_t i = 0; i < n; i++) {
        struct graph_place place = { 0 };
        archive_place(a, node, thing ? &node->places[i] : &place);
    }
    archive_close(a);
    return archive_good(a);
}

// --- all of it

static void put_graph(struct archive *a, struct graph *g)
{
    if (!archive_need(a, RECORD_graph, g))
        return;
    a->graph = g;
    for (size_t i = 0; i < g->n_nodes; i++)
        archive_put(a, RECORD_graph_node, &g->nodes[i]);
}

void state_write_graphs(struct archive *a)
{
    for (struct graph *g = a->broker->graphs; g; g = g->next_named)
        put_graph(a, g);
    for (struct conn *c = a->broker->clients.first; c; c = c->next) {
        size_t cursor = 0;
        for (struct graph *g; (g = map_next(&c->graphs, &cursor)) != NULL;)
            put_graph(a, g);
    }
}
