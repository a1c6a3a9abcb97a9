#include "torch/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "executor/cpu_image.h"
#include "torch/bind.h"
#include "torch/call.h"
#include "torch/cpu.h"
#include "torch/cuda.h"
#include "torch/functions.h"
#include "torch/image.h"
#include "torch/loaded.h"
#include "torch/matmul.h"

enum { OWN_ROOM = 480 };

struct run {
    struct loaded *p;
    struct call *call;
    void **results;
    void **copies; // of tensors that lay otherwise, or NULL
    void *scratch;
    uint64_t *addresses; // of operands
    struct cuda_run cuda;
    uint64_t *room; // for the above: own_room where that is enough
    uint64_t own_room[OWN_ROOM];
};

// --- memory

static bool make_results(struct run *r)
{
    const struct loaded *p = r->p;
    bool on_cuda = p->device_index >= 0;
    for (uint32_t i = 0; i < p->n_results; i++) {
        const struct result *result = &p->results[i];
        const struct exported_operand *o = &p->x.operands[result->operand];
        if (result->same >= 0) {
            void *same = result->same < r->call->n_tensors ? r->call->tensors[result->same].handle
                                                           : NULL;
            if (!same || torch.aoti_torch_new_tensor_handle(same, &r->results[i]))
                return false;
        } else if (torch.aoti_torch_empty_strided(o->rank, o->shape, o->strides,
                                                  torch.dtypes[o->dtype],
                                                  on_cuda ? torch.cuda : torch.cpu,
                                                  on_cuda ? p->device_index : 0, &r->results[i])) {
            return false;
        }
    }
    return true;
}

static bool make_scratch(struct run *r)
{
    const struct loaded *p = r->p;
    bool on_cuda = p->device_index >= 0;
    int64_t size = (int64_t)p->scratch_size, stride = 1;
    return size == 0 ||
           torch.aoti_torch_empty_strided(1, &size, &stride, torch.dtypes[OPD_DTYPE_uint8],
                                          on_cuda ? torch.cuda : torch.cpu,
                                          on_cuda ? p->device_index : 0, &r->scratch) == 0;
}

static bool lies_as_planned(const struct call_tensor *t, const struct exported_operand *o)
{
    bool same = true;
    for (uint32_t i = 0; t->strides && o->size > 0 && i < o->rank; i++)
        same = same && (o->shape[i] == 1 || t->strides[i] == o->strides[i]);
    return t->strides ? same : t->contiguous;
}

// A tensor whose elements lie otherwise is copied first.
static bool lay_out(struct run *r, uint32_t at, const struct exported_operand *o)
{
    struct call_tensor *t = &r->call->tensors[at];
    bool on_cuda = r->p->device_index >= 0;
    if (r->copies[at] || lies_as_planned(t, o))
        return true;
    return torch.aoti_torch_empty_strided(o->rank, o->shape, o->strides, torch.dtypes[o->dtype],
                                          on_cuda ? torch.cuda : torch.cpu,
                                          on_cuda ? r->p->device_index : 0, &r->copies[at]) == 0 &&
           torch.aoti_torch_copy_(r->copies[at], t->handle, 0) == 0 &&
           torch.aoti_torch_get_data_ptr(r->copies[at], &t->data) == 0;
}

// Forward was looked up by its tensors' dtypes and shapes, backward by its plan's number.
static bool is_as_planned(const struct call_tensor *t, const struct exported_operand *o)
{
    return t->handle && t->dtype == (enum opd_dtype)o->dtype && t->rank == o->rank &&
           memcmp(t->sizes, o->shape, o->rank * sizeof *o->shape) == 0;
}

// FSDP takes that of parameters away; Python tells.
static bool has_memory(const struct call_tensor *t)
{
    int64_t bytes = 0;
    return torch.aoti_torch_get_storage_size(t->handle, &bytes) == 0 && bytes > 0;
}

static bool find_address(struct run *r, uint32_t i)
{
    const struct loaded *p = r->p;
    const struct exported_operand *o = &p->x.operands[i];
    const struct binding *b = &p->operands[i];
    void *data = NULL;
    switch (b->to) {
    case BOUND_ARG:
        if ((int)b->index >= r->call->n_tensors || !is_as_planned(&r->call->tensors[b->index], o) ||
            (o->size && !has_memory(&r->call->tensors[b->index])) ||
            (p->computes && !lay_out(r, b->index, o)))
            return false;
        data = r->call->tensors[b->index].data;
        break;
    case BOUND_RESULT:
        if (torch.aoti_torch_get_data_ptr(r->results[b->index], &data))
            return false;
        break;
    case BOUND_SCRATCH:
        if (r->scratch && torch.aoti_torch_get_data_ptr(r->scratch, &data))
            return false;
        data = (char *)data + b->offset;
        break;
    case BOUND_REPORT: // once it is known that the call runs
        break;
    }
    r->addresses[i] = o->size ? (uintptr_t)data : 0;
    return true;
}

struct span { // of memory that is given
    uint64_t from, to;
    bool changed;
    const struct exported_operand *operand;
};

// What is changed comes before what is the same and only read.
static int by_address(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to != y->to ? (x->to > y->to) - (x->to < y->to) : y->changed - x->changed;
}

// One is changed in place, the other only read: so it may be the same, in a list at the same place.
static bool may_share(const struct torch_op *op, const struct span *a, const struct span *b)
{
    bool alike = op->arguments[exported_index(a->operand)].is_list ==
                 op->arguments[exported_index(b->operand)].is_list;
    return !(a->changed && b->changed) && a->from == b->from && a->to == b->to && alike &&
           exported_member(a->operand) == exported_member(b->operand);
}

static bool are_apart(const struct torch_op *op, const struct span *spans, uint32_t n)
{
    const struct span none = { 0 }, *farthest = &none, *changed = &none;
    for (const struct span *s = spans; s < spans + n; s++) {
        const struct span *other = s->changed ? farthest : changed;
        if (s->from < other->to && !may_share(op, s, other))
            return false;
        if (s->to > farthest->to)
            farthest = s;
        if (s->changed && s->to > changed->to)
            changed = s;
    }
    return true;
}

// Python tells what is wrong.
static bool all_apart(const struct run *r)
{
    enum { FEW = 32 };
    const struct loaded *p = r->p;
    struct span few[FEW], *spans = few;
    uint32_t n = 0;
    if (p->x.n_operands > FEW)
        spans = mem_alloc(p->x.n_operands * sizeof *spans);
    for (uint32_t i = 0; i < p->x.n_operands; i++) {
        const struct exported_operand *o = &p->x.operands[i];
        if (p->operands[i].to == BOUND_ARG && o->size > 0)
            spans[n++] = (struct span){ r->addresses[i], r->addresses[i] + o->size,
                                        p->operands[i].changed, o };
    }
    qsort(spans, n, sizeof *spans, by_address);
    bool apart = are_apart(p->op, spans, n);
    if (spans != few)
        free(spans);
    return apart;
}

static bool prepare(struct run *r)
{
    if (!make_results(r) || !make_scratch(r))
        return false;
    for (uint32_t i = 0; i < r->p->x.n_operands; i++)
        if (!find_address(r, i))
            return false;
    return r->p->op->mutated == 0 || all_apart(r);
}

static void drop(void *tensor)
{
    if (tensor)
        torch.aoti_torch_delete_tensor_object(tensor);
}

// --- steps

static bool launch(struct run *r, uint32_t i, struct opd_err *err)
{
    struct loaded *p = r->p;
    const struct exported_step *s = &p->x.steps[i];
    _Alignas(16) uint8_t args[BIND_MAX_ARGS_SIZE];
    memcpy(args, p->x.args + s->args, s->args_size);
    for (uint32_t k = s->slots; k < s->slots + s->n_slots; k++)
        memcpy(args + p->x.slots[k].arg_offset, &r->addresses[p->x.slots[k].operand], 8);
    struct image *image = p->images[s->kernel];
    if (p->device_index >= 0)
        return cuda_launch(&r->cuda, image, s, args, err);
    struct opd_cpu_job job = {
        .grid = { s->grid[0], s->grid[1], s->grid[2] },
        .block = { s->block[0], s->block[1], s->block[2] },
        .args = args,
    };
    return cpu_launch(image, &job, &p->small[i], err);
}

static bool zero(struct run *r, uint32_t operand, struct opd_err *err)
{
    const struct loaded *p = r->p;
    uint64_t size = p->x.operands[operand].size;
    if (p->operands[operand].to == BOUND_REPORT)
        return true; // it stays until it is told
    if (p->device_index >= 0)
        return cuda_zero(&r->cuda, r->addresses[operand], size, err);
    if (size)
        memset((void *)(uintptr_t)r->addresses[operand], 0, size);
    return true;
}

static bool multiply(struct run *r, const struct exported_matmul *m, struct opd_err *err)
{
    void *scratch = NULL;
    if (r->p->workspace_size > 0 && torch.aoti_torch_get_data_ptr(r->scratch, &scratch))
        return opd_err_set(err, OPD_E_internal, "%s: torch's scratch memory has no address",
                           r->p->op->name);
    return matmul_run(r->p, m, r->addresses, &r->cuda, (uintptr_t)scratch + r->p->workspace, err);
}

static bool run_step(struct run *r, uint32_t i, struct opd_err *err)
{
    const struct exported_step *s = &r->p->x.steps[i];
    switch (s->kind) {
    case EXPORTED_ZERO:
        return zero(r, s->operand, err);
    case EXPORTED_COPY:
        return true;
    case EXPORTED_MATMUL:
        return multiply(r, &r->p->x.matmuls[s->matmul], err);
    default:
        return launch(r, i, err);
    }
}

static bool read_report(const struct run *r, struct opd_err *err)
{
    const struct loaded *p = r->p;
    uint64_t key = 0;
    if (p->x.head->report < 0 || p->device_index >= 0)
        return true;
    memcpy(&key, (const void *)(uintptr_t)r->addresses[p->x.head->report], sizeof key);
    if (!key)
        return true;
    struct buf text = { 0 };
    exported_explain(&p->x, key, &text);
    opd_err_set(err, OPD_E_invalid_argument, "%s: %s", p->op->name, buf_str(&text));
    buf_finish(&text);
    return false;
}

static bool run_steps(struct run *r, struct opd_err *err)
{
    struct loaded *p = r->p;
    bool on_cuda = p->device_index >= 0, ok = true;
    if (on_cuda && !cuda_begin(&r->cuda, p, err))
        return false;
    if (on_cuda && p->x.head->report >= 0)
        r->addresses[p->x.head->report] = cuda_next_report(p->cuda);
    for (uint32_t i = 0; ok && i < p->x.n_steps; i++)
        ok = run_step(r, i, err);
    if (on_cuda)
        cuda_end(&r->cuda);
    return ok && read_report(r, err);
}

// What was changed in a copy goes back to where it came from.
static bool copy_back(const struct run *r, struct opd_err *err)
{
    for (uint32_t i = 0; i < r->p->x.n_operands; i++) {
        const struct binding *b = &r->p->operands[i];
        if (b->changed && r->copies[b->index] &&
            torch.aoti_torch_copy_(r->call->tensors[b->index].handle, r->copies[b->index], 0))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: the result does not fit back into the tensor that it changes "
                               "in place; its elements share memory",
                               r->p->op->name);
    }
    return true;
}

static void give_list(struct run *r, uint64_t *out)
{
    void *list = NULL;
    torch.torch_new_list_reserve_size(r->p->n_results, &list);
    for (uint32_t i = 0; i < r->p->n_results; i++)
        torch.torch_list_push_back(list, (uintptr_t)r->results[i]);
    out[0] = (uintptr_t)list;
    out[1] = r->p->serial;
}

// Results that the plan does not make, as gradients that are not wanted, are None.
static void give_results(struct run *r, uint64_t *out)
{
    const struct torch_op *op = r->p->op;
    if (op->lists) {
        give_list(r, out);
        return;
    }
    for (uint32_t i = 0; op->kind == LOADED_BACKWARD && i < op->n_inputs; i++)
        out[i] = 0;
    for (uint32_t i = 0; i < r->p->n_results; i++)
        out[r->p->results[i].at] = (uintptr_t)r->results[i];
    for (uint32_t i = 0; op->kind == LOADED_BACKWARD && i < op->n_inputs; i++) {
        void *none = NULL;
        if (!out[i] && torch.aoti_torch_new_uninitialized_tensor(&none) == 0)
            out[i] = (uintptr_t)none;
    }
    if (op->kind == LOADED_KEEP)
        out[op->n_outputs + op->n_saved] = r->p->serial;
}

static void make_room(struct run *r)
{
    size_t n_results = r->p->n_results, n_tensors = (size_t)r->call->n_tensors;
    size_t n = n_results + n_tensors + r->p->x.n_operands;
    r->room = n <= OWN_ROOM ? r->own_room : mem_alloc(n * sizeof *r->room);
    memset(r->room, 0, (n_results + n_tensors) * sizeof *r->room);
    r->results = (void **)r->room;
    r->copies = r->results + n_results;
    r->addresses = r->room + n_results + n_tensors;
}

bool run_plan(struct loaded *p, struct call *call, uint64_t out[RUN_MAX_RESULTS],
              struct opd_err *err)
{
    struct run r;
    r.p = p;
    r.call = call;
    r.scratch = NULL;
    make_room(&r);
    bool ok = prepare(&r) || opd_err_set(err, OPD_E_unavailable, "elsewhere");
    ok = ok && run_steps(&r, err) && copy_back(&r, err);
    for (uint32_t i = 0; !ok && i < p->n_results; i++)
        drop(r.results[i]);
    for (int i = 0; i < call->n_tensors; i++)
        drop(r.copies[i]);
    drop(r.scratch);
    if (ok)
        give_results(&r, out);
    if (r.room != r.own_room)
        free(r.room);
    return ok;
}
