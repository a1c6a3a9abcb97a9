#include "torch/run.h"

#include <string.h>

#include "base/mem.h"
#include "executor/cpu_image.h"
#include "torch/call.h"
#include "torch/cpu.h"
#include "torch/cuda.h"
#include "torch/functions.h"
#include "torch/image.h"
#include "torch/loaded.h"
#include "torch/matmul.h"

enum { MAX_OPERANDS = 160, MAX_ARGS_SIZE = 4096, SCRATCH_ALIGN = 256 };

struct run {
    struct loaded *p;
    struct call *call;
    void *results[RUN_MAX_RESULTS];
    void *copies[CALL_MAX_ARGS]; // of tensors that lay otherwise, or NULL
    void *scratch;
    struct cuda_run cuda;
    uint64_t addresses[MAX_OPERANDS];
};

// --- binding

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

// The place of an operand that is given among the call's tensors; -1: there is none.
static int find_argument(const struct torch_op *op, const struct exported_operand *o)
{
    if (op->kind != LOADED_BACKWARD)
        return o->kind == EXPORTED_INPUT && o->index < op->n_inputs ? (int)o->index : -1;
    switch (o->kind) {
    case EXPORTED_GRAD_OUTPUT:
        return o->index < op->n_outputs ? (int)o->index : -1;
    case EXPORTED_INPUT:
        return o->index < op->n_inputs ? op->inputs_at[o->index] : -1;
    case EXPORTED_OUTPUT:
        return o->index < op->n_outputs ? op->outputs_at[o->index] : -1;
    case EXPORTED_SAVED:
        return o->index < op->n_saved ? op->saved_at + (int)o->index : -1;
    default:
        return -1;
    }
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

static bool bind_operand(struct loaded *p, uint32_t i)
{
    const struct exported_operand *o = &p->x.operands[i];
    if (o->view_of >= 0)
        return false; // torch's own views are made by Python
    if (is_result(p, o)) {
        uint32_t limit = p->op->kind == LOADED_BACKWARD ? p->op->n_inputs
                                                        : p->op->n_outputs + p->op->n_saved;
        if (p->n_results == RUN_MAX_RESULTS)
            return false;
        bind_result(p, i);
        return p->results[p->n_results - 1].at < limit;
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
    int at = find_argument(p->op, o);
    p->operands[i] = (struct binding){ .to = BOUND_ARG, .index = (uint32_t)at };
    return at >= 0 && at < CALL_MAX_ARGS;
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

static bool bind_step(struct loaded *p, const struct exported_step *s)
{
    if (s->kind == EXPORTED_COPY)
        return share(p, s);
    p->computes = true;
    if (s->kind == EXPORTED_MATMUL)
        return matmul_fits(&p->x.matmuls[s->matmul]);
    return s->kind != EXPORTED_LAUNCH || s->args_size <= MAX_ARGS_SIZE;
}

// Of a forward, that is; gradients that are not wanted are made of nothing.
static bool makes_all(const struct loaded *p)
{
    const struct torch_op *op = p->op;
    uint32_t n = op->n_outputs + (op->kind == LOADED_KEEP ? op->n_saved : 0);
    return op->kind == LOADED_BACKWARD || p->n_results == n;
}

bool run_bind(struct loaded *p, struct opd_err *err)
{
    const struct exported *x = &p->x;
    bool fits = x->n_operands <= MAX_OPERANDS;
    p->operands = mem_zalloc(x->n_operands + 1, sizeof *p->operands);
    p->results = mem_zalloc(RUN_MAX_RESULTS, sizeof *p->results);
    p->small = mem_zalloc(x->n_steps + 1, sizeof *p->small);
    for (uint32_t i = 0; fits && i < x->n_operands; i++)
        fits = bind_operand(p, i);
    for (uint32_t i = 0; fits && i < x->n_steps; i++)
        fits = bind_step(p, &x->steps[i]);
    return (fits && makes_all(p)) ||
           opd_err_set(err, OPD_E_unavailable, "%s: such a plan runs in the daemon only",
                       p->op->name);
}

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
    case BOUND_REPORT:
        data = (void *)(uintptr_t)cuda_report(p->cuda);
        break;
    }
    r->addresses[i] = o->size ? (uintptr_t)data : 0;
    return true;
}

// Two operands, of which one is changed in place; both may be the same, if one is only read.
static bool are_apart(const struct run *r, uint32_t i, uint32_t j)
{
    const struct binding *a = &r->p->operands[i], *b = &r->p->operands[j];
    if (a->to != BOUND_ARG || b->to != BOUND_ARG)
        return true;
    bool one = r->p->op->mutated >> a->index & 1, other = r->p->op->mutated >> b->index & 1;
    uint64_t from = r->addresses[i], to = from + r->p->x.operands[i].size;
    uint64_t at = r->addresses[j], end = at + r->p->x.operands[j].size;
    bool same = from == at && to == end && !(one && other);
    return (!one && !other) || same || to <= at || end <= from;
}

// Python tells what is wrong.
static bool all_apart(const struct run *r)
{
    for (uint32_t i = 0; i < r->p->x.n_operands; i++)
        for (uint32_t j = i + 1; j < r->p->x.n_operands; j++)
            if (!are_apart(r, i, j))
                return false;
    return true;
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
    _Alignas(16) uint8_t args[MAX_ARGS_SIZE];
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

static bool run_step(struct run *r, uint32_t i, struct opd_err *err)
{
    const struct exported_step *s = &r->p->x.steps[i];
    switch (s->kind) {
    case EXPORTED_ZERO:
        return zero(r, s->operand, err);
    case EXPORTED_COPY:
        return true;
    case EXPORTED_MATMUL:
        return matmul_run(r->p, &r->p->x.matmuls[s->matmul], r->addresses, err);
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
    for (uint32_t i = 0; ok && i < p->x.n_steps; i++)
        ok = run_step(r, i, err);
    if (on_cuda) {
        struct opd_err late = { 0 };
        if (!cuda_end(&r->cuda, ok ? err : &late))
            ok = false;
        opd_err_clear(&late);
    }
    return ok && read_report(r, err);
}

// What was changed in a copy goes back to where it came from.
static bool copy_back(const struct run *r, struct opd_err *err)
{
    for (int i = 0; i < r->call->n_tensors && i < 32; i++)
        if (r->p->op->mutated >> i & 1 && r->copies[i] &&
            torch.aoti_torch_copy_(r->call->tensors[i].handle, r->copies[i], 0))
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: the result does not fit back into the tensor that it changes "
                               "in place; its elements share memory",
                               r->p->op->name);
    return true;
}

// Results that the plan does not make, as gradients that are not wanted, are None.
static void give_results(struct run *r, uint64_t *out)
{
    const struct torch_op *op = r->p->op;
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

bool run_plan(struct loaded *p, struct call *call, uint64_t out[RUN_MAX_RESULTS],
              struct opd_err *err)
{
    struct run r;
    r.p = p;
    r.call = call;
    r.scratch = NULL;
    memset(r.results, 0, p->n_results * sizeof *r.results);
    memset(r.copies, 0, (size_t)call->n_tensors * sizeof *r.copies);
    bool ok = prepare(&r) || opd_err_set(err, OPD_E_unavailable, "elsewhere");
    ok = ok && run_steps(&r, err) && copy_back(&r, err);
    for (uint32_t i = 0; !ok && i < p->n_results; i++)
        drop(r.results[i]);
    for (int i = 0; i < call->n_tensors; i++)
        drop(r.copies[i]);
    drop(r.scratch);
    if (ok)
        give_results(&r, out);
    return ok;
}
