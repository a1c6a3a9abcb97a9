#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/formula.h"
#include "base/mem.h"

enum {
    BLOCK = 256,       // threads on a GPU, as in opd.cuh; one on the CPU
    GPU_BLOCKS = 1024, // fill the largest one
    CPU_BLOCKS = 64,   // so many cores have something to do
    CPU_SHARE = 4096,  // elements that are worth a block there
    CPU_TILE = 256,    // as in opd.cuh
};

struct planner {
    struct env *env;
    const struct formula_set *set;
    struct opd_err *err;
    struct tensor_desc common;
    int64_t n; // elements of it
    bool on_cpu;
    int8_t known[FORMULA_MAX_VALUES]; // truth values; -1: of another type

    // The launch at hand
    struct formula_kernel kernel;
    struct formula_dims dims;
    uint32_t patterns[FORMULA_MAX_OFFSETS]; // by offset: the dimensions along which it stays
    int summed;                             // the place of the summed input in `repeated` of dims
    struct formula_launch launch;

    struct buf *text;
    bool (*add)(void *data, const struct formula_launch *launch);
    void *data;
};

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b > 0);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// The smallest power of two that is not below n, or `limit`, a power of two.
static int pow2_within(int64_t n, int limit)
{
    int p = 1;
    while (p < n && p < limit)
        p *= 2;
    return p;
}

// --- arguments: bytes laid out as C++ lays out the struct

static bool put_index(struct packed *packed, bool wide, int64_t value)
{
    void *at = packed_put(packed, wide ? 8 : 4, wide ? 8 : 4);
    uint32_t narrow = (uint32_t)value;
    if (at)
        memcpy(at, wide ? (const void *)&value : &narrow, wide ? 8 : 4);
    return at != NULL;
}

// Dimensions of a formula_dims of opd.cuh: those of `chosen`, for the offsets from `first` on.
static bool put_dims(struct planner *p, uint32_t chosen, int first)
{
    struct packed *packed = &p->launch.packed;
    const struct formula_dims *dims = &p->dims;
    const bool wide = p->kernel.wide;
    int64_t size[OP_MAX_RANK] = { 1 };
    int inner = dims->rank - 1, n = 0;
    for (int d = 0; d < dims->rank; d++)
        if (chosen >> d & 1)
            size[n++] = d == inner ? dims->size[d] / p->kernel.width : dims->size[d];
    n = n > 0 ? n : 1;
    bool ok = true;
    for (int d = 0; d < n; d++)
        ok = ok && put_index(packed, wide, size[d]);
    for (int d = 0; d < n; d++)
        ok = ok && put_index(packed, wide, wide ? 0 : cnumber_magic(size[d]));
    for (int t = first; t < p->kernel.n_offsets; t++) {
        int64_t strides[OP_MAX_RANK] = { 0 }, stride = 1;
        int k = n;
        for (int d = inner; d >= 0; d--) {
            bool stays = p->patterns[t] >> d & 1;
            if (chosen >> d & 1)
                strides[--k] = stays ? 0 : d == inner ? p->kernel.width : stride;
            stride *= stays ? 1 : dims->size[d];
        }
        for (int d = 0; d < n; d++)
            ok = ok && put_index(packed, wide, strides[d]);
    }
    return ok;
}

static bool put_value(struct planner *p, const struct formula_value *v)
{
    union expr_value value;
    struct cnumber type = cnumber_of_dtype(env_dtype(p->env, TYPE_ACC));
    if (!expr_eval(v->expr, p->env, &value, p->err))
        return false;
    void *at = packed_put(&p->launch.packed, type.size, type.size);
    if (!at)
        return false;
    if (cnumber_store(type, value, v->expr->type, at))
        return true;
    return op_fail(p->err, "%s does not fit into %s", v->text,
                   dtype_name(env_dtype(p->env, TYPE_ACC)));
}

static bool put_values(struct planner *p)
{
    for (int v = 0; v < p->set->n_values; v++)
        if ((p->kernel.reach.uses.values >> v & 1) && !p->set->values[v].is_constant &&
            !put_value(p, &p->set->values[v]))
            return false;
    return true;
}

static bool put_operands(struct planner *p)
{
    for (int i = 0; i < p->kernel.n_operands; i++)
        if (!packed_put_slot(&p->launch.packed, p->kernel.operands[i].tensor))
            return false;
    return true;
}

// The struct is the kernel's only parameter.
static void end_struct(struct packed *packed)
{
    packed_put(packed, 0, 8);
    packed->params[packed->n_params++] = (struct plan_param){ .size = packed->size };
}

static bool fail_size(struct planner *p)
{
    if (p->err->code)
        return false;
    return op_fail(p->err, "the formulas of %s take more than %d bytes of parameters",
                   p->kernel.suffix, OP_MAX_ARGS_SIZE);
}

// --- what takes part

static const char *element_type(const struct planner *p, int tensor)
{
    const struct op *op = p->env->request->op;
    int type = body_tensor(op, tensor)->type;
    return op->types[type].name[0] ? op->types[type].name : dtype_type(p->env->types[type]);
}

static void add_operand(struct planner *p, int tensor, bool written)
{
    p->kernel.operands[p->kernel.n_operands++] = (struct formula_operand){
        .tensor = tensor, .type = element_type(p, tensor), .written = written
    };
}

static void add_formula(struct planner *p, int index, uint64_t *tensors)
{
    const struct formula *f = &p->set->items[index];
    struct formula_reach *reach = &p->kernel.reach;
    reach->formulas[index] = true;
    formula_reach(p->set, f->root, p->known, reach);
    *tensors = reach->uses.tensors;
    if (p->launch.line == 0)
        p->launch.line = f->line;
}

static void add_read(struct planner *p, uint64_t tensors)
{
    for (int t = 0; t < TENSOR_GRAD_INPUT; t++)
        if ((t < TENSOR_TEMP || t >= TENSOR_GRAD_OUTPUT) && (tensors & formula_bit(t)))
            add_operand(p, t, false);
}

static void add_written(struct planner *p, int tensor)
{
    p->launch.written[p->launch.n_written++] = tensor;
}

static int find_pattern(struct planner *p, uint32_t pattern)
{
    int t = 0;
    while (t < p->kernel.n_offsets && p->patterns[t] != pattern)
        t++;
    if (t == p->kernel.n_offsets)
        p->patterns[p->kernel.n_offsets++] = pattern;
    return t;
}

// The offset of each operand: operands that stay along the same of the dimensions share one.
static void lay_out(struct planner *p, int summed)
{
    const struct tensor_desc *inputs[OP_MAX_INPUTS + 1] = { 0 };
    int place[OP_MAX_INPUTS + 1], n = 0;
    struct formula_kernel *k = &p->kernel;
    for (int i = 0; i < k->n_operands; i++)
        if (k->operands[i].tensor < TENSOR_OUTPUT && !k->operands[i].written) {
            place[n] = i;
            inputs[n++] = env_tensor(p->env, k->operands[i].tensor);
        }
    if (summed >= 0)
        inputs[n] = env_tensor(p->env, summed);
    p->summed = n;
    formula_collapse(&p->common, inputs, n + (summed >= 0), &p->dims);
    p->patterns[0] = 0;
    k->n_offsets = 1;
    for (int t = 0; t < n; t++) {
        uint32_t pattern = 0;
        for (int d = 0; d < p->dims.rank; d++)
            pattern |= (uint32_t)(p->dims.repeated[d] >> t & 1) << d;
        k->operands[place[t]].offset = find_pattern(p, pattern);
        k->operands[place[t]].single = p->dims.rank > 0 && (pattern >> (p->dims.rank - 1) & 1);
    }
    k->wide = p->n > INT32_MAX;
}

// The elements of a vector of 16 bytes; fewer where rows do not consist of whole vectors.
static int choose_width(const struct planner *p, bool any_row)
{
    size_t size = 1;
    for (int i = 0; i < p->kernel.n_operands; i++) {
        size_t own = dtype_size(env_tensor(p->env, p->kernel.operands[i].tensor)->dtype);
        size = own > size ? own : size;
    }
    int width = p->on_cpu ? 1 : (int)(16 / size);
    while (!any_row && width > 1 &&
           (p->dims.rank == 0 || p->dims.size[p->dims.rank - 1] % width > 0))
        width /= 2;
    return width;
}

static bool find_known(struct planner *p)
{
    memset(p->known, -1, sizeof p->known);
    for (int v = 0; v < p->set->n_values; v++) {
        bool truth;
        if (!p->set->values[v].is_constant)
            continue;
        if (!expr_eval_bool(p->set->values[v].expr, p->env, &truth, p->err))
            return false;
        p->known[v] = truth;
    }
    return true;
}

static void start_kernel(struct planner *p, const char *suffix)
{
    p->kernel = (struct formula_kernel){
        .op = p->env->request->op, .suffix = suffix, .known = p->known, .sum = -1
    };
    p->launch.line = p->launch.n_written = 0;
    packed_start(&p->launch.packed);
}

static bool launch(struct planner *p, int64_t x, int64_t y)
{
    if (x > INT32_MAX)
        return op_fail(p->err, "%" PRId64 " elements are more than one launch can take", p->n);
    p->launch.grid[0] = (uint32_t)x;
    p->launch.grid[1] = (uint32_t)y;
    p->launch.block = p->on_cpu ? 1 : BLOCK;
    return p->add(p->data, &p->launch);
}

// --- element by element

static bool put_map(struct planner *p, int64_t share)
{
    struct packed *packed = &p->launch.packed;
    uint32_t all = (uint32_t)((UINT64_C(1) << p->dims.rank) - 1);
    if (!put_operands(p) || !put_index(packed, true, p->n) || !put_index(packed, true, share) ||
        (p->kernel.rank > 0 && !put_dims(p, all, 1)) || !put_values(p))
        return false;
    end_struct(packed);
    return true;
}

static bool add_map(struct planner *p, uint64_t tensors)
{
    struct formula_kernel *k = &p->kernel;
    char name[2 * OP_MAX_NAME + 16];
    add_read(p, tensors);
    for (int i = 0; i < p->launch.n_written; i++)
        add_operand(p, p->launch.written[i], true);
    lay_out(p, -1);
    k->rank = k->n_offsets > 1 && p->dims.rank > 1 ? p->dims.rank : 0;
    k->wide = k->wide || k->rank == 0;
    k->width = choose_width(p, k->rank == 0);
    int64_t share = most(CPU_SHARE, p->n >> 20);
    if (!put_map(p, share))
        return fail_size(p);
    formula_write(k, p->text);
    formula_name(k, name, sizeof name);
    snprintf(p->launch.kernel, sizeof p->launch.kernel, "opd::formula_map<%s, %d>", name, k->width);
    return launch(p, p->on_cpu ? divide_up(p->n, share) : divide_up(p->n, BLOCK * k->width), 1);
}

// --- sums over what was repeated

struct sum {
    int input;
    uint32_t kept, summed;    // dimensions
    bool columns;             // the innermost dimension is kept
    int64_t n_kept, n_summed; // the latter in vectors, unless these are columns
    int lanes;
    int64_t blocks, share, parts, group;
};

static void split_gpu(const struct planner *p, struct sum *s)
{
    int64_t n_results = s->columns ? s->n_kept / p->kernel.width : s->n_kept;
    int others = pow2_within(s->n_summed, BLOCK);
    s->lanes = s->columns ? pow2_within(n_results, 32) : BLOCK / others;
    if (BLOCK / s->lanes > others)
        s->lanes = BLOCK / others;
    others = BLOCK / s->lanes;
    s->blocks = divide_up(n_results, s->lanes);
    s->parts = least(divide_up(GPU_BLOCKS, s->blocks), divide_up(s->n_summed, others * 4));
    s->parts = most(s->parts, divide_up(s->n_summed, (int64_t)others * 1024));
}

static void split_cpu(const struct planner *p, struct sum *s)
{
    int64_t width = 1, longest = 16 * CPU_SHARE;
    s->lanes = 1;
    if (s->columns) {
        int64_t row = p->dims.size[p->dims.rank - 1];
        s->blocks = s->n_kept / row * divide_up(row, CPU_TILE);
        width = least(row, CPU_TILE);
        longest = CPU_SHARE;
    } else {
        s->group = most(1, CPU_SHARE / s->n_summed);
        s->blocks = divide_up(s->n_kept, s->group);
    }
    s->parts = least(divide_up(CPU_BLOCKS, s->blocks), divide_up(s->n_summed, CPU_SHARE / width));
    s->parts = most(s->parts, divide_up(s->n_summed, longest));
}

// The blocks that a sum is shared out to. Sums of many elements are made in parts, which also errs
// less.
static void split(const struct planner *p, struct sum *s)
{
    const struct formula_dims *dims = &p->dims;
    s->n_kept = s->n_summed = 1;
    for (int d = 0; d < dims->rank; d++) {
        bool is_summed = dims->repeated[d] >> p->summed & 1;
        *(is_summed ? &s->summed : &s->kept) |= UINT32_C(1) << d;
        *(is_summed ? &s->n_summed : &s->n_kept) *= dims->size[d];
    }
    s->columns = s->kept >> (dims->rank - 1) & 1;
    if (!s->columns)
        s->n_summed /= p->kernel.width;
    if (p->on_cpu)
        split_cpu(p, s);
    else
        split_gpu(p, s);
    s->parts = least(s->parts, 65535);
    s->share = divide_up(s->n_summed, s->parts);
    s->parts = divide_up(s->n_summed, s->share);
}

static bool put_sum(struct planner *p, const struct sum *s, int to)
{
    struct packed *packed = &p->launch.packed;
    if (!put_operands(p) || !packed_put_slot(packed, to) || !put_index(packed, true, s->n_kept) ||
        !put_index(packed, true, s->n_summed) || !put_index(packed, true, s->share) ||
        !put_index(packed, true, s->group) || !put_dims(p, s->kept, 0) ||
        !put_dims(p, s->summed, 0) || !put_values(p))
        return false;
    end_struct(packed);
    return true;
}

static bool add_total(struct planner *p, const struct sum *s)
{
    struct packed *packed = &p->launch.packed;
    int lanes = p->on_cpu ? 1 : pow2_within(s->n_kept, 32);
    packed_start(&p->launch.packed);
    if (!packed_put_slot(packed, TENSOR_TEMP + s->input) ||
        !packed_put_slot(packed, TENSOR_GRAD_INPUT + s->input) ||
        !put_index(packed, true, s->n_kept) || !put_index(packed, true, s->parts))
        return fail_size(p);
    for (uint32_t i = 0; i < 4; i++)
        packed->params[packed->n_params++] = (struct plan_param){ .offset = 8 * i, .size = 8 };
    p->launch.n_written = 0;
    add_written(p, TENSOR_GRAD_INPUT + s->input);
    snprintf(p->launch.kernel, sizeof p->launch.kernel, "opd::formula_total<acc_t, %s, %d>",
             element_type(p, TENSOR_GRAD_INPUT + s->input), lanes);
    return launch(p, divide_up(s->n_kept, p->on_cpu ? 1024 : lanes), 1);
}

// Room for the sums of the parts.
static bool make_room(struct planner *p, const struct sum *s)
{
    struct tensor_desc *room = &p->env->temps[s->input];
    *room = (struct tensor_desc){ .dtype = env_dtype(p->env, TYPE_ACC),
                                  .rank = 2,
                                  .shape = { s->parts, s->n_kept } };
    return tensor_desc_check(room, p->err);
}

static int count_bits(uint32_t bits)
{
    return bits ? __builtin_popcount(bits) : 1;
}

static bool add_sum(struct planner *p, int formula)
{
    struct formula_kernel *k = &p->kernel;
    struct sum s = { .input = p->set->items[formula].target - TENSOR_GRAD_INPUT, .group = 1 };
    uint64_t tensors = 0;
    char name[2 * OP_MAX_NAME + 16];
    start_kernel(p, p->set->items[formula].name);
    add_formula(p, formula, &tensors);
    add_read(p, tensors);
    lay_out(p, s.input);
    k->sum = formula;
    k->width = choose_width(p, false);
    split(p, &s);
    k->kept_rank = count_bits(s.kept);
    k->summed_rank = count_bits(s.summed);
    k->sum_type = s.parts > 1 ? "acc_t" : element_type(p, TENSOR_GRAD_INPUT + s.input);
    int to = (s.parts > 1 ? TENSOR_TEMP : TENSOR_GRAD_INPUT) + s.input;
    if (s.parts > 1 && !make_room(p, &s))
        return false;
    if (!put_sum(p, &s, to))
        return fail_size(p);
    add_written(p, to);
    formula_write(k, p->text);
    formula_name(k, name, sizeof name);
    snprintf(p->launch.kernel, sizeof p->launch.kernel, "opd::formula_sum<%s, %d, %s, %d>", name,
             k->width, s.columns ? "true" : "false", s.lanes);
    return launch(p, s.blocks, s.parts) && (s.parts == 1 || add_total(p, &s));
}

// --- a request

static bool is_repeated(const struct planner *p, int input)
{
    return tensor_desc_numel(&p->env->request->inputs[input]) != p->n;
}

static bool add_all(struct planner *p)
{
    bool backward = p->env->request->direction == PLAN_BACKWARD;
    uint64_t tensors = 0;
    start_kernel(p, backward ? "backward" : "forward");
    for (int i = 0; i < p->set->n; i++) {
        int target = p->set->items[i].target;
        if (target < 0 || (target >= TENSOR_GRAD_INPUT) != backward ||
            !env_has_tensor(p->env, target) ||
            (backward && is_repeated(p, target - TENSOR_GRAD_INPUT)))
            continue;
        add_formula(p, i, &tensors);
        add_written(p, target);
    }
    if (p->launch.n_written > 0 && !add_map(p, tensors))
        return false;
    for (int i = 0; backward && i < p->set->n; i++) {
        int target = p->set->items[i].target;
        if (target >= TENSOR_GRAD_INPUT && env_has_tensor(p->env, target) &&
            is_repeated(p, target - TENSOR_GRAD_INPUT) && !add_sum(p, i))
            return false;
    }
    return true;
}

bool formula_plan(struct env *env, struct buf *text,
                  bool (*add)(void *data, const struct formula_launch *launch), void *data,
                  struct opd_err *err)
{
    struct planner *p = mem_zalloc(1, sizeof *p);
    p->env = env;
    p->set = env->request->op->body->formulas;
    p->err = err;
    p->common = formula_common_shape(env->request);
    p->n = tensor_desc_numel(&p->common);
    p->on_cpu = env->request->on_cpu;
    p->text = text;
    p->add = add;
    p->data = data;
    bool ok = p->n == 0 || (find_known(p) && add_all(p));
    free(p);
    return ok;
}
