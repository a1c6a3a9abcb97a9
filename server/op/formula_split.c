#include "op/formula_plan.h"

enum {
    GPU_BLOCKS = 1024,     // fill the largest one
    GPU_THREADS = 1 << 16, // with fewer, rows are shared by more
    ASKEW_LEAST = 1 << 16, // elements: rows that begin within vectors are read at once
    ASKEW_ROW = 16,        // vectors of a row that is worth it, and threads of it at least,
    ASKEW_WIDTH = 8,       // elements of one at most: up to 14 are outside, each a thread's
    ASKEW_LONG = 2048,     // elements of a row where most is read one by one
    CPU_BLOCKS = 64,       // so many cores have something to do
    CPU_TILE = 256,        // as in opd.cuh
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
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

void split_map(struct planner *p)
{
    struct formula_kernel *k = &p->kernel;
    int wide = choose_width(p);
    k->width = k->rank == 0 ? wide : choose_row_width(p);
    k->askew = k->rank > 0 && !k->wide && k->width == 1 && wide >= 4 && wide <= ASKEW_WIDTH &&
               p->n >= ASKEW_LEAST;
    if (!k->askew)
        return;
    k->width = wide;
    for (int i = 0; i < k->n_operands; i++)
        k->operands[i].single = false;
}

// --- sums

static void split_gpu(const struct planner *p, struct sum *s)
{
    int64_t n_results = s->columns ? s->n_kept / p->kernel.width : s->n_kept;
    int others = pow2_within(s->vectors, BLOCK);
    while (!s->columns && others > 32 && s->vectors < 8 * others &&
           s->n_kept > 2 * GPU_THREADS / others)
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
    s->parts = least(divide_up(GPU_BLOCKS, most(1, s->blocks)), divide_up(s->vectors, others * 4));
    if (s->vectors <= 16 * others)
        s->parts = 1; // to sum the parts up is a launch more, which takes longer than these
    s->parts = most(s->parts, divide_up(s->vectors, (int64_t)others * 1024));
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
        s->group = most(1, CPU_SHARE / most(1, s->vectors));
        s->blocks = divide_up(s->n_kept, s->group);
    }
    s->parts = least(divide_up(CPU_BLOCKS, most(1, s->blocks)),
                     divide_up(s->vectors, CPU_SHARE / width));
    s->parts = most(s->parts, divide_up(s->vectors, longest));
}

static int count_bits(uint32_t bits)
{
    return bits ? __builtin_popcount(bits) : 1;
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
    int64_t enough = apart > 0 ? ASKEW_LONG : (int64_t)ASKEW_ROW * wide;
    return 4 * k->width <= wide && wide <= ASKEW_WIDTH && !s->columns &&
           k->summed_rank == 1 && s->n_summed >= enough && p->n >= ASKEW_LEAST;
}

// The blocks that a sum is shared out to. Sums of many elements are made in parts, which also errs
// less.
static void split(struct planner *p, struct sum *s)
{
    struct formula_kernel *k = &p->kernel;
    const struct formula_dims *dims = &p->dims;
    s->n_kept = s->n_summed = 1;
    for (int d = 0; d < dims->rank; d++) {
        bool is_summed = dims->repeated[d] >> p->summed & 1;
        *(is_summed ? &s->summed : &s->kept) |= UINT32_C(1) << d;
        *(is_summed ? &s->n_summed : &s->n_kept) *= dims->size[d];
    }
    s->columns = dims->rank > 0 && (s->kept >> (dims->rank - 1) & 1);
    k->kept_rank = count_bits(s->kept);
    k->summed_rank = count_bits(s->summed);
    k->askew = is_askew(p, s);
    if (k->askew)
        k->width = choose_width(p);
    s->vectors = s->columns ? s->n_summed : s->n_summed / k->width;
    if (!k->askew)
        s->n_summed = s->vectors;
    if (p->on_cpu)
        split_cpu(p, s);
    else
        split_gpu(p, s);
    s->parts = most(1, least(s->parts, 65535)); // a sum of nothing has one part, too
    s->share = most(1, divide_up(s->vectors, s->parts));
    s->parts = most(1, divide_up(s->vectors, s->share));
}

void split_sums(struct planner *p, struct sum *s)
{
    p->kernel.width = (int)least(choose_row_width(p), SUM_WIDTH);
    split(p, s);
}

// --- rows

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

void split_rows(struct planner *p, struct sum *s, int *lanes, int *items)
{
    p->kernel.width = choose_row_width(p);
    split(p, s);
    s->share = s->n_summed;
    s->group = p->on_cpu ? most(1, CPU_SHARE / most(1, s->n_summed)) : 1;
    if (s->columns) // rows of one element
        s->n_summed = s->vectors = 1, p->kernel.width = 1;
    if (!p->on_cpu)
        share_row(p, s->vectors, lanes, items);
}
