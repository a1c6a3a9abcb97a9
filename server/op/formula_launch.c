#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "op/formula_plan.h"

enum {
    SUM_MEMORY = 32 << 10, // bytes of a block's 48 KiB of shared memory on a GPU
};

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
    if (is_temp(tensor))
        return "acc_t";
    int type = body_tensor(op, tensor)->type;
    return op->types[type].name[0] ? op->types[type].name : dtype_type(p->env->types[type]);
}

int planner_find_sum(const struct planner *p, const struct node *n)
{
    int i = 0;
    while (i < p->n_sums && !formula_is_same(p->set, p->sums[i], n))
        i++;
    return i < p->n_sums ? i : -1;
}

static void add_operand(struct planner *p, int tensor, bool written)
{
    struct formula_operand *o = &p->kernel.operands[p->kernel.n_operands++];
    *o = (struct formula_operand){
        .tensor = tensor, .sum = -1, .type = element_type(p, tensor), .written = written
    };
    for (int i = 0; i < p->n_sums; i++)
        if (p->temps[i] == tensor && is_temp(tensor))
            o->sum = i;
}

// A tree takes part, with the formulas that it names.
static void add_root(struct planner *p, const struct node *root)
{
    p->kernel.reach.outside = !p->kernel.rows;
    formula_reach(p->set, root, p->known, &p->kernel.reach);
}

void launch_add_formula(struct planner *p, int index)
{
    const struct formula *f = &p->set->items[index];
    p->kernel.reach.formulas[index] = true;
    add_root(p, f->root);
    if (p->launch.line == 0)
        p->launch.line = f->line;
}

// What is read: tensors, and sums that have been made.
static void add_read(struct planner *p)
{
    const struct formula_reach *reach = &p->kernel.reach;
    for (int t = 0; t < TENSOR_GRAD_INPUT; t++)
        if (!is_temp(t) && (reach->uses.tensors & formula_bit(t)))
            add_operand(p, t, false);
    bool added[FORMULA_MAX_SUMS] = { false };
    for (int i = 0; i < reach->n_sums; i++) {
        int sum = planner_find_sum(p, reach->sums[i]);
        if (p->is_made[sum] && !added[sum])
            add_operand(p, p->temps[sum], false);
        added[sum] = true;
    }
}

void launch_add_sum(struct planner *p, int sum)
{
    add_root(p, p->sums[sum]);
    launch_add_written(p, p->temps[sum]);
}

void launch_add_written(struct planner *p, int tensor)
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
// `result`: what is summed to, or has a row's number; NULL: nothing is.
static bool lay_out(struct planner *p, const struct tensor_desc *result)
{
    const struct tensor_desc *read[FORMULA_MAX_OPERANDS + 1] = { 0 };
    int place[FORMULA_MAX_OPERANDS + 1], n = 0;
    struct formula_kernel *k = &p->kernel;
    for (int i = 0; i < k->n_operands; i++) {
        const struct tensor_desc *d = env_tensor(p->env, k->operands[i].tensor);
        bool whole = k->operands[i].tensor >= TENSOR_OUTPUT && tensor_desc_numel(d) == p->n;
        if (k->operands[i].written || whole)
            continue;
        if (n == 63) // and the result: bits of a word
            return op_fail(p->err, "more than 63 tensors broadcast");
        place[n] = i;
        read[n++] = d;
    }
    if (result)
        read[n] = result;
    p->summed = n;
    formula_collapse(&p->common, read, n + (result != NULL), &p->dims);
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
    return true;
}

void launch_start(struct planner *p, const char *suffix, bool rows)
{
    p->kernel = (struct formula_kernel){ .op = p->env->request->op,
                                         .suffix = suffix,
                                         .rows = rows,
                                         .names = { .op = p->env->request->op,
                                                    .set = p->set,
                                                    .known = p->known,
                                                    .counts = p->overs != 0,
                                                    .n_sums = p->n_sums,
                                                    .sums = p->sums } };
    p->launch.line = p->launch.n_written = 0;
    p->launch.copied = -1;
    packed_start(&p->launch.packed);
}

static bool launch(struct planner *p, int64_t x, int64_t y, int threads)
{
    if (x > INT32_MAX)
        return op_fail(p->err, "%" PRId64 " elements are more than one launch can take", p->n);
    p->launch.grid[0] = (uint32_t)x;
    p->launch.grid[1] = (uint32_t)y;
    p->launch.block = p->on_cpu ? 1 : (uint32_t)threads;
    return p->add(p->data, &p->launch);
}

// --- element by element

static bool put_map(struct planner *p, int64_t share)
{
    uint32_t all = (uint32_t)((UINT64_C(1) << p->dims.rank) - 1);
    return args_add_operands(p) && args_add_long(p, p->n) && args_add_long(p, share) &&
           (p->kernel.rank == 0 || args_add_dims(p, all, 1)) && args_end(p);
}

static void add_results(struct planner *p)
{
    for (int i = 0; i < p->launch.n_written; i++)
        add_operand(p, p->launch.written[i], true);
}

// The struct's text, and the name of its kernel.
static void write_kernel(struct planner *p, const char *form, const char *more)
{
    char name[2 * OP_MAX_NAME + 16];
    formula_write(&p->kernel, p->text);
    formula_name(&p->kernel, name, sizeof name);
    snprintf(p->launch.kernel, sizeof p->launch.kernel, "opd::%s<%s, %d%s>", form, name,
             p->kernel.width, more);
}

bool launch_map(struct planner *p)
{
    struct formula_kernel *k = &p->kernel;
    add_read(p);
    add_results(p);
    if (!lay_out(p, NULL))
        return false;
    k->rank = k->n_offsets > 1 && p->dims.rank > 1 ? p->dims.rank : 0;
    k->wide = k->wide || k->rank == 0;
    split_map(p);
    int64_t share = most(CPU_SHARE, p->n >> 20);
    if (!put_map(p, share))
        return fail_size(p);
    write_kernel(p, "formula_map", "");
    return launch(p, p->on_cpu ? divide_up(p->n, share) : divide_up(p->n, MAP_BLOCK * k->width), 1,
                  MAP_BLOCK);
}

// --- sums over what was repeated

// Behind the tensors that are read, and those that sums go to.
static bool put_sum(struct planner *p, const struct sum *s)
{
    return args_add_long(p, s->n_kept) && args_add_long(p, s->n_summed) &&
           args_add_long(p, s->share) && args_add_long(p, s->group) &&
           args_add_dims(p, s->kept, 0) && args_add_dims(p, s->summed, 0) && args_end(p);
}

static bool add_total(struct planner *p, const struct sum *s, const struct sum_target *target)
{
    struct packed *packed = &p->launch.packed;
    int lanes = p->on_cpu ? 1 : pow2_within(s->n_kept, 32);
    packed_start(&p->launch.packed);
    if (!packed_put_slot(packed, target->parts) || !packed_put_slot(packed, target->to) ||
        !args_add_long(p, s->n_kept) || !args_add_long(p, s->parts))
        return fail_size(p);
    for (uint32_t i = 0; i < 4; i++)
        packed->params[packed->n_params++] = (struct plan_param){ .offset = 8 * i, .size = 8 };
    p->launch.n_written = 0;
    launch_add_written(p, target->to);
    const char *join = p->kernel.join;
    bool adds = strcmp(join, "opd::formula_add") == 0;
    snprintf(p->launch.kernel, sizeof p->launch.kernel, "opd::formula_total<acc_t, %s, %d%s%s>",
             element_type(p, target->to), lanes, adds ? "" : ", ", adds ? "" : join);
    return launch(p, divide_up(s->n_kept, p->on_cpu ? 1024 : lanes), 1, BLOCK);
}

// Room for the sums of the parts.
static bool make_room(struct planner *p, const struct sum *s, int parts)
{
    struct tensor_desc *room = &p->env->temps[parts - TENSOR_TEMP];
    *room = (struct tensor_desc){ .dtype = env_dtype(p->env, TYPE_ACC),
                                  .rank = 2,
                                  .shape = { s->parts, s->n_kept } };
    return tensor_desc_check(room, p->err);
}

// A block keeps each sum for all its threads and their columns. On the CPU a launch costs nothing,
// and a loop of one sum is a vector's.
int launch_max_sums(const struct planner *p)
{
    size_t size = dtype_size(env_dtype(p->env, TYPE_ACC));
    return p->on_cpu ? 1 : (int)(SUM_MEMORY / (BLOCK * SUM_WIDTH * size));
}

// Where each sum goes, or those of its parts.
static bool add_targets(struct planner *p, const struct sum *s, const struct sum_target *each,
                        int n)
{
    struct formula_kernel *k = &p->kernel;
    bool whole = s->parts == 1;
    if (!args_add_operands(p))
        return false;
    for (int i = 0; i < n; i++) {
        int to = whole ? each[i].to : each[i].parts;
        k->sums[i].root = each[i].root;
        k->sums[i].type = whole ? element_type(p, to) : "acc_t";
        if ((!whole && !make_room(p, s, to)) || !packed_put_slot(&p->launch.packed, to))
            return false;
        launch_add_written(p, to);
    }
    k->n_sums = n;
    return put_sum(p, s);
}

bool launch_sums(struct planner *p, const struct sum_target *each, int n, const char *join,
                 const struct tensor_desc *shape)
{
    struct formula_kernel *k = &p->kernel;
    struct sum s = { .group = 1 };
    char more[32];
    for (int i = 0; i < n; i++)
        add_root(p, each[i].root);
    add_read(p);
    if (!lay_out(p, shape))
        return false;
    k->join = join;
    split_sums(p, &s);
    if (!add_targets(p, &s, each, n))
        return fail_size(p);
    snprintf(more, sizeof more, ", %s, %d", s.columns ? "true" : "false", s.lanes);
    write_kernel(p, "formula_sum", more);
    bool ok = launch(p, s.blocks, s.parts, BLOCK);
    for (int i = 0; i < n && ok && s.parts > 1; i++)
        ok = add_total(p, &s, &each[i]);
    return ok;
}

// --- row by row

bool launch_rows(struct planner *p)
{
    struct formula_kernel *k = &p->kernel;
    struct sum s = { .group = 1 };
    int lanes = 1, items = 0;
    char more[32];
    add_read(p);
    add_results(p);
    for (int i = 0; i < k->n_operands; i++)
        k->operands[i].of_row = k->operands[i].written &&
                                (is_temp(k->operands[i].tensor) ||
                                 tensor_desc_numel(env_tensor(p->env, k->operands[i].tensor)) !=
                                     p->n);
    if (!lay_out(p, &p->row))
        return false;
    split_rows(p, &s, &lanes, &items);
    if (!args_add_operands(p) || !put_sum(p, &s))
        return fail_size(p);
    snprintf(more, sizeof more, ", %d, %d", lanes, items);
    write_kernel(p, "formula_row", more);
    int64_t rows = p->on_cpu ? s.group : lanes > BLOCK ? 1 : BLOCK / lanes;
    return launch(p, divide_up(s.n_kept, rows), 1, lanes > BLOCK ? lanes : BLOCK);
}
