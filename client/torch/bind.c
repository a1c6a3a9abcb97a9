#include "torch/bind.h"

#include <stdlib.h>

#include "base/mem.h"
#include "torch/call.h"
#include "torch/loaded.h"
#include "torch/matmul.h"
#include "torch/run.h"

enum { SCRATCH_ALIGN = 256 };

static bool is_result(const struct loaded *p, const struct exported_operand *o)
{
    switch (o->kind) {
    case EXPORTED_OUTPUT:
        return p->op->kind != LOADED_BACKWARD;
    case EXPORTED_SAVED:
        return p->op->kind == LOADED_KEEP;
    default:
        return o->kind == EXPORTED_GRAD_INPUT;
    }
}

// The argument that an operand is given by; -1: there is none.
static int find_argument(const struct torch_op *op, const struct exported_operand *o)
{
    uint32_t index = exported_index(o);
    if (op->kind != LOADED_BACKWARD)
        return o->kind == EXPORTED_INPUT && index < op->n_inputs ? (int)index : -1;
    switch (o->kind) {
    case EXPORTED_GRAD_OUTPUT:
        return index < op->n_outputs ? (int)index : -1;
    case EXPORTED_INPUT:
        return index < op->n_inputs ? op->inputs_at[index] : -1;
    case EXPORTED_OUTPUT:
        return index < op->n_outputs ? op->outputs_at[index] : -1;
    case EXPORTED_SAVED:
        return index < op->n_saved ? op->saved_at + (int)index : -1;
    default:
        return -1;
    }
}

static bool bind_argument(struct loaded *p, uint32_t i, const int *first)
{
    const struct exported_operand *o = &p->x.operands[i];
    int argument = find_argument(p->op, o);
    bool in_list = argument >= 0 && p->op->arguments[argument].is_list;
    if (argument < 0 || argument >= CALL_MAX_ARGS || (!in_list && exported_member(o) > 0))
        return false;
    p->operands[i] = (struct binding){
        .to = BOUND_ARG,
        .index = p->op->lists ? (uint32_t)first[argument] + exported_member(o) : (uint32_t)argument,
        .changed = p->op->kind != LOADED_BACKWARD && (p->op->mutated >> argument & 1),
    };
    return true;
}

static void bind_result(struct loaded *p, uint32_t operand)
{
    const struct exported_operand *o = &p->x.operands[operand];
    struct result *r = &p->results[p->n_results];
    r->operand = operand;
    r->at = o->kind == EXPORTED_SAVED ? p->op->n_outputs + o->index : o->index;
    r->same = -1;
    p->operands[operand] = (struct binding){ .to = BOUND_RESULT, .index = p->n_results++ };
}

static int by_argument(const void *a, const void *b)
{
    uint32_t x = ((const struct result *)a)->at, y = ((const struct result *)b)->at;
    uint32_t i = x % EXPORTED_MEMBER, j = y % EXPORTED_MEMBER;
    return i != j ? (i > j) - (i < j) : (x > y) - (x < y);
}

// Results that are returned as one list: those of the first output or gradient, then of the next.
static void order_results(struct loaded *p)
{
    qsort(p->results, p->n_results, sizeof *p->results, by_argument);
    for (uint32_t i = 0; i < p->n_results; i++) {
        p->operands[p->results[i].operand].index = i;
        p->results[i].at = i;
    }
}

static bool bind_operand(struct loaded *p, uint32_t i, const int *first)
{
    const struct exported_operand *o = &p->x.operands[i];
    if (o->view_of >= 0)
        return false; // torch's own views are made by Python
    if (is_result(p, o)) {
        uint32_t limit = p->op->kind == LOADED_BACKWARD ? p->op->n_inputs
                                                        : p->op->n_outputs + p->op->n_saved;
        if (p->n_results == RUN_MAX_RESULTS && !p->op->lists)
            return false;
        bind_result(p, i);
        return p->op->lists || p->results[p->n_results - 1].at < limit;
    }
    if ((int32_t)i == p->x.head->report && p->device_index >= 0) {
        p->operands[i].to = BOUND_REPORT;
        return true;
    }
    if (o->kind == EXPORTED_SCRATCH ||
        (o->kind == EXPORTED_SAVED && p->op->kind == LOADED_FORWARD)) {
        p->operands[i] = (struct binding){ .to = BOUND_SCRATCH, .offset = p->scratch_size };
        p->scratch_size += (o->size + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
        return true;
    }
    return bind_argument(p, i, first);
}

// Gradients that are one of the call's as it is become that one, as torch's own do.
static bool share(struct loaded *p, const struct exported_step *s)
{
    const struct binding *from = &p->operands[s->operand];
    for (uint32_t k = s->slots; k < s->slots + s->n_slots; k++) {
        const struct binding *to = &p->operands[p->x.slots[k].operand];
        if (to->to == BOUND_RESULT)
            p->results[to->index].same = (int32_t)from->index;
    }
    return from->to == BOUND_ARG;
}

// One workspace, the largest, serves all products of a run: they follow each other on its stream.
static bool bind_matmul(struct loaded *p, const struct exported_matmul *m)
{
    uint64_t size;
    if (!matmul_fits(p, m, &size))
        return false;
    if (p->workspace_size < size)
        p->workspace_size = size;
    return true;
}

static bool bind_step(struct loaded *p, const struct exported_step *s)
{
    if (s->kind == EXPORTED_COPY)
        return share(p, s);
    p->computes = true;
    if (s->kind == EXPORTED_MATMUL)
        return bind_matmul(p, &p->x.matmuls[s->matmul]);
    return s->kind != EXPORTED_LAUNCH || s->args_size <= BIND_MAX_ARGS_SIZE;
}

// Of a forward, that is; gradients that are not wanted are made of nothing.
static bool makes_all(const struct loaded *p)
{
    const struct torch_op *op = p->op;
    uint32_t n = op->n_outputs + (op->kind == LOADED_KEEP ? op->n_saved : 0);
    return op->lists || op->kind == LOADED_BACKWARD || p->n_results == n;
}

bool bind_plan(struct loaded *p, const int *first, struct opd_err *err)
{
    const struct exported *x = &p->x;
    bool fits = true;
    p->operands = mem_zalloc(x->n_operands + 1, sizeof *p->operands);
    p->results = mem_zalloc(x->n_operands + 1, sizeof *p->results);
    p->small = mem_zalloc(x->n_steps + 1, sizeof *p->small);
    for (uint32_t i = 0; fits && i < x->n_operands; i++)
        fits = bind_operand(p, i, first);
    if (p->op->lists)
        order_results(p);
    for (uint32_t i = 0; fits && i < x->n_steps; i++)
        fits = bind_step(p, &x->steps[i]);
    p->workspace = p->scratch_size;
    p->scratch_size += p->workspace_size;
    return (fits && makes_all(p)) ||
           opd_err_set(err, OPD_E_unavailable, "%s: such a plan runs in the daemon only",
                       p->op->name);
}
