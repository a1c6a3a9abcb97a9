#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "op/formula_plan.h"

enum {
    BLOCK = 256,           // threads on a GPU, as in opd-formula.cuh; one on the CPU
    MAP_BLOCK = 128,       // of what has no sum
    GPU_BLOCKS = 1024,     // fill the largest one
    GPU_THREADS = 1 << 16, // with fewer, rows are shared by more
    SUM_WIDTH = 8,         // columns of a thread at most
    SUM_MEMORY = 32 << 10, // bytes of a block's 48 KiB of shared memory
    ASKEW_LEAST = 1 << 16, // elements: rows that begin within vectors are read at once
    ASKEW_ROW = 16,        // vectors of a row that is worth it,
    ASKEW_LONG = 2048,     // elements of one where most is read one by one
    CPU_BLOCKS = 64,       // so many cores have something to do
    CPU_SHARE = 4096,      // elements that are worth a block there
    CPU_TILE = 256,        // as in opd.cuh
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

static bool fail_size(struct planner *p)
{
    if (p->err->code)
        return false;
    return op_fail(p->err, "the formulas of %s take more than %d bytes of parameters",
                   p->kernel.suffix, OP_MAX_ARGS_SIZE);
}

// --- what takes part

static bool is_temp(int tensor)
{
    return tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT;
}

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

// The elements of a vector of 16 bytes.
static int choose_width(const struct planner *p)
{
    size_t size = 1;
    for (int i = 0; i < p->kernel.n_operands; i++) {
        const struct formula_operand *o = &p->kernel.operands[i];
        size_t own = o->of_row || is_temp(o->tensor)
                         ? 1
                         : dtype_size(env_tensor(p->env, o->tensor)->dtype);
        size = own > size ? own : size;
    }
    return p->on_cpu ? 1 : (int)(16 / size);
}

// Fewer where rows do not consist of whole vectors.
static int choose_row_width(const struct planner *p)
{
    int width = choose_width(p);
    while (width > 1 && (p->dims.rank == 0 || p->dims.size[p->dims.rank - 1] % width > 0))
        width /= 2;
    return width;
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
    k->width = k->rank == 0 ? choose_width(p) : choose_row_width(p);
    k->askew = k->rank > 0 && !k->wide && 4 * k->width <= choose_width(p) && p->n >= ASKEW_LEAST;
    if (k->askew) {
        k->width = choose_width(p);
        for (int i = 0; i < k->n_operands; i++)
            k->operands[i].single = false;
    }
    int64_t share = most(CPU_SHARE, p->n >> 20);
    if (!put_map(p, share))
        return fail_size(p);
    write_kernel(p, "formula_map", "");
    return launch(p, p->on_cpu ? divide_up(p->n, share) : divide_up(p->n, MAP_BLOCK * k->width), 1,
                  MAP_BLOCK);
}

// --- sums over what was repeated

struct sum {
    const char *join;
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
    while (!s->columns && others > 32 && s->n_summed < 8 * others &&
           s->n_kept > GPU_THREADS / others)
        others /= 2; // there are other rows to keep threads at work
    s->lanes = s->columns ? pow2_within(n_results, 32) : BLOCK / others;
    // As few as read 128 bytes that lie together in memory: with more there are fewer blocks.
    while (s->columns && s->lanes > 8 && s->lanes * p->kernel.width > 32 &&
           n_results < 64 * s->lanes && BLOCK / s->lanes < others)
        s->lanes /= 2;
    if (BLOCK / s->lanes > others)
        s->lanes = BLOCK / others;
    others = BLOCK / s->lanes;
    s->blocks = divide_up(n_results, s->lanes);
    s->parts = least(divide_up(GPU_BLOCKS, most(1, s->blocks)), divide_up(s->n_summed, others * 4));
    if (s->n_summed <= 16 * others)
        s->parts = 1; // to sum the parts up is a launch more, which takes longer than these
    s->parts = most(s->parts, divide_up(s->n_summed, (int64_t)others * 1024));
}

static void split_cpu(const struct planner *p, struct sum *s)
{
    int64_t width = 1, longest = 16 * CPU_SHARE;
    s->lanes = 1;
    if (s->columns) {
        int64_t row = most(1, p->dims.size[p->dims.rank - 1]);
        s->blocks = s->n_kept / row * divide_up(row, CPU_TILE);
        width = least(row, CPU_TILE);
        longest = CPU_SHARE;
    } else {
        s->group = most(1, CPU_SHARE / most(1, s->n_summed));
        s->blocks = divide_up(s->n_kept, s->group);
    }
    s->parts = least(divide_up(CPU_BLOCKS, most(1, s->blocks)),
                     divide_up(s->n_summed, CPU_SHARE / width));
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
    s->columns = dims->rank > 0 && (s->kept >> (dims->rank - 1) & 1);
    if (!s->columns)
        s->n_summed /= p->kernel.width;
    if (p->on_cpu)
        split_cpu(p, s);
    else
        split_gpu(p, s);
    s->parts = most(1, least(s->parts, 65535)); // a sum of nothing has one part, too
    s->share = most(1, divide_up(s->n_summed, s->parts));
    s->parts = most(1, divide_up(s->n_summed, s->share));
}

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
    bool adds = strcmp(s->join, "opd::formula_add") == 0;
    snprintf(p->launch.kernel, sizeof p->launch.kernel, "opd::formula_total<acc_t, %s, %d%s%s>",
             element_type(p, target->to), lanes, adds ? "" : ", ", adds ? "" : s->join);
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

static int count_bits(uint32_t bits)
{
    return bits ? __builtin_popcount(bits) : 1;
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
    struct sum s = { .join = join, .group = 1 };
    char more[32];
    for (int i = 0; i < n; i++)
        add_root(p, each[i].root);
    add_read(p);
    if (!lay_out(p, shape))
        return false;
    k->join = join;
    k->width = (int)least(choose_row_width(p), SUM_WIDTH);
    split(p, &s);
    k->kept_rank = count_bits(s.kept);
    k->summed_rank = count_bits(s.summed);
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

// What a vector takes of a thread's registers: all that is loaded, and what is made of that.
static int count_registers(const struct planner *p)
{
    int loaded = 1;
    size_t size = 1;
    for (int i = 0; i < p->kernel.n_operands; i++) {
        const struct formula_operand *o = &p->kernel.operands[i];
        if (o->written || o->single)
            continue;
        size_t own = dtype_size(env_tensor(p->env, o->tensor)->dtype);
        size = own > size ? own : size;
        loaded++;
    }
    return loaded * (int)most((int64_t)size * p->kernel.width / 4, 1);
}

// The threads of a row, and how many vectors each of them holds. Negative: as many at a time, since
// not all fit, or there are none; of what is held the last is read in place of what is not there.
static void share_row(const struct planner *p, int64_t vectors, int *lanes, int *items)
{
    int64_t rows = tensor_desc_numel(&p->row);
    int registers = count_registers(p), limit = 8;
    while (limit > 1 && limit * registers > 64)
        limit /= 2;
    *lanes = pow2_within(vectors, 32);
    while (*lanes < 1024 && divide_up(vectors, *lanes) > limit)
        *lanes *= 2;
    while (*lanes < BLOCK && *lanes < vectors && rows * *lanes < GPU_THREADS)
        *lanes *= 2;
    if (*lanes == 1024 && limit > 4 && limit * registers > 32)
        limit = 4; // it has 64 in all
    *items = pow2_within(divide_up(vectors, *lanes), 16);
    if (*items > limit || vectors == 0) {
        *items = -pow2_within(32 / registers, 4);
        *lanes = 512;
    }
}

// Rows of which few begin with a vector, and that are worth it to read those within them at once:
// longer ones where most of what is read has another shape, and is read element by element.
static bool is_askew(const struct planner *p, const struct sum *s)
{
    const struct formula_kernel *k = &p->kernel;
    int wide = choose_width(p), apart = 0;
    for (int i = 0; i < k->n_operands; i++)
        if (!k->operands[i].written && !k->operands[i].single)
            apart += k->operands[i].offset > 0 ? 1 : -1;
    int64_t least = apart > 0 ? ASKEW_LONG : (int64_t)ASKEW_ROW * wide;
    return 4 * k->width <= wide && !s->columns && k->summed_rank == 1 &&
           s->n_summed * k->width >= least && p->n >= ASKEW_LEAST;
}

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
    k->width = choose_row_width(p);
    split(p, &s);
    k->kept_rank = count_bits(s.kept);
    k->summed_rank = count_bits(s.summed);
    int64_t vectors = s.n_summed;
    k->askew = is_askew(p, &s);
    if (k->askew) {
        s.n_summed *= k->width; // elements: how many vectors differs from row to row
        k->width = choose_width(p);
        vectors = s.n_summed / k->width;
    }
    s.share = s.n_summed;
    s.group = p->on_cpu ? most(1, CPU_SHARE / most(1, s.n_summed)) : 1;
    if (s.columns) // rows of one element
        s.n_summed = 1, k->width = 1;
    if (!p->on_cpu)
        share_row(p, vectors, &lanes, &items);
    if (!args_add_operands(p) || !put_sum(p, &s))
        return fail_size(p);
    snprintf(more, sizeof more, ", %d, %d", lanes, items);
    write_kernel(p, "formula_row", more);
    int64_t rows = p->on_cpu ? s.group : lanes > BLOCK ? 1 : BLOCK / lanes;
    return launch(p, divide_up(s.n_kept, rows), 1, lanes > BLOCK ? lanes : BLOCK);
}
