#include "op/formula.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum {
    ROW_SUMS = 4, // made in one pass; each has a register of a thread for as long
};

void formula_name(const struct formula_kernel *k, char *out, size_t size)
{
    snprintf(out, size, "%s_%s", k->op->name, k->suffix);
    for (char *at = out; (at = strchr(at, '.')) != NULL;)
        *at = '_'; // of a derived operator
}

static const char *operand_name(const struct formula_kernel *k, int i)
{
    return body_tensor_name(k->op, k->operands[i].tensor);
}

// The letter of an operand's member. A tensor in place is read and written and has both: e_ and r_
// in `elements`, p_ and o_ in the struct.
static char mark(const struct formula_kernel *k, int i, const char *marks)
{
    return marks[k->operands[i].written];
}

// Rows of which begin elsewhere in a vector than those of the others.
static bool is_apart(const struct formula_kernel *k, const struct formula_operand *o)
{
    return k->askew && o->offset > 0;
}

static void write_members(const struct formula_kernel *k, struct buf *out)
{
    const char *index = k->wide ? "int64_t" : "uint32_t";
    const struct formula_set *set = k->op->body->formulas;
    for (int i = 0; i < k->n_operands; i++)
        buf_printf(out, "    %s%s *%c_%s;\n", k->operands[i].written ? "" : "const ",
                   k->operands[i].type, mark(k, i, "po"), operand_name(k, i));
    for (int i = 0; i < k->n_sums; i++)
        buf_printf(out, "    %s *sums_%d;\n", k->sums[i].type, i);
    if (k->n_sums > 0 || k->rows)
        buf_printf(out,
                   "    int64_t n_kept, n_summed, share, group;\n"
                   "    opd::formula_dims<%d, %d, %s> kept;\n"
                   "    opd::formula_dims<%d, %d, %s> summed;\n",
                   k->kept_rank, k->n_offsets, index, k->summed_rank, k->n_offsets, index);
    else
        buf_append_str(out, "    int64_t n, share;\n");
    if (k->rank > 0)
        buf_printf(out, "    opd::formula_dims<%d, %d, %s> dims;\n", k->rank, k->n_offsets - 1,
                   index);
    for (int v = 0; v < set->n_values; v++)
        if (k->reach.uses.values >> v & 1 && !set->values[v].is_constant)
            buf_printf(out, "    acc_t c_%d; // %s\n", v, set->values[v].text);
    if (k->names.counts)
        buf_append_str(out, "    acc_t row_count;\n");
    for (int v = 0; v < set->n_values; v++)
        if (k->reach.uses.values >> v & 1 && set->values[v].is_constant)
            buf_printf(out, "    enum : bool { c_%d = %s }; // %s\n", v,
                       k->names.known[v] ? "true" : "false", set->values[v].text);
    if (k->rows || k->n_sums > 0)
        buf_printf(out, "    enum : bool { askew = %s };\n", k->askew ? "true" : "false");
    buf_printf(out, "    typedef %s index;\n    enum { offsets = %d", index, k->n_offsets);
    if (k->n_sums > 0 || k->rows)
        buf_printf(out, ", kept_rank = %d, summed_rank = %d", k->kept_rank, k->summed_rank);
    buf_append_str(out, " };\n");
    if (k->n_sums > 1)
        buf_printf(out, "    typedef opd::formula_sums<acc_t, %d> sum_type;\n", k->n_sums);
    else if (k->n_sums > 0 || k->rows)
        buf_append_str(out, "    typedef acc_t sum_type;\n");
    if (k->n_sums > 0)
        buf_printf(out, "    typedef %s join;\n", k->join);
}

static void write_locate(const struct formula_kernel *k, struct buf *out)
{
    if (k->n_sums > 0 || k->rows)
        return;
    buf_printf(out, "    __device__ __forceinline__ int64_t row() const\n    {\n        return ");
    if (k->rank > 0)
        buf_printf(out, "dims.size[%d];\n    }\n", k->rank - 1);
    else
        buf_append_str(out, "n;\n    }\n");
    buf_printf(out,
               "    __device__ __forceinline__ void locate(int64_t i, index *at) const\n    {\n"
               "        at[0] = (index)(i * %d);\n",
               k->width);
    for (int t = 1; t < k->n_offsets; t++)
        buf_printf(out, "        at[%d] = 0;\n", t);
    if (k->rank > 0 && !k->askew)
        buf_append_str(out, "        dims.add((index)i, at + 1);\n");
    buf_append_str(out, "    }\n");
}

static void write_elements(const struct formula_kernel *k, struct buf *out)
{
    buf_append_str(out, "    template <int N> struct elements {\n");
    for (int i = 0; i < k->n_operands; i++)
        if (!k->operands[i].of_row)
            buf_printf(out, "        opd::formula_%s<%s, %s> %c_%s;\n",
                       k->operands[i].written ? "result" : "vec", k->operands[i].type,
                       k->operands[i].single ? "1" : "N", mark(k, i, "er"), operand_name(k, i));
    // A static member would be a variable of the GPU's, of which nobody knows that none writes it.
    buf_append_str(out, "    };\n    enum : bool { halves = false");
    for (int i = 0; i < k->n_operands; i++)
        buf_printf(out, " || opd::formula_is_half<%s>::value", k->operands[i].type);
    buf_append_str(out, " };\n    template <int N> __device__ __forceinline__ bool aligned() "
                        "const\n    {\n        return true");
    for (int i = 0; i < k->n_operands; i++)
        if (!k->operands[i].single && !k->operands[i].of_row && !is_apart(k, &k->operands[i]))
            buf_printf(out, " &&\n               opd::is_aligned(%c_%s, N * (int)sizeof(%s))",
                       mark(k, i, "po"), operand_name(k, i), k->operands[i].type);
    buf_append_str(out, ";\n    }\n");
}

// Elements of an operand, each from a place of its own: behind its offset, or, in a map, where rows
// begin anywhere in a vector, where each is found to be.
static void write_each(const struct formula_kernel *k, int i, bool each, struct buf *out)
{
    const struct formula_operand *o = &k->operands[i];
    const char *name = operand_name(k, i), *behind = each ? "" : " + k";
    const char *j = each ? "j * step" : "j";
    buf_append_str(out, "        for (int j = 0; j < N; j++) {\n            ");
    if (o->written)
        buf_printf(out, "o_%s[at[%d] + %s] = e.r_%s[j];\n", name, o->offset, j, name);
    else if (k->rank == 0 || o->offset == 0)
        buf_printf(out, "e.e_%s[j] = p_%s[at[%d]%s + %s];\n", name, name, o->offset, behind, j);
    else
        buf_printf(out,
                   "index its[offsets - 1] = {};\n"
                   "            dims.add((index)(at[0]%s + j), its);\n"
                   "            e.e_%s[j] = p_%s[its[%d]];\n",
                   behind, name, name, o->offset - 1);
    buf_append_str(out, "        }\n");
}

// load and store of a vector at once, but of what lies apart; load_each and store_each, where it is
// not aligned, of elements `step` apart.
static void write_transfer(const struct formula_kernel *k, bool written, bool each, struct buf *out)
{
    const char *behind = each ? "" : " + k";
    buf_printf(out,
               "    template <int N> __device__ __forceinline__ void %s%s(%selements<N> &e, "
               "const index *at%s) const\n    {\n",
               written ? "store" : "load", each ? "_each" : "", written ? "const " : "",
               each ? ", int step" : ", int64_t k");
    for (int i = 0; i < k->n_operands; i++) {
        const struct formula_operand *o = &k->operands[i];
        const char *name = operand_name(k, i);
        if (o->written != written || o->of_row)
            continue;
        if (!o->single && (each || is_apart(k, o)))
            write_each(k, i, each, out);
        else if (written)
            buf_printf(out, "        opd::formula_store(o_%s + at[%d]%s, e.r_%s);\n", name,
                       o->offset, behind, name);
        else
            buf_printf(out, "        opd::formula_load(e.e_%s, p_%s + at[%d]%s);\n", name, name,
                       o->offset, o->single ? "" : behind);
    }
    buf_append_str(out, "    }\n");
}

static void write_tree(const struct formula_kernel *k, const char *before, const struct node *root,
                       const char *behind, struct buf *out)
{
    buf_append_str(out, before);
    formula_cpp(root, &k->names, out);
    buf_append_str(out, behind);
}

// What is read, and the formulas that are reached, by their names.
static void write_formulas(const struct formula_kernel *k, const struct formula_reach *reach,
                           struct buf *out)
{
    const struct formula_set *set = k->op->body->formulas;
    for (int i = 0; i < k->n_operands; i++)
        if (k->operands[i].sum >= 0 && !k->operands[i].written)
            buf_printf(out, "        const acc_t s_%d = acc_t(e.e_%s[%s]);\n", k->operands[i].sum,
                       operand_name(k, i), k->operands[i].single ? "0" : "k");
        else if (!k->operands[i].written &&
                 (reach->uses.tensors & formula_bit(k->operands[i].tensor)))
            buf_printf(out, "        const acc_t v_%s = acc_t(e.e_%s[%s]);\n", operand_name(k, i),
                       operand_name(k, i), k->operands[i].single ? "0" : "k");
    for (int i = 0; i < set->n; i++) {
        const struct formula *f = &set->items[i];
        if (!reach->formulas[i])
            continue;
        buf_printf(out, "        const %s %c_%s = ", f->is_bool ? "bool" : "acc_t",
                   f->target < 0 ? 'v' : 't', f->name);
        write_tree(k, "", f->root, ";\n", out);
    }
}

// Of those results that a row has one of, or of the others.
static int reach_results(const struct formula_kernel *k, bool of_row, struct formula_reach *reach)
{
    const struct formula_set *set = k->op->body->formulas;
    int n = 0;
    *reach = (struct formula_reach){ .outside = true };
    for (int i = 0; i < k->n_operands; i++) {
        const struct formula_operand *o = &k->operands[i];
        if (!o->written || o->of_row != of_row)
            continue;
        n++;
        if (o->sum >= 0)
            continue;
        // The operator's own formula, or of a set with derivatives the one that was reached.
        int f = formula_find(set, o->tensor);
        reach->formulas[f] = true;
        formula_reach(set, set->items[f].root, k->names.known, reach);
    }
    return n;
}

// The sums that this kernel makes, a bit each.
static uint64_t list_made(const struct formula_kernel *k, const struct formula_reach *reach)
{
    uint64_t made = 0;
    for (int i = 0; i < k->names.n_sums; i++)
        for (int r = 0; r < reach->n_sums; r++)
            if (formula_is_same(k->names.set, reach->sums[r], k->names.sums[i]))
                made |= 1ull << i;
    return made;
}

// What is summed, and the formulas that it is made of.
static void reach_summed(const struct formula_kernel *k, int sum, struct formula_reach *reach)
{
    *reach = (struct formula_reach){ .outside = true };
    formula_reach(k->names.set, k->names.sums[sum]->args[0], k->names.known, reach);
}

// Of the sums that are left the first, and those of its kind that wait for no other: one pass over
// the row, whose threads wait for one another once.
static uint64_t choose_together(const struct formula_kernel *k, uint64_t left,
                                const uint64_t *waits_for)
{
    uint64_t chosen = 0;
    const char *join = NULL;
    for (int i = 0, n = 0; i < k->names.n_sums && n < ROW_SUMS; i++) {
        const char *own = formula_join(k->names.sums[i]);
        if (!(left >> i & 1) || (waits_for[i] & left) || (join && strcmp(join, own) != 0))
            continue;
        join = own;
        chosen |= 1ull << i;
        n++;
    }
    return chosen;
}

static void write_together(const struct formula_kernel *k, uint64_t chosen,
                           struct formula_reach *reach, struct buf *out)
{
    const int first = __builtin_ctzll(chosen);
    buf_printf(out, "        const auto sums_%d = row.template join<%s>(", first,
               formula_join(k->names.sums[first]));
    for (int i = first; chosen >> i; i++) {
        if (!(chosen >> i & 1))
            continue;
        reach_summed(k, i, reach);
        buf_printf(out, "%s[&](const auto &e, int k) {\n        (void)e, (void)k;\n",
                   i > first ? ", " : "");
        write_formulas(k, reach, out);
        write_tree(k, "        return acc_t(", k->names.sums[i]->args[0], ");\n        }", out);
    }
    buf_append_str(out, ");\n");
    for (int i = first, n = 0; chosen >> i; i++)
        if (chosen >> i & 1)
            buf_printf(out, "        const acc_t s_%d = sums_%d.v[%d];\n", i, first, n++);
}

static void write_sums(const struct formula_kernel *k, struct formula_reach *reach, struct buf *out)
{
    uint64_t left = list_made(k, &k->reach), waits_for[FORMULA_MAX_SUMS] = { 0 };
    for (int i = 0; left >> i; i++)
        if (left >> i & 1) {
            reach_summed(k, i, reach);
            waits_for[i] = list_made(k, reach);
        }
    while (left) {
        uint64_t chosen = choose_together(k, left, waits_for);
        write_together(k, chosen, reach, out);
        left &= ~chosen;
    }
}

static void write_run(const struct formula_kernel *k, struct buf *out)
{
    struct formula_reach *reach = mem_zalloc(1, sizeof *reach);
    buf_append_str(out, "    template <class R> __device__ __forceinline__ void run(R &&row) "
                        "const\n    {\n");
    write_sums(k, reach, out);
    if (reach_results(k, true, reach) > 0) {
        buf_append_str(out, "        if (row.is_first()) {\n");
        write_formulas(k, reach, out);
        for (int i = 0; i < k->n_operands; i++)
            if (k->operands[i].sum >= 0)
                buf_printf(out, "        o_%s[row.index] = s_%d;\n", operand_name(k, i),
                           k->operands[i].sum);
            else if (k->operands[i].written && k->operands[i].of_row)
                buf_printf(out, "        o_%s[row.index] = (%s)(t_%s);\n", operand_name(k, i),
                           k->operands[i].type, operand_name(k, i));
        buf_append_str(out, "        }\n");
    }
    if (reach_results(k, false, reach) > 0) {
        buf_append_str(out, "        row.each([&](auto &e, int k) {\n");
        write_formulas(k, reach, out);
        for (int i = 0; i < k->n_operands; i++)
            if (k->operands[i].written && !k->operands[i].of_row)
                buf_printf(out, "        e.r_%s[k] = t_%s;\n", operand_name(k, i),
                           operand_name(k, i));
        buf_append_str(out, "        });\n");
    }
    buf_append_str(out, "    }\n");
    free(reach);
}

static void write_value(const struct formula_kernel *k, struct buf *out)
{
    buf_append_str(out, "    template <int N> __device__ __forceinline__ sum_type "
                        "value(const elements<N> &e, int k) const\n    {\n");
    write_formulas(k, &k->reach, out);
    buf_append_str(out, "        return { ");
    for (int i = 0; i < k->n_sums; i++)
        write_tree(k, i > 0 ? ", acc_t(" : "acc_t(", k->sums[i].root, ")", out);
    buf_append_str(out, " };\n    }\n    __device__ __forceinline__ void "
                        "put(int64_t i, sum_type sum) const\n    {\n");
    for (int i = 0; i < k->n_sums; i++)
        buf_printf(out, k->n_sums > 1 ? "        sums_%d[i] = (%s)(sum.v[%d]);\n"
                                      : "        sums_%d[i] = (%s)(sum);\n",
                   i, k->sums[i].type, i);
    buf_append_str(out, "    }\n");
}

static void write_compute(const struct formula_kernel *k, struct buf *out)
{
    buf_append_str(out, "    template <int N> __device__ __forceinline__ void "
                        "compute(elements<N> &e, int k) const\n    {\n");
    write_formulas(k, &k->reach, out);
    for (int i = 0; i < k->n_operands; i++)
        if (k->operands[i].written)
            buf_printf(out, "        e.r_%s[k] = t_%s;\n", operand_name(k, i), operand_name(k, i));
    buf_append_str(out, "    }\n");
}

void formula_write(const struct formula_kernel *k, struct buf *out)
{
    char name[2 * OP_MAX_NAME + 16];
    formula_name(k, name, sizeof name);
    buf_printf(out, "struct %s {\n", name);
    write_members(k, out);
    write_locate(k, out);
    write_elements(k, out);
    write_transfer(k, false, false, out);
    if (k->n_sums == 0)
        write_transfer(k, true, false, out);
    if (k->rows || k->n_sums > 0)
        write_transfer(k, false, true, out);
    if (k->rows) {
        write_transfer(k, true, true, out);
        write_run(k, out);
    } else if (k->n_sums > 0) {
        write_value(k, out);
    } else {
        write_compute(k, out);
    }
    buf_append_str(out, "};\n");
}
