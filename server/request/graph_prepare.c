// What a graph runs: bound to the versions that are served, and made into one command.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/program.h"
#include "request/graph.h"
#include "request/lane.h"
#include "request/parts.h"

// What a node will run: until all are there, the graph stays as it is.
struct binding {
    struct version *version;  // of the node's operator; a reference
    struct bound_plan *bound; // a reference
    struct storage **scratch; // by operand; a reference each; NULL: none is new
};

static bool is_current(const struct graph_node *node)
{
    return !node->version || (node->bound && node->changes == node->version->of->changes);
}

static void finish_binding(struct binding *to)
{
    for (int i = 0; to->scratch && i < to->bound->plan->n_operands; i++)
        storage_unref(to->scratch[i]);
    free(to->scratch);
    bound_plan_unref(to->bound);
    version_unref(to->version);
}

static void finish_bindings(struct binding *to, size_t n)
{
    for (size_t i = 0; i < n; i++)
        finish_binding(&to[i]);
    free(to);
}

static const struct plan_request *request_of(const struct graph_node *node)
{
    return node->bound ? node->bound->request : node->request;
}

static bool bind_to(struct graph *g, struct binding *to, struct version *v,
                    const struct plan_request *request, struct opd_err *err)
{
    struct bound_plan *bound = version_plan(v, g->device, request, err);
    if (!bound)
        return false;
    bound->used = !request->checked;
    to->version = version_ref(v);
    to->bound = bound_plan_ref(bound);
    return true;
}

// The version that is served now of what a version is one of; NULL with an error: none.
static struct version *find_served(const struct version *v, struct opd_err *err)
{
    struct version *served = v->of->current;
    const char *derivative = strchr(v->op->name, '.');
    if (!served)
        opd_err_set(err, OPD_E_not_found, "there is no operator '%s' any more", v->of->name);
    return served && derivative ? version_derive(served, derivative + 1, err) : served;
}

// --- whether another version can run in the same places

static const struct plan_operand *find_operand(const struct plan *plan,
                                               const struct plan_operand *like)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].kind == like->kind && plan->operands[i].index == like->index)
            return &plan->operands[i];
    return NULL;
}

static const struct graph_place *find_place(const struct graph_node *node,
                                            const struct plan_operand *o)
{
    for (int i = 0; i < node->n_places; i++)
        if (node->places[i].kind == o->kind && node->places[i].index == o->index)
            return &node->places[i];
    return NULL;
}

static bool changes_input(const struct op *op, const struct plan_operand *o)
{
    return o->kind == PLAN_INPUT && op->inputs[plan_index(o->index)].in_place;
}

static bool fits_place(const struct graph_node *node, const struct plan *now,
                       const struct plan_operand *o, struct opd_err *err)
{
    const struct plan *before = node->bound->plan;
    const struct plan_operand *old = find_operand(before, o);
    const struct graph_place *p = find_place(node, o);
    bool same = p && p->size == tensor_desc_size(&o->desc) &&
                (!old || (tensor_desc_same(&old->desc, &o->desc) && old->view_of == o->view_of)) &&
                changes_input(before->op, o) == changes_input(now->op, o);
    return same || o->kind == PLAN_SCRATCH ||
           opd_err_set(err, OPD_E_invalid_argument, "%s is not what it was", o->name);
}

static bool fits(const struct graph_node *node, const struct plan *now, struct opd_err *err)
{
    for (int i = 0; i < now->n_operands; i++)
        if (!fits_place(node, now, &now->operands[i], err))
            return false;
    for (int i = 0; i < node->bound->plan->n_operands; i++) {
        const struct plan_operand *o = &node->bound->plan->operands[i];
        if ((o->kind == PLAN_OUTPUT || o->kind == PLAN_SAVED || o->kind == PLAN_GRAD_INPUT) &&
            !find_operand(now, o))
            return opd_err_set(err, OPD_E_invalid_argument, "%s is made no more", o->name);
    }
    return true;
}

// --- binding

static bool follow(struct graph *g, const struct graph_node *node, struct binding *to,
                   struct opd_err *err)
{
    struct plan_request carried;
    struct version *v = find_served(node->version, err);
    if (!v)
        return false;
    if (!version_carry(request_of(node), v->op, &carried))
        return opd_err_set(err, OPD_E_invalid_argument, "its arguments are not what they were");
    return bind_to(g, to, v, &carried, err) && fits(node, to->bound->plan, err);
}

static bool is_behind(const struct graph_node *node, const struct opd_operator *of)
{
    return node->version && node->version->of == of && node->follows;
}

static void tell_left(struct graph *g, const struct opd_operator *of, const struct opd_err *err)
{
    char *before = g->left;
    g->left = mem_printf("%s%s%s: the graph goes on with the version that it has, since the one "
                         "that is served does not fit it: %s; capture it again",
                         before ? before : "", before ? "\n" : "", of->name, err->msg);
    free(before);
}

// All nodes of an operator go to the version that is served, or none: what the forward of one keeps
// its backward reads.
static void follow_all(struct graph *g, struct binding *to, const struct opd_operator *of)
{
    struct opd_err err = { 0 };
    bool good = true;
    for (size_t i = 0; i < g->n_nodes && good; i++)
        if (is_behind(&g->nodes[i], of))
            good = follow(g, &g->nodes[i], &to[i], &err);
    for (size_t i = 0; i < g->n_nodes && !good; i++)
        if (is_behind(&g->nodes[i], of)) {
            finish_binding(&to[i]);
            to[i] = (struct binding){ 0 };
        }
    if (!good)
        tell_left(g, of, &err);
    opd_err_clear(&err);
}

static bool is_first(const struct graph *g, size_t i)
{
    const struct opd_operator *of = g->nodes[i].version->of;
    for (size_t k = 0; k < i; k++)
        if (is_behind(&g->nodes[k], of))
            return false;
    return true;
}

// Plans for all nodes that an edit may have changed, or that have none.
static bool bind_nodes(struct graph *g, struct binding *to, struct opd_err *err)
{
    free(g->left);
    g->left = NULL;
    for (size_t i = 0; i < g->n_nodes; i++) {
        struct graph_node *node = &g->nodes[i];
        if (node->version &&
            !node->bound) { // what came over an upgrade is as it was, to begin with
            if (!bind_to(g, &to[i], node->version, node->request, err))
                return opd_err_prefix(err, "%s: replaying", node->version->op->name);
            node->bound = to[i].bound;
            node->changes = UINT64_MAX;
            version_unref(to[i].version);
            to[i] = (struct binding){ 0 };
        }
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].version && g->nodes[i].follows && is_first(g, i))
            follow_all(g, to, g->nodes[i].version->of);
    for (size_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].version && !to[i].bound &&
            (!bind_to(g, &to[i], g->nodes[i].version, g->nodes[i].bound->request, err) ||
             !fits(&g->nodes[i], to[i].bound->plan, err)))
            return opd_err_prefix(err, "%s: replaying", g->nodes[i].version->op->name);
    return true;
}

static enum request_status load(struct graph *g, struct request *req, const struct binding *to,
                                struct opd_err *err)
{
    bool ready = true;
    for (size_t i = 0; i < g->n_nodes; i++) {
        struct bound_plan *bound = to ? to[i].bound : g->nodes[i].bound;
        for (int k = 0; bound && k < bound->plan->n_kernels; k++) {
            // All of them are started before any is waited for.
            ready = program_ensure(bound->programs[k], req->broker->pool, req->conn, req->since,
                                   err) &&
                    ready;
            if (err->code)
                return REQUEST_ERROR;
        }
    }
    return ready ? REQUEST_ANSWERED : REQUEST_WAIT;
}

static bool fits_scratch(const struct graph_node *node, const struct plan_operand *o)
{
    const struct graph_place *p = find_place(node, o);
    return p && p->size >= tensor_desc_size(&o->desc);
}

// Scratch is the run's own: it has another where it needs more.
static enum request_status make_scratch(struct graph *g, struct request *req, struct binding *to,
                                        struct opd_err *err)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        for (int k = 0; to[i].bound && k < to[i].bound->plan->n_operands; k++) {
            const struct plan_operand *o = &to[i].bound->plan->operands[k];
            if (o->kind != PLAN_SCRATCH || fits_scratch(&g->nodes[i], o))
                continue;
            if (!to[i].scratch)
                to[i].scratch = mem_zalloc((size_t)to[i].bound->plan->n_operands,
                                           sizeof *to[i].scratch);
            enum alloc_result result = storage_new(&g->device->space, tensor_desc_size(&o->desc),
                                                   req->conn->holder, &to[i].scratch[k], err);
            if (result == ALLOC_WAIT)
                return request_wait_memory(req, g->device);
            if (result == ALLOC_FAILED)
                return REQUEST_ERROR;
        }
    return REQUEST_ANSWERED;
}

static void put_scratch(struct graph_node *node, int index, struct storage *s)
{
    const struct graph_place place = {
        .kind = PLAN_SCRATCH, .index = index, .storage = s, .size = s->size
    };
    for (int i = 0; i < node->n_places; i++)
        if (node->places[i].kind == PLAN_SCRATCH && node->places[i].index == index) {
            storage_unref(node->places[i].storage);
            node->places[i] = place;
            storage_ref(s);
            return;
        }
    graph_add_place(node, &place);
}

static void commit(struct graph_node *node, struct binding *to)
{
    if (!to->bound)
        return;
    for (int i = 0; to->scratch && i < to->bound->plan->n_operands; i++)
        if (to->scratch[i])
            put_scratch(node, to->bound->plan->operands[i].index, to->scratch[i]);
    struct version *before = node->version;
    node->version = version_keep(to->version);
    version_drop(before);
    bound_plan_unref(node->bound);
    node->bound = bound_plan_ref(to->bound);
    node->changes = node->version->of->changes;
    graph_drop_request(node);
}

static enum request_status bind_graph(struct graph *g, struct request *req, struct opd_err *err)
{
    struct binding *to = mem_zalloc(g->n_nodes, sizeof *to);
    enum request_status status = bind_nodes(g, to, err) ? REQUEST_ANSWERED : REQUEST_ERROR;
    if (status == REQUEST_ANSWERED)
        status = load(g, req, to, err);
    if (status == REQUEST_ANSWERED)
        status = make_scratch(g, req, to, err);
    if (status == REQUEST_ANSWERED) {
        for (size_t i = 0; i < g->n_nodes; i++)
            commit(&g->nodes[i], &to[i]);
        lane_disarm_graph(g); // what it had as scratch may be others' from now on
        graph_launch_unref(g->launch);
        g->launch = NULL;
        g->n_left += g->left != NULL;
    }
    finish_bindings(to, g->n_nodes);
    return status;
}

// --- the launch

// A node as the run that it was.
static void make_run(struct run *run, struct graph *g, struct graph_node *node, struct request *req)
{
    run_init(run, req, NULL);
    run->version = node->version;
    run->device = g->device;
    run->bound = node->bound;
    run->request = node->bound->request;
    run->prepared = true;
    for (int i = 0; i < node->n_places; i++) {
        const struct graph_place *p = &node->places[i];
        run_add(run, &(struct place){ .kind = p->kind,
                                      .index = p->index,
                                      .how = PLACE_GIVEN,
                                      .storage = p->storage,
                                      .offset = p->offset,
                                      .size = p->size });
    }
}

static void append_move(const struct graph_node *node, struct command *c)
{
    const struct graph_place *to = &node->places[0], *from = &node->places[1];
    struct dev_command *head = (struct dev_command *)(void *)c->bytes.bytes;
    struct dev_ref dst, src;
    if (to->size == 0 || !storage_address(to->storage, to->offset, &dst))
        return;
    head->size++;
    if (node->n_places == 1) {
        struct dev_fill fill = { .step = { DEV_STEP_FILL, sizeof fill },
                                 .dst = dst,
                                 .size = to->size };
        buf_append(&c->bytes, &fill, sizeof fill);
    } else if (storage_address(from->storage, from->offset, &src)) {
        struct dev_copy copy = {
            .step = { DEV_STEP_COPY, sizeof copy }, .dst = dst, .src = src, .size = to->size
        };
        buf_append(&c->bytes, &copy, sizeof copy);
    }
}

static size_t count_steps(const struct command *c)
{
    return ((const struct dev_command *)(const void *)c->bytes.bytes)->size;
}

static size_t first_of(const struct graph_pieces *p, const struct storage *s)
{
    return (size_t)(uintptr_t)map_get(&p->of, (uint64_t)(uintptr_t)s);
}

static bool covers(const struct graph_pieces *p, const struct graph_piece *x)
{
    for (size_t i = first_of(p, x->storage); i; i = p->list[i - 1].next)
        if (p->list[i - 1].begin <= x->begin && x->end <= p->list[i - 1].end)
            return true;
    return false;
}

static bool meets(const struct graph_pieces *p, const struct graph_piece *x)
{
    if (x->storage->import) // another storage may be the same memory
        return p->n > 0;
    for (size_t i = first_of(p, x->storage); i; i = p->list[i - 1].next)
        if (p->list[i - 1].begin < x->end && x->begin < p->list[i - 1].end)
            return true;
    return false;
}

static void add_piece(struct graph_pieces *p, const struct graph_place *place)
{
    struct graph_piece piece = { .storage = place->storage,
                                 .begin = place->offset,
                                 .end = place->offset + place->size,
                                 .next = first_of(p, place->storage) };
    if (place->size == 0 || covers(p, &piece))
        return;
    if ((p->n & (p->n - 1)) == 0) // full at 0, 1, 2, 4, ...
        p->list = mem_realloc(p->list, p->n ? 2 * p->n : 1, sizeof *p->list);
    p->list[p->n++] = piece;
    map_put(&p->of, (uint64_t)(uintptr_t)piece.storage, (void *)(uintptr_t)p->n);
}

static bool is_read(const struct graph_node *node, const struct graph_place *p)
{
    if (!node->version)
        return !p->written;
    return p->kind != PLAN_SCRATCH && (!p->written || p->kind == PLAN_INPUT);
}

// What a node reads of what was there before the replay, then what it writes.
static void note_pieces(struct graph_launch *launch, const struct graph_node *node)
{
    for (int i = 0; i < node->n_places; i++) {
        const struct graph_place *p = &node->places[i];
        const struct graph_piece piece = { .storage = p->storage,
                                           .begin = p->offset,
                                           .end = p->offset + p->size };
        if (is_read(node, p) && !covers(&launch->writes, &piece))
            add_piece(&launch->reads, p);
    }
    for (int i = 0; i < node->n_places; i++)
        if (node->places[i].written)
            add_piece(&launch->writes, &node->places[i]);
}

static void add_part(struct graph_launch *launch, struct graph_node *node, const struct command *c)
{
    const struct version *v = node->version;
    size_t i = launch->n_parts++;
    launch->parts[i] = (struct command_part){ .first_step = count_steps(c) };
    if (v) {
        launch->parts[i].plan = node->bound->plan;
        launch->parts[i].version = v->number;
        launch->parts[i].stats = run_stats_ref(v->of->runs);
        launch->bound[i] = bound_plan_ref(node->bound);
    } else {
        launch->parts[i].label = node->n_places == 1 ? "tensor_new" : "tensor_copy";
    }
    launch->deadline += node->deadline;
    launch->alone = launch->alone || node->alone;
}

static bool check_launch(struct request *req, const struct command *c, size_t n_reports,
                         struct opd_err *err)
{
    size_t limit = (size_t)req->broker->options.max_launches;
    if (c->bytes.size <= DEV_MAX_COMMAND && count_steps(c) <= limit && n_reports <= DEV_MAX_REPORTS)
        return true;
    return opd_err_set(err, OPD_E_invalid_argument,
                       "the graph has %zu launches of %zu bytes, %zu of operators that check; at "
                       "most %zu of %d bytes, %d are allowed: capture it in parts",
                       count_steps(c), c->bytes.size, n_reports, limit, DEV_MAX_COMMAND,
                       DEV_MAX_REPORTS);
}

// Reports are read back behind all else.
static size_t append_nodes(struct graph *g, struct request *req, struct graph_launch *launch,
                           struct command *c)
{
    struct run run;
    size_t n_reports = 0;
    for (size_t i = 0; i < g->n_nodes && c->bytes.size <= DEV_MAX_COMMAND; i++) {
        struct graph_node *node = &g->nodes[i];
        if (node->constant)
            continue;
        add_part(launch, node, c);
        note_pieces(launch, node);
        if (node->version) {
            make_run(&run, g, node, req);
            run_append(&run, c);
        } else {
            append_move(node, c);
        }
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        struct graph_node *node = &g->nodes[i];
        if (!node->version || node->bound->plan->report < 0)
            continue;
        make_run(&run, g, node, req);
        run_append_report(&run, c);
        n_reports++;
    }
    return n_reports;
}

static struct graph_launch *make_launch(struct graph *g, struct request *req, struct opd_err *err)
{
    struct graph_launch *launch = mem_zalloc(1, sizeof *launch);
    struct command *c = command_new(DEV_RUN, 0, 0);
    launch->refs = 1;
    launch->parts = mem_zalloc(g->n_nodes, sizeof *launch->parts);
    launch->bound = mem_zalloc(g->n_nodes, sizeof(struct bound_plan *));
    size_t n_reports = append_nodes(g, req, launch, c);
    launch->n_steps = count_steps(c);
    launch->repeatable = true;
    launch->reports = n_reports > 0;
    for (size_t i = 0; i < launch->reads.n && launch->repeatable; i++)
        launch->repeatable = !meets(&launch->writes, &launch->reads.list[i]);
    size_t head = sizeof(struct dev_command);
    buf_append(&launch->steps, c->bytes.bytes + head, c->bytes.size - head);
    bool good = check_launch(req, c, n_reports, err);
    command_free(c);
    if (good)
        return launch;
    graph_launch_unref(launch);
    return NULL;
}

enum request_status graph_prepare(struct graph *g, struct request *req, struct opd_err *err)
{
    bool current = true;
    for (size_t i = 0; i < g->n_nodes && current; i++)
        current = is_current(&g->nodes[i]);
    enum request_status status = current ? load(g, req, NULL, err) : bind_graph(g, req, err);
    if (status == REQUEST_ANSWERED && !g->launch && !(g->launch = make_launch(g, req, err)))
        return REQUEST_ERROR;
    return status;
}
