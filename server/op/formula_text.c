#include "op/formula.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

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

static void write_members(const struct formula_kernel *k, struct buf *out)
{
    const char *index = k->wide ? "int64_t" : "uint32_t";
    const struct formula_set *set = k->op->body->formulas;
    for (int i = 0; i < k->n_operands; i++)
        buf_printf(out, "    %s%s *%c_%s;\n", k->operands[i].written ? "" : "const ",
                   k->operands[i].type, mark(k, i, "po"), operand_name(k, i));
    if (k->sum >= 0)
        buf_printf(out,
                   "    %s *sums;\n    int64_t n_kept, n_summed, share, group;\n"
                   "    opd::formula_dims<%d, %d, %s> kept;\n"
                   "    opd::formula_dims<%d, %d, %s> summed;\n",
                   k->sum_type, k->kept_rank, k->n_offsets, index, k->summed_rank, k->n_offsets,
                   index);
    else
        buf_append_str(out, "    int64_t n, share;\n");
    if (k->rank > 0)
        buf_printf(out, "    opd::formula_dims<%d, %d, %s> dims;\n", k->rank, k->n_offsets - 1,
                   index);
    for (int v = 0; v < set->n_values; v++)
        if (k->reach.uses.values >> v & 1 && !set->values[v].is_constant)
            buf_printf(out, "    acc_t c_%d; // %s\n", v, set->values[v].text);
    for (int v = 0; v < set->n_values; v++)
        if (k->reach.uses.values >> v & 1 && set->values[v].is_constant)
            buf_printf(out, "    static constexpr bool c_%d = %s; // %s\n", v,
                       k->known[v] ? "true" : "false", set->values[v].text);
    buf_printf(out, "    typedef %s index;\n    enum { offsets = %d", index, k->n_offsets);
    if (k->sum >= 0)
        buf_printf(out, ", kept_rank = %d, summed_rank = %d };\n    typedef acc_t sum_type;\n",
                   k->kept_rank, k->summed_rank);
    else
        buf_append_str(out, " };\n");
}

static void write_locate(const struct formula_kernel *k, struct buf *out)
{
    if (k->sum >= 0)
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
    if (k->rank > 0)
        buf_append_str(out, "        dims.add((index)i, at + 1);\n");
    buf_append_str(out, "    }\n");
}

static void write_elements(const struct formula_kernel *k, struct buf *out)
{
    buf_append_str(out, "    template <int N> struct elements {\n");
    for (int i = 0; i < k->n_operands; i++)
        buf_printf(out, "        opd::vec<%s, %s> %c_%s;\n", k->operands[i].type,
                   k->operands[i].single ? "1" : "N", mark(k, i, "er"), operand_name(k, i));
    buf_append_str(out, "    };\n    template <int N> __device__ __forceinline__ bool aligned() "
                        "const\n    {\n        return true");
    for (int i = 0; i < k->n_operands; i++)
        if (!k->operands[i].single)
            buf_printf(out, " &&\n               opd::is_aligned(%c_%s, N * (int)sizeof(%s))",
                       mark(k, i, "po"), operand_name(k, i), k->operands[i].type);
    buf_append_str(out, ";\n    }\n");
}

static void write_transfer(const struct formula_kernel *k, bool written, struct buf *out)
{
    buf_printf(out,
               "    template <int N> __device__ __forceinline__ void %s(%selements<N> &e, "
               "const index *at, int64_t k) const\n    {\n",
               written ? "store" : "load", written ? "const " : "");
    for (int i = 0; i < k->n_operands; i++) {
        const struct formula_operand *o = &k->operands[i];
        const char *name = operand_name(k, i);
        if (o->written == written && written)
            buf_printf(out, "        opd::store_vec(o_%s + at[%d] + k, e.r_%s);\n", name, o->offset,
                       name);
        else if (o->written == written && o->single)
            buf_printf(out, "        e.e_%s = opd::load_vec<1>(p_%s + at[%d]);\n", name, name,
                       o->offset);
        else if (o->written == written)
            buf_printf(out, "        e.e_%s = opd::load_vec<N>(p_%s + at[%d] + k);\n", name, name,
                       o->offset);
    }
    buf_append_str(out, "    }\n");
}

static void write_formulas(const struct formula_kernel *k, struct buf *out)
{
    const struct formula_set *set = k->op->body->formulas;
    for (int i = 0; i < k->n_operands; i++)
        if (!k->operands[i].written)
            buf_printf(out, "        const acc_t v_%s = acc_t(e.e_%s[%s]);\n", operand_name(k, i),
                       operand_name(k, i), k->operands[i].single ? "0" : "k");
    for (int i = 0; i < set->n; i++) {
        const struct formula *f = &set->items[i];
        if (!k->reach.formulas[i])
            continue;
        buf_printf(out, "        const %s %c_%s = ", f->is_bool ? "bool" : "acc_t",
                   f->target < 0 ? 'v' : 't', f->name);
        formula_cpp(f->root, k->op, set, k->known, out);
        buf_append_str(out, ";\n");
    }
}

void formula_write(const struct formula_kernel *k, struct buf *out)
{
    char name[2 * OP_MAX_NAME + 16];
    formula_name(k, name, sizeof name);
    buf_printf(out, "struct %s {\n", name);
    write_members(k, out);
    write_locate(k, out);
    write_elements(k, out);
    write_transfer(k, false, out);
    if (k->sum >= 0) {
        buf_append_str(out, "    template <int N> __device__ __forceinline__ acc_t "
                            "value(const elements<N> &e, int k) const\n    {\n");
        write_formulas(k, out);
        buf_printf(out,
                   "        return t_%s;\n    }\n"
                   "    __device__ __forceinline__ void put(int64_t i, acc_t sum) const\n    {\n"
                   "        sums[i] = (%s)(sum);\n    }\n",
                   k->op->body->formulas->items[k->sum].name, k->sum_type);
    } else {
        write_transfer(k, true, out);
        buf_append_str(out, "    template <int N> __device__ __forceinline__ void "
                            "compute(elements<N> &e, int k) const\n    {\n");
        write_formulas(k, out);
        for (int i = 0; i < k->n_operands; i++)
            if (k->operands[i].written)
                buf_printf(out, "        e.r_%s[k] = (%s)(t_%s);\n", operand_name(k, i),
                           k->operands[i].type, operand_name(k, i));
        buf_append_str(out, "    }\n");
    }
    buf_append_str(out, "};\n");
}
